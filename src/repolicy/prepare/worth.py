"""Measure what a nat of a policy's log-probability is worth in its reward: the temperature α of the policy.

A soft-optimal policy at α is exp((Q − V)/α). So the return of its mean action exceeds the return of its sampled actions
by α times a number of nats: log π of the mean actions, summed over their episodes, plus the entropy, summed over the
sampled episodes. This is exact without discount, also where episodes end early; what would follow a cut is left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from repolicy.envs import Backend
from repolicy.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.policies import Policy

WORTH_EPISODES = 32  # of each kind (mean action, sampled) in a round
MAX_EPISODE_STEPS = 1_000
# Standard errors above 0 at which a worth counts. Each look at more episodes is another chance to find what is none.
FIRST_ERRORS, LATER_ERRORS = 2.0, 3.0
MIN_NATS = 1e-6  # with fewer nats nothing can be measured: the policy has no noise, or is far from soft-optimal
Episodes = Mapping[str, np.ndarray]  # arrays `[E]`: basic, total, addon (where there is one), nats, lengths


@dataclass(frozen=True)
class Worth:
    """What a nat is worth, in units of the reward, with its standard error."""

    value: float
    error: float
    episodes: int

    @property
    def is_known(self) -> bool:
        """Whether it counts after one look: else the noise has no measurable cost."""
        return self.value > FIRST_ERRORS * self.error


def nats_of(found: Evaluation) -> np.ndarray:
    """Return log π of the mean actions, or the entropy where actions were sampled, summed over each episode `[E]`."""
    nats = found.log_policy if found.deterministic else found.entropy
    assert nats is not None
    return nats


def worth_of(by_mean: Episodes, sampled: Episodes, reward: str = "basic", paired: bool = False) -> Worth | None:
    """Return what a nat is worth in a reward; None where a return is not finite (there is none), or nats are missing.

    Where `paired`, episode i of both began in the same state, and what that state is worth to both is no error.
    """
    both = (by_mean, sampled)
    nats = sum(float(each["nats"].mean()) for each in both)
    if not all(np.isfinite(each[reward]).all() for each in both) or nats < MIN_NATS:
        return None
    value = float(by_mean[reward].mean() - sampled[reward].mean()) / nats
    # The first-order error of a ratio: that of the residuals, the returns without their nats at this worth.
    residuals = [by_mean[reward] - value * by_mean["nats"], sampled[reward] + value * sampled["nats"]]
    if paired:
        residuals = [residuals[0] - residuals[1]]
    error = math.sqrt(sum(each.var(ddof=1) / len(each) for each in residuals)) / nats
    return Worth(value, error, len(sampled[reward]))


def measure_worth(
    policy: Policy,
    env: str,
    episodes: int = WORTH_EPISODES,
    *,
    addons: tuple[str, ...] = (),
    backend: Backend = "auto",
    addon_alone: bool = False,
) -> Worth | None:
    """Run episodes and return what a nat is worth in the total reward, or in the add-ons' alone."""
    both = _evaluate_both(policy, env, episodes, EVALUATION_SEED, addons, backend)
    by_mean, sampled = (pooled([each]) for each in both)
    return worth_of(by_mean, sampled, "addon" if addon_alone else "total", paired=True)


@dataclass(frozen=True)
class Worths:
    """What a nat is worth in the environment's reward and in the add-on's, and the mean length of sampled episodes."""

    basic: Worth | None  # None where the environment's reward is not finite
    addon: Worth | None
    length: float
    steps: int = 0  # environment steps of the measurement
    errors: float = FIRST_ERRORS  # standard errors above 0 at which a worth counts

    @property
    def known(self) -> list[Worth]:
        return [worth for worth in self.measured if worth.value > self.errors * worth.error]

    @property
    def measured(self) -> list[Worth]:
        return [worth for worth in (self.basic, self.addon) if worth is not None]

    @property
    def is_open(self) -> bool:
        """Whether more episodes may make a worth significant: none is yet, and one does not look negative."""
        return not self.known and any(worth.value > -worth.error for worth in self.measured)

    @property
    def max_worth(self) -> float:
        """The largest value that is within two standard errors of a measured worth."""
        return max((worth.value + 2 * worth.error for worth in self.measured), default=0.0)


def measure_worths(
    policy: Policy,
    env: str,
    addons: tuple[str, ...],
    max_steps: int,
    backend: Backend = "auto",
    episodes: int = WORTH_EPISODES,
) -> Worths:
    """Run rounds of episodes until a worth is significant or looks negative, or until `max_steps` steps were taken.

    A few bad episodes with the mean action hide a worth in one round: to go on costs less than to do without it.
    """
    rounds = list[tuple[Evaluation, Evaluation]]()
    while True:
        seed = EVALUATION_SEED + episodes * len(rounds)  # the environments of a round have consecutive seeds
        rounds.append(_evaluate_both(policy, env, episodes, seed, addons, backend))
        found = _pool_rounds(rounds)
        if not found.is_open or found.steps >= max_steps:
            return found


def _pool_rounds(rounds: list[tuple[Evaluation, Evaluation]]) -> Worths:
    """Return the worths by the episodes of all rounds together."""
    by_mean, sampled = zip(*rounds, strict=True)
    steps = sum(each.environment_steps for each in by_mean + sampled)
    return worths_of(pooled(by_mean), pooled(sampled), is_first_look=len(rounds) == 1, steps=steps, paired=True)


def pooled(evaluations: Sequence[Evaluation]) -> Episodes:
    """Return what `worths_of` reads of all episodes of some evaluations."""
    names = ["basic", "total", "lengths"] + ([] if evaluations[0].addon is None else ["addon"])
    arrays = {name: np.concatenate([getattr(each, name) for each in evaluations]) for name in names}
    return arrays | {"nats": np.concatenate([nats_of(each) for each in evaluations])}


def worths_of(
    by_mean: Episodes, sampled: Episodes, is_first_look: bool, steps: int = 0, paired: bool = False
) -> Worths:
    """Return the worths by all episodes so far."""
    basic = worth_of(by_mean, sampled, "basic", paired)
    addon = worth_of(by_mean, sampled, "addon", paired) if "addon" in sampled else None
    errors = FIRST_ERRORS if is_first_look else LATER_ERRORS
    return Worths(basic, addon, float(sampled["lengths"].mean()), steps, errors)


def _evaluate_both(
    policy: Policy, env: str, episodes: int, seed: int, addons: tuple[str, ...], backend: Backend
) -> tuple[Evaluation, Evaluation]:
    """Run episodes with the mean action, and as many with sampled actions from the same states."""
    run = partial(evaluate, policy, env, episodes, addon=addons, seed=seed, backend=backend, longest=MAX_EPISODE_STEPS)
    return run(deterministic=True), run(deterministic=False)
