"""Environments that show, behind what the policy observes, where on its dials the episode stands: from −1 to 1.

They are drawn when an episode begins, and stay until it ends. On each dial, each environment draws from a stratum of
its own, one for each of all environments of all ranks, so that every part of a dial is seen equally often at any time,
however long the episodes are. With several dials the strata form a Latin hypercube: which belong together is by chance,
and drawn anew with each seed. A grid would leave few environments to a dial; drawing freely would leave gaps.
"""

import numpy as np

from repolicy.envs.step import Envs, Step

ENDS = 0.1  # share of the strata at each end of the dial, exactly on it


class Places:
    """Draws positions for the environments from `first` on, `count` of `total`."""

    def __init__(self, count: int, seed: int, first: int = 0, total: int | None = None, dials: int = 1) -> None:
        self.count, self.dials, self._total = count, dials, total or count
        random = np.random.default_rng(seed)
        self._strata = np.stack([random.permutation(self._total)[first : first + count] for _ in range(dials)])
        self._rng = np.random.default_rng([seed, first])

    def drawn(self) -> np.ndarray:
        """Draw positions `[N, dials]`."""
        return placed((self._strata + self._rng.random((self.dials, self.count))).T / self._total)


class Dialed:
    """The environments `envs`, which are those from `first` on of `total`."""

    def __init__(self, envs: Envs, seed: int, first: int = 0, total: int | None = None, dials: int = 1) -> None:
        self.envs, self.backend, self.count, self.dials = envs, envs.backend, envs.count, dials
        self.name, self.actions, self.groups, self.limit = envs.name, envs.actions, envs.groups, envs.limit
        self.observation_size = envs.observation_size + dials
        self._drawn = Places(envs.count, seed, first, total, dials).drawn

    def reset(self) -> np.ndarray:
        self._places = self._drawn()
        return self._behind(self.envs.reset())

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        own = self.envs.observation_size
        bare = np.concatenate([observations[:, :own], observations[:, own + self.dials :]], 1)
        self._places = np.where(which[:, None], self._drawn(), self._places)
        return self._behind(self.envs.renew(which, bare))

    def step(self, actions: np.ndarray) -> Step:
        step = self.envs.step(actions)
        final, ended = self._behind(step.final), step.terminated | step.truncated
        if ended.any():
            self._places = np.where(ended[:, None], self._drawn(), self._places)
        return step._replace(observations=self._behind(step.observations), final=final)

    def close(self) -> None:
        self.envs.close()

    def _behind(self, observations: np.ndarray) -> np.ndarray:
        own = self.envs.observation_size  # the critic's own numbers, where there are any, stay last
        return np.concatenate([observations[:, :own], self._places.astype(np.float32), observations[:, own:]], 1)


def placed(shares: np.ndarray) -> np.ndarray:
    """Return the positions of numbers from 0 to 1."""
    return np.asarray((2.0 * shares - 1.0) / (1.0 - 2.0 * ENDS)).clip(-1.0, 1.0)
