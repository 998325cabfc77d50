"""The actions of an environment."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ActionSpace:
    """The actions of an environment: `A` numbers within bounds, or one choice of `sizes[i]` for each head `i`."""

    kind: Literal["continuous", "discrete"]
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers one action has."""
        return self.sizes[0] if self.kind == "continuous" else len(self.sizes)

    def __str__(self) -> str:
        return (
            f"{self.sizes[0]} numbers" if self.kind == "continuous" else f"choices of {', '.join(map(str, self.sizes))}"
        )
