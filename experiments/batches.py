"""Adapters that let Stable-Baselines3 and rsl_rl train on Repolicy's environments, with an add-on as their reward.

So every host gets the same physics, unclipped actions and the same add-on. The basic reward is only logged.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from rsl_rl.env import VecEnv as RunnerEnv
from stable_baselines3.common.vec_env import VecEnv
from tensordict import TensorDict

from repolicy.addons.addon import combine_addons
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Transitions
from repolicy.envs.step import Step
from repolicy.policies import WIDE


class AddonEnvs:
    """N environments whose reward is the add-on; they log both rewards.

    to_environment: maps an action of the policy's distribution to the environment's action.
    """

    def __init__(
        self,
        env: str,
        addon: str,
        count: int,
        seed: int,
        to_environment: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.batch, self.addon = make_envs(env, count, seed), combine_addons([addon])
        self.squashes = to_environment is not None
        self.to_environment = to_environment or (lambda actions: actions)
        self.current = self.batch.reset()  # observations, [N, O]
        self.returns = np.zeros(count)  # basic return of the episodes so far
        self._clear_log()

    def _clear_log(self) -> None:
        self.basic_rewards: list[float] = []  # means over the environments, a number per step
        self.addon_rewards: list[float] = []
        self.basic_returns: list[float] = []  # of the episodes that ended

    def step(self, actions: np.ndarray) -> tuple[Step, np.ndarray]:
        actions = self.to_environment(actions)
        step = self.batch.step(actions)
        rewards = self.addon.reward(Transitions(self.current, actions, step.final, step.info))
        self.current = step.observations
        self.returns += step.rewards
        ended = step.terminated | step.truncated
        self.basic_rewards.append(float(step.rewards.mean()))
        self.addon_rewards.append(float(rewards.mean()))
        self.basic_returns += self.returns[ended].tolist()
        self.returns[ended] = 0.0
        return step, rewards

    def pop_log(self) -> dict[str, float]:
        """Return the means of both rewards and, if episodes ended, of the basic return since the last call."""
        means = {"basic": float(np.mean(self.basic_rewards)), "addon": float(np.mean(self.addon_rewards))}
        if self.basic_returns:
            means["basic_return"] = float(np.mean(self.basic_returns))
        self._clear_log()
        return {name: round(value, 4) for name, value in means.items()}


class Sb3Envs(VecEnv):
    """Environments for Stable-Baselines3. By default the action bounds are so wide that nothing is clipped."""

    def __init__(self, envs: Any, bound: float = WIDE) -> None:
        self.addon_envs, batch = envs, envs.batch
        self.render_mode, self.squashes = None, envs.squashes
        observations = spaces.Box(-np.inf, np.inf, (batch.observation_size,), np.float32)
        super().__init__(batch.count, observations, spaces.Box(-bound, bound, (batch.actions.width,), np.float32))

    def reset(self) -> np.ndarray:
        return self.addon_envs.current  # type: ignore[no-any-return]

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        step, rewards = self.addon_envs.step(self.actions)
        ended = step.terminated | step.truncated
        infos: list[dict[str, Any]] = [{"basic_reward": reward} for reward in step.rewards.tolist()]
        for n in np.flatnonzero(ended):
            infos[n] |= {"terminal_observation": step.final[n], "TimeLimit.truncated": bool(step.truncated[n])}
        return step.observations, rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        self.addon_envs.batch.close()

    def env_is_wrapped(self, *_: Any) -> list[bool]:
        return [False] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, *_: Any) -> None:
        raise NotImplementedError

    def env_method(self, *_: Any, **__: Any) -> list[Any]:
        raise NotImplementedError


class RslRlEnvs(RunnerEnv):
    """Environments for rsl_rl's runner."""

    def __init__(self, envs: AddonEnvs) -> None:
        self.addon_envs, self.num_envs, self.num_actions = envs, envs.batch.count, envs.batch.actions.width
        self.max_episode_length, self.device, self.squashes = 1000, "cpu", envs.squashes
        self.cfg: dict[str, Any] = {}
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": torch.from_numpy(self.addon_envs.current)}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        step, rewards = self.addon_envs.step(actions.numpy())
        dones = torch.from_numpy(step.terminated | step.truncated).long()
        extras = {"time_outs": torch.from_numpy(step.truncated)}
        return self.get_observations(), torch.from_numpy(rewards.astype(np.float32)), dones, extras


def runner_config(steps: int, actor: dict[str, Any], critic: dict[str, Any], algorithm: dict[str, Any]) -> Any:
    """Return a configuration of rsl_rl's runner: rollouts of `steps` steps, and no checkpoints."""
    groups, parts = {"actor": ["policy"], "critic": ["policy"]}, {"actor": actor, "critic": critic}
    settings = {"num_steps_per_env": steps, "save_interval": 10**9, "obs_groups": groups, "multi_gpu": None}
    return settings | parts | {"algorithm": algorithm}
