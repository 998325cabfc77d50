"""What the return contains: the paper in one file.

Every algorithm of the paper is ordinary PPO; they differ only in the reward that goes into the return,

    reward = task + omega · log prior(a|s) − alpha · log policy(a|s)            # Eq. 16 and its special cases

plus, beyond the paper and 0 in all of its rows, `states` · how familiar the next state is to the prior.

and in whether `bonus` · entropy is added to the loss. Nothing outside this file knows an algorithm by its name.

The functions below use only `*`, `+` and `-`, so they work alike on NumPy arrays, torch tensors and plain numbers.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeVar

from repolicy.errors import UsageError
from repolicy.ranges import Dial

Task = Literal["basic", "addon", "both"]
Array = TypeVar("Array", bound=Any)

RANGES = {"omega_to": "omega", "alpha_to": "alpha"}  # where the range of a weight ends, and which weight begins it


@dataclass(frozen=True)
class Objective:
    """What the return contains.

    Args:
        task: whose reward: the environment's own (`basic`), the add-on's (`addon`), or their sum (`both`).
        omega: the reward that a nat of log prior(a|s) is worth; ω′ in the paper, ω·α for a prior trained at α.
        alpha: the reward that a nat of −log policy(a|s), of entropy, is worth; α, or α̂ while customizing.
        bonus: weight of the policy's entropy in the *loss*, which pays for the present step's entropy alone.
        states: weight of the next state's familiarity to the prior in the reward; not in the paper, where it is 0.
        omega_to: of a policy with a dial over ω′, the largest, `omega` being the smallest; 0 where there is one omega.
        alpha_to: the same of α̂.
    """

    task: Task = "basic"
    omega: float = 0.0
    alpha: float = 0.0
    bonus: float = 0.0
    states: float = 0.0
    omega_to: float = 0.0
    alpha_to: float = 0.0

    def __post_init__(self) -> None:
        if self.task not in ("basic", "addon", "both"):
            raise UsageError(f"task is {self.task!r}; it must be 'basic', 'addon' or 'both'")
        for name in ("omega", "alpha", "bonus", "states", *RANGES):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
                raise UsageError(f"{name} is {value!r}; it must be a finite number, 0 or greater")
            object.__setattr__(self, name, float(value))
        for dial in self.dials:
            dial.checked()

    @property
    def dials(self) -> tuple[Dial, ...]:
        """Over its own weights, for a policy that takes them as inputs; those over add-ons stand with the add-ons."""
        ends = ((name, getattr(self, name), getattr(self, to)) for to, name in RANGES.items())
        return tuple(Dial(name, low, high) for name, low, high in ends if high)

    def at(self, values: Mapping[str, float]) -> "Objective":
        """The same with one value for each of its dials."""
        chosen = {dial.name: values[dial.name] for dial in self.dials} | dict.fromkeys(RANGES, 0.0)
        return Objective(**asdict(self) | chosen)

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
        """As JSON; without later fields where they are 0, as it was written before there were such."""
        return {name: value for name, value in asdict(self).items() if name not in ("states", *RANGES) or value}


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


def residual(
    omega: float, alpha: float, states: float = 0.0, omega_to: float = 0.0, alpha_to: float = 0.0
) -> Objective:
    """Residual PPO: the prior's log-probability and the entropy with weights of their own (Eq. 16).

    With `states` above 0 it is no longer Eq. 16, but that plus an occupancy term. With `omega_to` the policy takes
    omega as an input, and is trained for all from `omega` to `omega_to` at once; with `alpha_to` the same of alpha.
    """
    return Objective("addon", omega=omega, alpha=alpha, states=states, omega_to=omega_to, alpha_to=alpha_to)


def full(alpha: float) -> Objective:
    """Soft PPO on basic + add-on reward: the policy that one would train if the basic reward were known."""
    return Objective("both", alpha=alpha)


def given_objective(
    objective: Objective | Mapping[str, Any] | None, omega: float | None, alpha: float | None
) -> Objective:
    """The objective, said once: whole (settings files write it as a mapping), or as omega and alpha."""
    if objective is not None:
        if omega is not None or alpha is not None:
            raise UsageError("an objective was given, and omega or alpha too; give one or the other")
        if isinstance(objective, Objective):
            return objective
        try:
            return Objective(**objective)
        except TypeError:
            raise UsageError(f"the objective {objective!r} must have the fields task, omega, alpha, bonus") from None
    if omega is None or alpha is None:
        raise UsageError("omega and alpha are not both set; set both, or an objective such as residual(0.2, 0.1)")
    return residual(omega, alpha)


def plain(objective: Objective, host: str) -> Objective:
    """Refuse the parts that only Repolicy's own PPO has: the host would leave them out without a word."""
    for name, what in (("bonus", "entropy in the loss"), ("states", "price on unfamiliar states"),
                       ("omega_to", "range of omega"), ("alpha_to", "range of alpha")):  # fmt: skip
        if value := getattr(objective, name):
            raise UsageError(f"{name} is {value:g}, and {host} knows no {what}: leave it at 0")
    return objective


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    function.__name__: function
    for function in (no_entropy, end_entropy, repeat_entropy, soft, greedy, kl, residual, full)
}


def named(
    name: str,
    *,
    omega: float | None = None,
    alpha: float | None = None,
    states: float = 0.0,
    omega_to: float = 0.0,
    alpha_to: float = 0.0,
) -> Objective:
    """The objective called `name`, from exactly the coefficients that it has.

    >>> named("kl", alpha=0.1) == Objective("addon", omega=0.1, alpha=0.1)
    True
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
    made = OBJECTIVES[name](**given)
    if states and made.task != "addon":
        raise UsageError(f"objective {name} has no states; they are a prior's, so they go with residual, kl or greedy")
    if alpha_to and made.omega and "omega" not in wanted:
        raise UsageError(f"objective {name} has one weight for both terms, so alpha can have no range: take residual")
    return replace(made, states=states, omega_to=omega_to, alpha_to=alpha_to)


def coefficients(name: str) -> list[str]:
    """The names of those that an objective cannot do without."""
    parameters = inspect.signature(OBJECTIVES[name]).parameters.values()
    return [each.name for each in parameters if each.default is each.empty]


def name_of(objective: Objective) -> tuple[str, dict[str, float]] | None:
    """What `named` makes it from, or None: not every objective has a name.

    >>> name_of(Objective("addon", omega=0.1, alpha=0.1))
    ('kl', {'alpha': 0.1})
    """
    given = {"omega": objective.omega, "alpha": objective.alpha or objective.bonus}
    beyond = {name: getattr(objective, name) for name in ("states", *RANGES)}
    plain = Objective(**asdict(objective) | dict.fromkeys(beyond, 0.0))
    for name, function in OBJECTIVES.items():
        values = {key: given[key] for key in coefficients(name)}
        made = function(**values)
        free = "omega" in values or not made.omega  # each weight has a range of its own, or none
        if made == plain and (free or not objective.dials):
            return name, values | {key: value for key, value in beyond.items() if value}
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
    states: Any


def task_reward(objective: Objective, basic: Array | None, addon: Array | None) -> Array:
    """The task's own reward. The basic reward is not so much as touched where the task is the add-on's."""
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
    """task + omega · log prior − alpha · log policy, with its parts apart (Eq. 16).

    `states` is the familiarity of the next states, for an objective that weighs it; `omega` and `alpha` each
    step's own, for one with a range.

    A term whose coefficient is 0 is left out rather than multiplied, so `log_prior` may be None where omega is 0, an
    infinite log-probability does no harm there, and the remaining sum is the same to the bit.
    """
    prior = (objective.omega if omega is None else omega) * log_prior if objective.omega else 0.0 * task
    entropy = -(objective.alpha if alpha is None else alpha) * log_policy if objective.alpha else 0.0 * task
    total = task
    if objective.omega:
        total = total + prior
    if objective.alpha:
        total = total + entropy
    if objective.states and states is None:
        raise UsageError("an objective with states above 0 needs the density of a prior's states, and none is here")
    familiar = objective.states * states if objective.states else 0.0 * task
    return Reward(task, prior, entropy, total + familiar if objective.states else total, familiar)
