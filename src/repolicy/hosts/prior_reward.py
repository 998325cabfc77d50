"""Residual rewards in a training loop of your own: one function, called on a rollout before its advantages.

reward = prior_reward("prior.safetensors", omega=0.17, alpha=0.13)
rewards = reward(observations, actions, rewards, log_probs)
"""

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.hosts.measuring import Sizes, set_weights
from repolicy.hosts.method import REWARD_PARTS, check_finite
from repolicy.hosts.priors import check_squashed, open_prior, unbounded_actions
from repolicy.hosts.steering import Steering
from repolicy.objective import Objective, reformulated, residual
from repolicy.policies import ActionSpace, Density, Policy, Prior, with_torch_defaults
from repolicy.prepare.states import MIN_FIT_OBSERVATIONS, SKIPPED_STEPS, density_of_states, familiarity
from repolicy.priors import MeanPrior, OpenedPolicy
from repolicy.readers.reading import errors_in_python_terms
from repolicy.runs import Settings


@with_torch_defaults()
@errors_in_python_terms()
def prior_reward(
    prior: str | Path | Mapping[str, Any] | Prior,
    omega: float | None = None,
    alpha: float | None = None,
    *,
    states: float = 0.0,
    visited: Any = None,
    gamma: float = Settings().gamma,
    kl_budget: float | None = None,
) -> "PriorReward":
    """Return a function that makes task + omega · log prior − alpha · log policy out of a rollout (Eq. 16).

    Args:
        prior: a file, a mapping with its path and how to read it, a policy, or whatever has `log_prob`.
        omega: what a nat of log prior is worth; by default as the prior's file tells it.
        alpha: what a nat of entropy is worth; by default as the prior's file tells it, else a third of omega.
        states: what a nat of the next states' familiarity to the prior is worth.
        visited: for `states`, observations `[M, O]` that the prior visits, in the order of time.
        gamma: for `states`, your loop's discount: a terminated episode's last state is priced as if it lasted.
        kl_budget: after each rollout omega = alpha moves so that the policy stays so many nats a step from the prior.
    """
    source = open_prior(prior)
    sizes = source.agent if isinstance(source.agent, Policy) else Sizes(0, ActionSpace("discrete", ()))
    steering = Steering(residual(omega, alpha, states), kl_budget)
    steering = set_weights(steering, source.card, sizes, None, "prior_reward")
    if states and visited is None:
        raise UsageError("states has a price and visited is missing: observations of the prior's own, [M, O]")
    density = None
    if states:
        visited = torch.as_tensor(visited).float()
        _check_visited(visited, sizes.observation_size)
        density = density_of_states(visited)
    return PriorReward(source, steering, density, gamma)


def _check_visited(visited: Tensor, size: int) -> None:
    """Raise where observations are not finite, too few to be fitted, or not of this size, where 0 is unknown."""
    shape, width = tuple(visited.shape), size or visited.shape[-1]
    has_shape = visited.dim() == 2 and shape[1] == width
    if not has_shape or len(visited) < MIN_FIT_OBSERVATIONS or not bool(visited.isfinite().all()):
        wanted = f"it must be finite observations [M, {width}], {MIN_FIT_OBSERVATIONS:,} or more"
        raise UsageError(f"visited has the shape {shape}; {wanted}")


class PriorReward:
    """The function that `prior_reward` returns.

    parts: the last rollout's means of task, prior, entropy, states and prior_kl; empty inside `jax.jit`.
    """

    def __init__(self, source: OpenedPolicy, steering: Steering, density: Density | None, gamma: float) -> None:
        self.steering, self.density, self.gamma, self.parts = steering, density, gamma, dict[str, float]()
        prior = source.agent
        check_squashed(source, False, "give an object whose log_prob scores what you store")
        is_ours = isinstance(prior, Policy | MeanPrior)
        placed = functools.cache(prior.for_spaces) if isinstance(prior, MeanPrior) else prior
        self._score = functools.partial(_log_prob, placed) if is_ours else prior.log_prob
        self._is_compilable = not (is_ours or steering.kl_budget or density)

    @property
    def objective(self) -> Objective:
        """The weights in force."""
        return self.steering.objective

    def __call__(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        log_policy: Any,
        next_observations: Any = None,
        ages: Any = None,
        terminated: Any = None,
    ) -> Any:
        """Return the rewards `[...]` of a rollout.

        It takes raw observations `[..., O]`, actions as sampled `[..., A]` (choices count from 0), the task's rewards
        `[...]` and the log-probabilities `[...]` that the policy gave those actions. Where states have a price, it also
        takes the observations that the steps led to; their ages `[...]`, 1 after an episode's first step, since the
        price begins after age 50 (without ages, with the first step); and which steps terminated their episode, or
        the policy may learn to escape the price by an end. Leave `terminated` out where the prior's own episodes end at
        a goal, which would be charged as a fall is. All are tensors, and the result is one on their device without a
        gradient; or all are arrays, and it is an array. It changes none of them. Raises where a part is not finite.

        A prior of ours computes with torch. Any other gets the observations and actions as they are, so with your own
        `log_prob` in JAX the whole function can be compiled, unless a budget moves its weights or states have a price.
        """
        objective = self.objective
        _check_same_shape("log-probabilities", log_policy, rewards)
        if any(map(_is_traced, (observations, actions, rewards, log_policy))) and not self._is_compilable:
            what = "inside jax.jit or vmap the prior must be a function in JAX, without kl_budget and states"
            raise UsageError(f"{what}: call this outside, on arrays, or leave them out")
        rewards, log_policy, log_prior = _detached(rewards), _detached(log_policy), None
        if objective.reads_prior:
            log_prior = _detached(self._score(observations, actions))
            _check_same_shape("the prior's log-probabilities", log_prior, rewards)
        familiar = self._familiarity(observations, next_observations, ages, terminated, rewards)
        reward = reformulated(objective, rewards, log_prior, log_policy, familiar)
        if not _is_traced(reward.total):
            parts = {name: _mean(getattr(reward, name)) for name in REWARD_PARTS}
            check_finite(parts)
            prior_kl = 0.0 if log_prior is None else _mean(log_policy - log_prior)
            self.parts = parts | {"prior_kl": prior_kl}
            self.steering.steer({"prior_kl": prior_kl}, int(np.prod(rewards.shape)))
        return reward.total

    def _familiarity(self, observations: Any, next_observations: Any, ages: Any, terminated: Any, rewards: Any) -> Any:
        """Return how familiar the next states `[..., O]` are to the prior, `[...]`; None where states have no price."""
        if self.density is None:
            return None
        if next_observations is None:
            raise UsageError("states has a price, so the function takes next_observations as well")
        if tuple(next_observations.shape) != tuple(observations.shape):
            shapes = f"{tuple(next_observations.shape)} and observations {tuple(observations.shape)}"
            raise UsageError(f"next_observations have the shape {shapes}; both must be the same")
        states = torch.as_tensor(next_observations).float()
        if ages is None:
            ages = torch.full(states.shape[:-1], SKIPPED_STEPS + 1, device=states.device)
        if terminated is None:
            terminated = torch.zeros(states.shape[:-1], dtype=torch.bool, device=states.device)
        _check_same_shape("ages", ages, rewards)
        _check_same_shape("terminated", terminated, rewards)
        at, ends = (torch.as_tensor(part, device=states.device) for part in (ages, terminated))
        found = familiarity(self.density.to(states.device), states, at, ends.bool(), self.gamma)
        if isinstance(rewards, Tensor):
            return found.to(rewards.dtype if rewards.is_floating_point() else torch.float32)
        return found.numpy().astype(rewards.dtype if rewards.dtype.kind == "f" else np.float32)


def _log_prob(prior: Policy | Callable[..., MeanPrior], observations: Any, actions: Any) -> Any:
    """Return a prior's log_prob of arrays, or of tensors on any device; a function returns the prior for sizes."""
    scoring: Any = prior
    if not isinstance(prior, Policy):
        scoring = prior(observations.shape[-1], unbounded_actions(actions.shape[-1]))
    if isinstance(observations, Tensor):
        actions = torch.as_tensor(actions, dtype=torch.float32, device=observations.device)
        return scoring.to(observations.device).log_prob(observations.float(), actions)
    tensors = (torch.from_numpy(np.array(part, np.float32)) for part in (observations, actions))
    return scoring.log_prob(*tensors).numpy()


def _mean(part: Any) -> float:
    return float((1.0 * part).mean())  # torch has no mean of integers


def _is_traced(part: Any) -> bool:
    """Return whether JAX is compiling, so that an array has no numbers yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(part, jax.core.Tracer)


def _detached(part: Any) -> Any:
    return part.detach() if isinstance(part, Tensor) and part.requires_grad else part


def _check_same_shape(what: str, part: Any, rewards: Any) -> None:
    """Raise where shapes differ, because [N, 1] and [N] would be broadcast to [N, N] without an error."""
    if tuple(part.shape) != tuple(rewards.shape):
        shapes = f"{what} have the shape {tuple(part.shape)} and rewards {tuple(rewards.shape)}"
        raise UsageError(f"{shapes}; both must be one number a step and environment")
