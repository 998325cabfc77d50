"""What the return contains: the paper in one file.

Every algorithm of the paper is ordinary PPO; they differ only in the reward that goes into the return,

    reward = task + omega · log prior(a|s) − alpha · log policy(a|s)            # Eq. 16 and its special cases

and in whether `bonus` · entropy is added to the loss. Not in the paper, and 0 by default, is a further term of the
reward: `states` · familiarity of the next state to the prior. Only this file and `objective_names` know algorithms by
name.

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
Weight = Any  # a number; a pair of numbers, for a range; or None or "auto", which `decide` replaces

WEIGHTS = ("omega", "alpha", "bonus", "states")
DIALED = ("omega", "alpha")  # weights that can be a range
KEYWORDS = {"omega": ("auto", "alpha"), "alpha": ("omega",), "bonus": ("alpha",)}  # values other than numbers


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
            the number that alpha begins with.
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
    def unset(self) -> list[str]:
        """The names of the weights that are neither a number nor a range."""
        return [name for name in WEIGHTS if getattr(self, name) in (None, "auto", "alpha")]

    @property
    def is_set(self) -> bool:
        return not self.unset

    @property
    def dials(self) -> tuple[Dial, ...]:
        """The dials over omega and alpha, for a policy that takes them as inputs. Add-ons have dials of their own."""
        each = ((name, getattr(self, name)) for name in DIALED)
        return tuple(Dial(name, *weight) for name, weight in each if isinstance(weight, Range))

    def at(self, values: Mapping[str, float]) -> "Objective":
        """Return the objective with a fixed value for each of its dials."""
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
        """Return a mapping for JSON: a range is a list of its ends, and `states` is left out where it is 0."""
        values = {name: getattr(self, name) for name in ("task", *WEIGHTS) if name != "states" or self.states}
        return {name: list(value) if isinstance(value, Range) else value for name, value in values.items()}


def _weight(name: str, value: Weight) -> Weight:
    """Check a weight and return it as `Objective` stores it: a float, a `Range`, None or a keyword."""
    if value is None or (isinstance(value, str) and value in KEYWORDS.get(name, ())):
        return value
    if name in DIALED and isinstance(value, str) and ".." in value:  # a range in YAML
        with suppress(ValueError):
            value = Range.of(value)
    if name in DIALED and isinstance(value, list | tuple) and len(value) == 2:
        ends = Range(*map(float, value))
        Dial(name, *ends).checked()
        return ends
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        or_range = ", or a range such as 0.03..3" if name in DIALED and isinstance(value, str) else ""
        raise UsageError(f"{name} is {value!r}; it must be a finite number, 0 or greater{or_range}")
    return float(value)


# The eight objectives of the paper. `decide` sets a weight that is left out -------------------------------------------


def no_entropy() -> Objective:
    """Return plain PPO's objective: the basic reward alone."""
    return Objective("basic")


def end_entropy(alpha: Weight = None) -> Objective:
    """Return the objective with the entropy of the present step only, through the loss (Eq. 7)."""
    return Objective("basic", bonus=alpha)


def repeat_entropy(alpha: Weight = None) -> Objective:
    """Return the objective with every step's entropy in the reward, and the present one's in the loss (Eq. 9)."""
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
    """Return Residual PPO's objective: log prior and entropy, each with a weight of its own (Eq. 16).

    `states` is not in the paper. Where omega is a single number, or that of alpha, `states` is 0 by default.
    """
    if states is None and (isinstance(omega, Real) or omega == "alpha"):
        states = 0.0
    return Objective("addon", omega=omega, alpha=alpha, states=states)


def full(alpha: Weight = None) -> Objective:
    """Return soft PPO's objective on basic + add-on reward: the goal if the basic reward were known."""
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
    """Return the task's reward; where that is the add-on's, the basic reward is not read at all."""
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
    familiarity: Any = None,
    omega: Any = None,
    alpha: Any = None,
) -> Reward:
    """Return task + omega · log prior − alpha · log policy, and its parts (Eq. 16).

    `familiarity` is that of the next states, needed where the objective weighs it. `omega` and `alpha` are the
    weights of each step, for an objective with a range.

    A term with weight 0 is left out rather than multiplied. So `log_prior` may be None or infinite where omega is 0,
    and the remaining sum is the same to the bit.
    """
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
        familiar = objective.states * familiarity
        total = total + familiar
    return Reward(task, prior, entropy, familiar, total)
