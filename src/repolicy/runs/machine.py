"""The machine that a run is on: its cores, its memory, the versions of what is installed; and who started us."""

import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """Return how many physical cores this process may use: as many as it is let onto and has the processor time of."""
    logical = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}
    try:
        cores = len({(CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in logical})
    except OSError:
        cores = len(logical)
    return max(1, int(min(cores, cpu_quota())))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many cores' time the kernel lets this process use (`docker run --cpus 2`: 2), or infinity.

    The limits are those of its control group and of every group around it, in either version of Linux's control groups.
    """
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return float("inf")
    quotas = [float("inf")]
    for _, controllers, path in groups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        place = top / path.lstrip("/")  # in a container it may not be there: then the top is the container's own group
        for group in [place, *place.parents][: len(place.parts) - len(top.parts) + 1]:
            quotas += _quotas(group)
    return min(quotas)


def _quotas(group: Path) -> Iterator[float]:
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            quota, period = " ".join((group / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                yield float(quota) / float(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue


def torchrun_place() -> tuple[int, int] | None:
    """Return (rank, count) of a process that `torchrun` started beside others. Other programs set these, too."""
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if "MASTER_ADDR" not in os.environ or not all(value.isdecimal() for value in values):
        return None
    rank, count = map(int, values)
    return (rank, count) if rank < count > 1 else None


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends, however that ends (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def keep_freed_memory() -> None:
    """Keep what arrays leave free with the process: learning needs it again a millisecond later.

    Otherwise glibc hands it back, and the kernel clears each page of it anew in each minibatch.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, at the most that glibc takes
        libc.mallopt(-1, 1 << 28)  # M_TRIM_THRESHOLD


def ending_signals() -> list[signal.Signals]:
    """Return the signals of Ctrl-C, SIGTERM and, but under `nohup`, the end of the terminal (a lost ssh connection)."""
    alone = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if alone else [signal.SIGHUP])]


def leave_signals_to_the_parent() -> None:
    """Leave signals to the parent: they may reach a whole group, and the parent tells the others when to stop."""
    for each in ending_signals():
        signal.signal(each, lambda *_: None)  # not SIG_IGN, which programs that we start would inherit


def terminated_as_interrupted() -> AbstractContextManager[None]:
    """Treat SIGTERM and the end of the terminal as Ctrl-C, which what a script starts with `&` ignores until here."""
    return _handled(signal.default_int_handler)


@contextmanager
def polite_interrupt() -> Iterator[threading.Event]:
    """Set the event at the first such signal, so that work ends where it can go on; the second one stops it."""
    event = threading.Event()

    def handle(*_: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    with _handled(handle):
        yield event


@contextmanager
def _handled(handler: Callable[..., object]) -> Iterator[None]:
    """Handle the signals that end a program, in the main thread: no other may."""
    here = threading.current_thread() is threading.main_thread()
    before = {each: signal.signal(each, handler) for each in ending_signals() if here}
    try:
        yield
    finally:
        for each, former in before.items():
            signal.signal(each, former)


def shares_memory() -> bool:
    """Return whether ranks can add up through memory that they share, which takes stores that become visible in order.

    x86-64 promises that, and others do not.
    """
    return platform.machine() in ("x86_64", "AMD64")


@cache
def versions() -> dict[str, str]:
    """Return the versions of what a result depends on."""
    by_name = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("repolicy", "torch", "numpy", "envpool", "gymnasium", "mujoco"):
        try:
            by_name[name] = version(name)
        except ImportError:
            by_name[name] = "not installed"
    return by_name
