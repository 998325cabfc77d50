"""What a policy brings an episode, with the error of that, and whether it beats another's."""

import math
from dataclasses import dataclass

from repolicy.loading import figures


@dataclass(frozen=True)
class Standing:
    """What a policy brings an episode, with the standard error of that."""

    mean: float
    error: float

    @classmethod
    def of(cls, total: float, squares: float, count: float) -> "Standing":
        mean = total / count
        return cls(mean, math.sqrt(max(squares / count - mean * mean, 0.0) / max(count - 1.0, 1.0)))

    def beats(self, other: "Standing") -> bool:
        """By more than the error of the difference."""
        return self.mean - other.mean > math.hypot(self.error, other.error)

    def __str__(self) -> str:
        return f"{figures(self.mean, 4)} ± {figures(self.error, 2)}"
