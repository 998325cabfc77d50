"""The best of some draws by the wish, in copies of the environment: what a generative policy does without training."""

import warnings
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs.addons import Addon
from repolicy.envs.gymnasium import check_copied
from repolicy.envs.names import in_gymnasium, maker, parsed
from repolicy.envs.rollout import Transitions
from repolicy.envs.step import Backend
from repolicy.errors import UsageError, in_one_sentence
from repolicy.policies.policy import Policy


class BestOf:
    """An agent that draws noise so many times, and takes the draw whose chunk the wish pays most in copies."""

    backend: Backend = "gymnasium"

    def __init__(self, prior: Policy, addon: Addon, count: int, seed: int = 0) -> None:
        self.observation_size, self.actions = prior.observation_size, prior.actions
        self.addon, self.count, self.random = addon, count, np.random.default_rng(seed)

    def watch(self, envs: Any) -> None:
        """Copy these environments from now on."""
        self._envs = envs

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "BestOf":
        return self

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        rows = len(observations)
        draws = self.random.standard_normal((rows * self.count, self.actions.width)).astype(np.float32)
        step = self._envs.copies(self.count, self.random).step(draws)
        tried = Transitions(step.chunk.observations, step.chunk.actions, step.chunk.final, step.chunk.info)
        paid = np.where(step.chunk.counts, self.addon.reward(tried), 0.0).sum(0).reshape(rows, self.count)
        best: np.ndarray = draws.reshape(rows, self.count, -1)[np.arange(rows), paid.argmax(1)]
        return best

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return zeros: who takes the best of several draws has no density in closed form."""
        return torch.zeros(actions.shape[:-1])

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        return self.log_probs(actions)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        return actions


def check_possible(env: str, addon: Addon) -> None:
    """Raise where an environment cannot be copied, or where a wish has a past."""
    plain, _ = parsed(env)
    if addon.with_past:
        raise UsageError(f"{addon.with_past[0]} has a past, which a copy does not know")
    if not in_gymnasium(env):
        raise UsageError(f"{plain} is EnvPool's alone, whose environments cannot be copied")
    with (
        in_one_sentence(f"{plain} cannot be copied", UsageError),
        warnings.catch_warnings(action="ignore"),  # "out of date": a task's version is part of the task
        closing(maker(env)()) as made,
    ):
        check_copied(made, plain)
