"""Ranks as threads of this process. They add up as processes do, in memory that they share."""

import mmap
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any
from unittest import mock

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


@contextmanager
def noticed(others: Others) -> Iterator[None]:
    """Tell the others of a failure."""
    try:
        yield
    except BaseException:
        others.failed = True
        raise


def in_threads(count: int, work: Callable[[ranks.Ranks], Any]) -> list[Any]:
    """What `work` gives on each of so many ranks."""
    others, buffer = Others(), mmap.mmap(-1, ranks.SharedMemory.size(count))

    def one(index: int) -> Any:
        with noticed(others):
            return work(ranks.SharedMemory(index, count, buffer, others))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@contextmanager
def launched(count: int, program: list[str]) -> Iterator[ranks.Ranks]:
    """What `ranks.launch_ranks` does for two ranks, but the other's program runs as a thread of this process.

    It must not end its process when it is done, as that of a run does.
    """
    assert count == 2
    others, buffer = Others(), mmap.mmap(-1, ranks.SharedMemory.size(count))
    ours, theirs = (ranks.SharedMemory(index, count, buffer, others) for index in range(count))
    with (
        mock.patch.object(sys, "argv", ["-c", *program[1:], "1", "2", "0", "0"]),
        mock.patch.object(ranks, "join_ranks", return_value=theirs),
        ThreadPoolExecutor(1) as pool,
    ):
        other = pool.submit(noticed(others)(exec), program[0], {})
        with noticed(others):
            yield ours
        other.result()


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
