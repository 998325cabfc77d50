"""Rewards for walking robots, in operations that NumPy arrays and torch tensors share.

A function takes quantities of N robots in one step, `[N, ...]`, and returns their rewards `[N]`. A class remembers
earlier steps: its instance is called once a step, and `began` `[N]` is true where an episode begins with this step, so
that earlier episodes do not count. In the first step of an episode, remembered values equal the present ones; the
seconds of `AirTime` and the means of `Symmetry` begin at 0.

    repolicy customize halfcheetah --addon action_rate=0.1 --addon jerk=0.05

A class of your own is an add-on, too. Its instances take `(observations, actions, next_observations, info, began)`.
"""

from typing import Any

import numpy as np

Array = Any  # a NumPy array or a torch tensor


def power(torques: Array, velocities: Array) -> Array:
    """Return −Σ |torque · joint velocity|, both `[N, J]`: use less power."""
    return -abs(torques * velocities).sum(-1)


def torque_peak(torques: Array, most: float = 0.0) -> Array:
    """Return −(largest |torque| − most), at most 0: spare the motor that works hardest. torques: `[N, J]`."""
    excess = (abs(torques) - most).clip(min=0.0)
    return -(excess.amax(-1) if hasattr(excess, "amax") else excess.max(-1))  # torch and NumPy name it differently


def joint_margin(angles: Array, low: Array, high: Array, margin: float) -> Array:
    """Return −Σ of how far joint angles `[N, J]` come closer than `margin` to their limits `[J]`: avoid the stops."""
    return -((low + margin - angles).clip(min=0.0) + (angles - high + margin).clip(min=0.0)).sum(-1)


def still(command: Array, velocities: Array, least: float = 0.1) -> Array:
    """Return −Σ joint velocity² `[N, J]` where the command `[N, C]` is shorter than `least`: stand when told to."""
    return -(velocities**2).sum(-1) * ((command**2).sum(-1) < least**2)


def feet_apart(feet: Array, least: float) -> Array:
    """Return −Σ over pairs of feet of how much closer than `least` they are. feet: positions `[N, F, 2 or 3]`."""
    pairs = [(i, j) for j in range(feet.shape[1]) for i in range(j)]
    first, second = [i for i, _ in pairs], [j for _, j in pairs]
    distances = ((feet[:, first] - feet[:, second]) ** 2).sum(-1) ** 0.5
    return -(least - distances).clip(min=0.0).sum(-1)


class ActionRate:
    """−Σ (action − the one before)²: change actions less."""

    def __init__(self) -> None:
        self._before: Array = None

    def __call__(self, actions: Array, began: Array) -> Array:
        before = _earlier_or_now(began, self._before, actions)
        self._before = actions * 1.0  # a copy: the caller may write the next actions into the same array
        return -((actions - before) ** 2).sum(-1)


class Jerk:
    """−Σ (action − 2 · the one before + the one before that)²: change the change of actions less."""

    def __init__(self) -> None:
        self._before: Array = None
        self._earlier: Array = None

    def __call__(self, actions: Array, began: Array) -> Array:
        before, earlier = _earlier_or_now(began, self._before, actions), _earlier_or_now(began, self._earlier, actions)
        self._before, self._earlier = actions * 1.0, before
        return -((actions - 2.0 * before + earlier) ** 2).sum(-1)


class AirTime:
    """Σ over feet that touch down of (seconds in the air − `wanted`): take longer steps."""

    def __init__(self, seconds_a_step: float, wanted: float = 0.1) -> None:
        self.seconds_a_step, self.wanted = seconds_a_step, wanted
        self._air: Array = None

    def __call__(self, contact: Array, began: Array) -> Array:
        """Return the reward. contact: whether each foot is on the ground, `[N, F]`."""
        on, zero = contact * 1.0, contact * 0.0
        before = _earlier_or_now(began, self._air, zero)
        air = before + self.seconds_a_step
        self._air = air * (1.0 - on)
        return ((air - self.wanted) * on * (before > 0)).sum(-1)


class Impact:
    """−Σ over feet that touch down of their squared speed one step earlier: tread softly."""

    def __init__(self) -> None:
        self._speed: Array = None
        self._on: Array = None

    def __call__(self, contact: Array, speed: Array, began: Array) -> Array:
        """Return the reward. contact, speed `[N, F]`: whether each foot is on the ground, and how fast it sinks."""
        on = contact * 1.0
        landed = on * (1.0 - _earlier_or_now(began, self._on, on))
        before = _earlier_or_now(began, self._speed, speed)
        self._on, self._speed = on, speed * 1.0
        return -(landed * before**2).sum(-1)


class Symmetry:
    """−Σ (left − right)², where both are running means over about `steps` steps: use both sides alike over a gait."""

    def __init__(self, steps: float = 50.0) -> None:
        self.steps = steps
        self._gap: Array = None

    def __call__(self, left: Array, right: Array, began: Array) -> Array:
        """Return the reward. left, right `[N, J]`: the same joints of both sides, with the same sign."""
        gap = left - right
        self._gap = _earlier_or_now(began, self._gap, 0.0 * gap) * (1.0 - 1.0 / self.steps) + gap / self.steps
        return -(self._gap**2).sum(-1)


def _earlier_or_now(began: Array, before: Array, now: Array) -> Array:
    """Return the earlier values `before` `[N, K]`, replaced by the present ones `now` where an episode begins."""
    if before is None:
        return now * 1.0
    first = began[:, None]  # select, do not multiply: a simulator may end an episode with numbers that are not finite
    return now.where(first, before) if hasattr(now, "where") else np.where(first, now, before)
