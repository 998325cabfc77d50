"""rsl_rl's environments: episodes of a prior in them, and what a wish pays for their steps."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repolicy.envs import Transitions
from repolicy.hosts.measuring import EnvStep, Sizes
from repolicy.hosts.priors import unbounded_actions
from repolicy.prepare.states import MAX_STATE_SIZE

if TYPE_CHECKING:
    from repolicy.hosts.rsl_rl import ResidualPPO


class RunnerEnvs:
    """The runner's environments, for episodes of the prior before training."""

    def __init__(self, env: Any, algorithm: "ResidualPPO") -> None:
        self.env, self.algorithm, self.states = env, algorithm, algorithm.flat_observations
        self.count, self.has_stepped = int(env.num_envs), False

    @property
    def sizes(self) -> Sizes:
        """The sizes of states and actions; images count as too large for a density."""
        storage = self.algorithm.storage
        size = self.states(storage.observations[0]).shape[-1] or MAX_STATE_SIZE + 1
        return Sizes(size, unbounded_actions(storage.actions_shape[0]))

    @property
    def wish_weight(self) -> float:
        wish = self.algorithm.wish
        return 1.0 if wish is None else wish.largest_weight

    def set_step_count(self, steps: int) -> None:
        """Set the number of steps taken so far, on which mjlab's curricula depend, and begin new episodes."""
        env: Any = getattr(self.env, "unwrapped", None)
        if steps and hasattr(env, "common_step_counter"):
            env.common_step_counter, self.has_stepped = steps, True
            self.reset()

    def reset(self) -> tuple[Any, bool]:
        """Return observations, and whether they begin episodes: not every runner's environments can be reset."""
        self.has_stepped |= self.has_running_episodes  # some environments begin at random ages
        if self.has_stepped and hasattr(self.env, "reset"):
            self.env.reset()
            self.has_stepped = self.has_running_episodes  # some resets leave episodes running
        observations = self.env.get_observations().to(self.algorithm.device)
        self.last_states = self.states(observations)
        return observations, not self.has_stepped

    @property
    def ages(self) -> Tensor | None:
        """Steps into the running episodes, `[N]`, where the environment counts them."""
        ages = getattr(self.env, "episode_length_buf", None)
        return None if ages is None else ages.to(self.algorithm.device, torch.long, copy=True)

    @property
    def has_running_episodes(self) -> bool:
        return self.ages is not None and bool(self.ages.any())

    def step(self, actions: Tensor) -> EnvStep:
        """Take a step. The environment's own reward is its reward beside an add-on, else an entry of its extras."""
        algorithm = self.algorithm
        self.has_stepped, has_addon = True, algorithm.addon is not None
        observations, rewards, dones, extras = self.env.step(actions.to(self.env.device))
        observations, rewards, dones = (part.to(algorithm.device) for part in (observations, rewards, dones))
        addon = algorithm.addon_rewards(extras, rewards) if has_addon else rewards
        before, self.last_states = self.last_states, self.states(observations)
        if algorithm.wish is not None:
            addon = self.wish_rewards(before, actions, self.last_states, dones > 0)
        basic = rewards if has_addon else extras.get("basic_reward")
        if basic is not None:
            basic = basic.to(rewards)
        return EnvStep(observations, basic, addon, dones > 0, algorithm.read_limit_values(extras, rewards))

    def wish_rewards(self, before: Tensor, actions: Tensor, after: Tensor, ended: Tensor) -> Tensor:
        """Return a wish's rewards `[...]` of steps. It is computed on the CPU, by the actions that the environment got.

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
        return torch.from_numpy(wish.reward(Transitions(states, sent, next_states, {}))).to(before)
