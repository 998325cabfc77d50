"""Statistics for few seeds: those of Agarwal et al. (2021), as their package rliable has them, and permutation tests.

Scores are `[..., S, T]`: S seeds of T tasks. (rliable itself needs a version of pandas that is no longer current.)
"""

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import comb

import numpy as np

from experiments.ledger import Row
from repolicy.differences import Column

BOOTSTRAP_SAMPLES = 5_000
SMOOTHING_WINDOW = 16  # iterations: one episode of 1,000 steps if an iteration has 64 steps, two if it has 128
MAX_PERMUTATIONS = 20_000  # a test enumerates this many; if there are more, it draws this many at random


def mean_and_error(values: np.ndarray) -> list[float]:
    """Return the mean and its standard error, rounded."""
    column = Column("", values)
    return [float(f"{column.mean:.6g}"), float(f"{column.error:.3g}")]


def iqm(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over seeds and tasks: the mean of the middle half."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return np.asarray(flat[..., cut : flat.shape[-1] - cut].mean(axis=-1))


def mean(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores.mean(axis=(-2, -1)))


def permutation_p_value(
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray], ours: np.ndarray, theirs: np.ndarray, known: bool = False
) -> float:
    """Return the share of permutations of the seeds whose statistic is at least as large as the observed one.

    statistic: maps batches `[..., S]` of ours and `[..., S']` of theirs to `[...]`.
    known: one side is a single known number, not a sample. Then each seed of the other side is reflected about it,
        independently; the test is exact if that side is distributed symmetrically about the number.

    Without `known`, seeds are exchanged between the sides; the test is exact if both have the same distribution.
    """
    observed = statistic(ours, theirs)
    permuted = statistic(*(_reflections(ours, theirs) if known else _exchanges(ours, theirs)))
    return float(np.mean(permuted >= observed - 1e-9 * abs(observed)))


def _reflections(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides with the seeds of one, `[W, S]`, reflected about the single number of the other."""
    number, seeds = (ours, theirs) if len(ours) == 1 else (theirs, ours)
    if 2 ** len(seeds) <= MAX_PERMUTATIONS:
        signs = np.array([*product((1.0, -1.0), repeat=len(seeds))])
    else:
        signs = np.random.default_rng(0).choice((1.0, -1.0), (MAX_PERMUTATIONS, len(seeds)))
    reflected = number + signs * (seeds - number)
    return (ours, reflected) if len(ours) == 1 else (reflected, theirs)


def _exchanges(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides, `[W, S]` and `[W, S']`, with the seeds of both divided anew in W ways."""
    seeds, size = np.concatenate([ours, theirs]), len(ours)
    if comb(len(seeds), size) <= MAX_PERMUTATIONS:
        chosen = np.array([*combinations(range(len(seeds)), size)])
    else:
        generator = np.random.default_rng(0)
        chosen = np.array([generator.permutation(len(seeds))[:size] for _ in range(MAX_PERMUTATIONS)])
    rest = np.ones((len(chosen), len(seeds)), bool)
    np.put_along_axis(rest, chosen, False, axis=1)
    return seeds[chosen], np.broadcast_to(seeds, rest.shape)[rest].reshape(len(chosen), -1)


def bootstrap_interval(
    statistic: Callable[..., np.ndarray], *samples: np.ndarray, share: float = 0.95, resamples: int = BOOTSTRAP_SAMPLES
) -> tuple[float, float]:
    """Return percentiles of the statistic in a stratified bootstrap, which resamples the seeds of each task."""
    generator = np.random.default_rng(0)
    resampled = []
    for scores in samples:
        indices = generator.integers(0, len(scores), (resamples, *scores.shape))
        resampled.append(np.take_along_axis(scores[None], indices, axis=1))
    low, high = np.quantile(statistic(*resampled), [(1.0 - share) / 2.0, (1.0 + share) / 2.0])
    return float(low), float(high)


def smooth_curve(row: Row) -> np.ndarray:
    """Return a run's learning curve as running means over whole episodes; nan before the first one ends.

    All environments start their episodes at once, so raw curves oscillate. Rewards are low after a common start, and
    between two time limits only the episodes of falling robots end.
    """
    values = np.array(row["curves"][row["curve"]], float)  # None becomes nan
    windows = np.lib.stride_tricks.sliding_window_view(values, SMOOTHING_WINDOW)
    return np.concatenate([np.full(SMOOTHING_WINDOW - 1, np.nan), np.nanmean(windows, 1)])


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return ranks from 0; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: np.ndarray = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
    return mean_ranks


def spearman(left: Sequence[float] | np.ndarray, right: Sequence[float] | np.ndarray) -> float:
    """Return Spearman's rank correlation."""
    return float(np.corrcoef(ranks(left), ranks(right))[0, 1])
