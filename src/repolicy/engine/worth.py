"""What a nat of a policy's log-probability is worth in its reward: the α at which they really stand.

A policy that is soft-optimal at α is exp(Q/α), up to a constant. So its own sampled actions cost α times the nats by
which they are less likely than its mode. What they cost tells α, however the policy came to be. Of a Gaussian those are
half a nat a step for each number of the action.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from repolicy.envs.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.envs.step import Backend
from repolicy.policies.policy import Policy

EPISODES = 32
LONGEST = 1_000  # steps of an episode that count
LEAST = 1e-6  # nats of an episode, below which a policy has no noise


@dataclass(frozen=True)
class Worth:
    """What a nat is worth, in units of the reward, with its standard error."""

    value: float
    error: float
    episodes: int

    @property
    def is_known(self) -> bool:
        """Whether it is above 0 by more than chance; else the noise costs nothing that could be measured."""
        return self.value > 2 * self.error


class BelowMode:
    """In the place of a prior: how far, in nats, a policy's own actions are below its mode in a state, on average."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        distribution = self.policy(observations)
        return distribution.log_prob(distribution.mode()) + distribution.entropy()


def worth_of(by_mean: np.ndarray, sampled: np.ndarray, nats: float) -> Worth | None:
    """From returns `[E]` with the mean action and `[F]` with sampled ones, which are so many `nats` below the mode.

    None where a return is not finite, as an environment without a reward shows NaN; and where the mode is no likelier
    than what is sampled.
    """
    if not np.isfinite([*by_mean, *sampled]).all() or nats < LEAST:
        return None
    error = math.sqrt(sum(returns.var(ddof=1) / len(returns) for returns in (by_mean, sampled)))
    return Worth(float(by_mean.mean() - sampled.mean()) / nats, error / nats, len(sampled))


def measured(
    policy: Policy,
    env: str,
    episodes: int = EPISODES,
    *,
    addons: tuple[str, ...] = (),
    backend: Backend = "auto",
    addon_alone: bool = False,
) -> Worth | None:
    """From episodes, in the environment's reward and the add-ons', or in theirs alone."""
    mean, sampled = _episodes(policy, env, episodes, EVALUATION_SEED, addons, backend)
    by_mean, by_sampled = (each.addon if addon_alone else each.total for each in (mean, sampled))
    assert by_mean is not None
    assert by_sampled is not None
    return worth_of(by_mean, by_sampled, _nats([sampled]))


@dataclass(frozen=True)
class Worths:
    """What a nat is worth in the environment's reward and in the add-on, and how long sampled episodes are."""

    basic: Worth | None  # None where the environment's reward is no number
    addon: Worth | None
    length: float

    @property
    def known(self) -> list[Worth]:
        return [worth for worth in self.told if worth.is_known]

    @property
    def told(self) -> list[Worth]:
        return [worth for worth in (self.basic, self.addon) if worth is not None]

    @property
    def most(self) -> float:
        """What a nat can be worth at most, but for chance."""
        return max((worth.value + 2 * worth.error for worth in self.told), default=0.0)


def sought(policy: Policy, env: str, addons: tuple[str, ...], steps: int, backend: Backend = "auto") -> Worths:
    """Rounds of episodes until a worth is known, nothing speaks for one, or this took so many steps."""
    rounds, taken = list[tuple[Evaluation, Evaluation]](), 0
    while True:
        seed = EVALUATION_SEED + EPISODES * len(rounds)  # an environment has the seed of the one before it, plus 1
        rounds.append(_episodes(policy, env, EPISODES, seed, addons, backend))
        found = _together(rounds)
        taken += sum(int(one.lengths.sum()) for one in rounds[-1])
        likely = any(worth.value > worth.error for worth in found.told)
        if found.known or not likely or taken >= steps:
            return found


def _together(rounds: list[tuple[Evaluation, Evaluation]]) -> Worths:
    nats = _nats([sampled for _, sampled in rounds])

    def in_reward(name: Literal["basic", "addon"]) -> Worth | None:
        returns = [[getattr(one, name) for one in each] for each in zip(*rounds, strict=True)]
        if returns[0][0] is None:
            return None
        by_mean, sampled = map(np.concatenate, returns)
        return worth_of(by_mean, sampled, nats)

    length = float(np.mean([sampled.lengths for _, sampled in rounds]))
    return Worths(in_reward("basic"), in_reward("addon"), length)


def _nats(sampled: Sequence[Evaluation]) -> float:
    """An episode's, on average."""
    return float(np.mean([each.log_prior for each in sampled]))


def _episodes(
    policy: Policy, env: str, episodes: int, seed: int, addons: tuple[str, ...], backend: Backend
) -> tuple[Evaluation, Evaluation]:
    """By the mean action and sampled."""

    def run(stochastic: bool) -> Evaluation:
        return evaluate(
            policy, env, episodes, addon=addons, prior=BelowMode(policy) if stochastic else None,
            stochastic=stochastic, seed=seed, backend=backend, longest=LONGEST,
        )  # fmt: skip

    return run(stochastic=False), run(stochastic=True)
