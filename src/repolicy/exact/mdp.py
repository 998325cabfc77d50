"""A finite Markov decision process as arrays of float64."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.objective import Objective, task_reward

TOLERANCE = 1e-6  # of the sum of a row of probabilities; wide enough for float32


def float64(name: str, value: Any, shape: list[int] | None = None) -> Tensor:
    """Return a float64 copy of `value`; raise where it has another shape."""
    array = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    if shape is not None and list(array.shape) != shape:
        raise UsageError(f"{name} has shape {list(array.shape)}; the other arrays ask for {shape}")
    return array


def check_discount(discount: float, horizon: int | None = None) -> None:
    """Raise unless the discount is in [0, 1], and below 1 where the horizon is infinite."""
    if not 0 <= discount <= 1 or (horizon is None and discount == 1):
        raise UsageError(f"discount is {discount}; it lies between 0 and 1, and below 1 where the horizon is infinite")


def check_temperature(alpha: float) -> None:
    if not 0 < alpha < math.inf:
        raise UsageError(f"alpha is {alpha}; a temperature must be a finite number greater than 0")


def check_probabilities(name: str, array: Tensor) -> None:
    """Raise unless all rows, along the last axis, are at least 0 and sum to 1."""
    total = array.sum(-1)
    if not bool((array >= 0).all() and ((total - 1).abs() <= TOLERANCE).all()):
        raise UsageError(f"a row of {name} is no distribution: its entries must be 0 or greater, and sum to 1")


@dataclass(frozen=True, eq=False)
class MDP:
    """M = (S, A, r, p) of the paper, with the add-on reward r_R beside it.

    transitions: p(s′|s, a), shape [S, A, S].
    reward: the basic reward r(s, a), shape [S, A].
    start: the distribution of the first state, shape [S].
    discount: γ, in [0, 1]; below 1 where the horizon is infinite.
    horizon: the number of steps T, or None for infinitely many.
    addon: the add-on reward r_R(s, a), shape [S, A], or None.
    familiarity: how familiar each state is to the prior, shape [S], or None; paid for the state that a step leads to.

    Anything that torch turns into numbers will do; it is copied into float64 tensors. A policy of this process is an
    array of log-probabilities, [S, A], or [T, S, A] where it depends on the time (as optima of a finite horizon do).
    """

    transitions: Tensor
    reward: Tensor
    start: Tensor
    discount: float
    horizon: int | None = None
    addon: Tensor | None = None
    familiarity: Tensor | None = None

    def __post_init__(self) -> None:
        states, actions = torch.as_tensor(self.reward).shape
        shapes = {"transitions": [states, actions, states], "reward": [states, actions], "start": [states]}
        shapes |= {"addon": [states, actions], "familiarity": [states]}
        for name, shape in shapes.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float64(name, value, shape))
        check_probabilities("transitions", self.transitions)
        check_probabilities("start", self.start)
        check_discount(self.discount, self.horizon)

    @property
    def states(self) -> int:
        return self.transitions.shape[0]

    @property
    def actions(self) -> int:
        return self.transitions.shape[1]

    def with_reward(self, reward: Tensor) -> "MDP":
        """Return the process with another basic reward."""
        return replace(self, reward=reward)

    def per_step(self, name: str, array: Tensor) -> Tensor:
        """Check `array` and expand it to [T, S, A] where the horizon is finite, [S, A] where it is not."""
        shape = [self.states, self.actions]
        full = shape if self.horizon is None else [self.horizon, *shape]
        array = torch.as_tensor(array, dtype=torch.float64)
        if list(array.shape) not in (shape, full):
            wanted = f"[S, A] = {shape}" + (f" or [T, S, A] = {full}" if full != shape else "")
            raise UsageError(f"{name} has shape {list(array.shape)}; it must be {wanted}")
        return array.expand(full)

    def log_probs(self, name: str, array: Tensor) -> Tensor:
        """Check log-probabilities of a policy and expand them as `per_step` does."""
        array = self.per_step(name, array)
        check_probabilities(f"exp({name})", array.detach().exp())
        return array

    def task(self, objective: Objective) -> Tensor:
        """Return the objective's task reward [S, A]: r, r_R or their sum. Raises where a weight is not set."""
        if not objective.is_set or objective.dials:
            raise UsageError(f"the objective is {objective}; nothing is measured here: each weight must be a number")
        return task_reward(objective, self.reward, self.addon)

    def states_reward(self, objective: Objective) -> Tensor | None:
        """Return E[familiarity of s′ | s, a], [S, A], where the objective weighs it."""
        if not objective.reads_states:
            return None
        if self.familiarity is None:
            raise UsageError(f"an objective whose states is {objective.states} needs familiarity [S] in the MDP")
        return self.transitions @ self.familiarity

    def prior(self, objective: Objective, log_prior: Tensor | None) -> Tensor | None:
        """Return the prior's log-probabilities, checked, or None where the objective does not read them."""
        if not objective.reads_prior:
            return None
        if log_prior is None:
            raise UsageError(f"an objective whose omega is {objective.omega} needs a prior; give log_prior")
        return self.log_probs("log_prior", log_prior).detach()
