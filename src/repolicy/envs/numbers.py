"""Numbers as people read them."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repolicy.envs.evaluation import Column


def number(value: float, like: float | None = None, plus: bool = False) -> str:
    """As many digits as a reader wants: 5,896.5 · 0.542 · −3.100; or as many as `like` has."""
    if not math.isfinite(value):
        return "unknown"
    size = abs(value if like is None else like)
    digits = 0 if size >= 10_000 else 1 if size >= 20 else 3
    return f"{value:{'+' if plus else ''},.{digits}f}".replace("-", "−")


def rounded(value: float, error: float) -> str:
    """To the second digit of its error, but three decimals at most: 653 of 653.2 ± 84.1, 0.412 of 0.4123 ± 0.012."""
    if not error > 0:
        return number(value)
    digits = min(max(0, 1 - math.floor(math.log10(error))), 3)
    return f"{value:,.{digits}f}".replace("-", "−")


def spread(column: "Column") -> str:
    """`mean ± std` of a quantity of each episode."""
    mean = column.mean
    return f"{number(mean)} ± {number(column.std, like=mean)}" if math.isfinite(mean) else "unknown"
