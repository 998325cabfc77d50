"""Wrappers and checks of both algorithms: the task's reward, normalized observations, and a frozen prior."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from repolicy.addons import combine_addons
from repolicy.addons.addon_names import wishes_of
from repolicy.envs import (
    ENV_CALL,
    AddonState,
    Spaces,
    Transitions,
    action_space,
    check_fit,
    check_reward,
    flatten_observations,
    merge_infos,
    observation_size,
)
from repolicy.errors import NumericError, UsageError
from repolicy.objective import Objective, residual, task_reward
from repolicy.objective_names import check_supported
from repolicy.policies import Density, Normalizer, Policy, Prior, check_has_log_prob
from repolicy.prepare.states import familiarity
from repolicy.rql.hyperparameters import Settings

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
except ImportError:
    raise UsageError("this needs Stable-Baselines3, which is not installed: pip install 'repolicy[sb3]'") from None


MAX_RANGE = 1e6  # of an observation: bounds that are farther apart, such as float32's largest numbers, are none


def replay_options(settings: Settings) -> dict[str, Any]:
    """Return the constructor's arguments that DQN and SAC of Stable-Baselines3 share, from the settings."""
    return {
        "learning_rate": settings.learning_rate,
        "buffer_size": settings.buffer,
        "learning_starts": settings.warmup,
        "batch_size": settings.minibatch,
        "tau": settings.tau,
        "gamma": settings.gamma,
        "train_freq": settings.train_every,
        "gradient_steps": settings.gradient_steps,
        "seed": settings.seed,
        "device": "cpu",
    }


def network_options(settings: Settings, normalizer: Normalizer) -> dict[str, Any]:
    """Return the `policy_kwargs` that both share."""
    return {
        "net_arch": list(settings.hidden),
        "optimizer_kwargs": {"fused": True},
        "features_extractor_class": Normalized,
        "features_extractor_kwargs": {"normalizer": normalizer},
    }


class TaskReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment whose reward is that of the objective's task; the add-on's reward is read from info["addon_reward"].

    Without an objective the reward is the add-on's. The environment's own reward is stored in info["basic_reward"].
    """

    def __init__(self, env: gymnasium.Env[Any, Any], objective: Objective | None = None) -> None:
        super().__init__(env)
        self.objective, self._name = objective or residual(), type(env.unwrapped).__name__
        self.pays_addon = not self.objective.reads_basic  # read by hosts: whether the reward is the add-on's alone

    def reset(self, **options: Any) -> Any:
        with ENV_CALL.calling(self._name):
            observation, info = self.env.reset(**options)
        self._check("an observation", observation)
        return observation, info

    def step(self, action: Any) -> Any:
        with ENV_CALL.calling(self._name):
            observation, basic, terminated, truncated, info = self.env.step(action)
        check_reward(basic, self._name)
        if self.objective.reads_addon and "addon_reward" not in info:
            content = f"the environment's info has {', '.join(sorted(info)) or 'nothing'}"
            remedy = "wrap it in repolicy.rql.WithAddon(env, NAME)"
            raise UsageError(f"a task of {self.objective.task!r} needs info['addon_reward'], and {content}: {remedy}")
        reward = float(task_reward(self.objective, basic, info.get("addon_reward")))  # type: ignore[arg-type]
        self._check("an observation", observation)
        self._check("a reward", np.array(reward))
        return observation, reward, terminated, truncated, info | {"basic_reward": float(basic)}

    def _check(self, label: str, value: Any) -> None:
        """Raise if an array is not finite, because it would stay in the replay buffer."""
        if isinstance(value, np.ndarray) and not np.isfinite(value).all():
            raise NumericError(f"environment {self._name} returned {label} that is not finite")


class UnroundedMonitor(Monitor):  # type: ignore[misc]
    """Monitor that does not round an episode's return to six decimals, with which small rewards would be 0."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.needs_reset:
            info["episode"]["r"] = self.episode_returns[-1]
        return observation, reward, terminated, truncated, info


class StatesPrice(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment whose reward includes `weight` times the familiarity of the next state to the prior."""

    def __init__(self, env: gymnasium.Env[Any, Any], weight: float, density: Density, gamma: float) -> None:
        super().__init__(env)
        self.weight, self.density, self.gamma = weight, density, gamma
        self._age = torch.zeros(1)  # steps since the start of the episode

    def reset(self, **options: Any) -> Any:
        self._age.zero_()
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._age += 1
        row = torch.from_numpy(flatten_observations(observation, 1))
        price = self.weight * float(familiarity(self.density, row, self._age, torch.tensor([terminated]), self.gamma))
        return observation, float(reward) + price, terminated, truncated, info


class PlainObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Environment whose observations reach the prior and the policy unchanged.

    Stable-Baselines3 would move the axes of an image and divide it by 255; a float space prevents that.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        if is_image_space(space):
            self.observation_space = spaces.Box(space.low, space.high, space.shape, np.float32)

    def observation(self, observation: Any) -> Any:
        return np.array(observation)  # a copy, because a reset may write into the array of the last observation


def training_env(
    env: gymnasium.Env[Any, Any], objective: Objective, gamma: float, density: Density | None = None
) -> Any:
    """Return the environment that an algorithm learns from. Episode returns are the task's, without a price on states.

    Stable-Baselines3 would put its monitor of returns outside.
    """
    env = UnroundedMonitor(TaskReward(env, objective))
    if density is not None:
        env = StatesPrice(env, objective.states, density, gamma)
    return PlainObservations(env)


class WithAddon(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment with the reward of add-ons in its info; an add-on is a function or a name, as for `customize`."""

    pays_addon = False  # only a TaskReward around it makes this the reward

    def __init__(self, env: gymnasium.Env[Any, Any], *addons: str | Callable[..., Any]) -> None:
        super().__init__(env)
        if isinstance(env.observation_space, spaces.Dict | spaces.Tuple):
            raise UsageError("observations have parts, and an add-on takes rows of numbers: let your env pay the wish")
        self.addon = combine_addons(wishes_of(addons))
        self.wish_weight = self.addon.largest_weight  # read by hosts, which measure an add-on at weight 1

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        self._last_row, self._is_first_step, self._pasts = flatten_observations(observation, 1), True, dict[Any, Any]()
        return observation, info

    def step(self, action: Any) -> Any:
        last_row, past = self._last_row, AddonState(np.array([[self._is_first_step]]), self._pasts)
        self._is_first_step = False
        actions = np.array(action).reshape(1, -1)  # a copy, because an environment may reuse the array
        actions = actions.astype(np.float32 if actions.dtype.kind == "f" else np.int64)
        observation, basic, terminated, truncated, info = self.env.step(action)
        self._last_row = flatten_observations(observation, 1)
        transitions = Transitions(last_row, actions, self._last_row, merge_infos([info]), past)
        info["addon_reward"] = float(self.addon.reward(transitions)[0])
        return observation, basic, terminated, truncated, info


def check_loss(label: str, loss: Tensor) -> None:
    """Raise if a loss is not finite, before a gradient step with it."""
    if not loss.isfinite():
        raise NumericError(f"the loss of {label} is not finite: lower the learning rate, and see the prior's log_prob")


class Normalized(BaseFeaturesExtractor):  # type: ignore[misc]
    """Features extractor that applies a policy's normalizer to observations `[B, O]`."""

    def __init__(self, observation_space: spaces.Box, normalizer: Normalizer) -> None:
        super().__init__(observation_space, features_dim=int(np.prod(observation_space.shape)))
        self.normalizer = normalizer

    def forward(self, observations: Tensor) -> Tensor:
        return self.normalizer(as_rows(observations))


def as_rows(observations: Tensor) -> Tensor:
    """Return observations `[B, ...]` of any dtype as float32 `[B, O]`, which policies take."""
    return observations.flatten(1).float()


def normalizer_for(space: Any, prior: Prior | None) -> Normalizer:
    """Return the prior's normalizer, or a new one that maps bounded numbers to ±1 and leaves others unchanged.

    It does not change in training, so that transitions in the replay buffer keep their meaning.
    """
    if isinstance(prior, Policy):
        return prior.normalizer
    low, high = (torch.from_numpy(bound.astype(np.float64)).flatten() for bound in (space.low, space.high))
    bounded = high - low < MAX_RANGE
    normalizer = Normalizer(len(low), None)
    mean = torch.where(bounded, (low + high) / 2, 0.0)
    var = torch.where(bounded, ((high - low) / 2).square(), 1.0)
    normalizer.load_state_dict({"mean": mean, "var": var, "count": torch.ones((), dtype=torch.float64)})
    return normalizer


def spaces_of(env: gymnasium.Env[Any, Any]) -> Spaces:
    """Return the spaces of an environment; raise if the algorithms of Stable-Baselines3 cannot handle them."""
    name, observations, actions = type(env.unwrapped).__name__, env.observation_space, env.action_space
    if not isinstance(observations, spaces.Box):
        kind = type(observations).__name__
        raise UsageError(f"observations are of kind {kind}; wrap the environment in gymnasium's FlattenObservation")
    env_actions = action_space(actions, name)
    is_discrete = isinstance(actions, spaces.Discrete) and actions.start == 0
    is_bounded = isinstance(actions, spaces.Box) and actions.is_bounded()
    if not (is_discrete or is_bounded):
        raise UsageError(f"the environment's actions are {actions}; they must be Discrete from 0, or a bounded Box")
    return Spaces(name, observation_size(observations, name), env_actions)


def frozen_prior(
    env_spaces: Spaces, objective: Objective, prior: Prior | None, density: Density | None = None
) -> Prior | None:
    """Return a frozen copy of the prior; raise if it does not fit the environment or the objective."""
    if objective.alpha == 0:
        raise UsageError("alpha is 0; soft Q-learning needs a temperature above 0")
    if objective.states and density is None and env_spaces.actions.kind == "continuous":
        remedy = "take repolicy.rql.customize, which fits one, or leave states at 0"
        raise UsageError(f"states is {objective.states:g}, and no density of the prior's states was given: {remedy}")
    check_supported(objective, "soft Q-learning", states=density is not None)
    if objective.reads_prior and prior is None:
        raise UsageError(f"omega is {objective.omega}, which weighs a prior's log-probability, and there is no prior")
    if prior is None:
        return None
    check_has_log_prob(prior)
    if isinstance(prior, Policy):
        check_fit(prior, env_spaces, "the prior")
    prior = copy.deepcopy(prior)
    return prior.requires_grad_(False).eval() if isinstance(prior, nn.Module) else prior
