"""Repolicy's own batches of environments, paying an add-on, as Stable-Baselines3 and rsl_rl drive them.

Every host so gets the same physics, the same actions as sampled, and the same add-on; the basic reward is only noted.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from rsl_rl.env import VecEnv as RunnerEnv
from stable_baselines3.common.vec_env import VecEnv
from tensordict import TensorDict

from repolicy.envs.addons import combine_addons
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Transitions
from repolicy.envs.step import Step
from repolicy.hosts.sb3_vec_envs import WIDE


class Paid:
    """N environments whose reward is the add-on, and what they would have paid otherwise.

    to_environment: what makes of an action, as a policy's distribution has it, the one that the environment takes.
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
        self.current = self.batch.reset()
        self.returns = np.zeros(count)
        self.clear()

    def clear(self) -> None:
        """Forget what was noted: an iteration ended."""
        self.basic: list[float] = []
        self.paid: list[float] = []
        self.episodes: list[float] = []

    def step(self, actions: np.ndarray) -> tuple[Step, np.ndarray]:
        actions = self.to_environment(actions)
        step = self.batch.step(actions)
        rewards = self.addon.reward(Transitions(self.current, actions, step.final, step.info))
        self.current = step.observations
        self.returns += step.rewards
        ended = step.terminated | step.truncated
        self.basic.append(float(step.rewards.mean()))
        self.paid.append(float(rewards.mean()))
        self.episodes += self.returns[ended].tolist()
        self.returns[ended] = 0.0
        return step, rewards

    def noted(self) -> dict[str, float]:
        """Return both rewards a step of the iteration, and the basic return of episodes that ended, if any did."""
        found = {"basic": float(np.mean(self.basic)), "addon": float(np.mean(self.paid))}
        if self.episodes:
            found["basic_return"] = float(np.mean(self.episodes))
        self.clear()
        return {name: round(value, 4) for name, value in found.items()}


class ForSb3(VecEnv):
    """For Stable-Baselines3, with bounds of the actions that by default are so wide that nothing is clipped."""

    def __init__(self, paid: Any, bound: float = WIDE) -> None:
        self.paid, batch = paid, paid.batch
        self.render_mode, self.squashes = None, paid.squashes
        seen = spaces.Box(-np.inf, np.inf, (batch.observation_size,), np.float32)
        super().__init__(batch.count, seen, spaces.Box(-bound, bound, (batch.actions.width,), np.float32))

    def reset(self) -> np.ndarray:
        return self.paid.current  # type: ignore[no-any-return]

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        step, rewards = self.paid.step(self.actions)
        ended = step.terminated | step.truncated
        infos: list[dict[str, Any]] = [{"basic_reward": reward} for reward in step.rewards.tolist()]
        for n in np.flatnonzero(ended):
            infos[n] |= {"terminal_observation": step.final[n], "TimeLimit.truncated": bool(step.truncated[n])}
        return step.observations, rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        self.paid.batch.close()

    def env_is_wrapped(self, *_: Any) -> list[bool]:
        return [False] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, *_: Any) -> None:
        raise NotImplementedError

    def env_method(self, *_: Any, **__: Any) -> list[Any]:
        raise NotImplementedError


class ForRslRl(RunnerEnv):
    """For rsl_rl's runner."""

    def __init__(self, paid: Paid) -> None:
        self.paid, self.num_envs, self.num_actions = paid, paid.batch.count, paid.batch.actions.width
        self.max_episode_length, self.device, self.squashes = 1000, "cpu", paid.squashes
        self.cfg: dict[str, Any] = {}
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": torch.from_numpy(self.paid.current)}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        step, rewards = self.paid.step(actions.numpy())
        dones = torch.from_numpy(step.terminated | step.truncated).long()
        extras = {"time_outs": torch.from_numpy(step.truncated)}
        return self.get_observations(), torch.from_numpy(rewards.astype(np.float32)), dones, extras


def runner_config(steps: int, actor: dict[str, Any], critic: dict[str, Any], algorithm: dict[str, Any]) -> Any:
    """Return what rsl_rl's runner is told: so many steps between two updates, and that nothing is saved."""
    groups, parts = {"actor": ["policy"], "critic": ["policy"]}, {"actor": actor, "critic": critic}
    settings = {"num_steps_per_env": steps, "save_interval": 10**9, "obs_groups": groups, "multi_gpu": None}
    return settings | parts | {"algorithm": algorithm}
