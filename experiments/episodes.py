"""Evaluate policies on episodes with common seeds, and compute a run's objective in each episode."""

from contextlib import closing

import numpy as np
import torch

from repolicy.addons.addon import Addon
from repolicy.envs.making import make_envs
from repolicy.evaluation import EVALUATION_SEED, Evaluation, run_episodes
from repolicy.objective import Objective, reformulated, task_reward
from repolicy.policies.density import Density
from repolicy.policies.policy import Policy
from repolicy.prepare.defaults import customize_defaults
from repolicy.prepare.states import familiarity


def play_episodes(
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
    """Play episodes, `envs` at once (by default all), and record the prior's log-probabilities.

    density: of the prior's states; with it, the familiarity of the visited states is recorded too.
    """

    def score_states(observations: np.ndarray | None, ages: np.ndarray, terminated: np.ndarray) -> torch.Tensor | None:
        if density is None or observations is None or prior is None:
            return None
        states, at, ends = map(torch.from_numpy, (observations, ages, terminated))
        return familiarity(density, states, at, ends, customize_defaults(prior).gamma)

    with closing(make_envs(env, envs or episodes, EVALUATION_SEED)) as batch:
        return run_episodes(
            policy, batch, episodes, addon=addon, prior=prior, deterministic=not sampled, seed=EVALUATION_SEED,
            familiarity=None if density is None else score_states,
        )  # fmt: skip


def episode_objectives(objective: Objective, result: Evaluation) -> np.ndarray:
    """Return the objective's value in each episode, `[N]`. The episodes must have sampled actions."""
    reward = task_reward(objective, result.basic, result.addon)
    total: np.ndarray = reformulated(objective, reward, result.log_prior, result.log_policy, result.familiarity).total
    return total
