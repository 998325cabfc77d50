"""Residual Q-learning for continuous actions, on Stable-Baselines3's SAC.

    Q_R ← task + γ · (min Q_R′(s′, a′) + ω · log prior(a′|s′) − α · log policy(a′|s′)),      a′ ~ policy
    policy ← argmin E[α · log policy(a|s) − min Q_R(s, a) − ω · log prior(a|s)],             a ~ policy

Actions are scored before tanh, by policy and prior alike: nothing passes through atanh. With omega 0 and no prior it is
SAC at a fixed temperature, which trains priors and full policies.
"""

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.objective import Objective, reformulated
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec, Prior, frozen
from repolicy.rql.hyperparameters import Settings
from repolicy.rql.wrapping import (
    Spaces,
    TaskReward,
    check_loss,
    flat,
    network_options,
    normalizer_for,
    replay_options,
    spaces_of,
    storable,
    usable,
)

from stable_baselines3 import SAC  # isort: skip
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise  # isort: skip
from stable_baselines3.common.utils import polyak_update  # isort: skip

FORGETTING = 0.05  # share of the exploration noise that is forgotten in a step


class ResidualSAC(SAC):  # type: ignore[misc]
    """SAC beside a frozen prior, whose copy the actor starts as; of one that does not squash, `actor` is the copy.

    Raises where the prior does not squash its actions and no actor is given, which would begin at random.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        objective: Objective,
        prior: Prior | None = None,
        settings: Settings | None = None,
        actor: Policy | None = None,
    ) -> None:
        settings = settings or Settings()
        env_spaces = spaces_of(env)
        self.objective, self.prior, actions = objective, usable(env_spaces, objective, prior), env_spaces.actions
        if actions.kind != "continuous":
            raise UsageError(f"ResidualSAC acts with numbers, and the environment takes {actions}: use ResidualDQN")
        self._normalizer = normalizer_for(env.observation_space, self.prior)
        super().__init__(
            "MlpPolicy",
            TaskReward(env, objective),
            **replay_options(settings),
            action_noise=_noise(settings.noise, actions.width) if settings.noise else None,
            ent_coef=objective.alpha,
            policy_kwargs=network_options(settings, self._normalizer),
        )
        self.actor = self.policy.actor = Actor(
            actor or self._first_policy(settings, env_spaces), settings.learning_rate
        )

    def targets(self, batch: Any) -> Tensor:
        """Return what Q_R should be at a batch of transitions, `[B, 1]`."""
        with torch.no_grad():
            next_v = self.soft_value(self.critic_target, batch.next_observations)
            return batch.rewards + (1 - batch.dones) * self.gamma * next_v.unsqueeze(-1)

    def actor_loss(self, observations: Tensor) -> Tensor:
        """Return what the actor lowers: minus the soft value of what it would do."""
        return -self.soft_value(self.critic, observations).mean()

    def soft_value(self, critic: nn.Module, observations: Tensor) -> Tensor:
        """Return min Q_R + ω · log prior − α · log policy `[B]` at an action of the policy, with its gradient."""
        observations = flat(observations)
        distribution = self.actor.policy(observations)
        actions = distribution.sample()
        q = torch.cat(critic(observations, torch.tanh(actions)), dim=1).min(dim=1).values
        log_prior = self.log_prior(observations, actions) if self.objective.reads_prior else None
        return reformulated(self.objective, q, log_prior, distribution.log_prob(actions)).total

    def log_prior(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log prior(a|s) of actions before tanh `[B, A]`, with its gradient through them, `[B]`.

        It is the density of tanh(actions) in the box [−1, 1], as the policy's own is.
        """
        if not isinstance(self.prior, Policy):
            assert self.prior is not None
            found = self.prior.log_prob(observations, actions)
            if actions.requires_grad and not found.requires_grad:
                raise UsageError(
                    "the prior's log_prob has no gradient in the actions, and ResidualSAC's actor needs it: compute it "
                    "in torch, without no_grad"
                )
            return found
        distribution = self.prior(observations)  # its method log_prob would stop the gradient
        if self.prior.family.squashes:
            return distribution.log_prob(actions)
        bounds = self.action_space.low, self.action_space.high  # such a prior scores what the environment gets
        low, high = (torch.as_tensor(bound, dtype=torch.float32).flatten() for bound in bounds)
        half = (high - low) / 2
        return distribution.log_prob(low + (torch.tanh(actions) + 1) * half) + half.log().sum()

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Train as Stable-Baselines3 does, with other losses."""
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size)
            targets = self.targets(batch)
            critics = self.critic(batch.observations, batch.actions)
            critic_loss = torch.stack([nn.functional.mse_loss(q, targets) for q in critics]).sum() / 2
            check_loss("Q_R", critic_loss)
            self.critic.optimizer.zero_grad()
            critic_loss.backward()
            self.critic.optimizer.step()

            self.critic.requires_grad_(False)
            actor_loss = self.actor_loss(batch.observations)
            check_loss("the actor", actor_loss)
            self.actor.optimizer.zero_grad()
            actor_loss.backward()
            self.actor.optimizer.step()
            self.critic.requires_grad_(True)
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        self._n_updates += gradient_steps
        self.logger.record("train/critic_loss", critic_loss.item())
        self.logger.record("train/actor_loss", actor_loss.item())

    def as_policy(self) -> Policy:
        """Return the policy as a `repolicy.Policy` whose actions pass through tanh."""
        return frozen(self.actor.policy)

    def save(self, path: Any, card: dict[str, Any] | None = None) -> None:
        """Write one file with the policy and its prior, which any part of Repolicy reads. No pickle."""
        save_policy(path, self.as_policy(), card or {}, storable(self.prior))

    def _first_policy(self, settings: Settings, env_spaces: Spaces) -> Policy:
        if isinstance(self.prior, Policy) and self.prior.family.squashes:
            return frozen(self.prior).requires_grad_(True)
        if self.prior is not None:
            what = self.prior.spec.family if isinstance(self.prior, Policy) else f"a {type(self.prior).__name__}"
            raise UsageError(
                f"the prior is {what}, and the actor, whose actions pass through tanh, cannot begin as its copy: give "
                "the policy to begin as, actor=, or use repolicy.rql.customize, which fits one to the prior"
            )
        policy = Policy(
            PolicySpec(env_spaces.observation_size, env_spaces.actions, "state_squashed", settings.hidden, "relu")
        )
        policy.normalizer.load_state_dict(self._normalizer.state_dict())
        return policy

    def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> Any:
        """Sample from the policy, if there is a prior; else at random until there is something to learn."""
        return super()._sample_action(learning_starts if self.prior is None else 0, action_noise, n_envs)


def _noise(std: float, size: int) -> OrnsteinUhlenbeckActionNoise:
    """Return noise of this std that keeps its direction for some FORGETTING⁻¹ steps."""
    sigma = std * math.sqrt(2 * FORGETTING)
    return OrnsteinUhlenbeckActionNoise(np.zeros(size), np.full(size, sigma), theta=FORGETTING, dt=1.0)


class Actor(nn.Module):
    """A policy in the place of Stable-Baselines3's actor."""

    def __init__(self, policy: Policy, learning_rate: float) -> None:
        super().__init__()
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.parameters(), learning_rate, fused=True)

    def forward(self, observations: Tensor, deterministic: bool = False) -> Tensor:
        """Return actions within ±1, `[B, A]`."""
        distribution = self.policy(flat(observations))
        return torch.tanh(distribution.mode() if deterministic else distribution.sample())

    def set_training_mode(self, mode: bool) -> None:
        self.train(mode)
