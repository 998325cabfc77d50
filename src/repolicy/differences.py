"""Means of quantities over episodes, their differences with standard errors, and how such numbers are written.

A difference is significant if chance produces one as large in at most 5 % of runs that change nothing (Student's t).
A verdict that compares several kinds of action, or several policies, divides these 5 % among them (Bonferroni).
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from repolicy.text import format_number, with_minus

ROUNDING = 1e-9  # share of a number; a smaller error or difference of it is only rounding of a sum
FALSE_POSITIVE_RATE = 0.05  # largest probability that a verdict claims a difference where there is none


class Column(NamedTuple):
    """One quantity of each episode, with the title that people read.

    A quantity "a step" is the mean over an episode's steps. It is averaged with the episodes' lengths as weights: that
    is the mean over all steps, as training logs it.
    """

    title: str
    values: np.ndarray  # [E]
    weights: np.ndarray | None = None

    @property
    def mean(self) -> float:
        return float(np.average(self.values, weights=self.weights))

    @property
    def std(self) -> float:
        """The std of episodes, by n − 1; with weights, of the steps that they stand for. 0 for a single episode."""
        if self.weights is None and len(self.values) > 1:
            return float(self.values.std(ddof=1))
        return float(np.sqrt(np.average((self.values - self.mean) ** 2, weights=self.weights)))

    @property
    def error(self) -> float:
        """The standard error of the mean; nan for a single episode."""
        count, shares = len(self.values), np.ones(len(self.values)) if self.weights is None else self.weights
        if count < 2:
            return math.nan
        squares = np.sum((shares * (self.values - self.mean)) ** 2) * count / (count - 1)
        return float(np.sqrt(squares) / shares.sum())

    def describe(self, like: float | None = None) -> str:
        """Return `mean ± std`, with the digits of `like` or of the mean; one episode has no std."""
        like = self.mean if like is None else like
        std = f" ± {format_number(self.std, like)}" if len(self.values) > 1 and math.isfinite(self.mean) else ""
        return format_number(self.mean, like) + std


@dataclass(frozen=True)
class Difference:
    """The difference between the means of two sets of episodes."""

    before: float
    value: float
    error: float  # standard error of `value`; NaN where a set has only one episode
    degrees_of_freedom: int
    comparisons: int = 1  # number of differences in the same verdict

    @property
    def is_significant(self) -> bool:
        if abs(self.value) <= ROUNDING * max(abs(self.before), abs(self.before + self.value)):
            return False
        if self.error == 0.0:
            return True
        p_value = student_t_p_value(abs(self.value) / self.error, self.degrees_of_freedom)
        return p_value < FALSE_POSITIVE_RATE / self.comparisons  # False where the error is NaN

    @property
    def share(self) -> str:
        """The difference as a share of the value before, such as ` (18 %)`.

        Empty if the value before is not positive, or less than a tenth of the difference.
        """
        share = abs(self.value) / self.before if self.before > 0 else math.inf
        if not share <= 10.0:
            return ""
        return f" ({f'{share:.0%}' if share >= 0.005 else 'under 1%'})".replace("%", " %")

    def __str__(self) -> str:
        if math.isnan(self.error):
            return f"{format_number(self.value)} ± unknown"
        return value_and_error(self.value, self.error)

    @property
    def unsigned(self) -> "Difference":
        return replace(self, value=abs(self.value))


def student_t_p_value(t: float, degrees_of_freedom: int) -> float:
    """Return the two-sided p-value: the probability that Student's t is beyond ±t.

    It is computed by the finite series of Abramowitz and Stegun (26.7.3 and 26.7.4).
    """
    angle, odd = math.atan(t / math.sqrt(degrees_of_freedom)), degrees_of_freedom % 2
    term = total = math.cos(angle) if odd else 1.0
    for index in range(2 + odd, degrees_of_freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (index - 1) / index
        total += term
    inside = math.sin(angle) * total
    if odd:
        inside = 2.0 / math.pi * (angle + (inside if degrees_of_freedom > 1 else 0.0))
    return 1.0 - inside


def difference(before: Column, after: Column, paired: bool = False, comparisons: int = 1) -> Difference:
    """Compare a quantity of two sets of episodes: of pairs by their differences, else by Welch's test."""
    counts = len(before.values), len(after.values)
    degrees = min(counts) - 1
    if paired and before.weights is None:
        error = Column("", after.values - before.values).error
    else:
        errors = before.error, after.error
        error = math.hypot(*errors)
        if error > 0 and degrees > 0:  # Welch–Satterthwaite
            shares = [(each / error) ** 4 / (count - 1) for each, count in zip(errors, counts, strict=True)]
            degrees = math.floor(1.0 / sum(shares) + 1e-9)
    return Difference(before.mean, after.mean - before.mean, error, max(degrees, 1), comparisons)


def rounded(value: float, error: float, of: float | None = None) -> str:
    """Format a value with two significant digits of its error, so 653.2 ± 84.1 becomes 653.

    At most three decimals are kept where these are enough. To format the error itself, pass it as `value` and pass the
    number that has this error as `of`.
    """
    size = abs(value if of is None else of)
    if not ROUNDING * size < error < math.inf:
        return format_number(value)
    digits = max(0, 1 - math.floor(math.log10(error)))
    three_are_enough = size >= 0.01 and error >= 0.001
    return with_minus(f"{value:z,.{min(digits, 3) if three_are_enough else digits}f}")


def value_and_error(value: float, error: float) -> str:
    """Format a value with its standard error: `653 ± 84`."""
    return f"{rounded(value, error)} ± {rounded(error, error, of=value)}"
