"""Fit a prior to recorded observations and actions by imitation: a policy with a std, or a flow.

The policy is fitted by maximum likelihood. The flow is a generative policy: an ONNX graph of observations and noise. It
is fitted by flow matching: it learns the velocity that moves noise to recorded actions along straight lines. So it can
represent several ways of doing a task, such as passing an obstacle on either side; a Gaussian would take their mean.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from repolicy.envs import evaluate, match_observation, probe_env
from repolicy.errors import UsageError, check_counts
from repolicy.files import check_writable, write_bytes
from repolicy.policies import ActionSpace, Adam, Policy, PolicySpec, make_policy, read_card, save_policy
from repolicy.policies.export import onnx_graph
from repolicy.prepare.cloning import initialize_from_samples
from repolicy.priors import FitResult, Samples, fit
from repolicy.readers.demonstrations import Demonstrations, read_demonstrations
from repolicy.runs import versions
from repolicy.text import format_digits

TRIAL_EPISODES = 10
IMITATION = "imitation"  # `which` in the card of the file
EULER_STEPS = 8  # integration steps from noise to actions
FLOW_STEPS, FLOW_MINIBATCH, FLOW_LEARNING_RATE = 8_000, 512, 1e-3
OBSERVATION_CLIP = 5.0  # in stds of the recorded observations


@dataclass(frozen=True)
class Imitation:
    """The result of an imitation: the policy, its file, the fit, and its return."""

    file: Path
    policy: Policy
    fit_result: FitResult
    env: str
    returns: tuple[float, float] | None  # mean and std with the mean action; None without an environment


def imitate(
    data: str | Path | Demonstrations,
    out: str | Path,
    *,
    env: str | None = None,
    hidden: tuple[int, ...] = (256, 256),
    state_std: bool = False,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, float], None] = lambda *_: None,
) -> Imitation:
    """Fit a policy to demonstrations until the held-out likelihood stops rising, and write its file.

    The std is one for all states or, with `state_std`, depends on the state. With `env` the spaces are checked, the
    policy is evaluated, and the file names the environment for `customize`. Discrete actions begin at the numbers of
    the environment's action space, without one at 0.
    """
    demonstrations = data if isinstance(data, Demonstrations) else read_demonstrations(data)
    env = None if env is None else match_observation(env, demonstrations.observations.shape[1])
    actions = action_space_for(demonstrations, env)
    targets = stored_actions(demonstrations, actions, env)
    if demonstrations.discrete and actions.low:
        say(f"choices are read as the environment counts them, from {', '.join(f'{low:g}' for low in actions.low)}")
    check_writable(Path(out))  # before the fit, which would be lost
    if Path(out).exists() and read_card(Path(out)).get("which") != IMITATION:
        raise UsageError(f"{out} is there already, and no imitation: choose another --out")
    policy = make_policy(_spec(demonstrations, actions, hidden, state_std), seed)
    samples = Samples(demonstrations.observations, targets)
    initialize_from_samples(policy, samples)
    if policy.log_std is not None:
        policy.log_std.data.copy_(demonstrations.actions.std(0).clamp_min(1e-3).log())
    result = fit(policy, samples, torch.Generator().manual_seed(seed), progress)
    policy.requires_grad_(False)
    say(
        f"a log-likelihood of {result.held_out:.4g} nats a step on the tenth of {demonstrations.name} that was held "
        f"out ({result.log_likelihood:.4g} on the rest), after {result.epochs} epochs over {result.rows:,} steps"
    )
    if policy.std is not None and float(policy.std.min()) <= 2.0 * policy.spec.min_std:
        problem = "the std is at its lower bound: the recorded actions follow from the observations and tell no width"
        say(f"{problem}, so customizing from here needs a small omega")

    card = {"which": IMITATION, "versions": versions(), "imitation": asdict(result)}
    returns = None
    if env is not None:
        card["request"] = {"env": env}
        evaluation = evaluate(policy, env, TRIAL_EPISODES, seed=seed, longest=1_000)
        returns = (float(evaluation.basic.mean()), float(evaluation.basic.std()))
        if math.isfinite(returns[0]):
            mean_and_std = f"{format_digits(returns[0], 4)} ± {format_digits(returns[1], 2)}"
            say(f"it earns {mean_and_std} in {env} (mean action, {TRIAL_EPISODES} episodes)")
    save_policy(out, policy, card)
    return Imitation(Path(out), policy, result, env or "", returns)


def action_space_for(data: Demonstrations, env: str | None) -> ActionSpace:
    """Return the environment's action space, without `env` that of the data; raise where they do not fit."""
    size, width = data.observations.shape[1], data.actions.shape[1]
    if env is None:
        if not data.discrete:
            return ActionSpace("continuous", (width,))
        largest = data.actions.max(0).values - torch.tensor(data.first or 0, dtype=torch.int64)
        return ActionSpace("discrete", tuple((largest + 1).tolist()), data.first)
    probe = probe_env(env)
    if probe.observation_size != size:
        raise UsageError(f"{data.name} has observations of {size} numbers, but {env!r} gives {probe.observation_size}")
    if probe.actions.width != width or (probe.actions.kind == "discrete") != data.discrete:
        kind = "choices" if data.discrete else "numbers"
        raise UsageError(f"{data.name} has actions of {width} {kind}, but {env!r} takes {probe.actions}")
    return probe.actions


def stored_actions(data: Demonstrations, space: ActionSpace, env: str | None) -> Tensor:
    """Return the actions `[M, A]` as a policy stores them, choices from 0; raise where some are outside the space."""
    if not data.discrete:
        return data.actions
    first = torch.tensor(space.low or 0, dtype=torch.int64)
    sizes = torch.tensor(space.sizes, dtype=torch.int64)
    choices = data.actions - first
    if bool(((choices < 0) | (choices >= sizes)).any()):
        low, high = (bound.tolist() for bound in data.actions.aminmax(dim=0))
        rule = "without --env they count from 0"
        if env:
            lowest = [int(bound) for bound in space.low] or [0] * space.width
            rule = f"{env!r} takes {lowest} to {(sizes - 1 + first).tolist()}: record its own numbers"
        raise UsageError(f"{data.name} has choices from {low} to {high}, and {rule}")
    return choices


def _spec(data: Demonstrations, actions: ActionSpace, hidden: tuple[int, ...], state_std: bool) -> PolicySpec:
    size = data.observations.shape[1]
    if not data.discrete:
        family = "state_gaussian" if state_std else "gaussian"
        std = max(float(data.actions.std(0).mean()), 1e-2)
        return PolicySpec(size, actions, family, hidden, "elu", initial_std=std)
    if state_std:
        raise UsageError(f"{data.name} has choices, which have no std: leave --state-std out")
    return PolicySpec(size, actions, "categorical", hidden, "elu")


# Flows ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlowFit:
    """The result of fitting a flow."""

    file: Path
    noise: int  # size of the noise
    chunk: int  # number of successive actions in the output
    loss: float  # mean of the last steps
    chunks: int  # number of chunks in the data


class Flow(nn.Module):
    """A network from observations `[N, O]` and noise `[N, Z]` to the actions of a chunk, flattened to `[N, Z]`."""

    observation_mean: Tensor
    observation_std: Tensor
    action_mean: Tensor
    action_std: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, observations: Tensor, chunks: Tensor, hidden: tuple[int, ...]) -> None:
        super().__init__()
        for name, values in (("observation", observations), ("action", chunks)):
            self.register_buffer(f"{name}_mean", values.mean(0))
            self.register_buffer(f"{name}_std", values.std(0).clamp_min(1e-4))
        self.register_buffer("low", chunks.min(0).values)
        self.register_buffer("high", chunks.max(0).values)
        sizes = [observations.shape[1] + chunks.shape[1] + 1, *hidden, chunks.shape[1]]
        layers = list[nn.Module]()
        for pair in pairwise(sizes):
            layers += [nn.Linear(*pair), nn.SiLU()]
        self.network = nn.Sequential(*layers[:-1])

    def velocity(self, observations: Tensor, actions: Tensor, time: Tensor) -> Tensor:
        """Return the velocity of standardized actions `[N, Z]` at a time `[N, 1]` from 0 (noise) to 1 (actions)."""
        standardized = (observations - self.observation_mean) / self.observation_std
        clipped = standardized.clamp(-OBSERVATION_CLIP, OBSERVATION_CLIP)
        return self.network(torch.cat([clipped, actions, time], -1))  # type: ignore[no-any-return]

    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Integrate the velocity from noise to actions by Euler's method."""
        actions = noise
        for step in range(EULER_STEPS):
            time = torch.full_like(noise[:, :1], step / EULER_STEPS)
            actions = actions + self.velocity(observations, actions, time) / EULER_STEPS
        return (actions * self.action_std + self.action_mean).clamp(self.low, self.high)


def fit_flow(
    flow: Flow, observations: Tensor, chunks: Tensor, generator: torch.Generator, progress: Callable[[int], None]
) -> float:
    """Minimize E|v(o, (1 − t)·z + t·x, t) − (x − z)|² over chunks x, noise z and times t; return a running mean."""
    targets = (chunks - flow.action_mean) / flow.action_std
    adam = Adam(flow.parameters(), FLOW_LEARNING_RATE)
    mean_loss = 0.0
    for step in range(FLOW_STEPS):
        rows = torch.randint(len(targets), (FLOW_MINIBATCH,), generator=generator)
        noise = torch.randn(FLOW_MINIBATCH, targets.shape[1], generator=generator)
        time = torch.rand(FLOW_MINIBATCH, 1, generator=generator)
        interpolated = (1.0 - time) * noise + time * targets[rows]
        loss = (flow.velocity(observations[rows], interpolated, time) - (targets[rows] - noise)).square().mean()
        adam.rate = FLOW_LEARNING_RATE * (0.5 + 0.5 * math.cos(math.pi * step / FLOW_STEPS))
        adam.descend(loss)
        mean_loss += (float(loss.detach()) - mean_loss) / min(step + 1, 200)
        progress(step + 1)
    return mean_loss


def imitate_flow(
    data: str | Path | Demonstrations,
    out: str | Path,
    *,
    env: str | None = None,
    chunk: int = 1,
    hidden: tuple[int, ...] = (256, 256),
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> FlowFit:
    """Fit a flow that gives `chunk` actions in a row, and write it as an ONNX graph; with `env`, check the sizes."""
    demonstrations = data if isinstance(data, Demonstrations) else read_demonstrations(data)
    if demonstrations.discrete:
        raise UsageError(f"{demonstrations.name} has choices, and a flow gives actions that are numbers")
    if env is not None:
        action_space_for(demonstrations, match_observation(env, demonstrations.observations.shape[1]))
    check_writable(Path(out))  # before the fit, which would be lost
    if Path(out).suffix != ".onnx":
        raise UsageError(f"--out {out} does not end in .onnx, and a flow is written as an ONNX graph")
    if Path(out).exists():
        raise UsageError(f"{out} is there already: choose another --out")
    observations, chunks = split_into_chunks(demonstrations, chunk)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        flow = Flow(observations, chunks, hidden)
    loss = fit_flow(flow, observations, chunks, torch.Generator().manual_seed(seed), progress)
    example = observations[:2], torch.zeros(2, chunks.shape[1])
    write_bytes(Path(out), onnx_graph(flow.eval().requires_grad_(False), example))
    return FlowFit(Path(out), chunks.shape[1], chunk, loss, len(chunks))


def split_into_chunks(data: Demonstrations, chunk: int) -> tuple[Tensor, Tensor]:
    """Return observations `[M, O]`, and the actions `[M, C · A]` of the `chunk` steps that begin there.

    A chunk that would go beyond an episode's end repeats the episode's last action.
    """
    check_counts(chunk=chunk)
    if chunk > 1 and data.ended is None:
        raise UsageError(
            f"{data.name} does not say where an episode ended, and no chunk of actions may go beyond: save an array "
            "'ended' with the observations and actions, or take --chunk 1"
        )
    count = len(data.actions)
    ended = torch.zeros(count, dtype=torch.bool) if data.ended is None else data.ended.bool()
    ends = torch.where(ended, torch.arange(count), count - 1)
    last = ends.flip(0).cummin(0).values.flip(0)  # [M], the last step of the episode that a step belongs to
    steps = torch.minimum(torch.arange(count)[:, None] + torch.arange(chunk), last[:, None])
    return data.observations, data.actions[steps].flatten(1)
