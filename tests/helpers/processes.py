"""What tests wait for, and whether a process has ended."""

import os
import time
from collections.abc import Callable
from pathlib import Path


def until(happened: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"  # dead, and nobody's child
