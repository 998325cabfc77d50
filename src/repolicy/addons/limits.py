"""Limits in units that a user knows: `energy<=0.09`, `hind_leg<=0.25`, `my_rewards.py:speed_error<=0.1`."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from repolicy.addons.addon import Addon, AddonTerm, check_env, combine_addons
from repolicy.addons.addon_names import import_target, split_weight, title_of
from repolicy.addons.registered import REGISTERED, info_entry
from repolicy.envs import Rollout
from repolicy.errors import UsageError
from repolicy.text import parse_number

FORM = re.compile(r"(.*\S)\s*([<>]=)\s*(\S+)")


@dataclass(frozen=True)
class Limit:
    """The mean of a quantity over all steps is to be at most `bound`, or at least (`sign` is then −1).

    What stands on the left is an add-on (by its metric, where it reports one for people), an entry of the environment's
    `info`, or a function of the user's own.
    """

    name: str
    sign: int
    bound: float

    @classmethod
    def of(cls, text: str) -> "Limit":
        """Parse `NAME<=NUMBER` or `NAME>=NUMBER`. Nothing is imported yet."""
        form = FORM.fullmatch(str(text).strip())  # which may be a function
        if form is None or not math.isfinite(bound := parse_number(form[3])):
            raise UsageError(f"limit {text!r} is not of the form NAME<=NUMBER or NAME>=NUMBER")
        return cls(form[1], 1 if form[2] == "<=" else -1, bound)

    def __str__(self) -> str:
        short = f"{self.bound:g}"
        bound = short if float(short) == self.bound else repr(self.bound)  # who reads this back needs the same bound
        return f"{title_of(self.name)}{'<=' if self.sign > 0 else '>='}{bound}"

    @cached_property
    def quantity(self) -> Addon:
        """What is measured; a function of the user's own is imported here."""
        addon, weight_text = split_weight(self.name)
        if import_target(self.name) or addon.partition("(")[0] in REGISTERED:
            found = combine_addons([self.name])
            if found.metric and found.weights != (1.0,):
                metric = f"the add-on's {found.metric.name}, in which no weight counts"
                raise UsageError(f"limit {self} is on {metric}: leave ={weight_text} out")
            return found
        why = f"a limit is on {self.name!r}, no FILE.py:NAME and no add-on, so it must stand"
        return Addon((AddonTerm(self.name, lambda *arguments: info_entry(arguments[-1], self.name, why)),))

    def values(self, rollout: Rollout, mean: bool = True) -> np.ndarray:
        """Return the quantity in each step `[T, N]`; a decision has its sum, or where `mean`, what makes up a mean."""
        measure = self.quantity.metric_values if self.quantity.metric else self.quantity.reward
        return rollout.per_decision(measure(rollout.transitions), mean)

    def excess(self, value: Any) -> Any:
        """Return by how much a mean exceeds the bound (negative if it is within); arrays of means work, too."""
        return self.sign * (value - self.bound)


def parse_limits(texts: str | Sequence[str], env: str | None = None) -> tuple[Limit, ...]:
    """Parse the limits of a run; raise if two contradict or repeat each other, or would have the same name.

    With `env`, check that add-ons among them were made for it.
    """
    limits = tuple(map(Limit.of, [texts] if isinstance(texts, str) else texts))
    check_env([limit.name for limit in limits] if env else (), env or "")
    for one, other in combinations(limits, 2):
        if one.name == other.name and (one.sign == other.sign or other.excess(one.bound) > 0):
            problem = "name the same side twice" if one.sign == other.sign else "contradict each other"
            raise UsageError(f"the limits {one} and {other} {problem}: leave one of them out")
        if str(one) == str(other):  # multipliers and reports go by this text
            raise UsageError(f"limits on {one.name} and {other.name} would both be called {one}: rename a function")
    return limits
