"""Environments of Stable-Baselines3: what must hold of them, and episodes of a prior in them."""

from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import unwrap_vec_normalize
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.hosts.kept_prior import check_squashed, of_each
from repolicy.hosts.measuring import Paid, Sizes
from repolicy.hosts.sb3_policies import check_choices, space_of
from repolicy.hosts.steering import weighs
from repolicy.objective import Objective
from repolicy.prepare.states import MAX_STATE_SIZE

WIDE = 1e6  # bounds of actions so wide that clipping to them changes nothing


class ModelEnvs:
    """A model's environments, for episodes of the prior before training."""

    def __init__(self, model: Any) -> None:
        if model.env is None:
            raise UsageError("the model has no environment: load it with env=, or set_env")
        self.model, self.env, self.count = model, model.env, int(model.env.num_envs)

    @cached_property
    def sizes(self) -> Sizes:
        """How many numbers a state has, and the actions; observations in a Dict have too many."""
        space, numbers = self.env.observation_space, MAX_STATE_SIZE + 1
        if isinstance(space, spaces.Box):
            numbers = int(self.model.rows(space.sample()[None, None]).shape[-1])
        return Sizes(numbers, space_of(self.model.action_space))

    @property
    def wish_weight(self) -> float:
        """What `repolicy.rql.WithAddon` tells."""
        return max(self.env.get_attr("wish_weight")) if self.env.has_attr("wish_weight") else 1.0

    def begin(self) -> tuple[Any, bool]:
        """Return the first observations of episodes."""
        self.seen = self.env.reset()
        return self._observed(), True

    def _observed(self) -> Any:
        return of_each(self.model.observed(of_each(self.seen, lambda part: part[None])), lambda part: part[0])

    def step(self, actions: Tensor) -> Paid:
        """Return what followed; an environment may tell its own reward as `basic_reward` in its info."""
        space, taken = self.env.action_space, actions.cpu().numpy().reshape(-1, *self.env.action_space.shape)
        if isinstance(space, spaces.Box):  # as Stable-Baselines3 sends them
            policy = self.model.policy
            taken = policy.unscale_action(taken) if policy.squash_output else taken.clip(space.low, space.high)
        self.seen, rewards, ended, infos = self.env.step(taken)
        basic = [info.get("basic_reward", np.nan) for info in infos]
        own, paid = (torch.from_numpy(np.array(part, np.float32)) for part in (basic, rewards))
        held = torch.from_numpy(self.model.held_in(infos))
        return Paid(self._observed(), own, paid, torch.from_numpy(np.array(ended)), held)

    def states(self, observations: Any) -> Tensor:
        """Return states in rows, or nothing of those that have too many numbers to be learned."""
        few = self.sizes.observation_size <= MAX_STATE_SIZE
        return self.model.rows(self.seen[None])[0] if few else torch.empty(self.count, 0)


class Unclipped(gymnasium.ActionWrapper[Any, Any, Any]):
    """The environment with bounds so wide that Stable-Baselines3's clipping to them leaves actions as they are."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Box(-WIDE, WIDE, env.action_space.shape, np.float32)

    def action(self, action: Any) -> Any:
        return action


class Squashed(Unclipped):
    """The same, and actions of any size reach the environment through tanh, within its bounds."""

    def action(self, action: Any) -> Any:
        space = self.env.action_space
        assert isinstance(space, spaces.Box)
        return (space.low + (np.tanh(action) + 1.0) * 0.5 * (space.high - space.low)).astype(space.dtype)


# What must hold -------------------------------------------------------------------------------------------------------


def check_env(objective: Objective, env: Any, prior: Any) -> None:
    """Raise where rewards or observations reach the model on a scale that moves, or actions not as the prior's."""
    if env is None or not weighs(objective):
        return
    check_choices(env.action_space)
    normalized = unwrap_vec_normalize(env)
    through_tanh = getattr(env.unwrapped, "squashes", False) or all(env.env_is_wrapped(Squashed))
    check_squashed(prior, through_tanh, "wrap it in repolicy.hosts.sb3.Squashed")
    scaled = normalized is not None and normalized.norm_reward
    if scaled or any(env.env_is_wrapped(gymnasium.wrappers.NormalizeReward)):
        what = "the environment is VecNormalize(norm_reward=True) or wrapped in NormalizeReward"
        raise UsageError(f"{what}, and the scale of what omega and alpha weigh would move: leave that out")
    moving = normalized is not None and normalized.norm_obs and normalized.training
    if objective.reads_prior and (moving or any(env.env_is_wrapped(gymnasium.wrappers.NormalizeObservation))):
        remedy = "take a VecNormalize with the statistics that it was trained with, and set training = False"
        raise UsageError(f"statistics of observations move, and what the prior sees with them: {remedy}")


def check_seen_alike(model: Any) -> None:
    """Raise where an actor that is copied from a policy of ours would see other observations than that one."""
    normalized = model.get_vec_normalize_env()
    if normalized is not None and normalized.norm_obs:
        remedy = "set norm_obs=False, or copy_prior=False to begin elsewhere"
        raise UsageError(f"VecNormalize changes what the actor sees, and the prior has its own normalizer: {remedy}")


def clips(model: Any) -> str:
    """Return how Stable-Baselines3 clips this model's actions, or nothing."""
    space = model.action_space
    if not isinstance(space, spaces.Box) or float(np.abs([space.low, space.high]).max()) >= WIDE:
        return ""
    return "Stable-Baselines3 clips actions to the environment's bounds (wrap it in Unclipped)"
