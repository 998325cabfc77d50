"""Wrappers of environments: `DialedEnvs` appends dial positions to observations; `NoiseEnvs` acts through a decoder.

**Dials**. Each observation is followed by the episode's positions on the dials, from −1 to 1, which are drawn when it
begins. On the first dial, each environment of all ranks draws from a stratum of its own. So at any time a tenth stands
at each end, and the rest evenly between, however long the episodes are. On other dials the strata are permuted anew
with each draw, so that every pair of parts is seen in time. (A grid would leave few environments to a dial.)

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
    """Draws dial positions for `count` environments, those from `first` on, of `total` over all ranks."""

    def __init__(self, count: int, seed: int, first: int = 0, total: int | None = None, dials: int = 1) -> None:
        self.count, self.dials, self._total = count, dials, total or count
        self._rank_slice = slice(first, first + count)
        self._shared_rng = np.random.default_rng(seed)  # the same on all ranks, so that they share out the strata
        self._first_strata = self._draw_strata()
        self._rng = np.random.default_rng([seed, first])

    def draw(self) -> np.ndarray:
        """Draw positions `[N, dials]`."""
        strata = np.stack([self._first_strata, *(self._draw_strata() for _ in range(self.dials - 1))])
        return positions_of((strata + self._rng.random((self.dials, self.count))).T / self._total)

    def _draw_strata(self) -> np.ndarray:
        return self._shared_rng.permutation(self._total)[self._rank_slice]


class DialedEnvs:
    """The environments `envs`, with dial positions behind each observation; see `DialPositions` for the arguments."""

    def __init__(self, envs: Envs, seed: int, first: int = 0, total: int | None = None, dials: int = 1) -> None:
        self.envs, self.dials = envs, dials
        self.name, self.backend, self.count = envs.name, envs.backend, envs.count
        self.actions, self.groups, self.limit = envs.actions, envs.groups, envs.limit
        self.observation_size = envs.observation_size + dials
        self._draw = DialPositions(envs.count, seed, first, total, dials).draw

    def reset(self) -> np.ndarray:
        self._positions = self._draw()
        return self._with_positions(self.envs.reset())

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        own = self.envs.observation_size
        bare = np.concatenate([observations[:, :own], observations[:, own + self.dials :]], 1)
        self._positions = np.where(which[:, None], self._draw(), self._positions)
        return self._with_positions(self.envs.renew(which, bare))

    def step(self, actions: np.ndarray) -> Step:
        step = self.envs.step(actions)
        final, ended = self._with_positions(step.final), step.terminated | step.truncated
        if ended.any():
            self._positions = np.where(ended[:, None], self._draw(), self._positions)
        return step._replace(observations=self._with_positions(step.observations), final=final)

    def close(self) -> None:
        self.envs.close()

    def _with_positions(self, observations: np.ndarray) -> np.ndarray:
        size = self.envs.observation_size  # the critic's own numbers, if there are any, stay last
        return np.concatenate([observations[:, :size], self._positions.astype(np.float32), observations[:, size:]], 1)


def positions_of(shares: np.ndarray) -> np.ndarray:
    """Map uniform numbers from 0 to 1 to dial positions from −1 to 1; a share `END_SHARE` falls on each end."""
    return np.asarray((2.0 * shares - 1.0) / (1.0 - 2.0 * END_SHARE)).clip(-1.0, 1.0)


class NoiseEnvs:
    """The environments `envs`, in which each action is the noise that a decoder turns into a chunk of actions.

    If an episode ends within a chunk, the rest is not executed: the environment is reset for the next decision.
    `on_step` is called after each step of the first environment with whether its episode has ended, for films.
    """

    def __init__(self, envs: Envs, decoder: Decoder, name: str, on_step: Callable[[bool], None] | None = None) -> None:
        self.envs, self.decoder, self.name = envs, decoder, name
        self.count, self.backend = envs.count, envs.backend
        if envs.actions.kind != "continuous":
            raise UsageError(f"{decoder.name} gives numbers as actions, and {envs.name!r} takes {envs.actions}")
        self.actions = ActionSpace("continuous", (decoder.noise,))
        self.observation_size, self.groups = envs.observation_size, envs.groups
        self.limit = None if envs.limit is None else -(-envs.limit // decoder.chunk)
        self._on_step = on_step

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
            if self._on_step is not None and counts[-1][0]:
                self._on_step(bool(ended[0]))
        chunk = Chunk(
            np.stack(before[:-1]), decoded, np.stack([step.final for step in steps]),
            stack_infos([step.info for step in steps]), np.stack(counts),
        )  # fmt: skip
        rewards = np.where(chunk.counts, [step.rewards for step in steps], 0.0).sum(0)

        last = chunk.counts.sum(0) - 1  # [N] the last step that counts, of each environment
        terminated, truncated, final = (
            np.stack([getattr(step, part) for step in steps])[last, np.arange(self.count)]
            for part in ("terminated", "truncated", "final")
        )
        self._current = before[-1]
        if (early := last < len(steps) - 1).any():  # a new episode has begun with actions of the old decision
            self._current = self.envs.renew(early, self._current)
        return Step(self._current, rewards, terminated, truncated, final, {}, chunk)

    def copies(self, times: int, random: np.random.Generator) -> "NoiseEnvs":
        """Return `times` copies of each environment, in its state; the wrapped ones must be copyable."""
        inner: Any = self.envs
        other = NoiseEnvs(inner.copies(times, random), self.decoder, self.name)
        other._current = self._current.repeat(times, 0)
        return other

    def close(self) -> None:
        self.envs.close()

    def _decoded(self, noise: np.ndarray) -> np.ndarray:
        """Decode noise `[N, Z]` at the current observations into actions `[C, N, A]`."""
        chunk, width = self.decoder.chunk, self.envs.actions.width
        decoded = self.decoder(self._current[:, : self.observation_size], noise.astype(np.float32))
        if decoded.shape[1] != chunk * width:
            takes = f"{self.envs.name.partition('?')[0]} takes {width} an action, {chunk * width} for --chunk {chunk}"
            found = f"{self.decoder.name} gives {decoded.shape[1]} numbers at a time"
            raise UsageError(f"{found}, and {takes}: --chunk says how many actions there are")
        return decoded.reshape(self.count, chunk, width).swapaxes(0, 1)
