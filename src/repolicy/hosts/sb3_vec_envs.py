"""Environments of Stable-Baselines3: checks of them, and episodes of a prior in them."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage, unwrap_vec_normalize, unwrap_vec_wrapper
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.hosts.measuring import EnvStep, Sizes
from repolicy.hosts.method import DESIRED_KL, TARGET_RATIO
from repolicy.hosts.priors import check_squashed, map_observations
from repolicy.hosts.sb3_policies import check_choices, space_of
from repolicy.hosts.sb3_priors import ModelPrior
from repolicy.hosts.steering import has_weight
from repolicy.objective import Objective
from repolicy.policies import WIDE
from repolicy.prepare.defaults import ROLLOUT_SIZE, settings_for_shape
from repolicy.prepare.states import MAX_STATE_SIZE


class ModelEnvs:
    """A model's environments, for episodes of the prior before training."""

    def __init__(self, model: Any) -> None:
        if model.env is None:
            raise UsageError("the model has no environment: load it with env=, or set_env")
        self.model, self.env, self.count = model, model.env, int(model.env.num_envs)

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes of states and actions; observations in a Dict count as too large for a density."""
        space, size = self.env.observation_space, MAX_STATE_SIZE + 1
        if isinstance(space, spaces.Box):
            size = int(flat_observations(self.env, space.sample()[None, None]).shape[-1])
        return Sizes(size, space_of(self.model.action_space))

    @property
    def wish_weight(self) -> float:
        """The largest weight of the wishes in `repolicy.rql.WithAddon`."""
        return max(self.env.get_attr("wish_weight")) if self.env.has_attr("wish_weight") else 1.0

    def reset(self) -> tuple[Any, bool]:
        """Return the first observations of episodes."""
        self.last_observations = self.env.reset()
        return self._prior_observations(), True

    def _prior_observations(self) -> Any:
        """Return the last observations in the prior's form, which is made of whole rollouts `[T, N, ...]`."""
        rollout = map_observations(self.last_observations, lambda part: part[None])
        return map_observations(self.model.prior_observations(rollout), lambda part: part[0])

    def step(self, actions: Tensor) -> EnvStep:
        """Take a step. An environment may give its own reward as `basic_reward` in its info."""
        space = self.env.action_space
        sent = actions.cpu().numpy().reshape(-1, *space.shape)
        if isinstance(space, spaces.Box):  # as Stable-Baselines3 sends them
            policy = self.model.policy
            sent = policy.unscale_action(sent) if policy.squash_output else sent.clip(space.low, space.high)
        self.last_observations, rewards, ended, infos = self.env.step(sent)
        basic = np.array([info.get("basic_reward", np.nan) for info in infos], np.float32)
        return EnvStep(
            self._prior_observations(),
            torch.from_numpy(basic),
            torch.from_numpy(np.array(rewards, np.float32)),
            torch.from_numpy(np.array(ended)),
            torch.from_numpy(ended & ~np.array([info.get("TimeLimit.truncated", False) for info in infos])),
            torch.from_numpy(self.model.read_limit_values(infos)),
        )

    @property
    def states(self) -> Tensor:
        """The present observations as flat vectors `[N, O]`; empty ones where they are too large for a density."""
        if self.sizes.observation_size > MAX_STATE_SIZE:
            return torch.empty(self.count, 0)
        return flat_observations(self.env, self.last_observations[None])[0]


class ModelActor(ModelPrior):
    """A model's policy in its environments. It gets the observations of the model, not those of the prior."""

    def __init__(self, model: Any, envs: ModelEnvs) -> None:
        super().__init__(model.policy)
        self.model_observations = lambda: map_observations(envs.last_observations, model.to_tensor)

    def distribution(self, observations: Any) -> Any:
        return super().distribution(self.model_observations())


def raw_observations(env: Any, observations: Any) -> Any:
    """Undo the transposed axes and the normalization of observations `[T, N, ...]`."""
    transposed = unwrap_vec_wrapper(env, VecTransposeImage)
    if transposed is not None and isinstance(observations, dict):
        images = {key: np.moveaxis(observations[key], 2, -1) for key in transposed.image_space_keys}
        observations = observations | images
    elif transposed is not None:
        observations = np.moveaxis(observations, 2, -1)
    normalized, stack = unwrap_vec_normalize(env), unwrap_vec_wrapper(env, VecFrameStack)
    if normalized is None or not normalized.norm_obs:
        return observations
    if stack is None or unwrap_vec_normalize(stack) is None:
        return normalized.unnormalize_obs(observations)
    # Frames were normalized one by one. Those before an episode's first are 0, as they are in a stack of raw ones.
    frames, axis = frames_of(env, observations)
    numbers = tuple(range(2, observations.ndim))
    raw = [normalized.unnormalize_obs(frame) * frame.any(numbers, keepdims=True) for frame in frames]
    return np.concatenate(raw, axis)


def frames_of(env: Any, observations: Any) -> tuple[list[np.ndarray], int]:
    """Return the frames in stacked observations `[T, N, ...]`, the newest last, and the axis along which they stand."""
    stack = unwrap_vec_wrapper(env, VecFrameStack)
    axis = 2 if stack is not None and stack.stacked_obs.stack_dimension == 1 else -1
    return np.split(observations, 1 if stack is None else stack.stacked_obs.n_stack, axis), axis


def flat_observations(env: Any, observations: Any) -> Tensor:
    """Return raw observations `[T, N, ...]` as flat vectors `[T, N, O]`; of stacked frames, the newest."""
    frames, _ = frames_of(env, raw_observations(env, observations))
    return torch.from_numpy(frames[-1]).float().flatten(2)


class Unclipped(gymnasium.ActionWrapper[Any, Any, Any]):
    """An environment with such wide action bounds that Stable-Baselines3's clipping to them changes nothing."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Box(-WIDE, WIDE, env.action_space.shape, np.float32)

    def action(self, action: Any) -> Any:
        return action


class Squashed(Unclipped):
    """An environment without action bounds, which maps actions through tanh into the bounds of the one inside."""

    def action(self, action: Any) -> Any:
        space = self.env.action_space
        assert isinstance(space, spaces.Box)
        sent = space.low + (np.tanh(action) + 1.0) * 0.5 * (space.high - space.low)
        return sent.clip(space.low, space.high).astype(space.dtype)


# Checks ---------------------------------------------------------------------------------------------------------------


def check_env(objective: Objective, env: Any, prior: Any) -> None:
    """Raise where the reward is no add-on's or its scale moves, statistics move, or a squashed prior finds no tanh."""
    if env is None or not has_weight(objective):
        return
    check_choices(env.action_space)
    normalized = unwrap_vec_normalize(env)
    through_tanh = getattr(env.unwrapped, "squashes", False) or all(env.env_is_wrapped(Squashed))
    check_squashed(prior, through_tanh, "wrap it in repolicy.hosts.sb3.Squashed")
    scaled = normalized is not None and normalized.norm_reward
    if scaled or any(env.env_is_wrapped(gymnasium.wrappers.NormalizeReward)):
        what = "the environment is VecNormalize(norm_reward=True) or wrapped in NormalizeReward"
        raise UsageError(f"{what}, and the scale of what omega and alpha weigh would move: leave that out")
    if env.has_attr("pays_addon") and not all(env.get_attr("pays_addon")):
        remedy = "wrap WithAddon in repolicy.rql.wrapping.TaskReward, without an objective"
        raise UsageError(f"the environment pays its own reward, and must pay the add-on's alone: {remedy}")
    moving = normalized is not None and normalized.norm_obs and normalized.training
    if objective.reads_prior and (moving or any(env.env_is_wrapped(gymnasium.wrappers.NormalizeObservation))):
        remedy = "take a VecNormalize with the statistics that it was trained with, and set training = False"
        raise UsageError(f"statistics of observations move, and what the prior sees with them: {remedy}")


def clipping_of(model: Any) -> str:
    """Return a sentence about how Stable-Baselines3 clips this model's actions; empty where it does not."""
    space = model.action_space
    if not isinstance(space, spaces.Box) or float(np.abs([space.low, space.high]).min()) >= WIDE:
        return ""
    return "Stable-Baselines3 clips actions to the environment's bounds (wrap it in Unclipped)"


def default_settings(env: Any, width: int, host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's settings for customizing a network of this width, by Stable-Baselines3's names."""
    usual = settings_for_shape(width, int(np.prod(env.action_space.shape or 1)))
    count = getattr(env, "num_envs", 1)
    n_steps = host.get("n_steps", 2 ** max(4, int(np.log2(ROLLOUT_SIZE / count))))
    samples, wanted = n_steps * count, usual.minibatch
    divisors = [size for size in range(wanted // 2, wanted + 1) if samples % size == 0]
    nearest = math.ceil(samples / max(1, round(samples / wanted)))  # the last minibatch is then a little smaller
    return {
        "n_steps": n_steps,
        "batch_size": max(divisors, default=nearest),
        "n_epochs": usual.epochs,
        "gamma": usual.gamma,
        "learning_rate": usual.learning_rate,
        "target_kl": TARGET_RATIO * DESIRED_KL / 1.5,  # Stable-Baselines3 ends an update at 1.5 times this
        "vf_coef": usual.value_coefficient / 2,  # its loss is the whole squared error, the engine's is half of it
    }
