"""Test whether a mean is above 0 by betting on one number after another; the test may be read after each number.

A gambler begins with a wealth of 1 and stakes a share of it on each number, so the wealth is the product of 1 + stake ·
number. Each stake is chosen before its number is known, and a number can take all of the wealth at most. Then the
expected wealth never grows if the mean is 0 or less, and it reaches 1/error with a probability of at most `error`
(Ville's inequality). This holds for any distribution: skewed, tied, or constant. See Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting" (2024).
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from repolicy.errors import UsageError
from repolicy.text import parse_number

Verdict = Literal["worse", "cannot tell", "not worse", "better"]  # on a new policy
VERDICT_ORDER: tuple[Verdict, ...] = get_args(Verdict)

WARMUP = 10  # numbers before the first bet, from which the size of losses is learned
MAX_STAKE = 0.75  # share of the wealth that one number may take
BISECTIONS = 40  # steps of the search for an interval's end


@dataclass(frozen=True)
class Margin:
    """The loss up to which the new policy is still called not worse."""

    value: float
    is_share: bool  # a share of the old policy's mean, not a number in its units

    @classmethod
    def parse(cls, given: str | float) -> "Margin":
        """Return the margin of a text such as `5%` or `100`."""
        text = str(given).strip()
        value = parse_number(text.removesuffix("%"))
        if not 0.0 < value < math.inf:
            raise UsageError(f"--not-worse is {text!r}; it must be a share of the old mean (5%), or a number above 0")
        return cls(value / 100.0, True) if text.endswith("%") else cls(value, False)

    def __str__(self) -> str:
        return f"{100 * self.value:g}%" if self.is_share else f"{self.value:g}"


def loss_bounds(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return a bound on the loss from old to new, estimated after each pair `[..., N]` from all pairs so far.

    It is the largest absolute value so far, as if all could be lost. With returns of both signs it is their range.
    """
    high, low = np.maximum(old, new), np.minimum(old, new)
    ranges = np.maximum.accumulate(high, axis=-1) - np.minimum.accumulate(low, axis=-1)
    return np.maximum(ranges, np.maximum(abs(old), abs(new)))


def log_wealth(values: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return the log of the highest wealth so far `[..., N]`, for bets that the mean of the values is above 0.

    `values` `[..., N]` are in the order of time. `losses` `[..., N]` are bounds on a loss, known after each value. A
    bet uses only the bounds before it. A loss beyond its bound takes all of the wealth at most.
    """
    index = np.arange(values.shape[-1])
    bound = _previous(np.maximum.accumulate(losses, axis=-1))
    total = _previous(np.cumsum(values, axis=-1))
    squares = _previous(np.cumsum(values**2, axis=-1))
    # The stake that would have been best for the values before, to second order.
    stake = np.divide(total, squares, out=np.zeros_like(total), where=squares > 0)
    max_stake = np.divide(MAX_STAKE, bound, out=np.zeros_like(bound), where=bound > 0)
    stake = np.where(index < WARMUP, 0.0, np.clip(stake, 0.0, max_stake))
    factors = np.maximum(1.0 + stake * values, np.finfo(float).tiny)
    return np.maximum.accumulate(np.cumsum(np.log(factors), axis=-1), axis=-1)


def is_mean_proven_positive(values: np.ndarray, losses: np.ndarray, error: float) -> np.ndarray:
    """Return whether the mean is proven to be above 0 after each value `[..., N]`; wrong with probability `error`."""
    return log_wealth(values, losses) >= -np.log(error)


def numbers_needed(values: np.ndarray, losses: np.ndarray, error: float) -> int:
    """Return how many numbers like these `[N]` prove their mean positive; 0 if it is not.

    Numbers beyond those that are known count as their mean, with the last bound on a loss.
    """
    mean, wealth = float(values.mean()), log_wealth(values, losses)
    if wealth[-1] >= -math.log(error):
        return int((wealth >= -math.log(error)).argmax()) + 1
    bound = float(losses.max())
    if mean <= 0.0 or bound == 0.0:  # without a bound nothing is staked
        return 0
    growth = math.log1p(mean * min(MAX_STAKE / bound, 1.0 / mean))
    return max(len(values), WARMUP) + math.ceil((-math.log(error) - wealth[-1]) / growth)


def mean_lower_bound(values: np.ndarray, losses: np.ndarray, error: float) -> float:
    """Return the largest number that the mean of the values `[N]` is proven to exceed, or minus infinity."""
    low, high = -float(losses.max()), float(values.mean())
    if not is_mean_proven_positive(values - low, losses, error)[-1]:
        return -np.inf
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if is_mean_proven_positive(values - middle, losses + max(middle, 0.0), error)[-1]:
            low = middle
        else:
            high = middle
    return low


def _previous(running: np.ndarray) -> np.ndarray:
    """Return the running statistic before each value: shifted by one, beginning with 0."""
    return np.concatenate([np.zeros_like(running[..., :1]), running[..., :-1]], axis=-1)
