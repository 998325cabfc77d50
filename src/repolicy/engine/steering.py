"""A KL budget: omega and alpha move together until the policy is as far from its prior as it may be."""

import math
from dataclasses import replace

from repolicy.objective import Objective

FARTHEST = 2.0  # a KL e² times its budget, or an e²th of it, is as far off as it counts
STEERING = 0.03  # how fast omega and alpha follow a KL that is off its budget, an iteration
DAMPING = 1.0  # and how much a KL that moves: without it they answer too late, and the policy drifts far beyond
NOISE = 0.25  # the std that a measured KL near its budget may have, as a share of the budget


def off_budget(kl: float, budget: float, before: float = 0.0, samples: float = math.inf) -> float:
    """How far the policy's distance from its prior is from the budget: the logarithm of their ratio, within bounds.

    A KL near a budget B, measured from S samples, has a std of √(2·B/S): where that is much for a small budget (the
    measured KL may be below 0), this one is averaged with those `before`, over at most some 20 iterations.
    """
    share = max(0.05, min(1.0, NOISE**2 / 2 * budget * samples))
    if share < 1.0:
        kl = share * kl + (1.0 - share) * budget * math.exp(before)
    return max(-FARTHEST, min(FARTHEST, math.log(max(kl, budget * math.exp(-2 * FARTHEST)) / budget)))


def steered(objective: Objective, before: float, now: float) -> Objective:
    """The objective with more weight on the prior where the policy is beyond the budget or on its way there.

    omega and alpha move together: they are the multiplier of the constraint KL ≤ budget. A larger omega alone would
    sharpen the policy around the prior's mode, and so move it away from the prior.
    """
    factor = math.exp(STEERING * now + DAMPING * (now - before))
    return replace(objective, omega=max(1e-6, objective.omega * factor), alpha=max(1e-6, objective.alpha * factor))
