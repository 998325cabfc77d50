"""What a nat of a policy's log-probability is worth in its reward: the α at which they really stand.

A policy that is soft-optimal at α is exp((Q − V)/α). So the return of its mode is ahead of that of its own sampled
actions by α times so many nats: log π of the mode, summed along the mode's episodes, and the entropy, summed along the
sampled ones. That holds exactly, also where one of them falls. It tells α, however the policy came to be.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from repolicy.envs import EVALUATION_SEED, Backend, Evaluation, evaluate
from repolicy.policies import Policy

WORTH_EPISODES = 32  # of each kind, in a round
MAX_EPISODE_STEPS = 1_000  # of an episode
MIN_NATS = 1e-6  # below which nothing can be told: a policy without noise, or one that is not soft-optimal at all


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


class EpisodeSums(NamedTuple):
    """Of each of some episodes, `[E]`: the return, and the nats.

    Those are log π of its actions by the mean action, and the policy's entropy where it sampled. Both are over the same
    steps, so it does not matter where an episode is cut.
    """

    returns: np.ndarray
    nats: np.ndarray


def nats_of(found: Evaluation) -> np.ndarray:
    """Return log π of the mean actions, or the entropy where actions were sampled, summed over each episode `[E]`."""
    nats = found.log_policy if found.deterministic else found.entropy
    assert nats is not None
    return nats


def worth_of(by_mean: EpisodeSums, sampled: EpisodeSums) -> Worth | None:
    """Return the worth that a nat has by these episodes.

    None where a return is not finite, as an environment without a reward shows NaN; and where the nats are none.
    """
    both = (by_mean, sampled)
    nats = sum(float(each.nats.mean()) for each in both)
    if not np.isfinite([*by_mean.returns, *sampled.returns]).all() or nats < MIN_NATS:
        return None
    value = float(by_mean.returns.mean() - sampled.returns.mean()) / nats
    # of a ratio, to first order: what is left of each return without its nats at that worth
    left = by_mean.returns - value * by_mean.nats, sampled.returns + value * sampled.nats
    return Worth(value, math.sqrt(sum(each.var(ddof=1) / len(each) for each in left)) / nats, len(sampled.returns))


def measure_worth(
    policy: Policy,
    env: str,
    episodes: int = WORTH_EPISODES,
    *,
    addons: tuple[str, ...] = (),
    backend: Backend = "auto",
    addon_alone: bool = False,
) -> Worth | None:
    """Measure it by episodes, in the environment's reward and the add-ons', or in theirs alone."""
    both = _evaluate_both(policy, env, episodes, EVALUATION_SEED, addons, backend)
    reward = "addon" if addon_alone else "total"
    return worth_of(*(EpisodeSums(getattr(each, reward), nats_of(each)) for each in both))


@dataclass(frozen=True)
class Worths:
    """What a nat is worth in the environment's reward and in the add-on, and how long sampled episodes are."""

    basic: Worth | None  # None where the environment's reward is no number
    addon: Worth | None
    length: float
    steps: int = 0  # that these episodes took, of both kinds

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


def measure_worths(
    policy: Policy,
    env: str,
    addons: tuple[str, ...],
    steps: int,
    backend: Backend = "auto",
    episodes: int = WORTH_EPISODES,
) -> Worths:
    """Run rounds of episodes until a worth is known, nothing speaks for one, or this took so many steps."""
    rounds = list[tuple[Evaluation, Evaluation]]()
    while True:
        seed = EVALUATION_SEED + episodes * len(rounds)  # an environment has the seed of the one before it, plus 1
        rounds.append(_evaluate_both(policy, env, episodes, seed, addons, backend))
        found = _pool_rounds(rounds)
        likely = any(worth.value > worth.error for worth in found.told)
        if found.known or not likely or found.steps >= steps:
            return found


def _pool_rounds(rounds: list[tuple[Evaluation, Evaluation]]) -> Worths:
    def in_reward(name: Literal["basic", "addon"]) -> Worth | None:
        if getattr(rounds[0][0], name) is None:
            return None
        kinds = ([(getattr(one, name), nats_of(one)) for one in each] for each in zip(*rounds, strict=True))
        return worth_of(*(EpisodeSums(*map(np.concatenate, zip(*each, strict=True))) for each in kinds))

    length = float(np.mean([sampled.lengths for _, sampled in rounds]))
    taken = int(sum(one.lengths.sum() for each in rounds for one in each))
    return Worths(in_reward("basic"), in_reward("addon"), length, taken)


def _evaluate_both(
    policy: Policy, env: str, episodes: int, seed: int, addons: tuple[str, ...], backend: Backend
) -> tuple[Evaluation, Evaluation]:
    """Return episodes by the mean action and sampled."""

    def run(deterministic: bool) -> Evaluation:
        return evaluate(
            policy, env, episodes, addon=addons, deterministic=deterministic, seed=seed, backend=backend,
            longest=MAX_EPISODE_STEPS,
        )  # fmt: skip

    return run(deterministic=True), run(deterministic=False)
