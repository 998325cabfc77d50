"""What a worker does with the terms of the return where each has one weight; `range_of_weights` has the other case."""

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import addons
from repolicy.envs.addons import Addon
from repolicy.envs.rollout import Rollout
from repolicy.learning import ppo
from repolicy.objective import Objective, Reward, task_reward
from repolicy.policies.network import Mlp
from repolicy.policies.normalizer import sums
from repolicy.policies.policy import Policy
from repolicy.runs.ranks import Ranks
from repolicy.runs.request import Request


class OneWeight:
    """The critic has one head, which predicts the whole return."""

    def __init__(self, request: Request) -> None:
        self.settings = request.settings
        self.addon = addons.combined(request.addons) if request.objective.reads_addon else None

    def networks(self, policy: Policy, critic_size: int) -> tuple[Policy, Mlp]:
        """Return policy and critic as they begin; `critic_size` is 0 where the critic sees what the policy sees."""
        self.size = policy.observation_size  # of what add-ons know
        return policy, Mlp(critic_size or self.size, self.settings.hidden, 1, self.settings.activation)

    def shown(self, policy: Policy, objective: Objective) -> tuple[Policy, Objective]:
        """Return what the short evaluations evaluate, and by which objective."""
        return policy, objective

    def critic_inputs(self, inputs: Tensor, own: Tensor) -> Tensor:
        """Return what the critic sees, from what the policy sees and from what it has of its `own`."""
        return own

    def task(self, objective: Objective, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the task's reward `[T, N]`, and each step's own omega or alpha: none."""
        wished = None if self.addon is None else paid(self.addon, rollout, self.size)
        return task_reward(objective, torch.from_numpy(rollout.basic), wished), {}

    def credit(
        self, reward: Reward, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages `[T, N]`, and what each head is to predict, `[T, N, H]`, the shape of the values."""
        both = values.squeeze(-1), next_values.squeeze(-1)
        gamma, gae_lambda = self.settings.gamma, self.settings.gae_lambda
        gains = ppo.advantages(reward.total.float(), *both, terminated, ended, gamma, gae_lambda)
        return gains, gains.unsqueeze(-1) + values

    def normalized(self, gains: Tensor, targets: Tensor, team: Ranks) -> tuple[Tensor, Tensor, float]:
        """Return advantages with mean 0 and variance 1 over all ranks, the targets' sums, and what V explains of them.

        The sums are `[3, H]`, as of `normalizer.sums`; the last is a share of the variance.
        """
        both = team.sum(sums(torch.cat([gains.unsqueeze(-1), targets], -1)))
        count, total, squares = both
        means = total / count
        gain, target = (squares / count - means.square()).clamp_min(0.0).tolist()  # variances
        explained = 1.0 - gain / max(target, 1e-12)
        if self.settings.normalize_advantages:
            gains = (gains - float(means[0])) / (gain**0.5 + 1e-8)
        return gains, both[:, 1:], explained

    def metrics(self, policy: Policy, inputs: Tensor) -> dict[str, float]:
        """Return more of what the log says of the policy at some inputs."""
        return {}


def paid(addon: Addon, rollout: Rollout, size: int) -> Tensor:
    """Return what an add-on pays, `[T, N]`; it sees the first `size` numbers of each observation."""
    before, actions, after, info = rollout.transitions
    return torch.from_numpy(np.asarray(addon.reward(before[..., :size], actions, after[..., :size], info)))
