"""A range of weights inside rsl_rl: each episode stands somewhere on the dials, and actor and critic see where.

`ResidualPPO` becomes this class by itself where `omega` or `alpha` is a range. The networks, the parts of the return
with their advantages, and the draws are the engine's own.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from repolicy.envs import DialPositions
from repolicy.hosts.rsl_rl import ResidualPPO
from repolicy.hosts.rsl_rl_networks import GROUP
from repolicy.learning.terms import Parts, TaskRewards
from repolicy.runs import Settings


class DialedPPO(ResidualPPO):
    """`ResidualPPO` for every weight of a range at once."""

    ranges = True

    def __init__(self, actor: Any, critic: Any, storage: Any, **named: Any) -> None:
        super().__init__(actor, critic, storage, **named)
        self.dials, heads = self.steering.objective.dials, len(critic.mlp.biases[-1])
        self.drawn = DialPositions(storage.num_envs, torch.initial_seed(), dials=len(self.dials)).drawn
        self.places = self._draw(1)[0]  # [N, dials]
        storage.values, storage.returns = (part.repeat(1, 1, heads) for part in (storage.values, storage.returns))
        self.value_loss_coef *= heads  # of a mean over heads, where the engine has a sum
        self._cut = torch.zeros_like(storage.dones.squeeze(-1), dtype=torch.bool)  # by a time limit, [T, N]

    def _draw(self, count: int) -> Tensor:
        return torch.stack([torch.from_numpy(self.drawn()).float() for _ in range(count)]).to(self.device)

    def shown(self, obs: Any) -> Any:
        """Return the observations with where on the dials each episode stands."""
        found = obs.clone(recurse=False)
        found[GROUP] = self.places
        return found

    def act(self, obs: Any) -> Tensor:
        if not self.storage.step:
            self._next = self._draw(self.storage.num_transitions_per_env)  # for the episodes that begin meanwhile
        return super().act(self.shown(obs))

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: dict[str, Any]) -> None:
        step = self.storage.step
        self._cut[step].copy_(extras.get("time_outs", torch.zeros_like(dones)))
        others = {name: part for name, part in extras.items() if name != "time_outs"}  # of which one head would know
        super().process_env_step(obs, rewards, dones, others)
        self.places = torch.where((dones > 0).unsqueeze(-1), self._next[step], self.places)

    def verdict(self) -> str:
        """Return the verdict on the middle of each range, where an actor stands that is told no place."""
        places = " and ".join(f"{dial.name} {dial.value(0.0):.3g}" for dial in self.dials)
        return f"at {places}, the middle of the range:\n{super().verdict()}"

    def compute_returns(self, obs: Any) -> None:
        """Compute the engine's advantages of the parts, each times its weight in the episode."""
        st, settings = self.storage, replace(Settings(), gamma=self.gamma, gae_lambda=self.lam)
        parts = Parts(settings, self.steering.objective, self.dials)
        places = st.observations[GROUP]
        self._pay_wish(obs)
        task = TaskRewards(self._paid, parts.step_weights(places), places, [self._paid])
        self.method.reward(self.seen(obs), **task.weights)
        following = torch.cat([st.values[1:], self.critic(self.shown(obs)).unsqueeze(0)])
        following = torch.where(self._cut.unsqueeze(-1), st.values, following)  # as rsl_rl takes a time limit
        ended = st.dones.squeeze(-1) > 0
        gains, targets = parts.credit(
            task, self.method.rewarded.reward, st.values, following, ended & ~self._cut, ended
        )
        credit = parts.normalized(task, gains, targets, self)
        st.returns.copy_(targets)
        st.advantages = credit.advantages.unsqueeze(-1).to(st.rewards.dtype)
        self.method.credit(st.returns, st.values, credit.explained_variance)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over all GPUs, in place: what the parts ask of a team."""
        return self._add_up(tensor)
