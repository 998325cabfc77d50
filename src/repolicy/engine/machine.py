"""The machine that a run is on: its cores, its memory, the versions of what is installed."""

import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path


def physical_cores() -> int:
    """Physical cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        siblings = {
            path.read_text() for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
        }
    except OSError:
        siblings = set()
    return max(1, min(usable, len(siblings) or usable))


def shares_memory() -> bool:
    """Whether ranks can add up through memory that they share, which takes stores that become visible in order.

    x86-64 promises that, and others do not.
    """
    return platform.machine() in ("x86_64", "AMD64") and hasattr(os, "sched_yield")


@cache
def versions() -> dict[str, str]:
    """Of what a result depends on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("repolicy", "torch", "numpy", "envpool", "gymnasium", "mujoco"):
        try:
            found[name] = version(name)
        except ImportError:
            found[name] = "not installed"
    return found
