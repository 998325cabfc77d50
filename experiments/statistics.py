"""What may be said from few seeds: the statistics of Agarwal et al. (2021), as their package rliable has them.

Scores are `[..., S, T]`: S seeds of T tasks. (rliable itself needs a version of pandas that is no longer current.)
"""

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import comb

import numpy as np

from experiments.ledger import Row
from repolicy.envs.evaluation import Column

RESAMPLES = 5_000
EPISODE = 16  # iterations: an episode of 1,000 steps where each has 64, and two where it has 128
DEALS = 20_000  # of which a test looks at every one; of more it draws so many


def mean_and_error(values: np.ndarray) -> list[float]:
    """Return the mean and its standard error."""
    column = Column("", values)
    return [float(f"{column.mean:.6g}"), float(f"{column.error:.3g}")]


def iqm(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over seeds and tasks: the mean of the middle half."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return np.asarray(flat[..., cut : flat.shape[-1] - cut].mean(axis=-1))


def mean(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores.mean(axis=(-2, -1)))


def chance(
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ours: np.ndarray,
    theirs: np.ndarray,
    known: bool = False,
) -> float:
    """Return the share of all ways to deal the seeds `[S]` anew in which the statistic of ours and theirs is as large.

    The statistic is asked of many ways at once: of `[..., S]` and `[..., S']` it gives `[...]`.

    It is exact where ours and theirs are drawn alike. Where a side is a number that is `known`, and no draw, the others
    change sides about it, each by itself, and it is exact where they are spread evenly about it. Where there are more
    than `DEALS` ways, so many are drawn.
    """
    observed, dealt = statistic(ours, theirs), statistic(*_dealt(ours, theirs, known))
    return float(np.mean(dealt >= observed - 1e-9 * abs(observed)))


def _dealt(ours: np.ndarray, theirs: np.ndarray, known: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides in each of W ways, `[W, S]` and `[W, S']`; a side that is known stays as it is."""
    generator = np.random.default_rng(0)
    if known:
        number, others = (ours, theirs) if len(ours) == 1 else (theirs, ours)
        count = len(others)
        few = 2**count <= DEALS
        signs = (
            np.array([*product((1.0, -1.0), repeat=count)]) if few else generator.choice((1.0, -1.0), (DEALS, count))
        )
        turned = number + signs * (others - number)
        return (ours, turned) if len(ours) == 1 else (turned, theirs)
    everyone = np.concatenate([ours, theirs])
    few = comb(len(everyone), len(ours)) <= DEALS
    drawn = (generator.permutation(len(everyone))[: len(ours)] for _ in range(DEALS))
    chosen = np.array([*(combinations(range(len(everyone)), len(ours)) if few else drawn)])
    left = np.ones((len(chosen), len(everyone)), bool)
    np.put_along_axis(left, chosen, False, axis=1)
    return everyone[chosen], np.broadcast_to(everyone, left.shape)[left].reshape(len(chosen), -1)


def interval(
    statistic: Callable[..., np.ndarray], *samples: np.ndarray, share: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Return percentiles of the statistic in a stratified bootstrap: seeds drawn anew in each task of each sample."""
    generator = np.random.default_rng(0)
    drawn = []
    for scores in samples:
        which = generator.integers(0, len(scores), (resamples, *scores.shape))
        drawn.append(np.take_along_axis(scores[None], which, axis=1))
    low, high = np.quantile(statistic(*drawn), [(1.0 - share) / 2.0, (1.0 + share) / 2.0])
    return float(low), float(high)


def smooth(row: Row) -> np.ndarray:
    """Return a run's curve, each value the mean over whole episodes, and unknown before that.

    All environments start their episodes at once. So rewards are low right after it, and between two time limits the
    episodes that end are those that fell.
    """
    values = np.array(row["curves"][row["curve"]], float)  # None becomes nan
    windows = np.lib.stride_tricks.sliding_window_view(values, EPISODE)
    return np.concatenate([np.full(EPISODE - 1, np.nan), np.nanmean(windows, 1)])


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return ranks from 0; of equal values, the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: np.ndarray = (np.cumsum(counts) - (counts + 1) / 2)[which]
    return mean_ranks


def spearman(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> float:
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])
