"""Ranks as threads of this process. They add up as processes do, in memory that they share."""

import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from repolicy.errors import RepolicyError
from repolicy.learning.segments import Segments
from repolicy.learning.worker import Worker
from repolicy.runs import ranks
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request


class Others:
    """Knows whether a rank has failed, so that none waits for it."""

    failed = False

    def check(self) -> None:
        if self.failed:
            raise RepolicyError("another rank failed")


def in_threads(count: int, work: Callable[[ranks.Ranks], Any]) -> list[Any]:
    """What `work` gives on each of so many ranks."""
    others, buffer = Others(), mmap.mmap(-1, ranks.SharedMemory.size(count))

    def one(index: int) -> Any:
        try:
            return work(ranks.SharedMemory(index, count, buffer, others))
        except BaseException:
            others.failed = True
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def customized(request: Request, prior: Path, out: Path) -> list[tuple[Worker, list[dict[str, float]]]]:
    """Each rank's worker at the end of such a run, and its metrics."""
    folder, alone = RunFolder(out), Lock()
    out.mkdir()
    folder.prior.write_bytes(prior.read_bytes())

    def work(team: ranks.Ranks) -> tuple[Worker, list[dict[str, float]]]:
        with alone:  # first weights are drawn from torch's own random stream, which threads share
            segments = Segments(request, folder, team)
        team.sum(torch.zeros(1))  # until then nobody else draws
        segments.restore()
        return segments.worker, [*segments.remaining(lambda: False)]

    return in_threads(request.settings.ranks, work)
