"""Act T times in N environments, into one buffer.

The loop holds the physics, the actor and nothing else. What can be computed for the whole rollout at once (values,
log-probabilities, add-on rewards) is left to those who come after.
"""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs.spaces import own_numbers
from repolicy.envs.step import Envs, Info, Step
from repolicy.errors import NumericError
from repolicy.policies.policy import Agent, Recalling


@dataclass
class Episodes:
    """Returns and lengths of the episodes that ended in a rollout."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


@dataclass
class Rollout:
    """What happened in T steps of N environments."""

    observations: np.ndarray  # [T + 1, N, O] raw, perhaps with the critic's behind; the last is what to act on next
    actions: Tensor  # [T, N, A] as sampled
    sent: np.ndarray  # [T, N, A] the same as the environment got them
    log_probs: Tensor  # [T, N] log π of the actions, as it was when they were taken
    basic: np.ndarray  # [T, N] the environment's own reward
    terminated: np.ndarray  # [T, N]
    truncated: np.ndarray  # [T, N]
    ages: np.ndarray  # [T, N] steps of the episode so far, this one included
    cut: np.ndarray  # [K, 2] (t, n) of the episodes that a time limit cut
    cut_observations: np.ndarray  # [K, O] what they ended in
    next_observations: np.ndarray | None  # [T, N, O] true next observations, kept for add-ons only
    infos: list[Info]  # T of them, kept for add-ons only
    episodes: Episodes
    physics_seconds: float
    policy_seconds: float

    @property
    def scored(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a prior is asked about: observations, actions, and after which steps an episode ended."""
        ended = torch.from_numpy(self.terminated | self.truncated)
        return torch.from_numpy(self.observations[:-1]), self.actions, ended

    @property
    def transitions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, Info]:
        """What an add-on is asked about: observations, actions, true next observations, info, all `[T, N, ...]`."""
        assert self.next_observations is not None
        return self.observations[:-1], self.sent, self.next_observations, self.info

    @property
    def info(self) -> Info:
        """The infos as arrays `[T, N]`: entries that every step has."""
        keys = set.intersection(*(set(info) for info in self.infos)) if self.infos else set()
        return {key: np.stack([info[key] for info in self.infos]) for key in sorted(keys)}


class Collector:
    """N environments and where they stand. `collect` goes on where the last call stopped.

    cuts: after how many steps the first episode of each environment is cut, as by a time limit; 0 for no cut.
    """

    def __init__(
        self,
        envs: Envs,
        horizon: int,
        generator: torch.Generator,
        keep_transitions: bool = False,
        cuts: np.ndarray | None = None,
    ) -> None:
        self.envs = envs
        self.horizon = horizon
        self.generator = generator
        self.keep_transitions = keep_transitions
        self._current = envs.reset()
        self._memory: Any = None  # of an agent that has one
        self._returns = np.zeros(envs.count)
        self._lengths = np.zeros(envs.count, np.int64)
        self._cuts = np.zeros(envs.count, np.int64) if cuts is None else cuts.copy()

    @torch.no_grad()
    def collect(self, agent: Agent, stochastic: bool = True) -> Rollout:
        """T steps with sampled actions, or with the mode of each distribution."""
        steps, count, own, size = self.horizon, self.envs.count, self.envs.observation_size, self._current.shape[1]
        act = agent.actor(steps, count, self.generator if stochastic else None)
        recalling = act if isinstance(act, Recalling) else None
        if recalling is not None and self._memory is not None:
            recalling.memory = self._memory
        observations = np.empty((steps + 1, count, size), np.float32)
        basic = np.empty((steps, count))
        terminated, truncated = np.zeros((steps, count), bool), np.zeros((steps, count), bool)
        ages = np.empty((steps, count), np.int64)
        next_observations = np.empty((steps, count, size), np.float32) if self.keep_transitions else None
        actions: list[np.ndarray] = []
        sent: list[np.ndarray] = []
        cut: list[tuple[int, int]] = []
        cut_observations: list[np.ndarray] = []
        infos: list[Info] = []
        episodes = Episodes()
        physics_seconds, started = 0.0, perf_counter()

        observations[0] = self._current
        for t in range(steps):
            actions.append(act(observations[t, :, :own]))
            sent.append(agent.to_environment(actions[t]))
            before = perf_counter()
            step = self.envs.step(sent[t])
            physics_seconds += perf_counter() - before
            self._returns += step.rewards
            self._lengths += 1
            ages[t] = self._lengths
            due = self._cut_now(step)
            if due is not None:
                fresh = self.envs.renew(due, step.observations)
                step = step._replace(observations=fresh, truncated=step.truncated | due)
            observations[t + 1], basic[t] = step.observations, step.rewards
            ended = step.terminated | step.truncated
            if ended.any():
                terminated[t], truncated[t] = step.terminated, step.truncated
                for n in np.flatnonzero(ended):
                    if due is None or not due[n]:
                        episodes.returns.append(float(self._returns[n]))
                        episodes.lengths.append(int(self._lengths[n]))
                    if step.truncated[n]:
                        cut.append((t, int(n)))
                        cut_observations.append(step.final[n])
                self._returns[ended], self._lengths[ended] = 0.0, 0
                if recalling is not None:
                    recalling.begin_anew(ended)
            if next_observations is not None:
                next_observations[t] = step.final
                infos.append(step.info)
        self._current = observations[steps].copy()
        self._memory = None if recalling is None else recalling.memory
        if not np.isfinite(observations).all():
            t, n = np.argwhere(~np.isfinite(observations).all(-1))[0]
            raise NumericError(
                f"environment {n} of {self.envs.name!r} returned an observation that is not finite (rollout step {t})"
            )
        taken = torch.from_numpy(np.stack(actions))
        return Rollout(
            observations=observations,
            actions=taken,
            sent=own_numbers(np.stack(sent), self.envs.actions),
            log_probs=act.log_probs(taken),
            basic=basic,
            terminated=terminated,
            truncated=truncated,
            ages=ages,
            cut=np.array(cut, np.int64).reshape(-1, 2),
            cut_observations=np.array(cut_observations, np.float32).reshape(-1, size),
            next_observations=next_observations,
            infos=infos,
            episodes=episodes,
            physics_seconds=physics_seconds,
            policy_seconds=perf_counter() - started - physics_seconds,
        )

    def _cut_now(self, step: Step) -> np.ndarray | None:
        """Which first episodes `[N]` are to be cut after this step, if any are."""
        if not self._cuts.any():
            return None
        ended = step.terminated | step.truncated
        due: np.ndarray = (self._lengths == self._cuts) & ~ended
        self._cuts[ended | due] = 0
        return due if due.any() else None


def staggered(limit: int | None, first: int, count: int, total: int) -> np.ndarray:
    """Cuts for the environments from `first` on, of `total`: their later episodes begin at times spread evenly.

    Environments that start together and never fall stay in step: every rollout then holds one part of an episode, of
    all of them, and the policy is fitted to one part after the other.
    """
    return np.arange(first + 1, first + count + 1) * (limit or 0) // total
