"""A flow policy from demonstrations: a small generative prior, as an ONNX graph of observations and noise.

It learns the velocity that carries noise to chunks of recorded actions along straight lines (flow matching), so it
keeps what a Gaussian loses: demonstrations that pass an obstacle on the left and on the right stay two ways.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from repolicy.envs import observing
from repolicy.errors import UsageError
from repolicy.policies.export import onnx_graph
from repolicy.policies.storage import check_place, write_bytes
from repolicy.prepare.imitation import space_of
from repolicy.readers.demonstrations import Demonstrations, read_demonstrations

EULER = 8  # steps from noise to actions
STEPS, MINIBATCH, LEARNING_RATE = 8_000, 512, 1e-3
CUT = 5.0  # stds of the recorded observations, beyond which an observation counts as this far


@dataclass(frozen=True)
class Flowed:
    """What was fitted: the file, how many numbers of noise and actions a chunk it has, and the mean squared error."""

    file: Path
    noise: int
    chunk: int
    loss: float
    chunks: int


class Flow(nn.Module):
    """Observations `[N, O]` and noise `[N, Z]` to the actions of a chunk, one after the other, `[N, Z]`."""

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
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        self.network = nn.Sequential(*(each for layer in layers for each in (layer, nn.SiLU())))[:-1]

    def velocity(self, observations: Tensor, places: Tensor, time: Tensor) -> Tensor:
        """Return where standardized actions `[N, Z]` move at a time `[N, 1]` between 0 (noise) and 1 (actions)."""
        seen = ((observations - self.observation_mean) / self.observation_std).clamp(-CUT, CUT)
        return self.network(torch.cat([seen, places, time], -1))  # type: ignore[no-any-return]

    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:
        places = noise
        for step in range(EULER):
            time = torch.full_like(noise[:, :1], step / EULER)
            places = places + self.velocity(observations, places, time) / EULER
        return (places * self.action_std + self.action_mean).clamp(self.low, self.high)


def fit_flow(
    flow: Flow, observations: Tensor, chunks: Tensor, generator: torch.Generator, progress: Callable[[int], None]
) -> float:
    """Minimize E|v(o, (1 − t)·z + t·x, t) − (x − z)|² over chunks x, noise z and times t. Returns its latest mean."""
    wanted = (chunks - flow.action_mean) / flow.action_std
    optimizer = torch.optim.Adam(flow.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    latest = 0.0
    for step in range(STEPS):
        rows = torch.randint(len(wanted), (MINIBATCH,), generator=generator)
        noise = torch.randn(MINIBATCH, wanted.shape[1], generator=generator)
        time = torch.rand(MINIBATCH, 1, generator=generator)
        between = (1.0 - time) * noise + time * wanted[rows]
        loss = (flow.velocity(observations[rows], between, time) - (wanted[rows] - noise)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        latest += (float(loss.detach()) - latest) / min(step + 1, 200)
        progress(step + 1)
    return latest


def imitate_flow(
    data: str | Path | Demonstrations,
    out: str | Path,
    *,
    env: str | None = None,
    chunk: int = 1,
    hidden: tuple[int, ...] = (256, 256),
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Flowed:
    """Fit a flow policy that gives `chunk` actions in a row, and write it as an ONNX graph of two inputs.

    With `env` the sizes are checked.
    """
    demonstrations = data if isinstance(data, Demonstrations) else read_demonstrations(data)
    if demonstrations.discrete:
        raise UsageError(f"{demonstrations.name} has choices, and a flow gives actions that are numbers")
    if env is not None:
        space_of(demonstrations, observing(env, demonstrations.observations.shape[1]))
    check_place(Path(out))  # before the fit, which would be lost
    if Path(out).suffix != ".onnx":
        raise UsageError(f"--out {out} does not end in .onnx, and a flow is written as an ONNX graph")
    if Path(out).exists():
        raise UsageError(f"{out} is there already: choose another --out")
    observations, chunks = in_chunks(demonstrations, chunk)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        flow = Flow(observations, chunks, hidden)
    loss = fit_flow(flow, observations, chunks, torch.Generator().manual_seed(seed), progress)
    example = observations[:2], torch.zeros(2, chunks.shape[1])
    write_bytes(Path(out), onnx_graph(flow.eval().requires_grad_(False), example))
    return Flowed(Path(out), chunks.shape[1], chunk, loss, len(chunks))


def in_chunks(data: Demonstrations, chunk: int) -> tuple[Tensor, Tensor]:
    """Return observations `[M, O]`, and the actions `[M, C · A]` of the `chunk` steps that begin there.

    No chunk goes beyond an episode's end: at the last steps the last action is repeated.
    """
    if chunk < 1:
        raise UsageError(f"--chunk is {chunk}; it must be 1 or more")
    if chunk > 1 and data.ended is None:
        raise UsageError(
            f"{data.name} does not say where an episode ended, and no chunk of actions may go beyond: save an array "
            "'ended' with the observations and actions, or take --chunk 1"
        )
    count = len(data.actions)
    ended = torch.zeros(count, dtype=torch.bool) if data.ended is None else data.ended.bool()
    ends = torch.where(ended, torch.arange(count), count - 1)
    last = ends.flip(0).cummin(0).values.flip(0)  # [M] the last step of each step's episode
    steps = torch.minimum(torch.arange(count)[:, None] + torch.arange(chunk), last[:, None])
    return data.observations, data.actions[steps].flatten(1)
