"""A KL budget: omega and alpha move together until the policy is as far from its prior as it may be."""

import math
from dataclasses import replace

from repolicy.objective import Objective

FAR = 2.0  # a KL e² times its budget, or an e²th of it, is as far off as it counts
STEERING = 0.03  # how fast omega and alpha follow a KL that is off its budget, an iteration
DAMPING = 1.0  # and how much a KL that moves: without it they answer too late, and the policy drifts far beyond


def off_budget(kl: float, budget: float) -> float:
    """How far the policy's distance from its prior is from the budget: the logarithm of their ratio, within bounds."""
    return max(-FAR, min(FAR, math.log(max(kl, 1e-6) / budget)))


def steered(objective: Objective, before: float, now: float) -> Objective:
    """The objective with more weight on the prior where the policy is beyond the budget or on its way there.

    omega and alpha move together: they are the multiplier of the constraint KL ≤ budget. A larger omega alone would
    sharpen the policy around the prior's mode, and so move it away from the prior.
    """
    factor = math.exp(STEERING * now + DAMPING * (now - before))
    return replace(objective, omega=max(1e-6, objective.omega * factor), alpha=max(1e-6, objective.alpha * factor))
