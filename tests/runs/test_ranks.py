"""Ranks that are real processes: their sums, one gradient shared by them, and what happens when one dies."""

import errno
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from processes import is_gone, until
from rank_programs import add_up_and_compare, one_step, put_up, step_with_states
from threaded_ranks import in_threads
from torch import Tensor

from repolicy.errors import RepolicyError
from repolicy.prepare import states
from repolicy.runs import ranks
from repolicy.runs.machine import shares_memory

pytestmark = pytest.mark.skipif(not shares_memory(), reason="ranks of this machine need torchrun")

LARGE = ranks.CAPACITY // 4 + 1000  # numbers: two pieces in single precision, three in double
SIZES = [*islice(cycle([1, 1000, 7, 20_000]), 200), LARGE, LARGE, 3]


def test_sums() -> None:
    def work(team: ranks.Ranks) -> tuple[list[Tensor], list[float], list[list[float]]]:
        return *add_up_and_compare(team, SIZES), team.sum(torch.full((2, 3), team.index + 1.0)).tolist()

    (found, fingerprints, last), *_ = in_threads(3, work)
    for turn, tensor in enumerate(found):
        expected = sum(put_up(index, turn, len(tensor), tensor.dtype) for index in range(3))
        assert torch.equal(tensor, expected), f"sum {turn}"
    assert len(set(fingerprints)) == 1  # every rank got the same bits
    assert fingerprints[0] > 0
    assert last == [[6.0] * 3] * 2, "a sum keeps the shape"


def test_two_ranks_of_16_environments_are_one_of_32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a density: it is the same bits on both, and the step by it is that of one, but for rounding."""
    monkeypatch.setattr(states, "visited_states", states.visited_states)  # what the programs below put there goes again
    [(whole, whole_states)] = in_threads(1, lambda team: (one_step(team), step_with_states(team)))
    (shared, shared_states), _ = in_threads(2, lambda team: (one_step(team), step_with_states(team)))
    assert float(whole["gradient"].abs().max()) > 0.1
    assert float((shared["gradient"] - whole["gradient"]).abs().max()) < 1e-6
    torch.testing.assert_close(shared["moments"], whole["moments"], rtol=1e-13, atol=0)
    torch.testing.assert_close(shared["report"], whole["report"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(shared["parameters"], whole["parameters"], rtol=1e-5, atol=1e-6)
    assert shared_states["densities"] == whole_states["densities"] * 2
    assert whole_states["reward"] < -0.1
    assert shared_states["reward"] == pytest.approx(whole_states["reward"], rel=1e-12)
    torch.testing.assert_close(shared_states["gradient"], whole_states["gradient"], rtol=1e-4, atol=1e-6)


def test_one_rank_is_alone() -> None:
    tensor = torch.ones(3)
    with ranks.launch_ranks(1, ["this is not even a program"]) as team:
        assert team.sum(tensor) is tensor
    assert tensor.tolist() == [1.0] * 3


# Deaths ---------------------------------------------------------------------------------------------------------------
WARN = "print('UserWarning: a cable is loose', file=sys.stderr, flush=True)"
SILENT = "without a reason: a library or the environment ended its process; --resume goes on"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('a line before', file=sys.stderr); sys.exit('the disk is on fire')", "1): the disk is on fire"),
        (f"{WARN}; os.kill(os.getpid(), 9)", "-9): it was killed, perhaps because memory ran out"),
        (f"{WARN}; os._exit(7)", f"7): {SILENT}"),
        ("os._exit(7)", f"7): {SILENT}"),
    ],
)
def test_a_rank_that_ends_is_missed_in_one_sentence(code: str, said: str) -> None:
    with (
        pytest.raises(RepolicyError, match=rf"^rank 1 ended \(exit code {re.escape(said)}$"),
        ranks.launch_ranks(2, [f"import os, sys; {code}"]) as team,
    ):
        team.sum(torch.ones(3))


def test_a_limit_on_files_is_named_where_ranks_cannot_share_memory() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ranks.CAPACITY, limits[1]))
    try:
        with pytest.raises(RepolicyError, match="cannot be had: File too large .*ulimit -f.* --ranks 1"):
            ranks.launch_ranks(2, ["it never starts"]).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_rank_that_gives_its_last_sum_in_a_pause_and_ends_is_no_failure() -> None:
    class Late(ranks.Siblings):
        def check(self) -> None:
            team._done[1] = team._sums
            super().check()

    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    team = ranks.SharedMemory(0, 2, mmap.mmap(-1, ranks.SharedMemory.size(2)), Late([child]))
    assert team.sum(torch.ones(3)).tolist() == [1.0] * 3


def test_signals_are_for_the_first_rank_and_what_another_says_is_said_once_and_its_failure_is_missed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A batch system sends SIGTERM to every process of a job; programs that an environment starts obey it."""
    code = """
import os, signal, subprocess, sys, torch
from repolicy.runs import ranks
sys.stderr.buffer.write(b'a bar \\r of caf\\xe9 \\xe9\\xe9 \\n'); sys.stderr.flush()
print('repolicy: it hängs', file=sys.stderr)
os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT)
other = subprocess.Popen(["sleep", "600"]); other.terminate()
ranks.join_ranks(*map(int, sys.argv[-4:])).sum(torch.full((1,), float(other.wait())))
sys.exit('the end is bad')
"""

    def work() -> None:
        with ranks.launch_ranks(2, [code]) as team:
            assert team.sum(torch.zeros(1)).tolist() == [-signal.SIGTERM]
            for _ in range(2):
                team._watch._forward_messages()

    with pytest.raises(RepolicyError, match=r"^rank 1 ended \(exit code 1\): the end is bad$"):
        work()
    assert capsys.readouterr().err == "repolicy: it hängs\n"


def test_the_others_go_when_one_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start_one(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        started.append(subprocess.Popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(ranks, "subprocess", SimpleNamespace(Popen=start_one, DEVNULL=subprocess.DEVNULL))
    try:
        with (
            pytest.raises(OSError, match="Cannot allocate memory"),
            ranks.launch_ranks(3, ["import time; time.sleep(600)"]),
        ):
            pass
        assert [child.poll() for child in started] == [-signal.SIGKILL]
    finally:
        started[0].kill()
        started[0].wait()


def test_no_rank_outlives_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the first rank: the second one ends, though it hangs. One that waits for a sum looks for itself, too."""
    note = tmp_path / "process"
    hangs = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid()) + ' '); time.sleep(600)"
    code = f"import time; from repolicy.runs import ranks\nwith ranks.launch_ranks(2, [{hangs!r}]): time.sleep(600)"
    first = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: note.exists() and note.read_text().endswith(" "))
    finally:
        first.kill()
        first.wait()
    second = int(note.read_text())
    try:
        until(lambda: is_gone(second))
    finally:
        if not is_gone(second):
            os.kill(second, signal.SIGKILL)
    codes = list[int]()
    monkeypatch.setattr(os, "_exit", codes.append)
    for parent in (os.getppid(), first.pid):
        ranks.Siblings([], parent=parent).check()
    assert codes == [1]


def ended(program: str) -> None:
    """What the first rank does at the end, with one other that runs this."""
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        ranks.Siblings([child]).end()
    finally:
        child.kill()
        child.wait()


def test_a_rank_that_lingers_after_the_last_sum_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "END_TIMEOUT", 0.2)
    ended("import time; time.sleep(60)")
    monkeypatch.setattr(ranks, "END_TIMEOUT", 30.0)
    with pytest.raises(RepolicyError, match=r"rank 1 ended \(exit code 3\)"):
        ended("raise SystemExit(3)")
