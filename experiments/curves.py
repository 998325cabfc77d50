"""The curves of what fine-tuning does to a policy, as its table and its picture read them."""

import numpy as np

from experiments.ledger import Row

EPISODE = 16  # iterations: an episode of 1,000 steps where each has 64, and two where it has 128


def smooth(row: Row) -> np.ndarray:
    """Return a run's curve, each value the mean over whole episodes, and unknown before that.

    All environments start their episodes at once. So rewards are low right after it, and between two time limits the
    episodes that end are those that fell.
    """
    values = np.array(row["curves"][row["curve"]], float)  # None becomes nan
    windows = np.lib.stride_tricks.sliding_window_view(values, EPISODE)
    return np.concatenate([np.full(EPISODE - 1, np.nan), np.nanmean(windows, 1)])
