"""The curves of what fine-tuning does to a policy, as its table and its picture read them."""

import numpy as np

from repolicy.many.ledger import Row

EPISODE = 16  # iterations: an episode of 1,000 steps where each has 64, and two where it has 128


def smooth(row: Row) -> np.ndarray:
    """A run's curve; of a reward a step, each value is the mean over whole episodes, and unknown before that.

    All environments start their episodes at once, and earn little right after it.
    """
    values = np.array(row["curves"][row["curve"]], float)  # None becomes nan
    if row["curve"] != "basic":
        return values
    means = np.convolve(values, np.ones(EPISODE) / EPISODE, "valid")
    return np.concatenate([np.full(EPISODE - 1, np.nan), means])
