"""How near customizing a prior of 512-256-128 comes to what physics and the networks' passes alone allow.

    python -m benchmarks.large_prior --out results/large_prior.jsonl

Contenders take turns, an iteration each: the worker as it customizes; and its parts alone, which are the steps of the
environments with random actions, the actor's forward pass for each of them, one pass of prior and critic over the
rollout, and forward and backward passes of actor and critic for each minibatch of each epoch, by PyTorch's own modules
and autograd. Measured is the processor time of this process, on one thread.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments import campaign
from experiments.ledger import write_rows
from repolicy.envs.making import make_envs
from repolicy.learning.segments import Segments
from repolicy.objective import residual
from repolicy.policies.file import policy_bytes
from repolicy.policies.policy import Policy, PolicySpec, one_thread
from repolicy.prepare.defaults import customize_defaults
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

HIDDEN = (512, 256, 128)
TASKS = {"HalfCheetah-v4": "hind_leg", "Ant-v4": "sideways"}


def measure(env: str, addon: str, rounds: int) -> dict[str, object]:
    envs = make_envs(env, 2, 0)
    torch.manual_seed(0)
    prior = Policy(PolicySpec(envs.observation_size, envs.actions, hidden=HIDDEN, activation="swish"))
    settings = replace(customize_defaults(prior), ranks=1)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        request = Request(env, residual(0.3, 0.1), settings, (addon,), prior="made here")
        folder.begin(request, {}, resume=False, prior=policy_bytes(prior, {}))
        segments = Segments(request, folder, SingleRank())
        segments.begin()
        worker = segments.worker
        worker.iteration = settings.iterations // 2  # the actor moves
        contenders = {"customizing": lambda: worker.iterate(stop=False), **alone(env, prior, settings)}
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds + 1):
            for name, run in contenders.items():
                began = time.process_time()
                run()
                seconds[name].append(time.process_time() - began)
    whole, *parts = ([*each[1:]] for each in seconds.values())  # the first is a warm-up
    shares = [sum(each) / iteration for iteration, *each in zip(whole, *parts, strict=True)]
    return {
        "env": env,
        "share": round(statistics.median(shares), 3),
        "shares": [round(min(shares), 3), round(max(shares), 3)],
        "seconds": {name: round(statistics.median(each[1:]), 4) for name, each in seconds.items()},
    }


def alone(env: str, prior: Policy, settings: Settings) -> dict[str, Callable[[], object]]:
    """Physics and passes, with nothing around them."""
    envs = make_envs(env, settings.envs, 1)
    envs.reset()
    inputs, width = prior.observation_size, prior.actions.width
    actions = np.random.default_rng(0).standard_normal((settings.n_steps, settings.envs, width)).astype(np.float32)
    actor, critic = plain(inputs, HIDDEN, width), plain(inputs, settings.hidden, 1)
    rollout = torch.randn(settings.iteration_steps, inputs)

    def physics() -> None:
        for each in actions:
            envs.step(each)

    @torch.no_grad()
    def acting() -> None:
        for part in rollout.split(settings.envs):
            actor(part)

    @torch.no_grad()
    def scoring() -> None:
        actor(rollout), critic(rollout)

    def learning() -> None:
        for _ in range(settings.epochs):
            for part in rollout.split(settings.minibatch):
                (actor(part).square().mean() + critic(part).square().mean()).backward()

    return {"physics": physics, "acting": acting, "scoring": scoring, "learning": learning}


def plain(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.SiLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


@campaign.program(out=Path("results/large_prior.jsonl"), rounds=7)
def main(options: campaign.Options) -> None:
    with one_thread():
        rows = [measure(env, addon, options.rounds) for env, addon in TASKS.items()]
    write_rows(options.out, rows)
    for row in rows:
        print(f"{row['env']}: {row['share']:.0%} of what physics and passes alone allow")
