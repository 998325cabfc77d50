"""How many cores there are, from made-up control groups; whose process this is, and what ends it."""

import contextlib
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repolicy.runs import machine
from repolicy.runs.machine import cpu_quota, physical_cores, polite_interrupt, terminated_as_interrupted, torchrun_place

INFINITE = float("inf")


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, INFINITE),
        ("0::/\n", {}, INFINITE),
        ("0::/user/job\n", {"user/job/cpu.max": "max 100000", "user/cpu.max": "150000 100000"}, 1.5),
        ("0::/user/job\n", {"user/job/cpu.max": "50000 100000", "cpu.max": "800000 100000"}, 0.5),
        ("0::/docker/not/mounted/here\n", {"cpu.max": "300000 100000"}, 3.0),
        ("0::/\n", {"cpu.max": "what is this"}, INFINITE),
        ("4:cpu:/a\n0::/b\n", {"b/cpu.max": "400000 100000"}, 4.0),
        (None, {}, INFINITE),
    ],
)
def test_the_processor_time_that_a_container_may_use(
    tmp_path: Path, groups: str | None, files: dict[str, str], cores: float
) -> None:
    written = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    if groups is not None:
        written["proc/self/cgroup"] = groups
    for name, content in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quota(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.9, 1), (2.0, 2), (INFINITE, 64)])
def test_cores_are_whole_and_at_least_one(monkeypatch: pytest.MonkeyPatch, quota: float, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(machine, "CPUS", Path("/nowhere"))  # nothing about siblings
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert physical_cores() == cores


def test_two_threads_of_one_core_are_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(machine, "CPUS", tmp_path)
    monkeypatch.setattr(machine, "cpu_quota", lambda: INFINITE)
    for usable, cores in (({0, 1}, 1), ({0, 2}, 2), ({0, 1, 2, 3}, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, usable=usable: usable, raising=False)
        assert physical_cores() == cores


@pytest.mark.parametrize(
    ("rank", "count", "address", "place"),
    [
        ("1", "2", "here", (1, 2)),
        ("1", "2", None, None),
        ("", "2", "here", None),
        ("0", "x", "here", None),
        ("0", "1", "here", None),
        ("7", "2", "here", None),
    ],
)
def test_who_is_under_torchrun(
    monkeypatch: pytest.MonkeyPatch, rank: str, count: str | None, address: str | None, place: object
) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": address}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert torchrun_place() == place


@pytest.mark.parametrize(
    ("number", "former", "stops"),
    [
        (signal.SIGINT, lambda *_: None, True),  # what does not end the tests, should it stay
        (signal.SIGINT, signal.SIG_IGN, True),  # as of what a script starts with `&`
        (signal.SIGHUP, signal.SIG_DFL, True),  # the terminal goes away
        (signal.SIGHUP, signal.SIG_IGN, False),  # as under nohup
    ],
)
def test_the_first_signal_stops_politely_and_the_second_at_once(number: int, former: Any, stops: bool) -> None:
    at_once = pytest.raises(KeyboardInterrupt) if stops else contextlib.nullcontext()
    before = signal.signal(number, former)
    try:
        with polite_interrupt() as interrupted:
            os.kill(os.getpid(), number)
            assert interrupted.is_set() == stops
            with at_once:
                os.kill(os.getpid(), number)
        with at_once, terminated_as_interrupted():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == former
    finally:
        signal.signal(number, before)


PAGES = """
import resource, numpy as np
from repolicy.runs.machine import keep_freed_memory
def fetched():
    for _ in range(3): work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20): work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def work():
    arrays = [np.ones(1 << 18, np.float32) for _ in range(8)]
print(fetched())
keep_freed_memory()
print(fetched())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_what_arrays_leave_free_is_not_fetched_from_the_kernel_again() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 5_000, "this measures nothing"
    assert after < 100
