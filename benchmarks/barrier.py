"""What waiting for the other ranks costs, on a machine that is busy with other programs too.

    python -m benchmarks.barrier --work 4 --busy 3

Two ranks work and add up in turns, as in the minibatches of an update, in slices: with the barrier as it is, with one
that only spins (as it was before), and one rank alone that does the work of both. `--work` is how much they do in a
turn, and `--busy` starts so many programs beside them that do nothing but take processor time. The figures are medians
of the ratios of neighboring slices. Under `chrt -f 1`, as root and for some seconds, no other program disturbs: that is
what a quiet machine would do.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from repolicy.runs import ranks

PIECES = 600  # of work in a slice, each of some 50 microseconds
SIZE = 10_000  # numbers that are added up


def spinning(team: ranks.SharedMemory) -> None:
    """The barrier as it was."""
    spins = 0
    while team._done.min() < team._sums:
        spins += 1
        if spins % 64 == 0:
            os.sched_yield()
        if spins % 65536 == 0:
            team._watch.check()


WAYS: dict[str, Callable[[ranks.SharedMemory], None] | None] = {
    "as it is": ranks.SharedMemory._wait,
    "spinning": spinning,
    "alone": None,
}


def slices(team: ranks.SharedMemory, rounds: int, work: int) -> dict[str, list[float]]:
    """Seconds of each slice, in every rank in step."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    values, gradient = np.linspace(0.0, 1.0, 10_000, dtype=np.float32), torch.zeros(SIZE)

    for _ in range(rounds):
        for name, wait in WAYS.items():
            ranks.SharedMemory._wait = wait or spinning  # type: ignore[method-assign,assignment]
            team.sum(gradient)
            began = time.perf_counter()
            for _ in range(PIECES // work if wait or team.index == 0 else 0):
                for _ in range(work if wait else team.count * work):
                    np.tanh(values)
                if wait:
                    team.sum(gradient)
            team.sum(gradient)
            found[name].append(time.perf_counter() - began)
    return found


def follow() -> None:
    torch.set_num_threads(1)
    rounds, work, *place = map(int, sys.argv[1:])
    slices(ranks.join_ranks(*place), rounds, work)  # type: ignore[arg-type]


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=int, default=40)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    here = os.path.dirname(os.path.abspath(__file__))
    program = [f"import sys; sys.path.insert(0, {here!r}); import barrier; barrier.follow()"]
    sizes = [options.rounds, options.work]
    with busy(options.busy), ranks.launch_ranks(2, [*program, *map(str, sizes)]) as team:
        found = slices(team, *sizes)  # type: ignore[arg-type]
    print(f"{options.busy} busy programs, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for name, seconds in found.items():
        ratios = [one / other for one, other in zip(found["spinning"], seconds, strict=True)]
        print(
            f"{name:9s} {1e3 * statistics.median(seconds) * options.work / PIECES:7.2f} ms a turn, "
            f"{statistics.median(ratios):5.2f} × as fast as spinning ({min(ratios):.2f} – {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
