"""The machine of a run: cores, memory, signals, parent process, and versions of installed packages."""

import contextlib
import ctypes
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """Return the number of physical cores that this process may use, by its affinity and its CPU quota."""
    logical = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}
    try:
        cores = len({(CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in logical})
    except OSError:
        cores = len(logical)
    return max(1, int(min(cores, cpu_quota())))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the process's CPU quota, in cores (`docker run --cpus 2`: 2), or infinity.

    The quota is the lowest of its control group (in version 2 of Linux's control groups) and of all parent groups.
    """
    top = root / "sys/fs/cgroup"
    quotas = [float("inf")]
    with contextlib.suppress(OSError, ValueError):  # no control groups
        [path] = re.findall("^0::(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
        own = top / path.lstrip("/")  # may be missing in a container, where `top` is the container's own group
        for group in [own, *own.parents][: len(own.parts) - len(top.parts) + 1]:
            with contextlib.suppress(OSError, ValueError):  # this group has no quota, or it is `max`
                quota, period = map(float, (group / "cpu.max").read_text().split())
                quotas.append(quota / period)
    return min(quotas)


def torchrun_place() -> tuple[int, int] | None:
    """Return (rank, number of ranks) if `torchrun` started this process beside others, else None.

    Other programs set some of the same variables, so all of them are checked.
    """
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if "MASTER_ADDR" not in os.environ or not all(value.isdecimal() for value in values):
        return None
    rank, count = map(int, values)
    return (rank, count) if rank < count > 1 else None


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends for any reason (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # the parent ended before this call
        os._exit(1)


def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed arrays: the next minibatch needs it again a millisecond later.

    Otherwise glibc returns it to the kernel, which clears every page again in each minibatch.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, the highest value that glibc accepts
        libc.mallopt(-1, 1 << 28)  # M_TRIM_THRESHOLD


def ending_signals() -> list[signal.Signals]:
    """Return SIGINT, SIGTERM and, unless `nohup` ignores it, SIGHUP (the terminal closed, or ssh was lost)."""
    has_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if has_nohup else [signal.SIGHUP])]


def leave_signals_to_the_parent() -> None:
    """Ignore signals in a child: they may reach the whole process group, and the parent decides when all stop."""
    for each in ending_signals():
        signal.signal(each, lambda *_: None)  # not SIG_IGN, which our own child processes would inherit


def terminated_as_interrupted() -> contextlib.AbstractContextManager[None]:
    """Raise KeyboardInterrupt at any of `ending_signals`; also where SIGINT was ignored, as after `&` in a script."""
    return _signal_handler(signal.default_int_handler)


@contextlib.contextmanager
def polite_interrupt() -> Iterator[threading.Event]:
    """Set the event at the first signal, so that work can end at a point to resume from; the second interrupts."""
    event = threading.Event()

    def handle(*_: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    with _signal_handler(handle):
        yield event


@contextlib.contextmanager
def _signal_handler(handler: Callable[..., object]) -> Iterator[None]:
    """Install a handler for `ending_signals`; do nothing outside the main thread, where Python forbids it."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    before = {each: signal.signal(each, handler) for each in ending_signals() if is_main_thread}
    try:
        yield
    finally:
        for each, former in before.items():
            signal.signal(each, former)


def shares_memory() -> bool:
    """Return whether ranks can sum through shared memory: other processes must see stores in order, as on x86-64."""
    return platform.machine() in ("x86_64", "AMD64")


@cache
def versions() -> dict[str, str]:
    """Return the versions of all software that a result depends on."""
    by_name = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("repolicy", "torch", "numpy", "envpool", "gymnasium", "mujoco"):
        try:
            by_name[name] = version(name)
        except ImportError:
            by_name[name] = "not installed"
    return by_name
