"""Data-parallel ranks: start one process for each core, and sum tensors over all of them.

A rank is one more process of this program, on one core, with its share of the environments. Ranks exchange sums only.
`Ranks` has three implementations: a single rank, shared memory on one machine, and torch.distributed under `torchrun`.
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
from typing import IO, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import RepolicyError, UsageError, first_line
from repolicy.loading import PYTHON, child_environment
from repolicy.runs.machine import shares_memory

CAPACITY = 1 << 20  # bytes of a rank's slot; a larger tensor is summed in pieces
SPINS = 32  # checks for the other ranks without a pause, before a rank sleeps between checks
END_TIMEOUT = 60.0  # seconds that a rank may take to end after the last sum
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 200e-6  # seconds
_CACHE_LINE = 64  # bytes; each rank's counter has a line of its own


class LostError(RepolicyError):
    """Another rank is gone; that rank reports the reason itself."""


class Ranks(Protocol):
    """The interface of this process to the ranks of a run."""

    index: int
    count: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum the tensor over all ranks, in place; every rank gets the same bits."""


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
    """Ranks of one machine, which sum through a shared buffer.

    Each rank has two slots, used in turn. A rank that has reached sum k + 1 no longer reads the slots of sum k, so they
    can be written for sum k + 2, and each sum needs one barrier only. All ranks add in the same order.
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
        """Wait until all ranks have written their slots: spin for a moment, then sleep between checks, ever longer.

        On a busy machine the late rank may be waiting for the very core that this one spins on. `sched_yield` does not
        help: the scheduler lets a process that yields often wait until all other programs have run.
        """
        checks, pause = 0, SHORTEST_PAUSE
        while self._done.min() < self._sums:
            checks += 1
            if checks <= SPINS:
                continue
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)
            if checks % 256 == 0:
                try:
                    self._watch.check()
                except RepolicyError:
                    if self._done.min() < self._sums:  # else the rank ended after it wrote its last sum
                        raise


class Siblings:
    """Checks that the other ranks are alive, so that no rank waits for a dead one; `check` raises if one is."""

    def __init__(
        self, children: list[subprocess.Popen[bytes]], stderr: IO[bytes] | None = None, parent: int | None = None
    ) -> None:
        self._children, self._stderr, self._parent = children, stderr, parent
        self._forwarded = 0  # bytes of `stderr` that were forwarded

    def check(self) -> None:
        for index, child in enumerate(self._children, start=1):
            if child.poll() is not None:
                self._raise_failure(index, child)
        self._forward_messages()
        if self._parent is not None and os.getppid() != self._parent:
            os._exit(1)

    def end(self) -> None:
        """Wait until all children have ended. A slow one is ignored: after the last sum it has no work left."""
        for index, child in enumerate(self._children, start=1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if child.wait(timeout=END_TIMEOUT) != 0:
                    self._raise_failure(index, child)

    def _raise_failure(self, index: int, child: "subprocess.Popen[bytes]") -> NoReturn:
        lines = self._read_stderr().decode(errors="replace").strip().splitlines()
        silent = "without a reason: a library or the environment ended its process; --resume goes on"
        if child.returncode == -9:
            silent = "it was killed, perhaps because memory ran out"
        words = lines[-1] if lines and child.returncode == 1 else silent  # else a warning, and no last words
        raise RepolicyError(f"rank {index} ended (exit code {child.returncode}): {words}")

    def _forward_messages(self) -> None:
        """Print the children's messages, such as that an environment hangs: their stderr goes to a file."""
        written = self._read_stderr(self._forwarded)
        whole_lines = written[: written.rfind(b"\n") + 1]
        self._forwarded += len(whole_lines)
        for line in whole_lines.decode(errors="replace").split("\n"):
            if line.startswith("repolicy: "):
                print(line, file=sys.stderr, flush=True)

    def _read_stderr(self, since: int = 0) -> bytes:
        """Return what the children wrote to stderr, without moving the position at which they write."""
        if self._stderr is None:
            return b""
        descriptor = self._stderr.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size - since, since)


def check_count(count: int) -> None:
    """Raise if `launch_ranks` cannot start this number of ranks."""
    if count > 1 and not shares_memory():
        command = f"torchrun --nproc-per-node {count} -m repolicy ..."
        raise UsageError(f"on {platform.machine()} several ranks need torchrun: {command}; or do with --ranks 1")


# The first line of a child's program: it runs before the slow imports.
_PROLOGUE = "from repolicy.runs import machine as m; m.die_with({parent}); m.leave_signals_to_the_parent()\n"


@contextlib.contextmanager
def launch_ranks(count: int, program: list[str]) -> Iterator[Ranks]:
    """Start ranks: this process is rank 0, `count − 1` more run `python -c PROGRAM… INDEX COUNT DESCRIPTOR PARENT`."""
    if count == 1:
        yield SingleRank()
        return
    with _anonymous_file(SharedMemory.size(count)) as file, _anonymous_file(0) as stderr:
        code = _PROLOGUE.format(parent=os.getpid()) + program[0]
        place = [str(count), str(file.fileno()), str(os.getpid())]
        children: list[subprocess.Popen[bytes]] = []
        watch = Siblings(children, stderr)
        try:
            for index in range(1, count):
                child = subprocess.Popen(
                    [*PYTHON, "-c", code, *program[1:], str(index), *place],
                    pass_fds=[file.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env=child_environment(),
                    process_group=0,  # Ctrl-C is for the first rank, which tells the others
                )
                children.append(child)
            yield SharedMemory(0, count, mmap.mmap(file.fileno(), 0), watch)
            watch.end()
        finally:
            for child in children:
                child.kill()
                child.wait()


def join_ranks(index: int, count: int, descriptor: int, parent: int) -> Ranks:
    """Join as rank `index`: a process that `launch_ranks` started calls this with its last four arguments."""
    return SharedMemory(index, count, mmap.mmap(descriptor, 0), Siblings([], parent=parent))


@contextlib.contextmanager
def _anonymous_file(size: int) -> Iterator[IO[bytes]]:
    """Open a file without a name; it vanishes with the last process that uses it.

    On Linux it is in memory, but not in /dev/shm, of which Docker gives 64 MB.
    """
    with os.fdopen(os.memfd_create("ranks"), "r+b") if sys.platform == "linux" else tempfile.TemporaryFile() as file:
        try:
            file.truncate(size)
        except OSError as error:
            problem = f"the memory that ranks share cannot be had: {error.strerror}"
            raise RepolicyError(f"{problem} (see ulimit -f); do with --ranks 1") from None
        yield file
