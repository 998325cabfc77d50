"""Limits in units that a user knows: `energy<=0.09`, `hind_leg<=0.25`, `my_rewards.py:speed_error<=0.1`.

What stands on the left is an add-on (by its metric, where it reports one for people), an entry of the environment's
`info`, or a function of the user's own. Its mean over all steps is held.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from repolicy.envs import addons
from repolicy.envs.addons import Addon
from repolicy.envs.registered import REGISTERED, told
from repolicy.envs.rollout import Rollout
from repolicy.envs.step import Info
from repolicy.errors import UsageError
from repolicy.loading import as_number

FORM = re.compile(r"(.*\S)\s*([<>]=)\s*(\S+)")


@dataclass(frozen=True)
class Limit:
    """The mean of a quantity is to be at most `bound`, or at least (`sign` is then −1)."""

    name: str
    sign: int
    bound: float

    @classmethod
    def of(cls, text: str) -> "Limit":
        """Return what `NAME<=NUMBER` or `NAME>=NUMBER` says. Nothing is imported yet."""
        form = FORM.fullmatch(text.strip())
        if form is None or not math.isfinite(bound := as_number(form[3])):
            raise UsageError(f"limit {text!r} is not of the form NAME<=NUMBER or NAME>=NUMBER")
        return cls(form[1], 1 if form[2] == "<=" else -1, bound)

    def __str__(self) -> str:
        return f"{self.name.rpartition(':')[2]}{'<=' if self.sign > 0 else '>='}{self.bound:g}"

    @cached_property
    def quantity(self) -> Addon:
        """What is measured; a function of the user's own is imported here."""
        if ":" in self.name or self.name.partition("(")[0] in REGISTERED:
            return addons.combined([self.name])
        return Addon((self.name,), (self._told,), (1.0,))

    def _told(self, observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Info) -> np.ndarray:
        return told(info, self.name, f"a limit is on {self.name!r}, which is no add-on and must stand")

    def values(self, rollout: Rollout, size: int | None = None) -> np.ndarray:
        """Return the quantity in each step `[T, N]`, of the first `size` numbers of each observation, or of all."""
        measure = self.quantity.metric if self.quantity.reported else self.quantity.reward
        return rollout.of_decisions(measure(rollout.transitions.of_first(size)), mean=True)

    def broken_by(self, value: Any) -> Any:
        """Return by how much a mean, or each of several, is beyond the bound; below 0 where it is within."""
        return self.sign * (value - self.bound)


def limits(wanted: Sequence[str], env: str | None = None) -> tuple[Limit, ...]:
    """Return several limits of one run; refused where two are of one quantity and exclude or repeat each other.

    Without `env`, no name means an add-on.
    """
    found = tuple(map(Limit.of, wanted))
    addons.check_env([limit.name for limit in found] if env else (), env or "")
    for index, one in enumerate(found):
        for other in found[:index]:
            if one.name == other.name and (one.sign == other.sign or one.broken_by(other.bound) > 0):
                what = "name the same side twice" if one.sign == other.sign else "contradict each other"
                raise UsageError(f"the limits {other} and {one} {what}: leave one of them out")
    return found
