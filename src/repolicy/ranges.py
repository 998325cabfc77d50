"""A dial is a weight that a policy takes as an input. It was trained for all values from one end to the other."""

import math
from collections.abc import Sequence
from itertools import pairwise
from numbers import Real
from typing import Any, Literal, NamedTuple

from repolicy.errors import UsageError

MAX_DIALS = 4  # a network then has 69 polynomials of them; with more dials, each place also sees fewer episodes


class Range(NamedTuple):
    """The ends of a range of weights; one policy learns all values between them, and takes the value as an input."""

    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """Return a text such as `0.03..3`, with the format applied to each end."""
        return f"{self.low:{spec}}..{self.high:{spec}}"

    @classmethod
    def of(cls, text: str) -> "float | Range":
        """Parse a number such as `0.3`, or a range such as `0.03..3`."""
        low, dots, high = text.partition("..")
        if high.startswith("."):
            raise ValueError(f"{text} could end at {high} or at {high[1:]}")
        return cls(float(low), float(high)) if dots else float(text)


class Dial(NamedTuple):
    """A weight that a policy takes as an input. Its positions go from −1 at the low end to 1 at the high one."""

    name: str  # omega, alpha, or an add-on's
    low: float
    high: float
    scale: Literal["log", "linear"] = "log"  # whether places are even in the weight's logarithm or in the weight

    def __str__(self) -> str:
        return f"{self.name} from {self.ends}"

    @property
    def ends(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def checked(self) -> "Dial":
        """Return the dial, or raise where its ends do not make a range."""
        begins, example = ("above 0", "0.03..3") if self.scale == "log" else ("at 0 or above", "0..2")
        lowest_is_fine = self.low > 0 or (self.low == 0 and self.scale == "linear")
        if not (lowest_is_fine and self.low < self.high < math.inf):
            raise UsageError(
                f"{self} is no range: it must begin {begins}, and end above where it begins, such as {example}"
            )
        return self

    def place(self, value: float) -> float:
        """Return the place, −1 to 1, of a value."""
        if self.scale == "linear":
            return 2.0 * (value - self.low) / (self.high - self.low) - 1.0
        return 2.0 * math.log(value / self.low) / math.log(self.high / self.low) - 1.0

    def value(self, place: Any) -> Any:
        """Return the value at a place, which may be a number, an array or a tensor."""
        if self.scale == "linear":
            return self.low + (self.high - self.low) * ((place + 1.0) / 2.0)
        return self.low * (self.high / self.low) ** ((place + 1.0) / 2.0)

    def spread(self, count: int) -> list[float]:
        """Return `count` rounded values at equal distances on the dial."""
        steps = [2.0 * index / (count - 1) - 1.0 for index in range(1, count - 1)]
        exact = [self.low, *map(self.value, steps), self.high]
        digits = enough_digits(exact)
        return [self.low, *(float(f"{value:.{digits}g}") for value in exact[1:-1]), self.high]

    def range_warning(self, value: object) -> str:
        """Return a warning about a value outside of the range, empty for one inside; raise for no valid weight."""
        least = "above 0" if self.scale == "log" else "0 or above"
        number = isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf
        if not number or (value == 0 and self.scale == "log"):
            raise UsageError(
                f"{self.name} is {value!r}; it must be a number {least}: this policy's go from {self.ends}"
            )
        weight = float(value)  # type: ignore[arg-type]
        if self.low <= weight <= self.high:
            return ""
        end = self.nearest(weight)
        return f"{self.name} is {weight:g}, and this policy was trained from {self.ends}: it acts as at {end:g}"

    @property
    def if_nan(self) -> float:
        """The value that an exported graph takes in place of NaN: the end that is nearer to the prior."""
        return self.high if self.name == "omega" else self.low

    def nearest(self, value: float) -> float:
        return min(max(value, self.low), self.high)


def middle_of(dials: Sequence[Dial]) -> str:
    """Return words such as `omega 0.3, the middle of the range`; an actor stands there where it is given no place."""
    return " and ".join(f"{dial.name} {dial.value(0.0):.3g}" for dial in dials) + ", the middle of the range"


def enough_digits(values: Sequence[float]) -> int:
    """Return the number of significant digits, 3 or more, that round by at most 5 % of the least distance."""
    near = 0.05 * min((after - before for before, after in pairwise(values)), default=math.inf)
    enough = (d for d in range(3, 16) if all(abs(float(f"{value:.{d}g}") - value) <= near for value in values))
    return next(enough, 16)
