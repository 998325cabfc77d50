"""Limits in units that a user knows: `energy<=0.09`, `hind_leg<=0.25`, `my_rewards.py:speed_error<=0.1`.

What stands on the left is an add-on (by its metric, where it reports one for people), an entry of the environment's
`info`, or a function of the user's own. Its mean over all steps is held.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repolicy.envs import addons
from repolicy.envs.addons import Addon
from repolicy.envs.registered import REGISTERED, Function
from repolicy.envs.rollout import Rollout
from repolicy.envs.step import Info
from repolicy.errors import UsageError

FORM = re.compile(r"(.*\S)\s*([<>]=)\s*(\S+)")


@dataclass(frozen=True)
class Limit:
    """The mean of a quantity is to be at most `bound`, or at least (`sign` is then −1)."""

    name: str
    sign: int
    bound: float
    quantity: Addon

    @classmethod
    def of(cls, text: str) -> "Limit":
        """Return what `NAME<=NUMBER` or `NAME>=NUMBER` says."""
        name, side, number = _parted(text)
        is_addon = ":" in name or name.partition("(")[0] in REGISTERED
        quantity = addons.combined([name]) if is_addon else Addon((name,), (_entry(name),), (1.0,))
        return cls(name, 1 if side == "<=" else -1, float(number), quantity)

    def __str__(self) -> str:
        return f"{self.name.rpartition(':')[2]}{'<=' if self.sign > 0 else '>='}{self.bound:g}"

    def values(self, rollout: Rollout, size: int) -> np.ndarray:
        """Return the quantity in each step `[T, N]`, of the first `size` numbers of each observation."""
        before, actions, after, info = rollout.transitions
        measure = self.quantity.metric if self.quantity.reported else self.quantity.reward
        return measure(before[..., :size], actions, after[..., :size], info)

    def broken_by(self, value: Any) -> Any:
        """Return by how much a mean, or each of several, is beyond the bound; below 0 where it is within."""
        return self.sign * (value - self.bound)


def limits(wanted: Sequence[str], env: str) -> tuple[Limit, ...]:
    """Return several limits of one run; refused where two are of one quantity and exclude or repeat each other."""
    found = tuple(map(Limit.of, wanted))
    addons.check_env([limit.name for limit in found], env)
    for index, one in enumerate(found):
        for other in found[:index]:
            if one.name == other.name and (one.sign == other.sign or one.broken_by(other.bound) > 0):
                what = "name the same side twice" if one.sign == other.sign else "contradict each other"
                raise UsageError(f"the limits {other} and {one} {what}: leave one of them out")
    return found


def named(wanted: Sequence[str]) -> tuple[str, ...]:
    """Return what each limit is on, without importing it."""
    return tuple(_parted(text)[0] for text in wanted)


def _parted(text: str) -> tuple[str, str, str]:
    """Return name, side and bound of a limit."""
    form = FORM.fullmatch(text.strip())
    try:
        bound = math.nan if form is None else float(form[3])
    except ValueError:
        bound = math.nan
    if form is None or not math.isfinite(bound):
        raise UsageError(f"limit {text!r} is not of the form NAME<=NUMBER or NAME>=NUMBER")
    return form[1], form[2], form[3]


def _entry(name: str) -> Function:
    """Return the function that reads an entry of `info`."""

    def read(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
        if name not in info:
            raise UsageError(
                f"a limit is on {name!r}, which is no add-on, and the environment's info does not tell it; that has "
                f"{', '.join(sorted(info)) or 'nothing'}"
            )
        return info[name]

    return read
