"""Whether a mean lies above 0, by bets on one number after another: the answer may be looked at after each of them.

A gambler who begins with 1 stakes a share of what he has on each number: his wealth is the product of 1 + stake ·
number. Where the mean is 0 or less, no rule of staking makes it grow on average, if each stake is chosen before its
number is seen and no number takes more than all. So it ever reaches 1/error with a probability of at most `error`
(Ville), however the numbers are spread: skewed, tied, or the same a thousand times. See Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting" (2024).
"""

from typing import Literal, get_args

import numpy as np

Verdict = Literal["worse", "cannot tell", "not worse", "better"]  # on a new policy, by whatever test
VERDICT_ORDER: tuple[Verdict, ...] = get_args(Verdict)

WARMUP = 10  # numbers before the first bet: they show how large a loss can be
MAX_STAKE = 0.75  # share of the wealth that one number may take
BISECTIONS = 40  # of the range in which an end of an interval is looked for


def loss_bounds(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the largest loss from old to new that each pair `[..., N]`, with those before, lets one think possible.

    It is the largest size seen, as if all could be lost; where returns have both signs, it is the range seen.
    """
    high, low = np.maximum(old, new), np.minimum(old, new)
    seen = np.maximum.accumulate(high, axis=-1) - np.minimum.accumulate(low, axis=-1)
    return np.maximum(seen, np.maximum(abs(old), abs(new)))


def log_wealth(values: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return the log of the highest wealth so far `[..., N]`, of bets that the mean of the values is above 0.

    values `[..., N]`: in the order in which they came. losses `[..., N]`: the largest loss that each of them lets one
    think possible; bets know only those before. A value that loses more than that takes all at most.
    """
    count = np.arange(values.shape[-1])
    bound = _previous(np.maximum.accumulate(losses, axis=-1))
    total, squares = (_previous(np.cumsum(each, axis=-1)) for each in (values, values**2))
    # The stake that would have made the most of the values before, to second order.
    stake = np.divide(total, squares, out=np.zeros_like(total), where=squares > 0)
    most = np.divide(MAX_STAKE, bound, out=np.zeros_like(bound), where=bound > 0)
    stake = np.where(count < WARMUP, 0.0, np.clip(stake, 0.0, most))
    factors = np.maximum(1.0 + stake * values, np.finfo(float).tiny)
    return np.maximum.accumulate(np.cumsum(np.log(factors), axis=-1), axis=-1)


def is_mean_proven_positive(values: np.ndarray, losses: np.ndarray, error: float) -> np.ndarray:
    """Return after which values `[..., N]` their mean is shown to be above 0. It is wrongly so with at most `error`."""
    return log_wealth(values, losses) >= -np.log(error)


def mean_lower_bound(values: np.ndarray, losses: np.ndarray, error: float) -> float:
    """Return the largest number that the mean of the values `[N]` is shown to be above, or minus infinity."""
    low, high = -float(losses.max()), float(values.mean())
    if not is_mean_proven_positive(values - low, losses, error)[-1]:
        return -np.inf
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        above = is_mean_proven_positive(values - middle, losses + max(middle, 0.0), error)[-1]
        low, high = (middle, high) if above else (low, middle)
    return low


def _previous(running: np.ndarray) -> np.ndarray:
    """Return what was known before each value: the same, one later, and 0 at first."""
    return np.concatenate([np.zeros_like(running[..., :1]), running[..., :-1]], axis=-1)
