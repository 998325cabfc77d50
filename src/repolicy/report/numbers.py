"""Numbers as people read them."""

import math

from repolicy.envs.evaluation import Column


def number(value: float, like: float | None = None, plus: bool = False) -> str:
    """As many digits as a reader wants: 5,896.5 · 0.54 · −3.10 · 0.0042; or as many as `like` has."""
    if not math.isfinite(value):
        return "unknown"
    size = abs(value if like is None else like)
    digits = 0 if size >= 10_000 else 1 if size >= 20 else 2
    if 1e-9 < size < 0.1:  # two that tell something
        digits = 1 - math.floor(math.log10(size))
    value = round(value, digits) + 0.0  # what rounds to 0 has no sign
    return f"{value:{'+' if plus else ''},.{digits}f}".replace("-", "−")


def rounded(value: float, error: float, of: float | None = None) -> str:
    """To the second digit of its error, but to three decimals at most where they show it: 653 of 653.2 ± 84.1.

    `of` is the number that has the error, where `value` is the error itself.
    """
    size = abs(value if of is None else of)
    if not 1e-9 * size < error < math.inf:  # a smaller one is the rounding of a sum
        return number(value)
    digits = max(0, 1 - math.floor(math.log10(error)))
    enough = size >= 0.01 and error >= 0.001
    return f"{value:,.{min(digits, 3) if enough else digits}f}".replace("-", "−")


def spread(column: Column, like: float | None = None) -> str:
    """`mean ± std` of a quantity of each episode, with the digits of `like`; of one episode there is no std."""
    mean, like = column.mean, column.mean if like is None else like
    if len(column.values) < 2 or not math.isfinite(mean):
        return number(mean, like)
    return f"{number(mean, like)} ± {number(column.std, like)}"
