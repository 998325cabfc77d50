"""What is still to come after a plan's end, fitted to episodes of the prior within seconds, by least squares."""

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Rollout
from repolicy.errors import UsageError
from repolicy.objective import residual
from repolicy.planning.scoring import Score, Value, step_rewards
from repolicy.policies import Adam, Mlp, Policy
from repolicy.prepare.states import rollouts_of
from repolicy.runs import Request, Settings

MINIBATCH, LEARNING_RATE = 512, 1e-2  # at first; it falls to 0


def regression(
    inputs: Tensor, targets: np.ndarray, hidden: tuple[int, ...], epochs: int, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a network's fit of targets `[M, D]` at inputs `[M, I]`: from inputs `[B, I]` to `[B, D]`."""
    middle, width = targets.mean(0), np.maximum(targets.std(0), 1e-12)
    wanted = torch.from_numpy((targets - middle) / width).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Mlp(inputs.shape[1], hidden, targets.shape[1])
        adam = Adam(network.parameters(), LEARNING_RATE)
        order = [rows for _ in range(epochs) for rows in torch.randperm(len(inputs)).split(MINIBATCH)]
        for index, rows in enumerate(order):
            adam.rate = LEARNING_RATE * (1.0 - index / len(order))
            adam.descend((network(inputs[rows]) - wanted[rows]).square().mean())
    run = network.snapshot()

    def fitted(rows: np.ndarray) -> np.ndarray:
        return middle + width * run(rows).astype(np.float64)

    return fitted


BLOCKS = 32  # of the prior's rollouts, of 64 environments and 50 steps each: with fewer, few of its falls are seen
AHEAD = 100  # steps that must be known behind one whose value is learned
HIDDEN, EPOCHS = (64, 64), 8
NETWORKS = 4  # whose mean is the value, because a planner goes where a single one is too high


def rollouts_in(prior: Policy, env: str, seed: int) -> list[Rollout]:
    """Return what the prior's sampled actions do in some thousand steps."""
    with closing(rollouts_of(prior, Request(env, residual(), Settings(seed=seed)))) as rollouts:
        return [*islice(rollouts, BLOCKS)]


def fitted_value(
    prior: Policy, rollouts: Sequence[Rollout], score: Score, seed: int = 0, of_ends: bool = False
) -> Value:
    """Return V by regression on the discounted sums of what a planner scores, along the prior's sampled actions.

    Raises where an episode of the prior is cut too soon, or with `of_ends` where none of them ends early.
    """
    rewards = np.concatenate([rewards_of(prior, rollout, score) for rollout in rollouts])
    terminated, truncated, ages = (
        np.concatenate([getattr(rollout, name) for rollout in rollouts]) for name in ("terminated", "truncated", "ages")
    )
    if of_ends and not terminated.any():
        raise UsageError("no episode of the prior ends early, so a value has no end to tell of")
    sums, known = to_come(rewards, terminated, truncated, ages, score.discount)
    observations = np.concatenate([rollout.observations[:-1] for rollout in rollouts])[known]
    if not len(observations):
        raise UsageError(f"an episode of the prior is cut before {AHEAD} steps: plan without a value")
    inputs = prior.normalizer(torch.from_numpy(observations))
    targets, normalize = sums[known][:, None], prior.normalizer.snapshot()
    fitted = [regression(inputs, targets, HIDDEN, EPOCHS, NETWORKS * seed + number) for number in range(NETWORKS)]

    def value(seen: np.ndarray) -> np.ndarray:
        rows = normalize(seen)
        return np.mean([each(rows)[:, 0] for each in fitted], axis=0)

    return value


def rewards_of(prior: Policy, rollout: Rollout, score: Score) -> np.ndarray:
    """Return what a score pays for each step `[T, N]`, whoever acted."""
    observations = torch.from_numpy(rollout.observations[:-1])
    modes = prior(observations).mode()
    log_ratio = (prior.log_prob(observations, rollout.actions) - prior.log_prob(observations, modes)).numpy()
    return step_rewards(score, prior, rollout.transitions, log_ratio, rollout.terminated)


def to_come(
    rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, ages: np.ndarray, discount: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ γ^k·r of each step `[T, N]`, and which ones have AHEAD steps before a cut that came or would have come.

    An episode that ends by itself is no exception: to keep its last steps, and not those of one that is cut, would make
    ends too frequent. The time limit is the least age at which an episode was cut.
    """
    sums, following, ended = np.zeros_like(rewards), np.zeros(rewards.shape[1]), terminated | truncated
    for t in reversed(range(len(rewards))):
        following = sums[t] = rewards[t] + discount * np.where(ended[t], 0.0, following)
    limit = ages[truncated].min() if truncated.any() else np.inf
    ahead = np.minimum(len(rewards) - np.arange(len(rewards))[:, None], limit - ages + 1)
    return sums, ahead >= AHEAD
