"""Collect rollouts: step N environments T times and store the result in one buffer.

The loop runs the physics and the actor only. Values, log-probabilities and add-on rewards are computed later, for the
whole rollout at once.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repolicy.envs.step import Chunk, Envs, Info, Step, stack_infos, to_env_numbers
from repolicy.errors import NumericError
from repolicy.policies import Agent, EnvAwareAgent, RecurrentActor


class Transitions(NamedTuple):
    """The input of an add-on: a batch of steps, in arrays `[..., size]`, and `[...]` for each entry of info."""

    observations: np.ndarray
    actions: np.ndarray  # in the environment's own numbers
    next_observations: np.ndarray  # true next observations, also where the episode ended
    info: Info
    past: "AddonState | None" = None  # what stateful add-ons need; None where the order of the steps is unknown

    def flattened(self) -> "Transitions":
        """Return arrays `[B, ...]`: an add-on then has one batch dimension, whatever the rollout looks like."""
        batch_dimensions = self.observations.ndim - 1
        return self.map(lambda array: array.reshape(-1, *array.shape[batch_dimensions:]))

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Transitions":
        """Return the transitions with `function` applied to every array."""
        info = copy(self.info)  # of its own class
        info.update({key: function(value) for key, value in self.info.items()})
        arrays = (function(self.observations), function(self.actions), function(self.next_observations))
        return Transitions(*arrays, info, self.past)


@dataclass(frozen=True)
class StatefulAddon:
    """An add-on that remembers earlier steps of an episode; `make` returns an object that holds this memory.

    For each step the object is called with the arguments that `reads` takes from the transitions, followed by
    `began` `[N]`: whether an episode begins with this step. A user's own class gets all arguments.
    """

    make: Callable[[], Any]
    reads: Callable[[Transitions], Any] = itemgetter(slice(4))  # all fields but `past`


@dataclass
class AddonState:
    """The memory of stateful add-ons in one rollout. Rewards are cached: a rollout must pass through a memory once."""

    began: np.ndarray  # [T, N] bool: whether an episode began with this step
    objects: dict[StatefulAddon, Any]  # shared with the next rollout of the same environments
    _rewards: dict[StatefulAddon, np.ndarray] = field(default_factory=dict)

    def rewards(self, addon: StatefulAddon, rows: Transitions) -> np.ndarray:
        """Return the rewards `[T·C·N]` of flattened transitions in the order of time; a decision is C steps."""
        if addon in self._rewards:
            return self._rewards[addon]
        if addon not in self.objects:
            self.objects[addon] = addon.make()
        decisions, count = self.began.shape  # T and N
        steps = len(rows.actions) // count  # T · C
        began = np.zeros((decisions, steps // decisions, count), bool)
        began[:, 0] = self.began  # only the first step of a decision can begin an episode
        rewards = []
        for t, began_now in enumerate(began.reshape(steps, count)):
            step = rows.map(itemgetter(slice(t * count, (t + 1) * count)))  # all environments at time t
            rewards.append(self.objects[addon](*addon.reads(step), began_now))
        self._rewards[addon] = np.concatenate(rewards)
        return self._rewards[addon]


@dataclass
class Episodes:
    """Returns and lengths of the episodes that ended in a rollout."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


@dataclass
class Rollout:
    """T steps of N environments."""

    observations: np.ndarray  # [T + 1, N, O] raw; the last is the one to act on next
    env_size: int  # entries that the environment shows a policy; dials' places and the critic's part follow
    actions: Tensor  # [T, N, A] as the policy sampled them
    env_actions: np.ndarray  # [T, N, A] as the environment received them
    log_probs: Tensor  # [T, N] log π of the actions under the policy that acted
    basic: np.ndarray  # [T, N] the environment's own reward
    terminated: np.ndarray  # [T, N]
    truncated: np.ndarray  # [T, N]
    ages: np.ndarray  # [T, N] steps of the episode so far, this one included
    cut_indices: np.ndarray  # [K, 2] (t, n) of the truncated episodes
    cut_observations: np.ndarray  # [K, O] their last observations, from which the value is bootstrapped
    next_observations: np.ndarray  # [T, N, env_size] true next observations
    infos: list[Info]  # [T]
    episodes: Episodes
    physics_seconds: float
    policy_seconds: float
    chunks: list[Chunk] = field(default_factory=list)  # [T], where a decision is several steps
    memories: dict[StatefulAddon, Any] = field(default_factory=dict)  # of stateful add-ons; they outlive the rollout

    @property
    def prior_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Observations, actions, and whether an episode ended after each step: what a prior scores."""
        ended = torch.from_numpy(self.terminated | self.truncated)
        return torch.from_numpy(self.observations[:-1, :, : self.env_size]), self.actions, ended

    @property
    def transitions(self) -> Transitions:
        """The steps `[T, N, ...]` as the input of an add-on.

        Where a decision is several steps, the shape is `[T, C, N, ...]`; `per_decision` sums the rewards.
        """
        if self.chunks:
            before, actions, after, infos, _ = zip(*self.chunks, strict=True)
            seen, next_seen = (np.stack(each)[..., : self.env_size] for each in (before, after))
            return Transitions(seen, np.stack(actions), next_seen, stack_infos(list(infos)), self.past)
        seen = self.observations[:-1, :, : self.env_size]
        return Transitions(seen, self.env_actions, self.next_observations, self.info, self.past)

    def per_decision(self, values: np.ndarray, mean: bool = False) -> np.ndarray:
        """Return values of the transitions as `[T, N]`: each decision has the sum over its steps.

        With `mean` it is divided by the average number of steps, so that the mean over decisions is that over steps.
        """
        if not self.chunks:
            return values
        counts = np.stack([chunk.counts for chunk in self.chunks])
        total = np.where(counts, values, 0.0).sum(1)
        return total / counts.sum(1).mean() if mean else total

    @cached_property
    def info(self) -> Info:
        return stack_infos(self.infos)

    @cached_property
    def past(self) -> AddonState:
        return AddonState(self.ages == 1, self.memories)


class Collector:
    """Collects rollouts from N environments; each `collect` continues where the last one stopped.

    cuts: `[N]`, the steps after which the first episode of each environment is truncated; 0 for no limit.
    longest: the number of steps after which every episode is truncated; 0 for no limit.
    """

    def __init__(
        self,
        envs: Envs,
        n_steps: int,
        generator: torch.Generator,
        cuts: np.ndarray | None = None,
        longest: int = 0,
        dials: int = 0,
    ) -> None:
        self.envs, self.n_steps, self.generator = envs, n_steps, generator
        self._env_size = envs.observation_size - dials
        self._current = envs.reset()
        self._memory: Any = None  # of a recurrent agent
        self._addon_memories: dict[StatefulAddon, Any] = {}
        self._returns = np.zeros(envs.count)
        self._lengths = np.zeros(envs.count, np.int64)
        self._cuts = np.zeros(envs.count, np.int64) if cuts is None else cuts.copy()
        self._longest = longest

    @torch.no_grad()
    def collect(self, agent: Agent, deterministic: bool = False) -> Rollout:
        """Take T steps with sampled actions or, if `deterministic`, with the mode of each distribution."""
        if isinstance(agent, EnvAwareAgent):
            agent.watch(self.envs)
        act = agent.actor(self.n_steps, self.envs.count, None if deterministic else self.generator)
        recurrent = act if isinstance(act, RecurrentActor) else None
        if recurrent is not None and self._memory is not None:
            recurrent.memory = self._memory
        policy_size = self.envs.observation_size  # the critic's own numbers follow and are not for the policy
        observations, episodes, steps = [self._current], Episodes(), list[Step]()
        actions, env_actions, ages = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
        physics_seconds, started = 0.0, perf_counter()
        for t in range(self.n_steps):
            self._check_finite(observations[t], t)
            actions.append(act(observations[t][:, :policy_size]))
            env_actions.append(agent.to_environment(actions[t]))
            step_started = perf_counter()
            step = self.envs.step(env_actions[t])
            physics_seconds += perf_counter() - step_started
            self._returns += step.rewards
            self._lengths += 1
            ages.append(self._lengths.copy())
            step = self._truncate_due(step, episodes)
            ended = step.terminated | step.truncated
            if ended.any():
                self._returns[ended], self._lengths[ended] = 0.0, 0
                if recurrent is not None:
                    recurrent.reset_memory(ended)
            steps.append(step)
            observations.append(step.observations)
        self._check_finite(observations[-1], self.n_steps)
        self._current = observations[-1]
        self._memory = None if recurrent is None else recurrent.memory

        sampled = torch.from_numpy(np.stack(actions))
        truncated = np.stack([step.truncated for step in steps])
        cut_indices = np.argwhere(truncated)
        cut_observations = np.array([steps[t].final[n] for t, n in cut_indices], np.float32)
        return Rollout(
            observations=np.stack(observations),
            env_size=self._env_size,
            actions=sampled,
            env_actions=to_env_numbers(np.stack(env_actions), self.envs.actions),
            log_probs=act.log_probs(sampled),
            basic=np.stack([step.rewards for step in steps]),
            terminated=np.stack([step.terminated for step in steps]),
            truncated=truncated,
            ages=np.stack(ages),
            cut_indices=cut_indices,
            cut_observations=cut_observations.reshape(-1, self._current.shape[-1]),
            next_observations=np.stack([step.final[:, : self._env_size] for step in steps]),
            infos=[step.info for step in steps],
            chunks=[step.chunk for step in steps if step.chunk is not None],
            memories=self._addon_memories,
            episodes=episodes,
            physics_seconds=physics_seconds,
            policy_seconds=perf_counter() - started - physics_seconds,
        )

    def _check_finite(self, observations: np.ndarray, t: int) -> None:
        """Raise if an observation is not finite: later the error would appear in the actions, far from its cause."""
        if not np.isfinite(observations).all():
            n = np.flatnonzero(~np.isfinite(observations).all(-1))[0]
            message = f"environment {n} of {self.envs.name!r} returned an observation that is not finite"
            raise NumericError(f"{message} (rollout step {t}, after {self._lengths[n]} steps of an episode)")

    def _truncate_due(self, step: Step, episodes: Episodes) -> Step:
        """Record ended episodes, and return the step with those truncated that reached a limit of the collector.

        The truncated ones are left out of `episodes`: their returns are incomplete.
        """
        ended = step.terminated | step.truncated
        if ended.any():
            episodes.returns += self._returns[ended].tolist()
            episodes.lengths += self._lengths[ended].tolist()
        due = ((self._lengths == self._cuts) | (self._lengths == self._longest)) & ~ended
        self._cuts[ended | due] = 0
        if not due.any():
            return step
        fresh = self.envs.renew(due, step.observations)
        return step._replace(observations=fresh, truncated=step.truncated | due)


def staggered_cuts(limit: int | None, first: int, count: int, total: int) -> np.ndarray:
    """Return the first episodes' lengths `[count]` for environments from `first` on, of `total`, evenly spread.

    Environments that start together and never fall stay in phase. Each rollout would then show one part of an
    episode only, and the policy would be fitted to one part after the other.
    """
    return np.arange(first + 1, first + count + 1) * (limit or 0) // total
