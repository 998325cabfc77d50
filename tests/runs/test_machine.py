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
    ],
)
def test_the_processor_time_that_a_container_may_use(
    tmp_path: Path, groups: str, files: dict[str, str], cores: float
) -> None:
    for name, content in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{name}": files[name] for name in files},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quota(tmp_path) == cores


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == INFINITE


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


@pytest.mark.parametrize("former", [signal.default_int_handler, signal.SIG_IGN])
def test_the_second_ctrl_c_stops_at_once_where_the_first_was_ignored_before_too(former: Any) -> None:
    """What a script starts with `&` begins with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, former)
    try:
        with polite_interrupt() as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted.is_set()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == former
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("former", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_terminal_that_goes_away_is_ctrl_c_but_under_nohup(former: signal.Handlers, stops: bool) -> None:
    before = signal.signal(signal.SIGHUP, former)
    try:
        with polite_interrupt() as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interrupted.is_set() == stops
        with pytest.raises(KeyboardInterrupt) if stops else contextlib.nullcontext(), terminated_as_interrupted():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == former
    finally:
        signal.signal(signal.SIGHUP, before)


PAGES = """
import resource, numpy as np
from repolicy.runs.machine import keep_freed_memory
{}
def work():
    arrays = [np.ones(1 << 18, np.float32) for _ in range(8)]
for _ in range(3): work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20): work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_what_arrays_leave_free_is_not_fetched_from_the_kernel_again() -> None:
    def fetched(first: str) -> int:
        done = subprocess.run([sys.executable, "-c", PAGES.format(first)], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert fetched("") > 5_000, "this measures nothing"
    assert fetched("keep_freed_memory()") < 100
