"""Fit the density of the states that a prior visits, once before customizing. No reward is read."""

import math
from collections.abc import Generator, Iterable
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Collector, Rollout, make_envs, probe_env
from repolicy.errors import UsageError
from repolicy.policies import Density, Normalizer, Policy, moment_sums
from repolicy.policies.density import PARTS, STRETCH, fit_density
from repolicy.runs import Request, Stream, derived_seed, ranks

SKIPPED_STEPS = 50  # first steps of an episode, left out: they depend on the reset and not on the prior
MAX_OBSERVATIONS = 64_000  # collected for the fit in a long run
MIN_OBSERVATIONS = 8_000  # collected for the fit in a short run
SHARE_OF_RUN = 0.25  # observations collected, as a share of the run's steps, between these two bounds
MIN_FIT_OBSERVATIONS = 6_400  # with fewer observations the fit is refused
MAX_STEPS_RATIO = 4  # collecting stops after this many times the steps that are needed where no episode ends
OBSERVATIONS_PER_ENV, BLOCK = 1_000, STRETCH  # BLOCK: steps of a rollout
LONGEST_STAY = 1_000  # steps that the last state of an episode counts for at most
MAX_STATE_SIZE = 1_000  # numbers in an observation; a policy's file holds the square of it


def check_learnable(prior: Policy) -> None:
    """Raise where an observation has too many numbers to fit a density."""
    if prior.observation_size > MAX_STATE_SIZE:
        many = f"the prior sees {prior.observation_size:,} numbers, and states of more than {MAX_STATE_SIZE:,}"
        raise UsageError(f"{many} are not learned: --states 0 goes without them")


def observation_count(steps: int) -> int:
    """Return the number of observations that are collected before a run of `steps` steps."""
    return int(min(MAX_OBSERVATIONS, max(MIN_OBSERVATIONS, SHARE_OF_RUN * steps)))


def env_count(steps: int, limit: int | None) -> int:
    """Return the number of environments in which the prior's states are collected.

    Where episodes are long, fewer environments each play a whole one: its last states are the prior's, too.
    """
    return max(1, observation_count(steps) // max(OBSERVATIONS_PER_ENV, limit or 0))


def steps_to_collect(steps: int, limit: int | None) -> int:
    """Return the number of steps that collect these observations, if no episode ends before the time limit."""
    envs = env_count(steps, limit)
    kept = math.ceil(observation_count(steps) / envs)  # by each environment
    episodes = math.ceil(kept / (limit - SKIPPED_STEPS)) if limit and limit > SKIPPED_STEPS else 1
    return envs * BLOCK * math.ceil((kept + episodes * SKIPPED_STEPS) / BLOCK)


def fit_prior_density(prior: Policy, request: Request, team: ranks.Ranks) -> Density:
    """Return the density of the prior's states. The first rank fits it, and every rank receives the same bits."""
    size = prior.observation_size
    packed = torch.zeros(size + size * size + 1 + 2 * size + 1, dtype=torch.float64)
    if team.index == 0:
        limit = probe_env(request.env, request.settings.backend).limit
        with closing(prior_rollouts(prior, request, limit)) as rollouts:
            density = density_of_rollouts(rollouts, prior, observation_count(request.settings.steps))
        packed = torch.cat([getattr(density, name).flatten() for name in PARTS])
    team.sum(packed)
    mean, whitening, edge, shift, scale, usual_end = packed.split([size, size * size, 1, size, size, 1])
    whitening, edge, usual_end = whitening.reshape(size, size), edge.squeeze(0), usual_end.squeeze(0)
    return Density(mean, whitening, edge, shift, scale, usual_end, prior.normalizer.bound)


def prior_rollouts(prior: Policy, request: Request, limit: int | None = None) -> Generator[Rollout]:
    """Yield rollouts of the prior's sampled actions without end, all from the run's seed; `limit`: of an episode."""
    settings, seed = request.settings, derived_seed(request.settings.seed, 0, Stream.PRIOR_STATES)
    with closing(make_envs(request.env, env_count(settings.steps, limit), seed, settings.backend)) as envs:
        collector = Collector(envs, BLOCK, torch.Generator().manual_seed(seed))
        while True:
            yield collector.collect(prior)


def density_of_rollouts(rollouts: Iterable[Rollout], prior: Policy, count: int) -> Density:
    """Return the density of `count` states, or more, from a prior's rollouts."""
    states, ends, episodes = visited_states(rollouts, count)
    return fit_density(prior.normalizer(states), prior.normalizer, prior.normalizer(ends), episodes)


def density_of_states(states: Tensor, last_states: Tensor | None = None, episodes: int = 1) -> Density:
    """Fit the density of raw observations `[M, O]` that a prior has visited, in the order of time.

    last_states: those `[K, O]` with which some of its `episodes` were terminated.
    """
    normalizer = Normalizer(states.shape[-1]).to(states.device)
    normalizer.update(moment_sums(states))
    ends = None if last_states is None else normalizer(last_states)
    return fit_density(normalizer(states), normalizer, ends, episodes)


def visited_states(rollouts: Iterable[Rollout], count: int) -> tuple[Tensor, Tensor, int]:
    """Return next observations `[M, O]`, without an episode's first; those of an environment are in order.

    Return also those that terminated an episode `[K, O]`, and the number of episodes.
    """
    blocks, ends, ended, steps = list[np.ndarray](), list[np.ndarray](), list[np.ndarray](), 0
    for rollout in rollouts:
        blocks.append(rollout.next_observations.swapaxes(0, 1)[rollout.ages.T > SKIPPED_STEPS])
        ends.append(rollout.next_observations[rollout.terminated])
        ended.append(rollout.terminated | rollout.truncated)
        steps += rollout.ages.size
        if sum(map(len, blocks)) >= count or steps >= MAX_STEPS_RATIO * (count + rollout.ages.shape[1] * SKIPPED_STEPS):
            break
    states, last_states = (torch.from_numpy(np.concatenate(part).astype(np.float32)) for part in (blocks, ends))
    every_end = np.concatenate(ended)
    check_enough(len(states), steps / max(int(every_end.sum()), 1))
    return states, last_states, count_episodes(every_end)


def count_episodes(ended: np.ndarray) -> int:
    """Return the number of episodes in steps `[T, N]`. One under way counts where its environment ended no other."""
    return int(ended.sum() + (~ended.any(0)).sum())


def check_enough(states: int, length: float) -> None:
    """Raise where there are too few states for a fit; `length` is the mean episode length."""
    if states < MIN_FIT_OBSERVATIONS:
        soon = f"the prior's episodes end after {length:.0f} steps on average, too soon to learn its states"
        raise UsageError(f"{soon} (the first {SKIPPED_STEPS} of an episode are left out): --states 0 goes without them")


def familiarity(density: Density, observations: Tensor, ages: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """Return the familiarity of next observations, 0 in an episode's first steps, which the policy has not caused.

    A state that terminates its episode counts as if it lasted, at any age: with the discount gamma, 1 / (1 − gamma)
    times. If an end were a way out of the price, a policy that stumbles would learn to fall. Where nine tenths
    of the prior's episodes end, so many of its ends are free, or a policy would learn to stay away from its goal.
    """
    found = density.familiarity(density.normalized(observations))
    beyond_usual = (found - density.usual_end).clamp(max=0.0)
    lasting = beyond_usual / max(1.0 - gamma, 1.0 / LONGEST_STAY)
    return torch.where(terminated, lasting, found.masked_fill(ages <= SKIPPED_STEPS, 0.0))
