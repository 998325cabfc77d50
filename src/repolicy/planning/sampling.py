"""The mathematics of planning by samples: noise, weights, and the temperature.

A plan is N times T deviations from what the prior would do, in units of its std. K candidates are the plan û plus noise
ε = B·z, with z ~ N(0, I) at some knots in time and B what lies between them. A candidate of the score S has the weight

    base(û + ε) / N(û + ε; û, B·Bᵀ) · exp(S / λ)

so what is planned depends on the base, the density that candidates would have were all scores equal:

    nominal   N(û, B·Bᵀ): near the plan; the weight is S/λ
    uniform   1: the maximum-entropy plan itself; S/λ + ½·|z|² + Σ log tanh′(u), the last where actions are tanh(u)
"""

from typing import Literal

import numpy as np

Base = Literal["nominal", "uniform"]
BASES: tuple[Base, ...] = ("nominal", "uniform")
HALVINGS = 50  # of the temperature's logarithm


def between(knots: int, horizon: int) -> np.ndarray:
    """Return B `[T, H]`: noise at H knots, evenly spread over T steps, goes in straight lines from one to the next.

    Each step's variance is 1, as if it had noise of its own.
    """
    if knots == 1:
        return np.ones((horizon, 1))
    places = np.linspace(0.0, horizon - 1.0, min(knots, horizon))
    lines = np.stack([np.interp(np.arange(horizon), places, one) for one in np.eye(len(places))], axis=1)
    return lines / np.linalg.norm(lines, axis=1, keepdims=True)


def correction(draws: np.ndarray, slopes: np.ndarray, base: Base) -> np.ndarray | float:
    """Return log(base/proposal) `[N, K]`, but for a constant, of draws z `[N, K, H, A]` around a plan.

    slopes: Σ log tanh′ `[N, K]` of the actions, 0 where there is no tanh.
    """
    return 0.5 * np.square(draws).sum((2, 3)) + slopes if base == "uniform" else 0.0


def normalized(log_weights: np.ndarray) -> np.ndarray:
    """Return weights `[N, K]` that sum to 1 over the candidates. Of −∞ everywhere, all go to the first one."""
    most = log_weights.max(1, keepdims=True)
    known = np.isfinite(most)
    weights = np.exp(log_weights - np.where(known, most, 0.0))
    weights[~known[:, 0], 0] = 1.0
    return weights / weights.sum(1, keepdims=True)


def effective(weights: np.ndarray) -> np.ndarray:
    """Return the effective sample size 1/Σw² `[N]` of weights `[N, K]`: 1 for the best of K, K for all alike."""
    return 1.0 / np.square(weights).sum(1)


def temperature(scores: np.ndarray, corrected: np.ndarray | float, wanted: float) -> np.ndarray:
    """Return λ `[N, 1]` at which the effective sample size of scores `[N, K]` is the wanted one, by bisection.

    It grows with λ where the base is nominal. With another base no λ may have it, and the nearest end is returned.
    """
    finite = np.isfinite(scores)
    highest = scores.max(1, keepdims=True, initial=-np.inf, where=finite)
    lowest = scores.min(1, keepdims=True, initial=np.inf, where=finite)
    spread = highest - lowest
    spread = np.where(np.isfinite(spread) & (spread > 0.0), spread, 1.0)
    low, high = spread * 1e-6, spread * 1e6
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        enough = effective(normalized(scores / middle + corrected))[:, None] >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.sqrt(low * high)
