"""Environments around others: with places on dials, which the policy observes, or acted in through a policy's noise.

**Dials** (`Dialed`). Behind what the policy observes stands where on its dials the episode is, from −1 to 1. Places are
drawn when an episode begins, and stay until it ends. On the first dial, each environment draws from a stratum of its
own, one for each of all environments of all ranks, so that every part of a dial is seen equally often at any time,
however long the episodes are. On other dials the strata are dealt anew with each drawing, so that every pair of parts
is seen in time. Those of episodes that begin together form a Latin hypercube: a grid would leave few environments to a
dial, and drawing freely would leave gaps.

**Noise** (`NAME?decoder=FILE&noise=8&chunk=4`). A generative policy, a diffusion or a flow, turns an observation and
noise z ~ N(0, I) into a chunk of actions. Here an action is z, and a step is the whole chunk. So the prior over actions
is exactly N(0, I), whatever the decoder does.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from repolicy.envs.step import Chunk, Envs, Step, stack_infos
from repolicy.errors import UsageError
from repolicy.policies import ActionSpace
from repolicy.priors import Decoder

END_SHARE = 0.1  # share of the strata at each end of the dial, exactly on it


class DialPositions:
    """Draws positions for the environments from `first` on, `count` of `total`."""

    def __init__(self, count: int, seed: int, first: int = 0, total: int | None = None, dials: int = 1) -> None:
        self.count, self.dials, self._total = count, dials, total or count
        self._own = slice(first, first + count)
        self._deals = np.random.default_rng(seed)  # the same on all ranks
        self._first = self._dealt()
        self._rng = np.random.default_rng([seed, first])

    def drawn(self) -> np.ndarray:
        """Draw positions `[N, dials]`."""
        strata = np.stack([self._first, *(self._dealt() for _ in range(self.dials - 1))])
        return positions_of((strata + self._rng.random((self.dials, self.count))).T / self._total)

    def _dealt(self) -> np.ndarray:
        return self._deals.permutation(self._total)[self._own]


class DialedEnvs:
    """The environments `envs`, which are those from `first` on of `total`."""

    def __init__(self, envs: Envs, seed: int, first: int = 0, total: int | None = None, dials: int = 1) -> None:
        self.envs, self.dials = envs, dials
        self.name, self.backend, self.count = envs.name, envs.backend, envs.count
        self.actions, self.groups, self.limit = envs.actions, envs.groups, envs.limit
        self.observation_size = envs.observation_size + dials
        self._drawn = DialPositions(envs.count, seed, first, total, dials).drawn

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


def positions_of(shares: np.ndarray) -> np.ndarray:
    """Return the positions of numbers from 0 to 1."""
    return np.asarray((2.0 * shares - 1.0) / (1.0 - 2.0 * END_SHARE)).clip(-1.0, 1.0)


class NoiseEnvs:
    """The environments `envs`, in which each action is the noise that a decoder starts from.

    What an episode's end leaves of a chunk is not done: its environment begins anew with the next decision. Who films
    the first one is told after each of its steps whether its episode is over: `seen`.
    """

    def __init__(self, envs: Envs, decoder: Decoder, name: str, seen: Callable[[bool], None] | None = None) -> None:
        self.envs, self.decoder, self.name = envs, decoder, name
        self.count, self.backend = envs.count, envs.backend
        if envs.actions.kind != "continuous":
            raise UsageError(f"{decoder.name} gives numbers as actions, and {envs.name!r} takes {envs.actions}")
        self.actions = ActionSpace("continuous", (decoder.noise,))
        self.observation_size, self.groups = envs.observation_size, envs.groups
        self.limit = None if envs.limit is None else -(-envs.limit // decoder.chunk)
        self._seen = seen

    def reset(self) -> np.ndarray:
        self._current = self.envs.reset()
        return self._current

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        self._current = self.envs.renew(which, observations)
        return self._current

    def step(self, actions: np.ndarray) -> Step:
        decoded, ended = self._decoded(actions), np.zeros(self.count, bool)
        before, counts, steps = [self._current], list[np.ndarray](), list[Step]()
        for taken in decoded:
            steps.append(self.envs.step(taken))
            before.append(steps[-1].observations)
            counts.append(~ended)
            ended = ended | steps[-1].terminated | steps[-1].truncated
            if self._seen is not None and counts[-1][0]:
                self._seen(bool(ended[0]))
        chunk = Chunk(
            np.stack(before[:-1]), decoded, np.stack([step.final for step in steps]),
            stack_infos([step.info for step in steps]), np.stack(counts),
        )  # fmt: skip
        rewards = np.where(chunk.counts, [step.rewards for step in steps], 0.0).sum(0)

        last = chunk.counts.sum(0) - 1  # [N] the step with which each environment's part of the chunk ends
        terminated, truncated, final = (
            np.stack([getattr(step, part) for step in steps])[last, np.arange(self.count)]
            for part in ("terminated", "truncated", "final")
        )
        self._current = before[-1]
        if (early := last < len(steps) - 1).any():  # those have gone on, and not by a decision of their own
            self._current = self.envs.renew(early, self._current)
        return Step(self._current, rewards, terminated, truncated, final, {}, chunk)

    def copies(self, times: int, random: np.random.Generator) -> "NoiseEnvs":
        """Return so many copies of each environment, where its envs can be copied; they stand where it stands."""
        inner: Any = self.envs
        other = NoiseEnvs(inner.copies(times, random), self.decoder, self.name)
        other._current = self._current.repeat(times, 0)
        return other

    def close(self) -> None:
        self.envs.close()

    def _decoded(self, noise: np.ndarray) -> np.ndarray:
        """Return the actions `[C, N, A]` that noise `[N, Z]` becomes at the present observations."""
        chunk, width = self.decoder.chunk, self.envs.actions.width
        decoded = self.decoder(self._current[:, : self.observation_size], noise.astype(np.float32))
        if decoded.shape[1] != chunk * width:
            plain = self.envs.name.partition("?")[0]
            raise UsageError(
                f"{self.decoder.name} gives {decoded.shape[1]} numbers at a time, and {plain} "
                f"takes {width} an action, {chunk * width} for --chunk {chunk}: --chunk says how many actions there are"
            )
        return decoded.reshape(self.count, chunk, width).swapaxes(0, 1)
