"""What the return contains: the paper in one file.

Every algorithm of the paper is ordinary PPO; they differ only in the reward that goes into the return,

    reward = task + omega · log prior(a|s) − alpha · log policy(a|s)            # Eq. 16 and its special cases

and in whether `bonus` · entropy is added to the loss. Nothing outside this file knows an algorithm by its name.

The functions below use only `*`, `+` and `-`, so they work alike on NumPy arrays, torch tensors and plain numbers.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeVar

from repolicy.errors import UsageError

Task = Literal["basic", "addon", "both"]
Array = TypeVar("Array", bound=Any)


@dataclass(frozen=True)
class Objective:
    """What the return contains.

    task: whose reward is the task's: the environment's own (`basic`), the add-on's (`addon`), or their sum (`both`).
    omega: weight of log prior(a|s) in the reward; ω′ in the paper, equal to ω·α for a prior trained at α.
    alpha: weight of −log policy(a|s) in the reward; α, or α̂ while customizing.
    bonus: weight of the policy's entropy in the *loss*, which pays for the present step's entropy alone.
    """

    task: Task = "basic"
    omega: float = 0.0
    alpha: float = 0.0
    bonus: float = 0.0

    def __post_init__(self) -> None:
        if self.task not in ("basic", "addon", "both"):
            raise UsageError(f"task is {self.task!r}; it must be 'basic', 'addon' or 'both'")
        for name in ("omega", "alpha", "bonus"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
                raise UsageError(f"{name} is {value!r}; it must be a finite number, 0 or greater")
            object.__setattr__(self, name, float(value))

    @property
    def reads_basic(self) -> bool:
        return self.task != "addon"

    @property
    def reads_addon(self) -> bool:
        return self.task != "basic"

    @property
    def reads_prior(self) -> bool:
        return self.omega != 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# The eight objectives of the paper, a row each ------------------------------------------------------------------------


def no_entropy() -> Objective:
    """Plain PPO: the basic reward alone."""
    return Objective("basic")


def end_entropy(alpha: float) -> Objective:
    """Entropy of the present step only, through the loss (Eq. 7)."""
    return Objective("basic", bonus=alpha)


def repeat_entropy(alpha: float) -> Objective:
    """Entropy of every step through the reward, and of the present step once more through the loss (Eq. 9)."""
    return Objective("basic", alpha=alpha, bonus=alpha)


def soft(alpha: float) -> Objective:
    """Soft PPO: the entropy of every step, once, through the reward (Eq. 6)."""
    return Objective("basic", alpha=alpha)


def greedy(alpha: float) -> Objective:
    """The add-on reward alone, started from the prior: what happens when nothing holds the old behavior."""
    return Objective("addon", alpha=alpha)


def kl(alpha: float) -> Objective:
    """The add-on reward minus alpha · KL(policy ‖ prior) (Eq. 18); alpha is β in the paper."""
    return Objective("addon", omega=alpha, alpha=alpha)


def residual(omega: float, alpha: float) -> Objective:
    """Residual PPO: the prior's log-probability and the entropy with weights of their own (Eq. 16)."""
    return Objective("addon", omega=omega, alpha=alpha)


def full(alpha: float) -> Objective:
    """Soft PPO on basic + add-on reward: the policy that one would train if the basic reward were known."""
    return Objective("both", alpha=alpha)


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    function.__name__: function
    for function in (no_entropy, end_entropy, repeat_entropy, soft, greedy, kl, residual, full)
}


def named(name: str, *, omega: float | None = None, alpha: float | None = None) -> Objective:
    """The objective called `name`, from exactly the coefficients that it has.

    >>> named("kl", alpha=0.1)
    Objective(task='addon', omega=0.1, alpha=0.1, bonus=0.0)
    """
    if name not in OBJECTIVES:
        raise UsageError(f"there is no objective {name!r}; choose from {', '.join(OBJECTIVES)}")
    given = {key: value for key, value in (("omega", omega), ("alpha", alpha)) if value is not None}
    wanted = coefficients(name)
    for key in given:
        if key not in wanted:
            raise UsageError(f"objective {name} has no {key}; {_takes(wanted)}")
    for key in wanted:
        if key not in given:
            raise UsageError(f"objective {name} needs {key}; name one with --{key}")
    return OBJECTIVES[name](**given)


def coefficients(name: str) -> list[str]:
    """The names of those that an objective has."""
    return list(inspect.signature(OBJECTIVES[name]).parameters)


def name_of(objective: Objective) -> tuple[str, dict[str, float]] | None:
    """What `named` makes it from, or None: not every objective has a name.

    >>> name_of(Objective("addon", omega=0.1, alpha=0.1))
    ('kl', {'alpha': 0.1})
    """
    given = {"omega": objective.omega, "alpha": objective.alpha or objective.bonus}
    for name, function in OBJECTIVES.items():
        values = {key: given[key] for key in coefficients(name)}
        if function(**values) == objective:
            return name, values
    return None


def _takes(names: list[str]) -> str:
    return f"it takes {' and '.join(names)}" if names else "it takes no coefficient"


# The reformulated reward ----------------------------------------------------------------------------------------------


class Reward(NamedTuple):
    """The reformulated reward and its parts, each of the shape of the log-probabilities."""

    task: Any
    prior: Any
    entropy: Any
    total: Any


def task_reward(objective: Objective, basic: Array | None, addon: Array | None) -> Array:
    """The task's own reward. The basic reward is not so much as touched where the task is the add-on's."""
    if objective.task == "basic":
        assert basic is not None
        return basic
    if addon is None:
        raise UsageError(f"an objective whose task is {objective.task!r} needs an add-on reward, and none was given")
    return addon if objective.task == "addon" else basic + addon


def reformulated(objective: Objective, task: Any, log_prior: Any, log_policy: Any) -> Reward:
    """task + omega · log prior − alpha · log policy, with its parts apart (Eq. 16).

    A term whose coefficient is 0 is left out rather than multiplied, so `log_prior` may be None where omega is 0, an
    infinite log-probability does no harm there, and the remaining sum is the same to the bit.
    """
    prior = objective.omega * log_prior if objective.omega else 0.0 * task
    entropy = -objective.alpha * log_policy if objective.alpha else 0.0 * task
    total = task
    if objective.omega:
        total = total + prior
    if objective.alpha:
        total = total + entropy
    return Reward(task, prior, entropy, total)
