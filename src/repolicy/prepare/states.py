"""The states that a prior visits by itself, fitted once before customizing. No reward is read."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Collector, Rollout, make_envs
from repolicy.errors import UsageError
from repolicy.policies import Density, Policy
from repolicy.policies.density import PARTS, STRETCH, fit_density
from repolicy.runs import Request, derived_seed, ranks

SKIPPED_STEPS = 50  # first steps of an episode, which depend on how the environment begins and not on the prior
MAX_OBSERVATIONS = 64_000  # how many observations are collected, at most
MIN_OBSERVATIONS = 8_000  # and at least, in a short run
SHARE_OF_RUN = 0.25  # of a run's steps, between these two
MIN_FIT_OBSERVATIONS = 6_400  # with fewer observations the fit is refused
MAX_STEPS_RATIO = 4  # at most this many times the steps that would do if no episode ended
OBSERVATIONS_PER_ENV, BLOCK = 1_000, STRETCH  # observations of an environment, and of one block
MAX_STATE_SIZE = 1_000  # in an observation; a policy's file holds the square of it


def check_learnable(prior: Policy) -> None:
    """Raise where a state has too many numbers."""
    if prior.observation_size > MAX_STATE_SIZE:
        many = f"the prior sees {prior.observation_size:,} numbers, and states of more than {MAX_STATE_SIZE:,}"
        raise UsageError(f"{many} are not learned: --states 0 goes without them")


def observation_count(steps: int) -> int:
    """Return how many observations are collected before a run of so many steps."""
    return int(min(MAX_OBSERVATIONS, max(MIN_OBSERVATIONS, SHARE_OF_RUN * steps)))


def steps_to_collect(steps: int) -> int:
    """Return how many steps it takes to collect them, with those that begin an episode and are left out."""
    return observation_count(steps) + observation_count(steps) // OBSERVATIONS_PER_ENV * SKIPPED_STEPS


def fit_prior_density(prior: Policy, request: Request, team: ranks.Ranks) -> Density:
    """Return the density of the prior's states: fitted by the first rank, the same bits on every rank."""
    size = prior.observation_size
    packed = torch.zeros(size + size * size + 1 + 2 * size, dtype=torch.float64)
    if team.index == 0:
        with closing(prior_rollouts(prior, request)) as rollouts:
            density = density_of_rollouts(rollouts, prior, observation_count(request.settings.steps))
        packed = torch.cat([getattr(density, name).flatten() for name in PARTS])
    team.sum(packed)
    mean, whitening, edge, shift, scale = packed.split([size, size * size, 1, size, size])
    return Density(mean, whitening.reshape(size, size), edge.squeeze(0), shift, scale)


def prior_rollouts(prior: Policy, request: Request) -> Generator[Rollout]:
    """Yield what the prior's sampled actions do, one block after the other without end, all from the run's seed."""
    seed, count = (
        derived_seed(request.settings.seed, 0, 2000),
        max(1, observation_count(request.settings.steps) // OBSERVATIONS_PER_ENV),
    )
    with closing(make_envs(request.env, count, seed, request.settings.backend)) as envs:
        collector = Collector(envs, BLOCK, torch.Generator().manual_seed(seed), keep_transitions=True)
        while True:
            yield collector.collect(prior)


def density_of_rollouts(rollouts: Iterable[Rollout], prior: Policy, many: int) -> Density:
    """Return the density of the states in a prior's rollouts, of so many that there are enough."""
    return fit_density(prior.normalizer(visited_states(rollouts, many)), prior.normalizer)


def visited_states(rollouts: Iterable[Rollout], many: int) -> Tensor:
    """Return true next observations `[M, O]`. Those of an environment follow each other, for a block of steps."""
    blocks, steps, episodes = list[np.ndarray](), 0, 0
    for rollout in rollouts:
        assert rollout.next_observations is not None
        blocks.append(rollout.next_observations.swapaxes(0, 1)[rollout.ages.T > SKIPPED_STEPS])
        steps += rollout.ages.size
        episodes += len(rollout.episodes.lengths)
        if sum(map(len, blocks)) >= many or steps >= MAX_STEPS_RATIO * (many + rollout.ages.shape[1] * SKIPPED_STEPS):
            break
    states = np.concatenate(blocks).astype(np.float32)
    check_enough(len(states), steps / max(episodes, 1))
    return torch.from_numpy(states)


def check_enough(states: int, length: float) -> None:
    """Raise where so many states, of episodes that are so long on average, are too few."""
    if states < MIN_FIT_OBSERVATIONS:
        soon = f"the prior's episodes end after {length:.0f} steps on average, too soon to learn its states"
        raise UsageError(f"{soon} (the first {SKIPPED_STEPS} of an episode are left out): --states 0 goes without them")


def familiarity(density: Density, normalize: Callable[[Tensor], Tensor], observations: Tensor, ages: Tensor) -> Tensor:
    """Return the familiarity of next observations, by their age: how an episode begins is not the policy's doing."""
    return density.familiarity(normalize(observations)).masked_fill_(ages <= SKIPPED_STEPS, 0.0)
