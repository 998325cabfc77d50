"""What both algorithms need: the task's reward, the scale of observations, and a prior that may be used as one."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from repolicy.envs import (
    ENV_CALL,
    AddonState,
    Spaces,
    Transitions,
    action_space,
    check_fit,
    check_reward,
    combine_addons,
    merge_infos,
    observation_size,
)
from repolicy.envs.addons import names
from repolicy.errors import NumericError, UsageError
from repolicy.objective import Objective, task_reward
from repolicy.objective_names import plain
from repolicy.policies import Density, Normalizer, Policy, Prior, check_has_log_prob
from repolicy.prepare.states import familiarity
from repolicy.rql.hyperparameters import Settings

try:
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
except ImportError:
    raise UsageError("this needs Stable-Baselines3, which is not installed: pip install 'repolicy[sb3]'") from None


def replay_options(settings: Settings) -> dict[str, Any]:
    """Return what both of Stable-Baselines3's algorithms take of the settings."""
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
    """Return what both take as `policy_kwargs`."""
    return {
        "net_arch": list(settings.hidden),
        "optimizer_kwargs": {"fused": True},
        "features_extractor_class": Normalized,
        "features_extractor_kwargs": {"normalizer": normalizer},
    }


class TaskReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment, paying what the objective's task pays; the add-on's reward is `info["addon_reward"]`.

    What it would have paid is `info["basic_reward"]`, for whoever measures or limits that.

    Beside a density of the prior's states, it takes their price.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], objective: Objective, density: Density | None = None) -> None:
        super().__init__(env)
        self.objective, self.density = objective, density
        self._name = type(env.unwrapped).__name__
        self._age = torch.zeros(1)  # steps since the episode began

    def reset(self, **options: Any) -> Any:
        with ENV_CALL.calling(self._name):
            observation, info = self.env.reset(**options)
        self._check("an observation", observation)
        self._age.zero_()
        return observation, info

    def step(self, action: Any) -> Any:
        with ENV_CALL.calling(self._name):
            observation, basic, terminated, truncated, info = self.env.step(action)
        check_reward(basic, self._name)
        if self.objective.reads_addon and "addon_reward" not in info:
            has = f"the environment's info has {', '.join(sorted(info)) or 'nothing'}"
            remedy = "wrap it in repolicy.rql.WithAddon(env, NAME)"
            raise UsageError(f"a task of {self.objective.task!r} needs info['addon_reward'], and {has}: {remedy}")
        reward = float(task_reward(self.objective, basic, info.get("addon_reward")))  # type: ignore[arg-type]
        self._check("an observation", observation)
        self._age += 1
        if self.density is not None:
            seen = torch.from_numpy(_row(observation))
            reward += self.objective.states * float(familiarity(self.density, self.density.normalized, seen, self._age))
        self._check("a reward", np.array(reward))
        return observation, reward, terminated, truncated, info | {"basic_reward": float(basic)}

    def _check(self, what: str, value: Any) -> None:
        """Raise where an array has what is no number: it would stay in the replay buffer."""
        if isinstance(value, np.ndarray) and not np.isfinite(value).all():
            raise NumericError(f"environment {self._name} returned {what} that is not finite")


class PlainObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The environment with observations as the prior and the policy take them, whatever their shape.

    Of an image, Stable-Baselines3 would move the axes, and divide it by 255.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        seen: Any = env.observation_space
        if is_image_space(seen):
            self.observation_space = spaces.Box(seen.low, seen.high, seen.shape, np.float32)

    def observation(self, observation: Any) -> Any:
        return np.array(observation)  # a copy: the last one is kept while an environment may begin anew in it


class WithAddon(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment, with the reward of add-ons, functions or named as for `repolicy customize`, in its info."""

    def __init__(self, env: gymnasium.Env[Any, Any], *addons: str | Callable[..., Any]) -> None:
        super().__init__(env)
        if isinstance(env.observation_space, spaces.Dict | spaces.Tuple):
            raise UsageError("observations have parts, and an add-on takes rows of numbers: let your env pay the wish")
        self.addon = combine_addons(names(addons))
        self.wish_weight = self.addon.largest_weight  # hosts, which measure a wish at weight 1, ask for it

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        self._seen, self._began, self._pasts = _row(observation), True, dict[Any, Any]()
        return observation, info

    def step(self, action: Any) -> Any:
        before, past = self._seen, AddonState(np.array([[self._began]]), self._pasts)
        self._began = False
        observation, basic, terminated, truncated, info = self.env.step(action)
        self._seen = _row(observation)
        acted = np.array(action).reshape(1, -1)
        acted = acted.astype(np.float32) if acted.dtype.kind == "f" else acted
        steps = Transitions(before, acted, self._seen, merge_infos([info]), past)
        info["addon_reward"] = float(self.addon.reward(steps)[0])
        return observation, basic, terminated, truncated, info


def _row(part: Any) -> np.ndarray:
    """Return a copy, as an add-on takes it: an environment may write its next observation into the same array."""
    return np.array(part, np.float32).reshape(1, -1)


def check_loss(what: str, loss: Tensor) -> None:
    """Raise where a loss stopped being finite, before anything learns from it."""
    if not loss.isfinite():
        raise NumericError(f"the loss of {what} is not finite: lower the learning rate, and see the prior's log_prob")


class Normalized(BaseFeaturesExtractor):  # type: ignore[misc]
    """Observations `[B, O]` through a policy's own normalizer, for every network of Stable-Baselines3."""

    def __init__(self, observation_space: spaces.Box, normalizer: Normalizer) -> None:
        super().__init__(observation_space, features_dim=int(np.prod(observation_space.shape)))
        self.normalizer = normalizer

    def forward(self, observations: Tensor) -> Tensor:
        return self.normalizer(flat(observations))


def flat(observations: Tensor) -> Tensor:
    """Return observations `[B, ...]` of any shape and precision as policies take them, `[B, O]`."""
    return observations.flatten(1).float()


def normalizer_for(space: Any, prior: Prior | None) -> Normalizer:
    """Return the prior's own, or one that takes the bounds of an observation to ±1 and leaves alone what has none.

    Neither changes while learning, so a remembered transition looks tomorrow as it looks today.
    """
    if isinstance(prior, Policy):
        return prior.normalizer
    low, high = (torch.from_numpy(bound.astype(np.float64)).flatten() for bound in (space.low, space.high))
    bounded = torch.isfinite(low) & torch.isfinite(high)
    normalizer = Normalizer(len(low))
    mean = torch.where(bounded, (low + high) / 2, 0.0)
    var = torch.where(bounded, ((high - low) / 2).square(), 1.0)
    normalizer.load_state_dict({"mean": mean, "var": var, "count": torch.ones((), dtype=torch.float64)})
    return normalizer


def spaces_of(env: gymnasium.Env[Any, Any]) -> Spaces:
    """Return the spaces of an environment that Stable-Baselines3's algorithms take, or raise one sentence."""
    name, seen, acts = type(env.unwrapped).__name__, env.observation_space, env.action_space
    if not isinstance(seen, spaces.Box):
        space = type(seen).__name__
        raise UsageError(f"observations are of kind {space}; wrap the environment in gymnasium's FlattenObservation")
    actions = action_space(acts, name)
    from_zero = isinstance(acts, spaces.Discrete) and acts.start == 0
    bounded = isinstance(acts, spaces.Box) and acts.is_bounded()
    if not (from_zero or bounded):
        raise UsageError(f"the environment's actions are {acts}; they must be Discrete from 0, or a bounded Box")
    return Spaces(name, observation_size(seen, name), actions)


def usable(
    env_spaces: Spaces, objective: Objective, prior: Prior | None, density: Density | None = None
) -> Prior | None:
    """Return the prior, frozen; refuse what cannot work."""
    if objective.alpha == 0:
        raise UsageError("alpha is 0; soft Q-learning needs a temperature above 0")
    plain(objective, "soft Q-learning", states=density is not None)
    if objective.reads_prior and prior is None:
        raise UsageError(f"omega is {objective.omega}, which weighs a prior's log-probability, and there is no prior")
    if prior is None:
        return None
    check_has_log_prob(prior)
    if isinstance(prior, Policy):
        check_fit(prior, env_spaces, "the prior")
    prior = copy.deepcopy(prior)
    return prior.requires_grad_(False).eval() if isinstance(prior, nn.Module) else prior


def storable(prior: Prior | None) -> Policy | None:
    """Return the prior as what a file can hold."""
    if prior is None or isinstance(prior, Policy):
        return prior
    raise UsageError(f"a file can hold a repolicy.Policy as its prior, but no {type(prior).__name__}")
