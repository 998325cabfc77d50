"""A benchmark: the speed of training relative to that of stepping the environments alone.

The speed of a shared machine drifts. So slices of physics alone and slices of training alternate on the same ranks, and
their medians are compared. A slice of training is a twentieth of a segment's iterations. A twentieth of the time for
the segment's start and end (environments, evaluation, checkpoint) is added to it.
"""

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from repolicy.envs import Envs
from repolicy.errors import check_counts
from repolicy.learning.segments import Segments
from repolicy.objective import soft
from repolicy.policies import one_thread
from repolicy.prepare.checks import check_request
from repolicy.runs import Request, RunFolder, Settings, Stream, ranks

PARTS = 20  # number of slices in a segment


def bench(env: str, settings: Settings, slices: int) -> dict[str, Any]:
    """Run the benchmark, with `slices` slices of each kind, and return its results."""
    check_counts(slices=slices)
    settings = settings.resolved()
    ranks.check_count(settings.ranks)
    rounds = max(1, round(settings.checkpoint_every / PARTS))
    steps = max(10 * PARTS, slices) * rounds * settings.iteration_steps
    settings = replace(settings, checkpoint_every=PARTS * rounds, steps=steps)
    request = Request(env, soft(0.01), settings)
    check_request(request)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(path)
        folder.begin(request, {}, resume=False)
        program = ["from repolicy.learning.bench import run_other_rank; run_other_rank()", path, str(slices)]
        with ranks.launch_ranks(settings.ranks, program) as team:
            figures = measure(request, folder, team, slices)
    return figures


def run_other_rank() -> None:
    """Run the benchmark in the process of a rank other than the first."""
    folder, (slices, *place) = RunFolder(sys.argv[1]), map(int, sys.argv[2:])
    measure(folder.load_request(), folder, ranks.join_ranks(*place), slices)


@one_thread()
def measure(request: Request, folder: RunFolder, team: ranks.Ranks, slices: int) -> dict[str, Any]:
    """Time the slices, with all ranks in lockstep, and return the results."""
    settings = request.settings
    segments = Segments(request, folder, team)
    physics = Physics(segments.make_rank_envs(Stream.PHYSICS, settings.envs // team.count))
    rounds = settings.checkpoint_every // PARTS

    def timed(work: Callable[[], None]) -> float:
        """Return the seconds until all ranks have done the work; the sums make them start and end together."""
        team.sum(torch.zeros(1))
        started = time.perf_counter()
        work()
        team.sum(torch.zeros(1))
        return time.perf_counter() - started

    def train() -> None:
        for _ in range(rounds):
            segments.worker.iterate(stop=False)

    def finish() -> None:
        segments.end()
        segments.save()

    physics.run(settings.n_steps)  # the first steps are slower
    begin = timed(segments.begin)
    alone, training = [], []
    for _ in range(slices):
        alone.append(timed(lambda: physics.run(rounds * settings.n_steps)))
        training.append(timed(train))
    end = timed(finish)
    peak = team.sum(torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024], dtype=torch.float64))
    shown = {name: getattr(settings, name) for name in ("envs", "n_steps", "minibatch", "epochs")}
    about = {"env": request.env, "backend": segments.worker.collector.envs.backend, "ranks": team.count}
    about |= shown | {"hidden": list(settings.hidden), "memory_mb_a_rank": float(peak) / team.count}
    return about | speeds(alone, training, begin + end, rounds * settings.iteration_steps)


def speeds(physics: list[float], training: list[float], ends: float, steps: int) -> dict[str, Any]:
    """Return speeds, from the seconds and the steps of each slice, and the seconds of a segment's start and end."""
    physics_slice, whole_slice = statistics.median(physics), statistics.median(training) + ends / PARTS
    slices = [alone / trained for alone, trained in zip(physics, training, strict=True)]
    return {
        "steps": steps * len(training),
        "physics_steps_per_second": steps / physics_slice,
        "training_steps_per_second": steps / whole_slice,
        "share": physics_slice / whole_slice,
        "slice_shares": {"min": min(slices), "median": statistics.median(slices), "max": max(slices)},
    }


class Physics:
    """Environments that are stepped with random actions."""

    def __init__(self, envs: Envs) -> None:
        self._envs, space, generator = envs, envs.actions, np.random.default_rng(0)
        envs.reset()
        shape = (64, envs.count, space.width)
        self._actions = (
            generator.standard_normal(shape).astype(np.float32)
            if space.kind == "continuous"
            else generator.integers(0, space.sizes, shape)
        )

    def run(self, steps: int) -> None:
        for t in range(steps):
            self._envs.step(self._actions[t % len(self._actions)])
