"""One process a core: start them, and add up tensors across them.

A rank is this program once more, on one core, with its own share of the environments. All that ranks ever exchange is
sums. Three ways to add, behind one small interface: alone (nothing to do), through memory that the processes of one
machine share, and through torch.distributed under `torchrun`.
"""

import contextlib
import mmap
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from typing import IO, NoReturn, Protocol

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from repolicy.errors import RepolicyError, UsageError, first_line
from repolicy.loading import PYTHON
from repolicy.runs.machine import shares_memory

CAPACITY = 1 << 20  # bytes that one rank can put up for addition at a time; more goes in pieces
SPINS = 32  # how often a rank checks for the others without a pause, before it sleeps between checks
END_TIMEOUT = 60.0  # seconds that a rank may take to end
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 200e-6  # seconds
_CACHE_LINE = 64  # bytes of a cache line: each rank counts in one of its own


class LostError(RepolicyError):
    """Another rank is gone, and says itself why."""


class Ranks(Protocol):
    """This process among those that share a run."""

    index: int
    count: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Add the tensor up over all ranks, in place; every rank gets the same bits."""


class SingleRank:
    index = 0
    count = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor


class Distributed:
    """Ranks that `torchrun` started, on one machine or several."""

    def __init__(self) -> None:
        try:
            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("gloo")
        except (RuntimeError, ValueError) as error:
            raise RepolicyError(f"the other ranks cannot be reached: {first_line(error)}") from None
        self.index = torch.distributed.get_rank()
        self.count = torch.distributed.get_world_size()

    def sum(self, tensor: Tensor) -> Tensor:
        try:
            torch.distributed.all_reduce(tensor)
        except RuntimeError as error:
            raise LostError(f"another rank ended, or cannot be reached: {first_line(error)}") from None
        return tensor

    def close(self) -> None:
        """Close the group before Python ends: its threads do not survive the interpreter."""
        torch.distributed.destroy_process_group()


class SharedMemory:
    """Ranks of one machine, adding through a shared buffer with a barrier that spins for a moment.

    Each rank has two slots, used in turn: whoever has reached sum k + 1 is done reading the slots of sum k, so the slot
    may be written again for sum k + 2, and one barrier a sum is enough. Everyone adds in the order of ranks.
    """

    def __init__(self, index: int, count: int, buffer: mmap.mmap, watch: "Siblings") -> None:
        self.index, self.count, self._watch = index, count, watch
        memory = np.frombuffer(buffer, np.uint8)
        self._done = memory[: count * _CACHE_LINE].view(np.int64)[:: _CACHE_LINE // 8]
        self._slots = memory[count * _CACHE_LINE :].reshape(2, count, CAPACITY)
        self._sums = 0

    @staticmethod
    def size(count: int) -> int:
        return count * _CACHE_LINE + 2 * count * CAPACITY

    def sum(self, tensor: Tensor) -> Tensor:
        for piece in tensor.view(-1).split(CAPACITY // tensor.element_size()):
            values = piece.numpy()
            slots = self._slots[self._sums % 2, :, : values.nbytes].view(values.dtype)
            slots[self.index] = values
            self._sums += 1
            self._done[self.index] = self._sums
            self._wait()
            np.sum(slots, axis=0, out=values)
        return tensor

    def _wait(self) -> None:
        """Look without a pause while the others may come any moment; then sleep between looks, ever longer.

        On a busy machine the rank that is late may be waiting for the very core that this one spins on. `sched_yield`
        is no way to leave it: whoever yields too often waits for a whole turn of all other programs.
        """
        looks, pause = 0, SHORTEST_PAUSE
        while self._done.min() < self._sums:
            looks += 1
            if looks <= SPINS:
                continue
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)
            if looks % 256 == 0:
                try:
                    self._watch.check()
                except RepolicyError:
                    if self._done.min() < self._sums:  # else a rank gave its last sum in the pause, and ended
                        raise


class Siblings:
    """Knows whether the other ranks are still there, so that none waits for the dead."""

    def __init__(
        self, children: list[subprocess.Popen[bytes]], complaints: IO[bytes] | None = None, parent: int | None = None
    ) -> None:
        self._children, self._complaints, self._parent = children, complaints, parent
        self._read = 0  # bytes of the complaints that were passed on

    def check(self) -> None:
        for index, child in enumerate(self._children, start=1):
            if child.poll() is not None:
                self._miss(index, child)
        self._pass_on()
        if self._parent is not None and os.getppid() != self._parent:
            os._exit(1)

    def end(self) -> None:
        """Wait until all have ended, as they do after the last sum. One that lingers has given all it had."""
        for index, child in enumerate(self._children, start=1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if child.wait(timeout=END_TIMEOUT) != 0:
                    self._miss(index, child)

    def _miss(self, index: int, child: "subprocess.Popen[bytes]") -> NoReturn:
        lines = self._said().decode(errors="replace").strip().splitlines()
        silent = "it was killed, perhaps because memory ran out" if child.returncode == -9 else "it said nothing"
        words = lines[-1] if lines else silent
        raise RepolicyError(f"rank {index} ended (exit code {child.returncode}): {words}")

    def _pass_on(self) -> None:
        """Say what the others want to be said, such as that an environment hangs: their stderr is read here only."""
        said = self._said(self._read)
        whole = said[: said.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").split("\n"):
            if line.startswith("repolicy: "):
                print(line, file=sys.stderr, flush=True)

    def _said(self, since: int = 0) -> bytes:
        """Return what the others wrote to stderr, read without moving the place at which they write."""
        if self._complaints is None:
            return b""
        descriptor = self._complaints.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size - since, since)


def check_count(count: int) -> None:
    """Raise where `launched` cannot start so many."""
    if count > 1 and not shares_memory():
        what = f"on {platform.machine()} several ranks need torchrun: torchrun --nproc-per-node {count} -m repolicy ..."
        raise UsageError(f"{what}; or do with --ranks 1")


# What another rank does before anything else, and before it imports what takes seconds.
_PROLOGUE = "from repolicy.runs import machine as m; m.die_with({parent}); m.leave_signals_to_the_parent()\n"


@contextlib.contextmanager
def launch_ranks(count: int, program: list[str]) -> Iterator[Ranks]:
    """Start ranks: this process is rank 0, `count − 1` more run `python -c PROGRAM… INDEX COUNT DESCRIPTOR PARENT`."""
    if count == 1:
        yield SingleRank()
        return
    with _anonymous_file(SharedMemory.size(count)) as file, _anonymous_file(0) as complaints:
        code = _PROLOGUE.format(parent=os.getpid()) + program[0]
        place = [str(count), str(file.fileno()), str(os.getpid())]
        children = [
            subprocess.Popen(
                [*PYTHON, "-c", code, *program[1:], str(index), *place],
                pass_fds=[file.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # they can import what we can
                process_group=0,  # Ctrl-C is for the first rank, which tells the others
            )
            for index in range(1, count)
        ]
        watch = Siblings(children, complaints)
        try:
            yield SharedMemory(0, count, mmap.mmap(file.fileno(), 0), watch)
            watch.end()
        finally:
            for child in children:
                child.kill()
                child.wait()


def join_ranks(index: int, count: int, descriptor: int, parent: int) -> Ranks:
    """Return what a process that `launched` started calls to become rank `index`."""
    return SharedMemory(index, count, mmap.mmap(descriptor, 0), Siblings([], parent=parent))


@cache
def _libraries() -> ThreadpoolController:
    """Return the libraries with threads of their own, looked for once: another thread's import could block a search."""
    return ThreadpoolController()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: a rank is one core's worth of work, and more would only fight the other ranks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _libraries().limit(limits=1, user_api="blas"):  # of NumPy
            yield
    finally:
        torch.set_num_threads(before)


def _anonymous_file(size: int) -> IO[bytes]:
    """Return a file without a name, in memory where the system has room for that: it goes when its last user does."""
    for folder in ("/dev/shm", None):
        with contextlib.suppress(OSError), contextlib.ExitStack() as made:
            file = made.enter_context(tempfile.TemporaryFile(dir=folder))
            file.truncate(size)
            if size and hasattr(os, "posix_fallocate"):  # else who writes where no room is left is killed
                os.posix_fallocate(file.fileno(), 0, size)
            made.pop_all()
            return file
    raise RepolicyError(f"ranks need {size:,} bytes to share, and neither /dev/shm nor the temporary folder has them")
