"""Fit a flow to recorded observations and actions: a generative policy, written as an ONNX graph.

The graph turns observations and noise into actions. It is fitted by flow matching: it learns the velocity that moves
noise to recorded actions along straight lines. So it can represent several ways of doing a task, such as passing an
obstacle on either side; a Gaussian would take their mean.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from repolicy.envs import match_observation
from repolicy.errors import UsageError, check_counts
from repolicy.files import check_writable, write_bytes
from repolicy.policies import Adam
from repolicy.policies.export import onnx_graph
from repolicy.prepare.imitation import action_space_for
from repolicy.readers.demonstrations import Demonstrations, read_demonstrations

EULER_STEPS = 8  # integration steps from noise to actions
STEPS, MINIBATCH, LEARNING_RATE = 8_000, 512, 1e-3
OBSERVATION_CLIP = 5.0  # in stds of the recorded observations


@dataclass(frozen=True)
class FlowFit:
    """The result of fitting a flow."""

    file: Path
    env: str  # with the part that it observes; empty where none was named
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
            # What never changes keeps its unit: if an observation moves a little later, it is still a small input.
            is_constant = (values == values[0]).all(0)
            self.register_buffer(f"{name}_std", torch.where(is_constant, 1.0, values.std(0)))
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
    adam = Adam(flow.parameters(), LEARNING_RATE)
    mean_loss = 0.0
    for step in range(STEPS):
        rows = torch.randint(len(targets), (MINIBATCH,), generator=generator)
        noise = torch.randn(MINIBATCH, targets.shape[1], generator=generator)
        time = torch.rand(MINIBATCH, 1, generator=generator)
        interpolated = (1.0 - time) * noise + time * targets[rows]
        loss = (flow.velocity(observations[rows], interpolated, time) - (targets[rows] - noise)).square().mean()
        adam.rate = LEARNING_RATE * (0.5 + 0.5 * math.cos(math.pi * step / STEPS))
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
        env = match_observation(env, demonstrations.observations.shape[1])
        action_space_for(demonstrations, env)
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
    return FlowFit(Path(out), env or "", chunks.shape[1], chunk, loss, len(chunks))


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
