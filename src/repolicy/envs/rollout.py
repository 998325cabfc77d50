"""Act T times in N environments, into one buffer.

The loop holds the physics, the actor and nothing else. What can be computed for the whole rollout at once (values,
log-probabilities, add-on rewards) is left to those who come after.
"""

from collections.abc import Callable
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
    """What an add-on is asked about: arrays `[..., size]` of steps, and `[...]` for each entry of info."""

    observations: np.ndarray
    actions: np.ndarray  # in the environment's own numbers
    next_observations: np.ndarray  # what a step led to, also where the episode ended there
    info: Info
    past: "AddonState | None" = None  # where the steps are in their order

    def with_observation_size(self, size: int | None) -> "Transitions":
        """Return the same with the first numbers of each observation, or with all."""
        return self._replace(
            observations=self.observations[..., :size], next_observations=self.next_observations[..., :size]
        )

    def flattened(self) -> "Transitions":
        """Return arrays `[B, ...]`, so that who writes an add-on need think of one dimension only."""
        count = self.observations.ndim - 1
        return self.each(lambda array: array.reshape(-1, *array.shape[count:]))

    def each(self, change: Callable[[np.ndarray], np.ndarray]) -> "Transitions":
        """Return the same with every array changed."""
        before, actions, after = map(change, self[:3])
        return Transitions(before, actions, after, {key: change(value) for key, value in self.info.items()}, self.past)


def all_arguments(step: Transitions) -> tuple[np.ndarray, np.ndarray, np.ndarray, Info]:
    """Return all that is known of a step by itself, without what was before."""
    return step[:4]


@dataclass(frozen=True)
class StatefulAddon:
    """An add-on whose objects are called with the parts that `reads` takes of a step, and `began` `[N]`.

    A class of the user's own is called with all that is known of a step.
    """

    make: Callable[[], Any]
    reads: Callable[[Transitions], Any] = all_arguments


@dataclass
class AddonState:
    """What add-ons with a past need beside the steps of a rollout, which they see once, whoever asks how often."""

    began: np.ndarray  # [T, N] bool: whether an episode began with this step
    objects: dict[StatefulAddon, Any]  # which go on to the next rollout of the same environments
    _paid: dict[StatefulAddon, np.ndarray] = field(default_factory=dict)

    def paid(self, wish: StatefulAddon, rows: Transitions) -> np.ndarray:
        """Return the rewards of transitions `[T·C·N, ...]`, in the order of time; a decision is C steps."""
        if wish in self._paid:
            return self._paid[wish]
        if wish not in self.objects:
            self.objects[wish] = wish.make()
        decisions, count = self.began.shape  # T and N
        steps = len(rows.actions) // count  # T · C
        began = np.zeros((decisions, steps // decisions, count), bool)
        began[:, 0] = self.began  # of a decision's steps only the first can begin an episode
        rewards = []
        for t, begins in enumerate(began.reshape(steps, count)):
            step = rows.each(itemgetter(slice(t * count, (t + 1) * count)))  # of all environments
            rewards.append(self.objects[wish](*wish.reads(step), begins))
        self._paid[wish] = np.concatenate(rewards)
        return self._paid[wish]


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
    env_actions: np.ndarray  # [T, N, A] the same as the environment got them
    log_probs: Tensor  # [T, N] log π of the actions, as it was when they were taken
    basic: np.ndarray  # [T, N] the environment's own reward
    terminated: np.ndarray  # [T, N]
    truncated: np.ndarray  # [T, N]
    ages: np.ndarray  # [T, N] steps of the episode so far, this one included
    cut_indices: np.ndarray  # [K, 2] (t, n) of the episodes that a time limit cut
    cut_observations: np.ndarray  # [K, O] what they ended in
    next_observations: np.ndarray | None  # [T, N, O] true next observations, where they are kept
    infos: list[Info]  # T of them, where they are kept
    episodes: Episodes
    physics_seconds: float
    policy_seconds: float
    chunks: list[Chunk] = field(default_factory=list)  # T of them, where they are kept and a decision is several steps
    pasts: dict[StatefulAddon, Any] = field(default_factory=dict)  # of add-ons, as they go from rollout to rollout

    @property
    def prior_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a prior is asked about: observations, actions, and after which steps an episode ended."""
        ended = torch.from_numpy(self.terminated | self.truncated)
        return torch.from_numpy(self.observations[:-1]), self.actions, ended

    @property
    def transitions(self) -> Transitions:
        """The steps `[T, N, ...]` as an add-on is asked about them.

        Where a decision is several steps, these are its steps, `[T, C, N, ...]`; `per_decision` adds up what they pay.
        """
        if self.chunks:
            before, actions, after, infos, _ = zip(*self.chunks, strict=True)
            return Transitions(
                np.stack(before), np.stack(actions), np.stack(after), stack_infos(list(infos)), self.past
            )
        assert self.next_observations is not None
        return Transitions(self.observations[:-1], self.env_actions, self.next_observations, self.info, self.past)

    def per_decision(self, values: np.ndarray, mean: bool = False) -> np.ndarray:
        """Return `[T, N]` of values of the transitions: as they are, or the sum of a decision's steps.

        The sum over the usual number of steps, where `mean`: so the mean of all decisions is that of all steps.
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
        return AddonState(self.ages == 1, self.pasts)


class Collector:
    """N environments and where they stand. `collect` goes on where the last call stopped.

    cuts: after how many steps the first episode of each environment is cut, as by a time limit; 0 for no cut.
    longest: the same for every episode of all environments.
    """

    def __init__(
        self,
        envs: Envs,
        n_steps: int,
        generator: torch.Generator,
        keep_transitions: bool = False,
        cuts: np.ndarray | None = None,
        longest: int = 0,
    ) -> None:
        self.envs = envs
        self.n_steps = n_steps
        self.generator = generator
        self.keep_transitions = keep_transitions
        self._current = envs.reset()
        self._memory: Any = None  # of an agent that has one
        self._pasts: dict[StatefulAddon, Any] = {}
        self._returns = np.zeros(envs.count)
        self._lengths = np.zeros(envs.count, np.int64)
        self._cuts = np.zeros(envs.count, np.int64) if cuts is None else cuts.copy()
        self._longest = longest

    @torch.no_grad()
    def collect(self, agent: Agent, deterministic: bool = False) -> Rollout:
        """Take T steps with sampled actions, or with the mode of each distribution."""
        if isinstance(agent, EnvAwareAgent):
            agent.watch(self.envs)
        act = agent.actor(self.n_steps, self.envs.count, None if deterministic else self.generator)
        recalling = act if isinstance(act, RecurrentActor) else None
        if recalling is not None and self._memory is not None:
            recalling.memory = self._memory
        own, seen, episodes = self.envs.observation_size, [self._current], Episodes()
        actions: list[np.ndarray] = []
        sent: list[np.ndarray] = []
        ages: list[np.ndarray] = []
        steps: list[Step] = []
        physics_seconds, started = 0.0, perf_counter()
        for t in range(self.n_steps):
            self._check(seen[t], t)
            actions.append(act(seen[t][:, :own]))
            sent.append(agent.to_environment(actions[t]))
            before = perf_counter()
            step = self.envs.step(sent[t])
            physics_seconds += perf_counter() - before
            self._returns += step.rewards
            self._lengths += 1
            ages.append(self._lengths.copy())
            step = self._followed(step, episodes)
            ended = step.terminated | step.truncated
            if ended.any():
                self._returns[ended], self._lengths[ended] = 0.0, 0
                if recalling is not None:
                    recalling.reset_memory(ended)
            steps.append(step)
            seen.append(step.observations)
        self._check(seen[-1], self.n_steps)
        self._current, self._memory = seen[-1], None if recalling is None else recalling.memory

        observations, truncated = np.stack(seen), np.stack([step.truncated for step in steps])
        cut, taken, keeps = np.argwhere(truncated), torch.from_numpy(np.stack(actions)), self.keep_transitions
        last = [steps[t].final[n] for t, n in cut]
        return Rollout(
            observations=observations,
            actions=taken,
            env_actions=to_env_numbers(np.stack(sent), self.envs.actions),
            log_probs=act.log_probs(taken),
            basic=np.stack([step.rewards for step in steps]),
            terminated=np.stack([step.terminated for step in steps]),
            truncated=truncated,
            ages=np.stack(ages),
            cut_indices=cut,
            cut_observations=np.array(last, np.float32).reshape(-1, observations.shape[-1]),
            next_observations=np.stack([step.final for step in steps]) if keeps else None,
            infos=[step.info for step in steps] if keeps else [],
            chunks=[step.chunk for step in steps if step.chunk is not None] if keeps else [],
            pasts=self._pasts,
            episodes=episodes,
            physics_seconds=physics_seconds,
            policy_seconds=perf_counter() - started - physics_seconds,
        )

    def _check(self, observations: np.ndarray, t: int) -> None:
        """Raise where an observation is no number: the next action would be none either, and hide where it began."""
        if not np.isfinite(observations).all():
            n = np.flatnonzero(~np.isfinite(observations).all(-1))[0]
            what = f"environment {n} of {self.envs.name!r} returned an observation that is not finite (rollout step {t}"
            raise NumericError(f"{what}, after {self._lengths[n]} steps of an episode)")

    def _followed(self, step: Step, episodes: Episodes) -> Step:
        """Return the step with the episodes cut that are due. Those count for nothing in the statistics."""
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
    """Return cuts for the environments from `first` on, of `total`: their later episodes begin at times spread evenly.

    Environments that start together and never fall stay in step: every rollout then holds one part of an episode, of
    all of them, and the policy is fitted to one part after the other.
    """
    return np.arange(first + 1, first + count + 1) * (limit or 0) // total
