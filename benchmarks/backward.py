"""Are the backward pass, tanh, score and loss by hand worth their lines? Against autograd and torch.compile.

    python benchmarks/backward.py --out results/backward.jsonl

The contenders update the same networks on the same batch, in turns of one update each, on one thread. A row has the
medians of the paired ratios (time of the other / time of ours) and their middle half, and beside them the time of the
physics for as many steps: what the whole of training gains by ours.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.envs.making import make_envs
from repolicy.learning.ppo import Batch, Learner, update
from repolicy.plan.defaults import train_defaults
from repolicy.policies.network import Mlp
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.runs.machine import command, commit, keep_freed_memory
from repolicy.runs.settings import Settings

ENVS = ["HalfCheetah-v4", "Hopper-v4", "Ant-v4"]
HIDDEN = [(64, 64), (512, 256, 128)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    for env in ENVS:
        for hidden in HIDDEN:
            row = {"command": command(), "commit": commit()} | measure(env, hidden, options.rounds)
            print(json.dumps(row), flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def measure(env: str, hidden: tuple[int, ...], rounds: int) -> dict[str, object]:
    settings = train_defaults(env)
    envs = make_envs(env, settings.envs, 0)
    actions = np.zeros((envs.count, *np.shape(envs.actions.low)), np.float32)
    envs.reset()
    torch.manual_seed(0)
    policy = Policy(PolicySpec(envs.observation_size, envs.actions, hidden=hidden))
    critic = Mlp(envs.observation_size, hidden, 1)
    size = settings.iteration_steps
    inputs = torch.randn(size, envs.observation_size)
    with torch.no_grad():
        distribution = policy.distribution(inputs)
        taken = distribution.sample()
        batch = Batch(inputs, taken, distribution.log_prob(taken), torch.randn(size), torch.randn(size, 1))
    ours = Learner(policy, critic, 0.0)  # it does not move, so every round does the same
    contenders = {"ours": by_hand(ours, batch, settings)}
    for name, compiled in (("autograd", False), ("compile", True)):
        contenders[name] = by_autograd(policy, critic, batch, settings, compiled)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    physics = []
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(settings.n_steps):
            envs.step(actions)
        physics.append(time.perf_counter() - began)
        if turn == 0:  # warm-up, and compilation
            times, physics = {name: [] for name in contenders}, []
    row: dict[str, object] = {"env": env, "hidden": list(hidden), "rounds": rounds}
    for name in ("autograd", "compile"):
        update_ratios = [other / mine for other, mine in zip(times[name], times["ours"], strict=True)]
        whole = [(o + p) / (m + p) for o, m, p in zip(times[name], times["ours"], physics, strict=True)]
        row[name] = {"update": spread(update_ratios), "training": spread(whole)}
    return row


def spread(ratios: list[float]) -> list[float]:
    """Median, and the middle half."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return [round(value, 3) for value in (middle, low, high)]


def by_hand(learner: Learner, batch: Batch, settings: Settings) -> Callable[[], None]:
    return lambda: ignored(update(learner, batch, settings, torch.Generator().manual_seed(0)))


def ignored(_: object) -> None: ...


def by_autograd(policy: Policy, critic: Mlp, batch: Batch, settings: Settings, compiled: bool) -> Callable[[], None]:
    """The same update as most people write it, on flat parameters as well, so that only the backward pass differs."""

    def plain(network: Mlp) -> nn.Sequential:
        layers: list[nn.Module] = []
        for weight, bias in zip(network.weights, network.biases, strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
            layers += [layer, nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    actor, value = plain(policy.network), plain(critic)
    log_std = nn.Parameter(policy.log_std.detach().clone())
    learner = copy.copy(Learner(Policy(policy.spec), Mlp(critic.weights[0].shape[1], policy.spec.hidden, 1), 0.0))
    parameters = [*actor.parameters(), log_std, *value.parameters()]
    half_log_two_pi = 0.9189385332046727

    def loss(inputs: Tensor, actions: Tensor, log_probs: Tensor, gains: Tensor, returns: Tensor) -> Tensor:
        found = (-0.5 * ((actions - actor(inputs)) * torch.exp(-log_std)).square() - log_std - half_log_two_pi).sum(-1)
        ratio = torch.exp(found - log_probs)
        surrogate = torch.min(ratio * gains, ratio.clamp(1 - settings.clip, 1 + settings.clip) * gains)
        errors = value(inputs) - returns
        return -surrogate.mean() + 0.5 * settings.value_coefficient * errors.square().mean()

    function = torch.compile(loss) if compiled else loss

    def run() -> None:
        generator = torch.Generator().manual_seed(0)
        for _ in range(settings.epochs):
            for part in batch.minibatches(settings.minibatch, generator):
                gradients = torch.autograd.grad(
                    function(part.inputs, part.actions, part.log_probs, part.advantages, part.returns), parameters
                )
                learner.gradient.copy_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
                learner.step(settings.max_gradient_norm, lambda tensor: tensor, 1, True)

    return run


if __name__ == "__main__":
    main()
