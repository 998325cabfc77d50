"""rsl_rl's environments: episodes of a prior in them, and what a wish pays for their steps."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repolicy.envs import Transitions
from repolicy.hosts.kept_prior import unbounded
from repolicy.hosts.measuring import Paid, Sizes

if TYPE_CHECKING:
    from repolicy.hosts.rsl_rl import ResidualPPO


class RunnerEnvs:
    """The runner's environments, for episodes of the prior before training."""

    def __init__(self, env: Any, algorithm: "ResidualPPO") -> None:
        self.env, self.algorithm, self.states = env, algorithm, algorithm.rows
        self.count, self.stepped = int(env.num_envs), False

    @property
    def sizes(self) -> Sizes:
        storage = self.algorithm.storage
        return Sizes(self.states(storage.observations[0]).shape[-1], unbounded(storage.actions_shape[0]))

    @property
    def wish_weight(self) -> float:
        wish = self.algorithm.wish
        return 1.0 if wish is None else wish.largest_weight

    def at(self, steps: int) -> None:
        """Begin anew as after so many steps, by which mjlab's curricula go."""
        own: Any = getattr(self.env, "unwrapped", None)
        if steps and hasattr(own, "common_step_counter"):
            own.common_step_counter, self.stepped = steps, True
            self.begin()

    def begin(self) -> tuple[Any, bool]:
        """Return observations; not every runner's environments can be reset, and then some episodes are under way."""
        self.stepped |= self.under_way  # some begin at random ages
        if self.stepped and hasattr(self.env, "reset"):
            self.env.reset()
            self.stepped = self.under_way  # not every reset begins episodes anew
        observations = self.env.get_observations().to(self.algorithm.device)
        self.seen = self.states(observations)
        return observations, not self.stepped

    @property
    def ages(self) -> Tensor | None:
        """Steps into the episodes under way, `[N]`, where the environment counts them."""
        ages = getattr(self.env, "episode_length_buf", None)
        return None if ages is None else ages.to(self.algorithm.device, torch.long, copy=True)

    @property
    def under_way(self) -> bool:
        return self.ages is not None and bool(self.ages.any())

    def step(self, actions: Tensor) -> Paid:
        """Return what followed; the environment's own reward is beside an add-on, or an entry of its extras."""
        self.stepped, named = True, self.algorithm.addon is not None
        observations, rewards, dones, extras = self.env.step(actions.to(self.env.device))
        observations, rewards, dones = (part.to(self.algorithm.device) for part in (observations, rewards, dones))
        addon = self.algorithm.addon_in(extras, rewards) if named else rewards
        before, self.seen = self.seen, self.states(observations)
        if self.algorithm.wish is not None:
            addon = self.paid_by_wish(before, actions, self.seen, dones > 0)
        basic, held = rewards if named else extras.get("basic_reward"), self.algorithm.held_in(extras, rewards)
        return Paid(observations, basic if basic is None else basic.to(rewards), addon, dones > 0, held)

    def paid_by_wish(self, before: Tensor, actions: Tensor, after: Tensor, ended: Tensor) -> Tensor:
        """Return a wish's rewards `[...]` of steps, computed on the CPU, for actions as the environment got them.

        Nobody tells the observation with which an episode ended: the one before it stands there.
        """
        wish, bound = self.algorithm.wish, getattr(self.env, "clip_actions", None)
        assert wish is not None
        if self.algorithm.method.squashes:
            actions = actions.tanh()
        elif bound is not None:
            actions = actions.clamp(-bound, bound)
        parts = before, actions, torch.where(ended.unsqueeze(-1), before, after)
        states, done, led_to = (part.detach().cpu().numpy() for part in parts)
        return torch.from_numpy(wish.reward(Transitions(states, done, led_to, {}))).to(before)
