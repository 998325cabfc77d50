"""What a nat of a policy's log-probability is worth in its reward: the α at which they really stand.

A policy that is soft-optimal at α is exp(Q/α), up to a constant. Where that is a Gaussian, the noise of its own actions
costs α/2 a number of the action a step. So what the noise costs tells α, however the policy came to be.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np

from repolicy.envs.evaluation import EVALUATION_SEED, evaluate
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

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def worth_of(by_mean: np.ndarray, sampled: np.ndarray, steps: float, numbers: int) -> Worth:
    """From returns `[E]` with the mean action and `[F]` with sampled ones, `steps` long, of so many `numbers`."""
    noise = 0.5 * numbers * steps  # nats by which sampled actions are below the mode, on average
    error = math.sqrt(by_mean.var() / len(by_mean) + sampled.var() / len(sampled))
    return Worth(float(by_mean.mean() - sampled.mean()) / noise, error / noise, len(sampled))


def measured(
    policy: Policy, env: str, episodes: int = EPISODES, *, addons: tuple[str, ...] = (), backend: Backend = "auto"
) -> Worth | None:
    """From episodes, or None where actions are choices, which have no Gaussian noise, or returns are not finite."""
    if policy.actions.kind != "continuous":
        return None
    mean, sampled = (
        evaluate(
            policy, env, episodes, addon=addons or None, stochastic=stochastic,
            seed=EVALUATION_SEED, backend=backend, longest=LONGEST,
        )
        for stochastic in (False, True)
    )  # fmt: skip
    if not np.isfinite([mean.total.sum(), sampled.total.sum()]).all():
        return None
    steps = float(np.mean(sampled.lengths))
    return worth_of(mean.total, sampled.total, steps, policy.actions.width)
