"""The mathematics of planning by samples: noise, weights, and the temperature.

A plan holds T deviations from the prior's actions, in units of the prior's std. Each of K candidates is the plan û plus
noise ε = B·z. Here z ~ N(0, I) is drawn at some knots in time, and B interpolates between them. A candidate with the
score S has a weight in proportion to exp(S / λ).
"""

import numpy as np

HALVINGS = 50  # steps of the bisection, on the logarithm of the temperature


def interpolate(knots: int, horizon: int) -> np.ndarray:
    """Return B `[T, H]`, which interpolates linearly between H knots, evenly spread over T steps.

    Its rows are scaled so that the noise of each step has variance 1.
    """
    times = np.linspace(0.0, horizon - 1.0, knots)
    weights = np.stack([np.interp(np.arange(horizon), times, knot) for knot in np.eye(knots)], axis=1)
    return weights / np.linalg.norm(weights, axis=1, keepdims=True)


def normalized(log_weights: np.ndarray) -> np.ndarray:
    """Return weights `[N, K]` that sum to 1 over K. If all candidates have −∞, the first one gets the whole weight."""
    largest = log_weights.max(1, keepdims=True)
    finite = np.isfinite(largest)
    weights = np.exp(log_weights - np.where(finite, largest, 0.0))
    weights[~finite[:, 0], 0] = 1.0
    return weights / weights.sum(1, keepdims=True)


def effective(weights: np.ndarray) -> np.ndarray:
    """Return the effective sample size 1/Σw² `[N]` of weights `[N, K]`: 1 if one has all, K if all are equal."""
    return 1.0 / np.square(weights).sum(1)


def temperature(scores: np.ndarray, target: float) -> np.ndarray:
    """Find by bisection λ `[N, 1]` with which scores `[N, K]` have the effective sample size `target`."""
    finite = np.isfinite(scores)
    highest = scores.max(1, keepdims=True, initial=-np.inf, where=finite)
    lowest = scores.min(1, keepdims=True, initial=np.inf, where=finite)
    spread = highest - lowest
    spread = np.where(np.isfinite(spread) & (spread > 0.0), spread, 1.0)
    low, high = spread * 1e-6, spread * 1e6
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        enough = effective(normalized(scores / middle))[:, None] >= target
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.sqrt(low * high)
