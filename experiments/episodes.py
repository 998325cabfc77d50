"""Episodes of a policy with the same starts for all, and what a run's own objective was worth in each."""

from contextlib import closing

import numpy as np
import torch

from repolicy.envs.addons import Addon
from repolicy.envs.evaluation import EVALUATION_SEED, Evaluation, run_episodes
from repolicy.envs.making import make_envs
from repolicy.objective import Objective, reformulated, task_reward
from repolicy.policies.density import Density
from repolicy.policies.policy import Policy
from repolicy.prepare.states import familiarity
from repolicy.runs.ranks import one_thread


def played(
    policy: Policy,
    env: str,
    episodes: int,
    *,
    sampled: bool,
    addon: Addon | None = None,
    prior: Policy | None = None,
    density: Density | None = None,
    envs: int | None = None,
) -> Evaluation:
    """Play episodes, `envs` at once (by default all), beside a prior, and its states where there is a density."""

    def of_states(observations: np.ndarray | None, ages: np.ndarray) -> torch.Tensor | None:
        if density is None or prior is None or observations is None:
            return None
        return familiarity(density, prior.normalizer, torch.from_numpy(observations), torch.from_numpy(ages))

    with one_thread(), closing(make_envs(env, envs or episodes, EVALUATION_SEED)) as made:
        return run_episodes(
            policy, made, episodes, addon=addon, prior=prior, deterministic=not sampled, seed=EVALUATION_SEED,
            familiarity=None if density is None else of_states,
        )  # fmt: skip


def objective_of(objective: Objective, seen: Evaluation) -> np.ndarray:
    """Return what the objective was worth in each of the episodes, which had sampled actions."""
    reward = task_reward(objective, seen.basic, seen.addon)
    total: np.ndarray = reformulated(objective, reward, seen.log_prior, seen.log_policy, seen.familiarity).total
    return total
