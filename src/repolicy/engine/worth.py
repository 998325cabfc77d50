"""What a nat of a policy's log-probability is worth in its reward: the α at which they really stand.

A policy that is soft-optimal at α is exp(Q/α), up to a constant. Where that is a Gaussian, the noise of its own actions
costs α/2 a number of the action a step. So what the noise costs tells α, however the policy came to be.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from repolicy.envs.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.envs.step import Backend
from repolicy.policies.policy import Policy

EPISODES = 32
LONGEST = 1_000  # steps of an episode that count


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


def worth_of(by_mean: np.ndarray, sampled: np.ndarray, steps: float, numbers: int) -> Worth | None:
    """From returns `[E]` with the mean action and `[F]` with sampled ones, `steps` long, of so many `numbers`.

    None where a return is not finite: an environment without a reward shows NaN.
    """
    if not np.isfinite([*by_mean, *sampled]).all():
        return None
    noise = 0.5 * numbers * steps  # nats by which sampled actions are below the mode, on average
    error = math.sqrt(sum(returns.var(ddof=1) / len(returns) for returns in (by_mean, sampled)))
    return Worth(float(by_mean.mean() - sampled.mean()) / noise, error / noise, len(sampled))


def measured(
    policy: Policy, env: str, episodes: int = EPISODES, *, addons: tuple[str, ...] = (), backend: Backend = "auto"
) -> Worth | None:
    """From episodes, or None where actions are choices, which have no Gaussian noise."""
    if policy.actions.kind != "continuous":
        return None
    mean, sampled = _episodes(policy, env, episodes, EVALUATION_SEED, addons, backend)
    return worth_of(mean.total, sampled.total, float(np.mean(sampled.lengths)), policy.actions.width)


@dataclass(frozen=True)
class Worths:
    """What a nat is worth in the environment's reward and in the add-on, and how long sampled episodes are."""

    basic: Worth | None  # None where the environment's reward is no number, or where actions are choices
    addon: Worth | None
    length: float

    @property
    def known(self) -> list[Worth]:
        return [worth for worth in (self.basic, self.addon) if worth is not None and worth.is_known]


def sought(policy: Policy, env: str, addons: tuple[str, ...], steps: int, backend: Backend = "auto") -> Worths:
    """Rounds of episodes until a worth is known, nothing speaks for one, or this took so many steps."""
    rounds, taken = list[tuple[Evaluation, Evaluation]](), 0
    while policy.actions.kind == "continuous":
        seed = EVALUATION_SEED + EPISODES * len(rounds)  # an environment has the seed of the one before it, plus 1
        rounds.append(_episodes(policy, env, EPISODES, seed, addons, backend))
        found = _together(rounds, policy.actions.width)
        taken += sum(int(one.lengths.sum()) for one in rounds[-1])
        likely = any(worth.value > worth.error for worth in (found.basic, found.addon) if worth is not None)
        if found.known or not likely or taken >= steps:
            return found
    return Worths(None, None, 0.0)


def _together(rounds: list[tuple[Evaluation, Evaluation]], numbers: int) -> Worths:
    length = float(np.mean([sampled.lengths for _, sampled in rounds]))

    def in_reward(name: Literal["basic", "addon"]) -> Worth | None:
        returns = [[getattr(one, name) for one in each] for each in zip(*rounds, strict=True)]
        if returns[0][0] is None:
            return None
        by_mean, sampled = map(np.concatenate, returns)
        return worth_of(by_mean, sampled, length, numbers)

    return Worths(in_reward("basic"), in_reward("addon"), length)


def _episodes(
    policy: Policy, env: str, episodes: int, seed: int, addons: tuple[str, ...], backend: Backend
) -> tuple[Evaluation, Evaluation]:
    """By the mean action and sampled."""

    def run(stochastic: bool) -> Evaluation:
        return evaluate(
            policy, env, episodes, addon=addons, stochastic=stochastic, seed=seed, backend=backend, longest=LONGEST
        )

    return run(stochastic=False), run(stochastic=True)
