"""A budget: the weights move until the policy is as far from its prior, or its actions as unlikely, as they may be."""

import math
from dataclasses import replace

from repolicy.objective import Objective
from repolicy.runs.settings import Budget

FARTHEST = 2.0  # bound of the logarithm of spent/budget
STEERING = 0.03  # how much the weights follow this logarithm in an iteration
DAMPING = 1.0  # how much they follow its change: without this they answer too late, and the policy drifts far beyond
NOISE = 0.25  # the std that a measurement near the budget may have, as a share of the budget
LEAST = 1e-6  # smallest value of a weight
BEYOND = 1.25  # spent/budget from which the end of a run is said to be beyond its budget


def off_budget(
    spent: float, budget: float, before: float = 0.0, samples: float = math.inf, variance: float | None = None
) -> float:
    """Return how far the nats that are spent are from the budget: the logarithm of their ratio, within bounds.

    They are a mean over samples, each with some variance (of a KL near its budget, twice the budget). Where its std is
    much for a small budget (the measured KL may be below 0), this one is averaged with those `before`, over at most
    some 20 iterations.
    """
    variance = 2 * budget if variance is None else variance
    share = max(0.05, min(1.0, NOISE**2 * budget**2 * samples / max(variance, 1e-12)))
    if share < 1.0:
        spent = share * spent + (1.0 - share) * budget * math.exp(before)
    return max(-FARTHEST, min(FARTHEST, math.log(max(spent, budget * math.exp(-2 * FARTHEST)) / budget)))


def steered(objective: Objective, before: float, now: float, *, omega_alone: bool = False) -> Objective:
    """Return the objective with more weight on the prior where the policy is beyond the budget or on its way there.

    omega and alpha move together: they are the multiplier of the constraint KL ≤ budget. A larger omega alone would
    sharpen the policy around the prior's mode, and so move it away from the prior. But omega alone is the multiplier of
    E[log prior] ≥ its own − budget, and a larger one always makes likelier actions.
    """
    factor = math.exp(STEERING * now + DAMPING * (now - before))
    alpha = objective.alpha if omega_alone else max(LEAST, objective.alpha * factor)
    return replace(objective, omega=max(LEAST, objective.omega * factor), alpha=alpha)


def overspent(off: float, spent: float, budget: Budget) -> list[str]:
    """Return what is to be said of a run that ends beyond its budget, by what `off_budget` made of what was spent."""
    return [
        f"the run ends beyond its budget of {budget.nats:g} nats a step: the last iteration spent {spent:.3g}; the "
        "weights follow slowly, and more --steps give them time"
    ] * (off > math.log(BEYOND))
