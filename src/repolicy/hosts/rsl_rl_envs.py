"""rsl_rl's environments: episodes of a prior in them, and what a wish pays for their steps."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repolicy.envs import AddonState, Transitions
from repolicy.hosts.measuring import EnvStep, Sizes
from repolicy.hosts.priors import unbounded_actions
from repolicy.prepare.states import MAX_STATE_SIZE

if TYPE_CHECKING:
    from repolicy.hosts.rsl_rl import ResidualPPO


class RunnerEnvs:
    """The runner's environments, for episodes of the prior before training."""

    def __init__(self, env: Any, algorithm: "ResidualPPO") -> None:
        self.env, self.algorithm = env, algorithm
        self.count, self.has_stepped = int(env.num_envs), False
        # for a wish with a past: whether the next step begins an episode `[N]`, and the past
        self.begins, self.pasts = torch.ones(self.count, dtype=torch.bool), dict[Any, Any]()

    @property
    def sizes(self) -> Sizes:
        """The sizes of states and actions; images count as too large for a density."""
        storage = self.algorithm.storage
        size = self.algorithm.flat_observations(storage.observations[0]).shape[-1] or MAX_STATE_SIZE + 1
        return Sizes(size, unbounded_actions(storage.actions_shape[0]))

    @property
    def wish_weight(self) -> float:
        wish = self.algorithm.wish
        return 1.0 if wish is None else wish.largest_weight

    @property
    def step_count(self) -> int:
        """The steps taken so far, on which curricula depend; 0 where the environment does not count them."""
        return getattr(getattr(self.env, "unwrapped", None), "common_step_counter", 0)

    def set_step_count(self, steps: int) -> None:
        """Set `step_count`, where the environment counts steps, and begin new episodes."""
        env: Any = getattr(self.env, "unwrapped", None)
        if hasattr(env, "common_step_counter") and env.common_step_counter != steps:
            env.common_step_counter, self.has_stepped = steps, True
            self.reset()

    @torch.inference_mode()  # as the runner steps the environments, so that their tensors are inference tensors
    def reset(self) -> tuple[Any, bool]:
        """Return observations, and whether they begin episodes: not every runner's environments can be reset."""
        self.has_stepped |= self.has_running_episodes  # some environments begin at random ages
        # today's wrapper of Isaac Lab has no reset of its own
        env = next((env for env in (self.env, getattr(self.env, "unwrapped", None)) if hasattr(env, "reset")), None)
        if self.has_stepped and env is not None:
            env.reset()
            self.has_stepped = self.has_running_episodes  # some resets leave episodes running
            self.begins |= not self.has_stepped
        observations = self.env.get_observations().to(self.algorithm.device)
        self.states = self.algorithm.flat_observations(observations)
        return observations, not self.has_stepped

    @property
    def ages(self) -> Tensor | None:
        """Steps into the running episodes, `[N]`, where the environment counts them."""
        ages = getattr(self.env, "episode_length_buf", None)
        return None if ages is None else ages.to(self.algorithm.device, torch.long, copy=True)

    @ages.setter
    def ages(self, ages: Tensor | None) -> None:
        if ages is not None:
            self.env.episode_length_buf = ages.to(self.env.device)

    @property
    def has_running_episodes(self) -> bool:
        return self.ages is not None and bool(self.ages.any())

    @torch.inference_mode()
    def step(self, actions: Tensor) -> EnvStep:
        """Take a step. The environment's own reward is its reward beside an add-on, else an entry of its extras."""
        algorithm = self.algorithm
        self.has_stepped, has_addon = True, algorithm.addon is not None
        observations, rewards, dones, extras = self.env.step(actions.to(self.env.device))
        observations, rewards, dones = (part.to(algorithm.device) for part in (observations, rewards, dones))
        addon = algorithm.addon_rewards(extras, rewards) if has_addon else rewards
        before, self.states = self.states, algorithm.flat_observations(observations)
        if algorithm.wish is not None:
            addon = self.wish_rewards(before, actions, self.states, dones > 0)
        basic = rewards if has_addon else torch.full_like(rewards, math.nan)
        if not has_addon and "basic_reward" in extras:
            basic = algorithm.read_extra(extras, rewards, "basic_reward", "an environment's own reward is basic_reward")
        ended, limit_values = dones > 0, algorithm.read_limit_values(extras, rewards)
        return EnvStep(observations, basic, addon, ended, ended & ~time_outs(extras, dones), limit_values)

    def wish_rewards(self, before: Tensor, actions: Tensor, after: Tensor, ended: Tensor) -> Tensor:
        """Return a wish's rewards `[...]` of all environments' next steps, `[N]` or `[T, N]`.

        It is computed on the CPU, by the actions that the environment got.
        rsl_rl does not give an episode's last observation, so the one before it takes its place.
        """
        wish, bound = self.algorithm.wish, getattr(self.env, "clip_actions", None)
        assert wish is not None
        if self.algorithm.method.squashes:
            actions = actions.tanh()
        elif bound is not None:
            actions = actions.clamp(-bound, bound)
        parts = before, actions, torch.where(ended.unsqueeze(-1), before, after)
        states, sent, next_states = (part.detach().cpu().numpy() for part in parts)
        ends = ended.cpu().view(-1, self.count)
        began = torch.cat([self.begins.unsqueeze(0), ends[:-1]]).numpy()
        self.begins = ends[-1]
        steps = Transitions(states, sent, next_states, {}, AddonState(began, self.pasts))
        return torch.from_numpy(wish.reward(steps)).to(before)


def time_outs(extras: dict[str, Any], dones: Tensor) -> Tensor:
    """Return which environments a time limit ended `[N]`, on the device of `dones`; none where extras do not tell."""
    return extras.get("time_outs", torch.zeros_like(dones)).to(dones.device, torch.bool)
