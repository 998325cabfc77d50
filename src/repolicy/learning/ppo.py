"""PPO: generalized advantages and the clipped update. Nothing here knows how a reward is made up."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from repolicy.errors import NumericError
from repolicy.policies import Mlp, Policy, adam_step, epsilon_for, flatten, merge_moments
from repolicy.runs import Ranks, Settings

SMALL_REWARD = 1e-3  # the first outputs of a critic, of about a tenth, would drown returns of such rewards
HISTORY_WEIGHT = 1.0  # of all earlier rollouts against the new one; low, since early returns change a lot


class ReturnScale:
    """Running mean and std `[H]` of the returns that each head of a critic predicts; it learns them normalized."""

    def __init__(self, heads: int = 1) -> None:
        # Count, mean and variance `[3, H]`, as `policies.merge_moments` takes them.
        self.statistics = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64).repeat(1, heads)

    @property
    def is_known(self) -> bool:
        return bool((self.statistics[0] > 0.0).any())

    @property
    def mean(self) -> Tensor:
        return self.statistics[1]

    @property
    def std(self) -> Tensor:
        _, mean, var = self.statistics
        return (var + epsilon_for(var, mean)).sqrt()

    def update(self, return_sums: Tensor) -> tuple[Tensor, Tensor]:
        """Add a rollout's returns, given as `moment_sums` `[3, H]`; return factor and offset `[H]` for the critic.

        With outputs factor · old outputs + offset, the critic predicts the same returns as before. At the first call it
        has learned nothing, so they are 1 and 0: its outputs are about 0, and thus predict the mean.
        """
        count, mean, var = self.statistics.to(return_sums.device)
        is_known, std = count > 0, self.std.to(var)
        history = torch.stack([count.clamp(max=HISTORY_WEIGHT * return_sums[0]), mean, var])
        self.statistics = merge_moments(history, return_sums)
        factor = torch.where(is_known, std / self.std, 1.0)
        return factor, torch.where(is_known, (mean - self.mean) / self.std, 0.0)

    def apply(self, returns: Tensor) -> Tensor:
        """Normalize returns `[..., H]`."""
        return (returns - self.mean.to(returns)) / self.std.to(returns)

    def undo(self, outputs: Tensor) -> Tensor:
        """Turn the critic's outputs `[..., H]` back into returns."""
        return outputs * self.std.to(outputs) + self.mean.to(outputs)


def first_unit(rewards: Tensor) -> float:
    """Return the unit of a critic's outputs that mean nothing yet: 1, or the rewards' RMS where that is small."""
    size = float(rewards.square().mean().sqrt())
    return size if 0.0 < size < SMALL_REWARD else 1.0


def explained_share(unexplained: float, variance: float) -> float:
    """Return the share of a variance of returns that a critic explains; 0 where there is none."""
    return 1.0 - unexplained / variance if variance > 0.0 else 0.0


# While customizing, log_std learns with this multiple of the learning rate; otherwise the std narrows too late.
# With fewer samples in an update, policies got worse (1,024: Ant, Hopper; 2,048: a puck), so there the multiple is 1.
STD_SPEED = 4.0
STD_SPEED_MIN_SAMPLES = 4096


def advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """Return generalized advantages (GAE) `[T, N]`.

    Args:
        rewards: `[T, N]`, as all arguments that follow.
        values: V(s_t).
        next_values: V(s_{t+1}); at a time limit, the value of the last observation of the episode that ended.
        terminated: the episode ended in a terminal state, so the next value does not count.
        ended: the episode ended by termination or by a time limit; later steps belong to another episode.
        gamma, lam: γ and λ.
    """
    discounts = gamma * (~terminated).to(rewards.dtype)  # γ_t: 0 in terminal states
    errors = rewards + discounts * next_values - values  # δ_t = r_t + γ_t V(s_{t+1}) − V(s_t)
    decays = gamma * lam * (~ended).to(rewards.dtype)
    result = torch.empty_like(errors)
    next_advantage = torch.zeros_like(errors[0])
    for t in reversed(range(len(errors))):
        next_advantage = torch.addcmul(errors[t], decays[t], next_advantage, out=result[t])  # A_t = δ_t + γλ A_{t+1}
    return result


@dataclass(frozen=True)
class Batch:
    """The B samples of one rank that an update learns from."""

    inputs: Tensor  # [B, O] normalized observations, for the policy
    actions: Tensor  # [B, A]
    log_probs: Tensor  # [B] under the policy that acted
    advantages: Tensor  # [B]
    returns: Tensor  # [B, H] normalized targets of the critic's heads
    privileged_inputs: Tensor | None = None  # [B, C] for the critic, where it does not see what the policy sees

    @property
    def critic_inputs(self) -> Tensor:
        return self.inputs if self.privileged_inputs is None else self.privileged_inputs

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator["Batch"]:
        """Yield shuffled minibatches of about `size` samples.

        A remainder is spread over all of them, since a gradient step on a few samples is mostly noise.
        """
        count = max(1, round(len(self.inputs) / size))
        for rows in torch.randperm(len(self.inputs), generator=generator).tensor_split(count):
            tensors = {name: tensor for name, tensor in vars(self).items() if tensor is not None}
            yield Batch(**{name: tensor.index_select(0, rows) for name, tensor in tensors.items()})


class Losses(NamedTuple):
    """The losses of one minibatch, and diagnostics without gradient. Scalars, but for the last."""

    policy: Tensor
    value: Tensor
    divergence: Tensor  # KL(old ‖ new), estimated
    clipped: Tensor  # fraction of samples whose ratio is outside the clip range
    log_ratios: Tensor  # [B]


class StepMetrics(NamedTuple):
    """Metrics of one gradient step, averaged over ranks; or their averages over all steps of an update."""

    policy_loss: float
    value_loss: float
    kl: float
    clipped: float
    gradient_norm: float


class Learner:
    """A policy, a critic with its return scale, and Adam over all their parameters, stored as one flat tensor."""

    def __init__(self, policy: Policy, critic: Mlp, learning_rate: float, std_speed: float = 1.0) -> None:
        self.policy = policy
        self.critic = critic
        self.return_scale = ReturnScale(len(critic.biases[-1]))
        self.learning_rate = learning_rate
        self.actor_size = sum(parameter.numel() for parameter in policy.parameters())
        # Four numbers behind the gradient hold the scalar losses, so that one sum over the ranks covers both.
        self.parameters, self._buffer = flatten([*policy.parameters(), *critic.parameters()], extra=4)
        self.gradient, self._losses = self._buffer.split([len(self.parameters), 4])
        self._mean, self._var = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self._steps = {"actor": 0, "critic": 0}  # of Adam; they differ after a critic warm-up
        self._log_std, self._std_speed = log_std_slice(policy), std_speed

    def values(self, inputs: Tensor) -> Tensor:
        """Return the values V `[..., H]` of the critic's inputs `[..., C]`, one for each head."""
        return self.return_scale.undo(self.critic(inputs))

    def differentiate(self, batch: Batch, settings: Settings, bonus: float) -> Losses:
        """Compute a minibatch's losses, and into `self.gradient` the gradient of these and of −`bonus` · entropy."""
        self._buffer.zero_()
        distribution = self.policy.distribution(batch.inputs)
        result = losses(distribution.log_prob(batch.actions), self.critic(batch.critic_inputs), batch, settings)
        loss = result.policy + settings.value_coefficient * result.value
        if bonus:
            loss = loss - bonus * distribution.entropy().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # the parameters' gradients are views of `self.gradient`
        self._losses.copy_(torch.stack([result.policy, result.value, result.divergence, result.clipped]).detach())
        return Losses(*(each.detach() for each in result))

    def step(self, max_norm: float, team: Ranks, fit_actor: bool) -> StepMetrics:
        """Average the gradient over ranks, clip it to `max_norm`, and take one step of Adam."""
        if not fit_actor:
            self.gradient[: self.actor_size].zero_()
        if team.count > 1:
            team.sum(self._buffer).div_(team.count)
        norm = float(self.gradient.norm())
        if not math.isfinite(norm):
            raise NumericError("the gradient is not finite")
        if norm > max_norm:
            self.gradient.mul_(max_norm / norm)
        self._adam(fit_actor)
        policy, value, divergence, clipped = self._losses.tolist()
        return StepMetrics(policy, value, divergence, clipped, norm)

    def _adam(self, fit_actor: bool) -> None:
        """Take a step of Adam. Actor and critic count their steps apart.

        With the critic's count, Adam's bias correction would make the first steps of an actor that joins late too long.
        """
        names = ["actor", "critic"] if fit_actor else ["critic"]
        for name in names:
            self._steps[name] += 1
        slices = {"actor": slice(0, self.actor_size), "critic": slice(self.actor_size, None)}
        parts = [(slices[name], self._steps[name]) for name in names]
        if len(set(self._steps.values())) == 1:
            parts = [(slice(None), self._steps["critic"])]  # both at once
        for part, steps in parts:
            adam_step(
                self.parameters[part], self.gradient[part], self._mean[part], self._var[part],
                steps=steps, rate=self.learning_rate, epsilon=1e-5,
                quick=self._log_std, factor=1.0 if part.start else self._std_speed,
            )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that the next update depends on, for a checkpoint."""
        return {
            "parameters": self.parameters,
            "adam_mean": self._mean,
            "adam_var": self._var,
            "returns": self.return_scale.statistics,
            "adam_steps": torch.tensor(list(self._steps.values())),
            "learning_rate": torch.tensor(self.learning_rate, dtype=torch.float64),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Load what `state` returned."""
        self.parameters.copy_(state["parameters"])
        self._mean.copy_(state["adam_mean"])
        self._var.copy_(state["adam_var"])
        self.return_scale.statistics = state["returns"]
        self._steps = dict(zip(self._steps, state["adam_steps"].tolist(), strict=True))
        self.learning_rate = float(state["learning_rate"])


def std_speed(samples: int) -> float:
    """Return the learning-rate multiple of log_std while customizing, for the number of samples in an update."""
    return STD_SPEED if samples >= STD_SPEED_MIN_SAMPLES else 1.0


def log_std_slice(policy: Policy) -> slice:
    """Return where a state-independent log_std lies in the policy's flat parameters; an empty slice if it has none."""
    log_std = policy.log_std
    if log_std is None or log_std.dim() > 1 or policy.spec.std != "exp":
        return slice(0, 0)
    return slice(log_std.storage_offset(), log_std.storage_offset() + log_std.numel())


def losses(log_probs: Tensor, values: Tensor, batch: Batch, settings: Settings) -> Losses:
    """Return PPO's losses (Eq. 2) without the entropy bonus: the surrogate, and the critic's squared error."""
    log_ratios = log_probs - batch.log_probs
    ratios = log_ratios.exp()
    clipped_ratios = ratios.clip(1.0 - settings.clip, 1.0 + settings.clip)
    if settings.surrogate == "vanilla":  # Eq. 6, with the baseline of Eq. 11
        policy = -(log_probs * batch.advantages).mean()
    else:
        policy = -torch.minimum(ratios * batch.advantages, clipped_ratios * batch.advantages).mean()
    with torch.no_grad():
        divergence = (ratios - 1.0 - log_ratios).mean()  # KL(old ‖ new) from samples of the old policy
        clipped = (ratios != clipped_ratios).float().mean()
    value = 0.5 * (values - batch.returns).square().sum(-1).mean()
    return Losses(policy, value, divergence, clipped, log_ratios.detach())


def update(
    learner: Learner,
    batch: Batch,
    settings: Settings,
    generator: torch.Generator,
    team: Ranks,
    bonus: float = 0.0,
    fit_actor: bool = True,
) -> dict[str, float]:
    """Train on the batch for `settings.epochs`, in shuffled minibatches of `settings.minibatch` over all ranks.

    The update stops after the first step whose KL is above `settings.target_kl`. `fit_actor=False` trains the critic
    alone. Returns the means of `StepMetrics`, the new learning rate, and the number of epochs begun.
    """
    size = max(1, min(settings.minibatch // team.count, len(batch.inputs)))
    max_kl = math.inf if settings.target_kl is None else settings.target_kl
    steps: list[StepMetrics] = []
    epochs = 0
    for _ in range(settings.epochs):
        epochs += 1
        kls: list[float] = []  # of this epoch
        for minibatch in batch.minibatches(size, generator):
            result = learner.differentiate(minibatch, settings, bonus)
            if not steps:
                check_first_minibatch(result, minibatch)
            steps.append(learner.step(settings.max_gradient_norm, team, fit_actor))
            kls.append(steps[-1].kl)
            if kls[-1] > max_kl:
                break
        if kls[-1] > max_kl:
            break

    if settings.schedule == "adaptive" and fit_actor:  # the KL of a policy that is not trained is rounding
        learner.learning_rate = adaptive_learning_rate(learner.learning_rate, sum(kls) / len(kls), settings.desired_kl)
    means = StepMetrics(*torch.tensor(steps, dtype=torch.float64).mean(0).tolist())
    return means._asdict() | {"learning_rate": learner.learning_rate, "epochs": epochs}


def check_first_minibatch(result: Losses, batch: Batch) -> None:
    """Raise unless the loss is finite and every ratio is 1, as it must be before the first gradient step."""
    if not math.isfinite(float(result.policy + result.value)):
        raise NumericError("the loss is not finite")
    largest = float((result.log_ratios.abs() / (1.0 + batch.log_probs.abs())).max())
    if not largest < 1e-3:
        raise NumericError(
            "in the first minibatch the policy's log-probabilities differ from those recorded while acting (by "
            f"{largest:.2g}): the normalizer moved, they are stale, the policy is not a function of the observation, "
            "or the policy's std is too small beside its mean for single precision"
        )


def adaptive_learning_rate(learning_rate: float, kl: float, desired: float) -> float:
    """Return a smaller learning rate where the last update's KL is above the desired one, a larger one below it."""
    if kl > 2.0 * desired:
        return max(learning_rate / 1.5, 1e-5)
    if 0.0 < kl < 0.5 * desired:
        return min(learning_rate * 1.5, 1e-2)
    return learning_rate
