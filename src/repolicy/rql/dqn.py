"""Residual Q-learning for discrete actions, on Stable-Baselines3's DQN.

    Q_R ← task + γ · α · log Σ exp((Q_R′ + ω · log prior) / α)                  # Eq. 3
    policy = softmax((Q_R + ω · log prior) / α)

With omega 0 and no prior it is soft Q-learning, which trains priors and full policies.
"""

from dataclasses import replace
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.objective import Objective
from repolicy.policies.distributions import Categorical
from repolicy.policies.file import save_policy
from repolicy.policies.network import MODULES, layers_of, load_layers, scaled, side_by_side
from repolicy.policies.normalizer import BOUND
from repolicy.policies.policy import Policy, PolicySpec, Prior
from repolicy.rql.hyperparameters import Settings
from repolicy.rql.wrapping import (
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

from stable_baselines3 import DQN  # isort: skip
from stable_baselines3.common.utils import polyak_update  # isort: skip
from stable_baselines3.dqn.policies import DQNPolicy  # isort: skip


class ResidualDQN(DQN):  # type: ignore[misc]
    """Soft Q-learning beside a frozen prior. It acts by its softmax alone: no ε, no greedy step."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        objective: Objective,
        prior: Prior | None = None,
        settings: Settings | None = None,
    ) -> None:
        settings = settings or Settings()
        env_spaces = spaces_of(env)
        self.objective, self.prior, actions = objective, usable(env_spaces, objective, prior), env_spaces.actions
        if actions.kind != "discrete":
            raise UsageError(f"ResidualDQN chooses among actions, and the environment takes {actions}: use ResidualSAC")
        activation, normalizer = "relu", normalizer_for(env.observation_space, self.prior)
        if isinstance(self.prior, Policy):  # Q_R gets the prior's depth, so that the sum of both is one network
            activation = self.prior.network.activation
            if activation not in MODULES or self.prior.spec.norms:
                raise UsageError(
                    f"the prior's network has {activation}{' and LayerNorms' * bool(self.prior.spec.norms)}; "
                    f"ResidualDQN takes {', '.join(MODULES)}, without LayerNorms"
                )
            if len(settings.hidden) != len(self.prior.spec.hidden):
                raise UsageError(
                    f"hidden is {settings.hidden}; the prior has {len(self.prior.spec.hidden)} hidden layers"
                )
        bound = self.prior.spec.observation_bound if isinstance(self.prior, Policy) else BOUND
        self._spec = PolicySpec(
            env_spaces.observation_size, actions, "categorical", settings.hidden, activation, observation_bound=bound
        )
        super().__init__(
            SoftQPolicy,
            TaskReward(env, objective),
            **replay_options(settings),
            exploration_initial_eps=0.0,
            exploration_final_eps=0.0,
            policy_kwargs=network_options(settings, normalizer) | {"activation_fn": MODULES[activation]},
        )
        self.policy.objective, self.policy.prior = objective, self.prior

    def targets(self, batch: Any) -> Tensor:
        """Return what Q_R should be at a batch of transitions, `[B, 1]`."""
        with torch.no_grad():
            logits = self.policy.logits(self.q_net_target(batch.next_observations), batch.next_observations)
            next_v = self.objective.alpha * logits.logsumexp(-1, keepdim=True)
            return batch.rewards + (1 - batch.dones) * self.gamma * next_v

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Train as Stable-Baselines3 does, with other targets, which follow softly."""
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size)
            q = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = nn.functional.smooth_l1_loss(q, self.targets(batch))
            check_loss("Q_R", loss)
            self.policy.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.q_net.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), self.tau)
        self._n_updates += gradient_steps
        self.logger.record("train/loss", loss.item())

    def as_policy(self) -> Policy:
        """Return the policy as a `repolicy.Policy`: its logits, (Q_R + ω · log prior) / α, in one network.

        The layers of both networks lie side by side, and the last one adds them up. The prior's own logits serve for
        its log-probabilities: they differ by a number a state, which the softmax does not see.
        """
        omega, alpha = self.objective.omega, self.objective.alpha
        layers = scaled([(layer.weight, layer.bias) for layer in self.q_net.q_net[::2]], 1 / alpha)
        hidden = self._spec.hidden
        if self.objective.reads_prior:
            prior = storable(self.prior)
            assert prior is not None
            layers = side_by_side(layers, scaled(layers_of(prior.network), omega / alpha))
            hidden = tuple(a + b for a, b in zip(hidden, prior.spec.hidden, strict=True))
        policy = Policy(replace(self._spec, hidden=hidden))
        load_layers(policy.network, layers)
        policy.normalizer.load_state_dict(self.q_net.features_extractor.normalizer.state_dict())
        return policy

    def save(self, path: Any, card: dict[str, Any] | None = None) -> None:
        """Write one file with the policy and its prior, which any part of Repolicy reads. No pickle."""
        save_policy(path, self.as_policy(), card or {}, storable(self.prior))

    def _on_step(self) -> None:
        """Take no hard copies of the target, and no ε."""

    def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> Any:
        """Sample from the policy from the first step on: near Q_R = 0 it is the prior to the power ω / α."""
        return super()._sample_action(0, action_noise, n_envs)


class SoftQPolicy(DQNPolicy):  # type: ignore[misc]
    """softmax((Q_R + ω · log prior) / α), wherever Stable-Baselines3 asks for an action."""

    objective: Objective
    prior: Prior | None

    def logits(self, q: Tensor, observations: Tensor) -> Tensor:
        """Return (Q_R + ω · log prior) / α of every action, `[B, A]`, for Q_R `[B, A]`."""
        if self.objective.reads_prior:
            q = q + self.objective.omega * self.log_prior(observations)
        return q / self.objective.alpha

    def log_prior(self, observations: Tensor) -> Tensor:
        """Return log prior(a|s) of every action, `[B, A]`."""
        assert self.prior is not None
        count = int(self.action_space.n)
        actions = torch.arange(count).view(count, 1, 1).expand(count, len(observations), 1)
        observations = flat(observations)
        return self.prior.log_prob(observations.expand(count, *observations.shape), actions).T

    def distribution(self, observations: Tensor) -> Categorical:
        logits = self.logits(self.q_net(observations), observations)
        return Categorical(logits, (logits.shape[-1],))

    def _predict(self, observation: Tensor, deterministic: bool = True) -> Tensor:
        distribution = self.distribution(observation)
        return (distribution.mode() if deterministic else distribution.sample())[..., 0]
