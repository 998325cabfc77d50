"""A range of weights inside rsl_rl: each episode has a place on the dials, which actor and critic observe.

`ResidualPPO` becomes this class by itself where `omega` or `alpha` is a range. The networks, the advantages of the
parts of the return, and the random places are the engine's own.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from repolicy.envs import DialPositions
from repolicy.hosts.rsl_rl import ResidualPPO
from repolicy.hosts.rsl_rl_envs import time_outs
from repolicy.hosts.rsl_rl_networks import GROUP
from repolicy.learning.terms import Parts, TaskRewards
from repolicy.ranges import middle_of
from repolicy.runs import Settings


class DialedPPO(ResidualPPO):
    """`ResidualPPO` for every weight of a range at once."""

    def __init__(self, actor: Any, critic: Any, storage: Any, **options: Any) -> None:
        super().__init__(actor, critic, storage, **options)
        self.dials, heads = self.steering.objective.dials, len(critic.mlp.biases[-1])
        self.draw_places = DialPositions(storage.num_envs, torch.initial_seed(), dials=len(self.dials)).draw
        self.places = self._draw(1)[0]  # [N, dials]
        storage.values, storage.returns = (part.repeat(1, 1, heads) for part in (storage.values, storage.returns))
        self.value_loss_coef *= heads  # rsl_rl takes the mean over heads, the engine the sum

    def _draw(self, count: int) -> Tensor:
        places = [torch.from_numpy(self.draw_places()).float() for _ in range(count)]
        return torch.stack(places).to(self.device)

    def with_places(self, obs: Any) -> Any:
        """Return the observations with the place of each episode on the dials."""
        found = obs.clone(recurse=False)
        found[GROUP] = self.places
        return found

    def act(self, obs: Any) -> Tensor:
        if not self.storage.step:
            # places for the episodes that begin in this rollout, drawn at once so that no step waits for the device
            self._next_places = self._draw(self.storage.num_transitions_per_env)
        return super().act(self.with_places(self.present(obs)))

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: dict[str, Any]) -> None:
        step = self.storage.step
        # rsl_rl would add the bootstrap value of one head only; `compute_returns` handles time limits
        others = {name: part for name, part in extras.items() if name != "time_outs"}
        super().process_env_step(obs, rewards, dones, others)
        self._timed_out[step].copy_(time_outs(extras, dones))
        self.places = torch.where((dones > 0).unsqueeze(-1), self._next_places[step], self.places)

    def verdict(self) -> str:
        """Return the verdict on the middle of each range, which an actor takes where it is given no place."""
        return f"at {middle_of(self.dials)}:\n{super().verdict()}"

    def compute_returns(self, obs: Any) -> None:
        """Compute the engine's advantages of the parts of the return, each times its weight in the episode."""
        st, settings = self.storage, replace(Settings(), gamma=self.gamma, gae_lambda=self.lam)
        parts = Parts(settings, self.steering.objective, self.dials)
        places = st.observations[GROUP]
        self._add_wish_rewards(obs)
        task = TaskRewards(self._task_rewards, parts.step_weights(places), places, [self._task_rewards])
        rollout = self.rollout(obs)
        self.method.reward(rollout, **task.weights)
        next_values = torch.cat([st.values[1:], self.critic(self.with_places(obs)).unsqueeze(0)])
        next_values = torch.where(self._timed_out.unsqueeze(-1), st.values, next_values)  # as rsl_rl at a time limit
        gains, targets = parts.credit(
            task, self.method.rollout_rewards.reward, st.values, next_values, rollout.terminated, rollout.ended
        )
        credit = parts.normalized(task, gains, targets, self)
        st.returns.copy_(targets)
        st.advantages = credit.advantages.unsqueeze(-1).to(st.rewards.dtype)
        self.method.credit(st.returns, st.values, credit.explained_variance)

    sum = ResidualPPO._add_up  # `Parts.normalized` calls this on its team
