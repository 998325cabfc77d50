"""Residual rewards in a training loop of your own: one function, called on a rollout before its advantages.

reward = prior_reward("prior.safetensors", omega=0.17, alpha=0.13)
rewards = reward(observations, actions, rewards, log_probs)
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.hosts.kept_prior import open_prior
from repolicy.hosts.method import check_finite
from repolicy.objective import reformulated, residual
from repolicy.policies.policy import Policy, Prior

RewardFunction = Callable[[Any, Any, Any, Any], Any]


def prior_reward(prior: str | Path | Mapping[str, Any] | Prior, omega: float, alpha: float) -> RewardFunction:
    """Return a function that makes task + omega · log prior − alpha · log policy out of a rollout (Eq. 16).

    It takes raw observations `[..., O]`, actions as sampled `[..., A]`, the task's rewards `[...]` and the
    log-probabilities `[...]` that the policy gave those actions, and returns rewards `[...]`. All are tensors, and the
    result is one on their device without a gradient; or all are arrays, and it is an array. It reads nothing else and
    changes nothing. Raises where a tensor or an array that it takes, or what the prior makes of them, is not finite.

    A prior of ours computes with torch, and one whose actions pass through tanh is refused. Any other gets the
    observations and actions as they come, so with a `log_prob` of your own in JAX the whole function can be compiled.
    """
    objective = residual(omega, alpha)
    source = open_prior(prior).prior
    score = _scored_by(source) if isinstance(source, Policy) else source.log_prob

    def reward(observations: Any, actions: Any, rewards: Any, log_policy: Any) -> Any:
        _check_same_shape("log-probabilities", log_policy, rewards)
        rewards, log_policy = _usable("task", rewards), _usable("entropy", log_policy)
        log_prior = None
        if objective.reads_prior:
            log_prior = score(observations, actions)
            _check_same_shape("the prior's log-probabilities", log_prior, rewards)
            log_prior = _usable("prior", log_prior)
        return reformulated(objective, rewards, log_prior, log_policy).total

    return reward


def _scored_by(prior: Policy) -> Callable[[Any, Any], Any]:
    """Return the policy's log_prob for tensors of any device and for arrays."""

    def score(observations: Any, actions: Any) -> Any:
        if observations.shape[-1] != prior.spec.observation_size:
            raise UsageError(
                f"the prior takes observations of {prior.spec.observation_size} numbers, and these have "
                f"{observations.shape[-1]}"
            )
        if prior.spec.actions.kind == "discrete" and actions.ndim < observations.ndim:
            actions = actions[..., None]  # one choice a step, written without an axis of its own
        if tuple(actions.shape) != (*observations.shape[:-1], prior.actions.width):
            raise UsageError(
                f"actions have the shape {tuple(actions.shape)} and observations {tuple(observations.shape)}; of each "
                f"step the prior takes {prior.actions.width} numbers as the action"
            )
        if isinstance(observations, Tensor):
            return prior.to(observations.device).log_prob(observations.float(), actions.float())
        tensors = (torch.from_numpy(np.asarray(part, np.float32)) for part in (observations, actions))
        return prior.log_prob(*tensors).numpy()

    return score


def _usable(name: str, part: Any) -> Any:
    """Return a part of the reward without its gradient; it is finite where its numbers are known, in JAX not always."""
    if isinstance(part, Tensor) and part.requires_grad:
        part = part.detach()
    if isinstance(part, Tensor | np.ndarray):
        check_finite({name: float(part.sum())})
    return part


def _check_same_shape(what: str, given: Any, rewards: Any) -> None:
    """Shapes that almost fit would be broadcast over each other without an error."""
    if tuple(given.shape) != tuple(rewards.shape):
        raise UsageError(
            f"{what} have the shape {tuple(given.shape)} and rewards {tuple(rewards.shape)}; both must be one number a "
            "step and environment"
        )
