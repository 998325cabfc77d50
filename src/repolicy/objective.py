"""What the return contains: the paper in one file.

Every algorithm of the paper is ordinary PPO; they differ only in the reward that goes into the return,

    reward = task + omega · log prior(a|s) − alpha · log policy(a|s)            # Eq. 16 and its special cases

plus, beyond the paper and 0 in all of its rows, `states` · how familiar the next state is to the prior.

and in whether `bonus` · entropy is added to the loss. Nothing beyond this file and `objective_names` knows an algorithm
by its name.

The functions below use only `*`, `+` and `-`, so they work alike on NumPy arrays, torch tensors and plain numbers.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeVar

from repolicy.errors import UsageError
from repolicy.ranges import Dial, Range

Task = Literal["basic", "addon", "both"]
Array = TypeVar("Array", bound=Any)
Weight = Any  # a number; a pair of them, for a policy with a dial between; or what `decide` sets: None, "auto"

WEIGHTS = ("omega", "alpha", "bonus", "states")
DIALED = ("omega", "alpha")  # those that can be a range
WORDS = {"omega": ("auto", "alpha"), "alpha": ("omega",), "bonus": ("alpha",)}  # what each can be, beside numbers


@dataclass(frozen=True)
class Objective:
    """What the return contains.

    A weight of None is not set yet: `prepare.decision.decide` sets it for customize and train.

    Args:
        task: whose reward: the environment's own (`basic`), the add-on's (`addon`), or their sum (`both`).
        omega: the reward that a nat of log prior(a|s) is worth; ω′ in the paper, ω·α for a prior trained at α. "auto"
            is moved to hold a budget; "alpha" is the same number as alpha. A pair of numbers, low and high, is a range:
            one policy learns all values between, and takes the value as an input.
        alpha: the reward that a nat of −log policy(a|s), of entropy, is worth; α, or α̂ while customizing; a range,
            too. "omega" is the same number as omega, for each value of a range.
        bonus: weight of the policy's entropy in the *loss*, which pays for the present step's entropy alone. "alpha" is
            the same number as alpha.
        states: weight of the next state's familiarity to the prior in the reward; not in the paper, where it is 0.
    """

    task: Task = "basic"
    omega: Weight = 0.0
    alpha: Weight = 0.0
    bonus: Weight = 0.0
    states: Weight = 0.0

    def __post_init__(self) -> None:
        if self.task not in ("basic", "addon", "both"):
            raise UsageError(f"task is {self.task!r}; it must be 'basic', 'addon' or 'both'")
        for name in WEIGHTS:
            object.__setattr__(self, name, _weight(name, getattr(self, name)))
        if self.alpha == "omega" and isinstance(self.omega, float):
            object.__setattr__(self, "alpha", self.omega)
        for name in ("omega", "bonus"):
            if getattr(self, name) == "alpha" and self.alpha is not None:
                if isinstance(self.alpha, Range | str):
                    raise UsageError("alpha is one weight for both terms here: name a number, or take residual")
                object.__setattr__(self, name, self.alpha)

    @property
    def is_set(self) -> bool:
        """Whether each weight is a number or a range."""
        return not any(getattr(self, name) in (None, "auto", "alpha") for name in WEIGHTS)

    @property
    def dials(self) -> tuple[Dial, ...]:
        """Over its own weights, for a policy that takes them as inputs; those over add-ons stand with the add-ons."""
        each = ((name, getattr(self, name)) for name in DIALED)
        return tuple(Dial(name, *weight) for name, weight in each if isinstance(weight, Range))

    def at(self, values: Mapping[str, float]) -> "Objective":
        """Return the same objective with one value for each of its dials."""
        chosen: dict[str, Any] = {dial.name: values[dial.name] for dial in self.dials}
        return replace(self, **chosen)

    @property
    def reads_basic(self) -> bool:
        return self.task != "addon"

    @property
    def reads_addon(self) -> bool:
        return self.task != "basic"

    @property
    def reads_prior(self) -> bool:
        return self.omega != 0

    @property
    def reads_states(self) -> bool:
        return self.states != 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it: a range as a list of its ends, and `states` only where it is not 0."""
        values = {name: getattr(self, name) for name in ("task", *WEIGHTS) if name != "states" or self.states}
        return {name: list(value) if isinstance(value, Range) else value for name, value in values.items()}


def _weight(name: str, value: Weight) -> Weight:
    """Return a weight as `Objective` keeps it."""
    if value is None or (isinstance(value, str) and value in WORDS.get(name, ())):
        return value
    if name in DIALED and isinstance(value, str) and ".." in value:  # as YAML has it
        with suppress(ValueError):
            value = Range.of(value)
    if name in DIALED and isinstance(value, list | tuple) and len(value) == 2:
        ends = Range(*map(float, value))
        Dial(name, *ends).checked()
        return ends
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise UsageError(f"{name} is {value!r}; it must be a finite number, 0 or greater")
    return float(value)


# The eight objectives of the paper, a row each. `decide` sets a weight that is left out -------------------------------


def no_entropy() -> Objective:
    """Return plain PPO's objective: the basic reward alone."""
    return Objective("basic")


def end_entropy(alpha: Weight = None) -> Objective:
    """Return the objective with the entropy of the present step only, through the loss (Eq. 7)."""
    return Objective("basic", bonus=alpha)


def repeat_entropy(alpha: Weight = None) -> Objective:
    """Return the one with the entropy of every step in the reward, and of the present step in the loss (Eq. 9)."""
    return Objective("basic", alpha=alpha, bonus="alpha")


def soft(alpha: Weight = None) -> Objective:
    """Return soft PPO's objective: the entropy of every step, once, through the reward (Eq. 6)."""
    return Objective("basic", alpha=alpha)


def greedy(alpha: Weight = None) -> Objective:
    """Return the add-on reward alone, started from the prior: what happens when nothing holds the old behavior."""
    return Objective("addon", alpha=alpha)


def kl(alpha: Weight = None) -> Objective:
    """Return the add-on reward minus alpha · KL(policy ‖ prior) (Eq. 18); alpha is β in the paper."""
    return Objective("addon", omega="alpha", alpha=alpha)


def residual(omega: Weight = None, alpha: Weight = None, states: Weight = None) -> Objective:
    """Return Residual PPO's: the prior's log-probability and the entropy with weights of their own (Eq. 16).

    `states` is a price beyond the paper: beside an omega that is one number it is 0 unless it is named.
    """
    if states is None and isinstance(omega, Real):
        states = 0.0
    return Objective("addon", omega=omega, alpha=alpha, states=states)


def full(alpha: Weight = None) -> Objective:
    """Return soft PPO's on basic + add-on reward: what one would train for if the basic reward were known."""
    return Objective("both", alpha=alpha)


# The reformulated reward ----------------------------------------------------------------------------------------------


class Reward(NamedTuple):
    """The reformulated reward and its parts, each of the shape of the log-probabilities."""

    task: Any
    prior: Any
    entropy: Any
    states: Any
    total: Any


def task_reward(objective: Objective, basic: Array | None, addon: Array | None) -> Array:
    """Return the task's own reward. The basic reward is not so much as touched where the task is the add-on's."""
    if objective.task == "basic":
        assert basic is not None
        return basic
    if addon is None:
        raise UsageError(f"an objective whose task is {objective.task!r} needs an add-on reward, and none was given")
    return addon if objective.task == "addon" else basic + addon


def reformulated(
    objective: Objective,
    task: Any,
    log_prior: Any,
    log_policy: Any,
    states: Any = None,
    omega: Any = None,
    alpha: Any = None,
) -> Reward:
    """Return task + omega · log prior − alpha · log policy, with its parts apart (Eq. 16).

    `states` is the familiarity of the next states, for an objective that weighs it; `omega` and `alpha` each
    step's own, for one with a range.

    A term whose coefficient is 0 is left out rather than multiplied, so `log_prior` may be None where omega is 0, an
    infinite log-probability does no harm there, and the remaining sum is the same to the bit.
    """
    if objective.states and states is None:
        raise UsageError("an objective with states above 0 needs the density of a prior's states, and none is here")
    omega = objective.omega if omega is None else omega
    alpha = objective.alpha if alpha is None else alpha

    total = task
    prior = entropy = familiar = 0.0 * task
    if objective.omega:
        prior = omega * log_prior
        total = total + prior
    if objective.alpha:
        entropy = -alpha * log_policy
        total = total + entropy
    if objective.states:
        familiar = objective.states * states
        total = total + familiar
    return Reward(task, prior, entropy, familiar, total)
