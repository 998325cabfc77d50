"""Residual Q-learning on Stable-Baselines3: DQN for discrete actions, SAC for continuous ones.

    Q_R ← task + γ · α · log Σ exp((Q_R′ + ω · log prior) / α)                  # DQN: Eq. 3
    policy = softmax((Q_R + ω · log prior) / α)

    Q_R ← task + γ · (min Q_R′(s′, a′) + ω · log prior(a′|s′) − α · log policy(a′|s′)),      a′ ~ policy        # SAC
    policy ← argmin E[α · log policy(a|s) − min Q_R(s, a) − ω · log prior(a|s)],             a ~ policy

In SAC, policy and prior score actions as sampled, before tanh or clipping to the bounds; the critics get them
afterwards. With omega 0 and no prior, the algorithms are soft Q-learning and SAC at a fixed temperature, which train
priors and full policies.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from repolicy.envs import Spaces, check_fit
from repolicy.errors import UsageError
from repolicy.objective import Objective, reformulated
from repolicy.policies import (
    ACTIVATION_MODULES,
    Categorical,
    Density,
    Policy,
    PolicySpec,
    Prior,
    add_networks,
    frozen,
    layers_of,
    load_layers,
    save_policy,
    scale_outputs,
    trainable_copy,
)
from repolicy.rql.hyperparameters import Settings
from repolicy.rql.wrapping import (
    as_rows,
    check_loss,
    frozen_prior,
    network_options,
    normalizer_for,
    replay_options,
    spaces_of,
    training_env,
)
from repolicy.runs import complete_settings, refuse_for_choices
from repolicy.text import format_count

from stable_baselines3 import DQN, SAC  # isort: skip
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise  # isort: skip
from stable_baselines3.common.utils import polyak_update  # isort: skip
from stable_baselines3.dqn.policies import DQNPolicy  # isort: skip

NOISE_DECAY = 0.05  # rate per step at which the exploration noise returns to 0


class ResidualQMixin:
    """Methods of both algorithms; comes before the class of Stable-Baselines3 in the list of bases."""

    objective: Objective
    prior: Prior | None
    density: Density | None = None  # of the prior's states, for an objective with a weight on states
    gamma: float
    next_value: Callable[[Tensor], Tensor]  # the soft value `[B, 1]` of next observations, by the target network
    as_policy: Callable[[], Policy]

    def set_env(self, env: gymnasium.Env[Any, Any], force_reset: bool = True) -> None:
        """Replace the environment by one with the same spaces, wrapped to give the task's reward."""
        spaces_of(env)
        super().set_env(training_env(env, self.objective, self.gamma, self.density), force_reset)  # type: ignore[misc]

    def targets(self, batch: Any) -> Tensor:
        """Return the regression targets of Q_R for a batch of transitions, `[B, 1]`."""
        with torch.no_grad():
            return batch.rewards + (1 - batch.dones) * self.gamma * self.next_value(batch.next_observations)

    def save(self, path: Any, card: dict[str, Any] | None = None) -> None:
        """Write one Repolicy policy file, without pickle. The prior goes with it, if it is a `Policy`.

        Stable-Baselines3's callbacks name a `.zip`; the file is then a `.safetensors` beside it.
        """
        if str(path).endswith(".zip"):
            path = Path(path).with_suffix(".safetensors")
        save_policy(path, self.as_policy(), card or {}, self.prior if isinstance(self.prior, Policy) else None)

    @classmethod
    def load(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise UsageError, since `save` writes a policy."""
        raise UsageError(
            f"a file of {cls.__name__} is a policy: repolicy.load_policy(FILE) reads it; "
            "a run goes on with repolicy.rql.customize(..., resume=True)"
        )


class ResidualDQN(ResidualQMixin, DQN):  # type: ignore[misc]
    """Soft Q-learning with a frozen prior. It samples from its softmax policy, without ε-greedy exploration."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        objective: Objective,
        prior: Prior | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
    ) -> None:
        settings = complete_settings(settings, Settings())
        env_spaces = spaces_of(env)
        actions = env_spaces.actions
        self.objective = objective
        self.prior = frozen_prior(env_spaces, objective, prior)
        if actions.kind != "discrete":
            raise UsageError(f"ResidualDQN chooses among actions, and the environment takes {actions}: use ResidualSAC")
        refuse_for_choices(settings, "critic_warmup", "actor_learning_rate", "noise")
        normalizer = normalizer_for(env.observation_space, self.prior)
        activation: str = "relu"
        bound: float | None = None
        if isinstance(self.prior, Policy):  # Q_R gets the prior's depth, so that `as_policy` can merge both networks
            activation, bound = self.prior.network.activation, self.prior.spec.observation_bound
            depth = len(self.prior.spec.hidden)
            if activation not in ACTIVATION_MODULES or self.prior.spec.norms or not depth:
                layers = f"hidden layers of {', '.join(ACTIVATION_MODULES)}"
                raise UsageError(f"ResidualDQN takes a prior with {layers} and without LayerNorms")
            if len(settings.hidden) != depth:
                layers = format_count(depth, "hidden layer")
                raise UsageError(f"hidden is {settings.hidden}; the prior has {layers}: name as many")
        self._spec = PolicySpec(
            env_spaces.observation_size, actions, "categorical", settings.hidden, activation, observation_bound=bound
        )
        super().__init__(
            SoftQPolicy,
            training_env(env, objective, settings.gamma),
            **replay_options(settings),
            exploration_initial_eps=0.0,
            exploration_final_eps=0.0,
            policy_kwargs=network_options(settings, normalizer) | {"activation_fn": ACTIVATION_MODULES[activation]},
        )
        self.policy.objective, self.policy.prior = objective, self.prior
        for network in (self.q_net, self.q_net_target):  # with Q_R = 0, the policy is the prior to the power ω / α
            for parameter in network.q_net[-1].parameters():
                nn.init.zeros_(parameter)

    def next_value(self, observations: Tensor) -> Tensor:
        logits: Tensor = self.policy.logits(self.q_net_target(observations), observations)
        return self.objective.alpha * logits.logsumexp(-1, keepdim=True)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Train as Stable-Baselines3 does, but with soft targets, soft target updates, and a squared loss.

        With squared errors and without gradient clipping, Q_R learns the mean also of rare, large penalties.
        """
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size)
            q = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = nn.functional.mse_loss(q, self.targets(batch))
            check_loss("Q_R", loss)
            self.policy.optimizer.zero_grad()
            loss.backward()
            self.policy.optimizer.step()
            polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), self.tau)
        self._n_updates += gradient_steps
        self.logger.record("train/loss", loss.item())

    def as_policy(self) -> Policy:
        """Return the policy as a `repolicy.Policy`, whose one network computes the logits (Q_R + ω · log prior) / α.

        Its layers concatenate those of both networks, and the last layer adds their outputs. The prior's logits replace
        its log-probabilities: the difference is a constant per state, which the softmax cancels.
        """
        omega, alpha = self.objective.omega, self.objective.alpha
        layers = scale_outputs([(layer.weight, layer.bias) for layer in self.q_net.q_net[::2]], 1 / alpha)
        hidden = self._spec.hidden
        if self.objective.reads_prior:
            if not isinstance(self.prior, Policy):
                problem = f"this policy contains its prior, and a file can hold no {type(self.prior).__name__}"
                raise UsageError(f"{problem}: act with model.predict, or take a repolicy.Policy as the prior")
            layers = add_networks(layers, scale_outputs(layers_of(self.prior.network), omega / alpha))
            hidden = tuple(a + b for a, b in zip(hidden, self.prior.spec.hidden, strict=True))
        policy = Policy(replace(self._spec, hidden=hidden))
        load_layers(policy.network, layers)
        policy.normalizer.load_state_dict(self.q_net.features_extractor.normalizer.state_dict())
        return policy

    def _on_step(self) -> None:
        """Skip DQN's hard target updates and its schedule of ε."""

    def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> Any:
        """Sample from the policy from the first step on, instead of at random."""
        return super()._sample_action(0, action_noise, n_envs)


class SoftQPolicy(DQNPolicy):  # type: ignore[misc]
    """DQN policy that samples from softmax((Q_R + ω · log prior) / α)."""

    objective: Objective
    prior: Prior | None

    def logits(self, q: Tensor, observations: Tensor) -> Tensor:
        """Return (Q_R + ω · log prior) / α of every action `[B, A]`, given Q_R `[B, A]`."""
        if self.objective.reads_prior:
            q = q + self.objective.omega * self.log_prior(observations)
        return q / self.objective.alpha

    def log_prior(self, observations: Tensor) -> Tensor:
        """Return log prior(a|s) of every action, `[B, A]`."""
        assert self.prior is not None
        count = int(self.action_space.n)
        actions = torch.arange(count).view(count, 1, 1).expand(count, len(observations), 1)
        observations = as_rows(observations)
        return self.prior.log_prob(observations.expand(count, *observations.shape), actions).T

    def distribution(self, observations: Tensor) -> Categorical:
        logits = self.logits(self.q_net(observations), observations)
        return Categorical(logits, (logits.shape[-1],))

    def _predict(self, observation: Tensor, deterministic: bool = True) -> Tensor:
        distribution = self.distribution(observation)
        return (distribution.mode() if deterministic else distribution.sample())[..., 0]


class ResidualSAC(ResidualQMixin, SAC):  # type: ignore[misc]
    """SAC with a frozen prior. The actor starts as a copy of `actor`, or else of the prior, if that is a `Policy`.

    density: of the prior's states; an objective with a weight on states needs it.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        objective: Objective,
        prior: Prior | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        actor: Policy | None = None,
        density: Density | None = None,
    ) -> None:
        settings = complete_settings(settings, Settings())
        env_spaces = spaces_of(env)
        actions = env_spaces.actions
        self.objective, self.settings, self.density = objective, settings, density
        self.prior = frozen_prior(env_spaces, objective, prior, density)
        if actions.kind != "continuous":
            raise UsageError(f"ResidualSAC acts with numbers, and the environment takes {actions}: use ResidualDQN")
        self._normalizer = normalizer_for(env.observation_space, self.prior)
        super().__init__(
            "MlpPolicy",
            training_env(env, objective, settings.gamma, density),
            **replay_options(settings),
            action_noise=_noise(settings.noise, env.action_space.shape) if settings.noise else None,
            ent_coef=objective.alpha,
            policy_kwargs=network_options(settings, self._normalizer),
        )
        initial_policy = self._initial_policy(actor or self.prior, env_spaces)
        self.actor = self.policy.actor = Actor(initial_policy, self._actor_rate(0), env.action_space)

    def next_value(self, observations: Tensor) -> Tensor:
        return self.soft_value(self.critic_target, observations).unsqueeze(-1)

    def actor_loss(self, observations: Tensor) -> Tensor:
        """Return the actor's loss: minus the mean soft value of its actions."""
        return -self.soft_value(self.critic, observations).mean()

    def soft_value(self, critic: nn.Module, observations: Tensor) -> Tensor:
        """Return min Q_R + ω · log prior − α · log policy `[B]` at sampled actions, with gradients through them."""
        observations = as_rows(observations)
        distribution = self.actor.policy(observations)
        actions = distribution.sample()
        q = torch.cat(critic(observations, self.actor.within(actions)), dim=1).min(dim=1).values
        log_prior = self.log_prior(observations, actions) if self.objective.reads_prior else None
        action_objective = replace(self.objective, states=0.0)  # the environment's reward includes the term of states
        return reformulated(action_objective, q, log_prior, distribution.log_prob(actions)).total

    def log_prior(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log prior(a|s) `[B]` of actions as sampled `[B, A]`, with gradients through the actions."""
        if isinstance(self.prior, Policy):
            return self.prior(observations).log_prob(actions)  # `Policy.log_prob` would stop the gradient
        assert self.prior is not None
        log_prior = self.prior.log_prob(observations, actions)
        if actions.requires_grad and not log_prior.requires_grad:
            remedy = "which ResidualSAC's actor needs: compute it in torch, without no_grad"
            raise UsageError(f"the prior's log_prob has no gradient in the actions, {remedy}")
        return log_prior

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Train as Stable-Baselines3 does, but with the losses of the residual objective."""
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size)
            targets = self.targets(batch)
            critics = self.critic(batch.observations, batch.actions)
            critic_loss = torch.stack([nn.functional.mse_loss(q, targets) for q in critics]).sum() / 2
            check_loss("Q_R", critic_loss)
            self.critic.optimizer.zero_grad()
            critic_loss.backward()
            self.critic.optimizer.step()

            if self.num_timesteps > self.settings.critic_warmup * self.settings.steps:
                self._train_actor(batch.observations)
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        self._n_updates += gradient_steps
        self.logger.record("train/critic_loss", critic_loss.item())

    def _train_actor(self, observations: Tensor) -> None:
        self.critic.requires_grad_(False)
        loss = self.actor_loss(observations)
        check_loss("the actor", loss)
        self.actor.optimizer.zero_grad()
        loss.backward()
        self.actor.optimizer.param_groups[0]["lr"] = self._actor_rate(self.num_timesteps)
        self.actor.optimizer.step()
        self.critic.requires_grad_(True)
        self.logger.record("train/actor_loss", loss.item())

    def _actor_rate(self, steps: int) -> float:
        """Return the actor's learning rate: a linear decay to 0, or without an own rate that of the critics."""
        initial_rate = self.settings.actor_learning_rate
        if not initial_rate:
            return self.settings.learning_rate
        return initial_rate * max(0.0, 1.0 - steps / self.settings.steps)

    def as_policy(self) -> Policy:
        """Return the policy as a `repolicy.Policy`."""
        return frozen(self.actor.policy)

    def _initial_policy(self, source: Prior | None, env_spaces: Spaces) -> Policy:
        """Return a copy of a policy, or without one a new policy."""
        if isinstance(source, Policy):
            check_fit(source, env_spaces, "the policy to begin as")
            policy = trainable_copy(source)
            if not policy.family.squashes:  # training clips its actions, so it must also clip them afterwards
                policy.actions = env_spaces.actions
                policy.spec = replace(policy.spec, actions=policy.actions, clips=True)
            return policy
        if source is not None:
            raise UsageError(f"the actor cannot begin as a {type(source).__name__}: give a policy to begin as, actor=")
        size, hidden = env_spaces.observation_size, self.settings.hidden
        policy = Policy(PolicySpec(size, env_spaces.actions, "state_squashed", hidden, "relu", observation_bound=None))
        policy.normalizer.load_state_dict(self._normalizer.state_dict())
        return policy

    def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> Any:
        """Sample from the policy; without a prior, sample at random for the first `learning_starts` steps."""
        return super()._sample_action(learning_starts if self.prior is None else 0, action_noise, n_envs)


def _noise(std: float, shape: Any) -> OrnsteinUhlenbeckActionNoise:
    """Return Ornstein-Uhlenbeck noise with this stationary std, correlated over about 1 / NOISE_DECAY steps."""
    sigma = std * math.sqrt(NOISE_DECAY * (2 - NOISE_DECAY))
    return OrnsteinUhlenbeckActionNoise(np.zeros(shape), np.full(shape, sigma), theta=NOISE_DECAY, dt=1.0)


class Actor(nn.Module):
    """A Repolicy policy with the interface of Stable-Baselines3's actor, whose actions lie within ±1."""

    def __init__(self, policy: Policy, learning_rate: float, space: Any) -> None:
        super().__init__()
        self.policy = policy
        self.low, self.high = (torch.as_tensor(bound).float().flatten() for bound in (space.low, space.high))
        self.policy_bounds = [torch.tensor(bound) for bound in (policy.actions.low, policy.actions.high)]
        self.is_tanh = policy.family.squashes and all(map(torch.equal, self.policy_bounds, (self.low, self.high)))
        self.optimizer = torch.optim.Adam(policy.parameters(), learning_rate, fused=True)

    def forward(self, observations: Tensor, deterministic: bool = False) -> Tensor:
        distribution = self.policy(as_rows(observations))
        return self.within(distribution.mode() if deterministic else distribution.sample())

    def within(self, actions: Tensor) -> Tensor:
        """Map sampled actions `[B, A]` to ±1, which stand for the environment's bounds: by tanh, or by clipping."""
        if self.is_tanh:
            return torch.tanh(actions)
        actions = self.policy.family.to_environment(actions, *self.policy_bounds)
        return (2.0 * (actions - self.low) / (self.high - self.low) - 1.0).clamp(-1.0, 1.0)

    def set_training_mode(self, mode: bool) -> None:
        self.train(mode)
