"""Contenders in turns: the time of a slice, and what its ratios tell."""

import statistics
import time
from collections.abc import Callable
from typing import Any


def slice_of(iterate: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Return the seconds that an iteration took over a slice: on the clock, and of the processor."""
    count, began, busy = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        iterate()
        count += 1
    return (time.perf_counter() - began) / count, (time.process_time() - busy) / count


def median_and_quartiles(ratios: list[float], digits: int = 4) -> list[float]:
    """Return [median, lower quartile, upper quartile]."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return [round(value, digits) for value in (middle, low, high)]
