"""Objectives by name: from the paper's names, from weights, or from the mapping in a file."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from repolicy.errors import UsageError
from repolicy.objective import (
    Objective,
    Weight,
    end_entropy,
    full,
    greedy,
    kl,
    no_entropy,
    repeat_entropy,
    residual,
    soft,
)
from repolicy.ranges import Range

# The function that makes each objective, and which of omega and alpha it takes.
OBJECTIVES: dict[str, tuple[Callable[..., Objective], tuple[str, ...]]] = {
    "no_entropy": (no_entropy, ()),
    "end_entropy": (end_entropy, ("alpha",)),
    "repeat_entropy": (repeat_entropy, ("alpha",)),
    "soft": (soft, ("alpha",)),
    "greedy": (greedy, ("alpha",)),
    "kl": (kl, ("alpha",)),
    "residual": (residual, ("omega", "alpha")),
    "full": (full, ("alpha",)),
}


def objective_by_name(name: str, *, omega: Weight = None, alpha: Weight = None, states: Weight = None) -> Objective:
    """Return the objective called `name`. A weight of None is set later, or is 0 where the objective has none.

    >>> objective_by_name("kl", alpha=0.1) == Objective("addon", omega=0.1, alpha=0.1)
    True
    """
    if name not in OBJECTIVES:
        raise UsageError(f"there is no objective {name!r}; choose from {', '.join(OBJECTIVES)}")
    make, takes = OBJECTIVES[name]
    given = {key: value for key, value in (("omega", omega), ("alpha", alpha)) if value is not None}
    for key in given:
        if key not in takes:
            raise UsageError(f"objective {name} has no {key}; it takes {' and '.join(takes) or 'no coefficient'}")
    made = make(**given)
    if states and made.task != "addon":
        raise UsageError(f"objective {name} has no states; they are a prior's, so they go with residual, kl or greedy")
    return made if states is None else replace(made, states=states)


def objective_name(objective: Objective) -> tuple[str, dict[str, Weight]] | None:
    """Return the arguments from which `objective_by_name` makes this objective, or None where it has no name.

    >>> objective_name(Objective("addon", omega=0.1, alpha=0.1))
    ('kl', {'alpha': 0.1})
    """
    if objective.states and objective.task != "addon":
        return None
    weights = {"omega": objective.omega, "alpha": objective.alpha if objective.alpha != 0 else objective.bonus}
    without_states = replace(objective, states=0.0)
    for name, (make, takes) in OBJECTIVES.items():
        given = {key: weights[key] for key in takes}
        if name in ("kl", "repeat_entropy", "end_entropy") and isinstance(given["alpha"], Range | str):
            continue  # their one weight is a number
        if replace(make(**given), states=0.0) == without_states:
            return name, given | ({"states": objective.states} if objective.states else {})
    return None


def resolve_objective(
    objective: Objective | Mapping[str, Any] | None, omega: Weight, alpha: Weight, states: Weight = None
) -> Objective:
    """Return the objective from an object, a mapping (as in settings files), or weights; None is a missing weight."""
    if objective is None:
        return residual(omega, alpha, states)
    if omega is not None or alpha is not None or states is not None:
        raise UsageError("an objective was given, and omega, alpha or states too; give one or the other")
    if isinstance(objective, Objective):
        return objective
    try:
        return Objective(**objective)
    except TypeError:
        fields = "task, omega, alpha, states and bonus"
        raise UsageError(f"the objective is {objective!r}; it must be a mapping with some of {fields}") from None


def check_supported(objective: Objective, host: str, states: bool = False, ranges: bool = False) -> Objective:
    """Return the objective, or raise where a host would silently ignore a part of it.

    `states` and `ranges`: whether the host supports a weight on states, and weights that are ranges.
    """
    if objective.dials and not ranges:
        name = objective.dials[0].name
        raise UsageError(
            f"{name} is a range, and {host} takes one number: ranges are for `repolicy customize` and rsl_rl"
        )
    if not objective.is_set and not ranges:
        raise UsageError(f"{host} sets no weight by itself: name omega and alpha")
    unknown = {"bonus": "entropy in the loss"}
    if not states:
        unknown["states"] = "price on unfamiliar states"
    for name, what in unknown.items():
        if value := getattr(objective, name):
            raise UsageError(f"{name} is {value:g}, and {host} knows no {what}: leave it at 0")
    return objective
