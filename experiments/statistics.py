"""What may be said from few seeds: the statistics of Agarwal et al. (2021), as their package rliable has them.

Scores are `[..., S, T]`: S seeds of T tasks. (rliable itself needs a version of pandas that is no longer current.)
"""

from collections.abc import Callable

import numpy as np

from repolicy.envs.evaluation import Column

RESAMPLES = 5_000


def mean_and_error(values: np.ndarray) -> list[float]:
    """The mean and its standard error."""
    column = Column("", values)
    return [float(f"{column.mean:.6g}"), float(f"{column.error:.3g}")]


def iqm(scores: np.ndarray) -> np.ndarray:
    """The interquartile mean over seeds and tasks: the mean of the middle half."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return np.asarray(flat[..., cut : flat.shape[-1] - cut].mean(axis=-1))


def mean(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores.mean(axis=(-2, -1)))


def improvement(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The probability that a seed of ours is better than one of theirs, a tie for half; the mean over tasks."""
    left, right = ours[..., :, None, :], theirs[..., None, :, :]
    return np.asarray(((left > right) + 0.5 * (left == right)).mean(axis=(-3, -2, -1)))


def interval(
    statistic: Callable[..., np.ndarray], *samples: np.ndarray, share: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentiles of the statistic under a stratified bootstrap: seeds drawn anew in each task of each sample."""
    generator = np.random.default_rng(0)
    drawn = []
    for scores in samples:
        which = generator.integers(0, len(scores), (resamples, *scores.shape))
        drawn.append(np.take_along_axis(scores[None], which, axis=1))
    low, high = np.quantile(statistic(*drawn), [(1.0 - share) / 2.0, (1.0 + share) / 2.0])
    return float(low), float(high)
