"""The value at a plan's end, fitted within seconds to episodes of the prior by least squares."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Rollout, probe_env
from repolicy.errors import UsageError
from repolicy.objective import residual
from repolicy.planning.scoring import Score, Value, log_ratio_of, step_rewards
from repolicy.policies import Adam, Mlp, Policy
from repolicy.policies.density import ends_are_usual
from repolicy.prepare.states import count_episodes, env_count, prior_rollouts
from repolicy.runs import Request, Settings

MINIBATCH, LEARNING_RATE = 512, 1e-2  # the initial rate, which falls linearly to 0


def regression(
    inputs: Tensor, targets: np.ndarray, hidden: tuple[int, ...], epochs: int, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a network to targets `[M, D]` at inputs `[M, I]`, and return it as a function of inputs `[B, I]`."""
    mean, std = targets.mean(0), np.maximum(targets.std(0), 1e-12)
    normalized = torch.from_numpy((targets - mean) / std).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Mlp(inputs.shape[1], hidden, targets.shape[1])
        adam = Adam(network.parameters(), LEARNING_RATE)
        order = [rows for _ in range(epochs) for rows in torch.randperm(len(inputs)).split(MINIBATCH)]
        for index, rows in enumerate(order):
            adam.rate = LEARNING_RATE * (1.0 - index / len(order))
            adam.descend((network(inputs[rows]) - normalized[rows]).square().mean())
    run = network.snapshot()

    def fitted(rows: np.ndarray) -> np.ndarray:
        return mean + std * run(rows).astype(np.float64)

    return fitted


BLOCKS = 32  # rollouts of the prior, of 64 environments and 50 steps each; fewer contain too few of its falls
# A step is used for the fit if at least AHEAD steps follow it, and what would come after these counts at most CUT.
AHEAD, CUT = 100, 0.05
HIDDEN, EPOCHS = (64, 64), 8
NETWORKS = 4  # the value is their mean, because a planner exploits the errors of a single network


def rollouts_in(prior: Policy, env: str, seed: int, steps: int = Settings().steps) -> list[Rollout]:
    """Collect rollouts of the prior's sampled actions, in as many environments as before a run of so many steps.

    Where episodes are long, there are fewer environments, and more rollouts of each.
    """
    limit = probe_env(env).limit
    blocks = BLOCKS * env_count(steps, None) // env_count(steps, limit)
    with closing(prior_rollouts(prior, Request(env, residual(), Settings(seed=seed, steps=steps)), limit)) as rollouts:
        return [*islice(rollouts, blocks)]


def may_end(rollouts: Sequence[Rollout]) -> bool:
    """Return whether nearly all of the prior's episodes end by themselves."""
    terminated, truncated = (
        np.concatenate([getattr(rollout, name) for rollout in rollouts]) for name in ("terminated", "truncated")
    )
    return ends_are_usual(int(terminated.sum()), count_episodes(terminated | truncated))


def fitted_value(prior: Policy, rollouts: Sequence[Rollout], score: Score, seed: int = 0) -> Value:
    """Fit V to the discounted sums of the score's rewards along the prior's rollouts.

    Raises UsageError if episodes of the prior are cut too soon, or if nothing is discounted.
    """
    if score.discount == 1.0:
        raise UsageError("a discount of 1 has no value at a plan's end, as its sums never end: name a smaller one")
    rewards = np.concatenate([rewards_of(prior, rollout, score) for rollout in rollouts])
    terminated, truncated, ages = (
        np.concatenate([getattr(rollout, name) for rollout in rollouts]) for name in ("terminated", "truncated", "ages")
    )
    sums, is_usable = discounted_sums(rewards, terminated, truncated, ages, score.discount)
    observations = np.concatenate([rollout.observations[:-1] for rollout in rollouts])[is_usable]
    if not len(observations):
        raise UsageError(
            f"an episode of the prior is cut before {steps_ahead(score.discount)} steps: plan without a value"
        )
    inputs = prior.normalizer(torch.from_numpy(observations))
    targets, normalize = sums[is_usable][:, None], prior.normalizer.snapshot()
    networks = [regression(inputs, targets, HIDDEN, EPOCHS, NETWORKS * seed + number) for number in range(NETWORKS)]

    def value(observations: np.ndarray) -> np.ndarray:
        rows = normalize(observations)
        return np.mean([network(rows)[:, 0] for network in networks], axis=0)

    return value


@torch.no_grad()
def rewards_of(prior: Policy, rollout: Rollout, score: Score) -> np.ndarray:
    """Return the score's reward of each step of a rollout, `[T, N]`."""
    observations = torch.from_numpy(rollout.observations[:-1])
    actions, modes = rollout.actions, prior(observations).mode()
    log_chosen, log_modes = (prior.log_prob(observations, each) for each in (actions, modes))
    log_ratio = log_ratio_of(prior, log_chosen, log_modes, actions, modes)
    return step_rewards(score, rollout.transitions, log_ratio, rollout.terminated)


def steps_ahead(discount: float) -> int:
    """Return how many steps must follow one whose discounted sum counts as that of an endless episode."""
    return max(AHEAD, math.ceil(math.log(CUT) / math.log(discount)))


def discounted_sums(
    rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, ages: np.ndarray, discount: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ γ^k·r of each step `[T, N]`, and whether enough steps fit between it and the next cut.

    A cut is the end of the rollout or the time limit, the least age at which an episode was truncated. The rule holds
    for episodes that terminate, too: if their last steps were always used, ends would be too frequent in the data.
    """
    sums, following, done = np.zeros_like(rewards), np.zeros(rewards.shape[1]), terminated | truncated
    for t in reversed(range(len(rewards))):
        following = sums[t] = rewards[t] + discount * np.where(done[t], 0.0, following)
    limit = ages[truncated].min() if truncated.any() else np.inf
    ahead = np.minimum(len(rewards) - np.arange(len(rewards))[:, None], limit - ages + 1)
    return sums, ahead >= steps_ahead(discount)
