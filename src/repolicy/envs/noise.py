"""Environments that are acted in through the noise of a generative policy: `NAME?decoder=FILE&noise=8&chunk=4`.

Such a policy, a diffusion or a flow, turns an observation and noise z ~ N(0, I) into a chunk of actions. Here an action
is z, and a step is the whole chunk. So the prior over actions is exactly N(0, I), whatever the decoder does.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from repolicy.envs.step import Chunk, Envs, Step, stacked
from repolicy.errors import UsageError
from repolicy.policies import ActionSpace
from repolicy.priors import Decoder


class NoiseEnvs:
    """The environments `envs`, in which each action is the noise that a decoder starts from.

    What an episode's end leaves of a chunk is not done: its environment begins anew with the next decision. Who films
    the first one is told after each of its steps whether its episode is over: `seen`.
    """

    def __init__(self, envs: Envs, decoder: Decoder, name: str, seen: Callable[[bool], None] | None = None) -> None:
        self.envs, self.decoder, self.name, self.count, self.backend = envs, decoder, name, envs.count, envs.backend
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
        ended, before, counts, steps = np.zeros(self.count, bool), [self._current], list[np.ndarray](), list[Step]()
        decoded = self._decoded(actions)
        for taken in decoded:
            steps.append(self.envs.step(taken))
            before.append(steps[-1].observations)
            counts.append(~ended)
            ended = ended | steps[-1].terminated | steps[-1].truncated
            if self._seen is not None and counts[-1][0]:
                self._seen(bool(ended[0]))
        chunk = Chunk(
            np.stack(before[:-1]), decoded, np.stack([step.final for step in steps]),
            stacked([step.info for step in steps]), np.stack(counts),
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
