"""PPO: advantages, and the clipped update. It knows rewards, not where they come from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from repolicy.errors import NumericError
from repolicy.policies import Mlp, Policy, adam_step, flatten, merged
from repolicy.runs import Ranks, Settings


class Rescaled(Protocol):
    """A critic whose outputs `[..., H]` can be turned into others."""

    def rescale(self, factor: Tensor, offset: Tensor) -> None:
        """Change its outputs to factor · what they were + offset, both `[H]`."""


MEMORY = 1.0  # all rollouts before count as much as this one: a critic that begins sees its returns move far


class ReturnScale:
    """Mean and std of what each head of a critic predicts, `[H]`."""

    def __init__(self, heads: int = 1) -> None:
        self.statistics = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64).repeat(1, heads)  # as in `merged`

    @property
    def mean(self) -> Tensor:
        return self.statistics[1]

    @property
    def std(self) -> Tensor:
        return (self.statistics[2] + 1e-8).sqrt()

    def update(self, added: Tensor, critic: Rescaled) -> None:
        """Take in a rollout's returns, by their `normalizer.sums`. What the critic predicts stays the same.

        But at first the critic knows nothing, and so its outputs stay, which are about 0: it predicts the mean.
        """
        count, mean, var = self.statistics.to(added.device)
        known, std = count > 0, (var + 1e-8).sqrt()
        self.statistics = merged(torch.stack([count.clamp(max=MEMORY * added[0]), mean, var]), added)
        critic.rescale(torch.where(known, std / self.std, 1.0), torch.where(known, (mean - self.mean) / self.std, 0.0))

    def apply(self, returns: Tensor) -> Tensor:
        """Return returns `[..., H]` in this unit."""
        return (returns - self.mean.to(returns)) / self.std.to(returns)

    def undo(self, outputs: Tensor) -> Tensor:
        """Return the returns that outputs `[..., H]` stand for."""
        return outputs * self.std.to(outputs) + self.mean.to(outputs)


STD_SPEED = 4.0  # of a std's logarithm while customizing, as a multiple of the learning rate: else it narrows late;
STD_SAMPLES = 4096  # but with fewer samples an update policies got worse (1,024: Ant, Hopper; 2,048: a puck)


def advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """Return generalized advantages `[T, N]` of rewards `[T, N]` under values V(s_t) and V(s_{t+1}), both `[T, N]`.

    terminated: nothing follows, so the next value does not count: the discount of that step is 0.
    ended: the episode ended, by termination or by a time limit; the sum over later steps stops there. At a time limit
    `next_values` must hold the value of the observation that the episode ended in.
    """
    discounts = gamma * (~terminated).to(rewards.dtype)  # γ_t: 0 where nothing follows
    errors = rewards + discounts * next_values - values  # δ_t = r_t + γ_t V(s_{t+1}) − V(s_t)
    decays = gamma * lam * (~ended).to(rewards.dtype)
    result = torch.empty_like(errors)
    following = torch.zeros_like(errors[0])
    for t in reversed(range(len(errors))):
        following = torch.addcmul(errors[t], decays[t], following, out=result[t])  # A_t = δ_t + γλ A_{t+1}
    return result


@dataclass(frozen=True)
class Batch:
    """What the update learns from: B samples of one rank."""

    inputs: Tensor  # [B, O] normalized observations, for the policy
    actions: Tensor  # [B, A]
    log_probs: Tensor  # [B] under the policy that acted
    advantages: Tensor  # [B]
    returns: Tensor  # [B, H] what the critic is to predict, in its unit
    own_inputs: Tensor | None = None  # [B, C] the critic's own, where it does not see what the policy sees

    @property
    def critic_inputs(self) -> Tensor:
        return self.inputs if self.own_inputs is None else self.own_inputs

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator["Batch"]:
        """Yield about `size` samples each; what is left over is spread, as a step on a few samples is mostly noise."""
        count = max(1, round(len(self.inputs) / size))
        for rows in torch.randperm(len(self.inputs), generator=generator).tensor_split(count):
            parts: list[Any] = [None if each is None else each.index_select(0, rows) for each in vars(self).values()]
            yield Batch(*parts)


class Losses(NamedTuple):
    """What one minibatch says; all but the first two are without gradient."""

    policy: Tensor
    value: Tensor
    divergence: Tensor
    clipped: Tensor
    log_ratios: Tensor  # [B]


class Means(NamedTuple):
    """What a gradient step says of itself, averaged over ranks; of an update, averaged over its steps, too."""

    policy_loss: float
    value_loss: float
    kl: float
    clipped: float
    gradient_norm: float


@dataclass(frozen=True)
class Report:
    """What an update says of itself."""

    means: Means
    learning_rate: float  # as the update left it
    epochs: int  # that were begun

    def as_dict(self) -> dict[str, float]:
        """Return it as the log has it."""
        return self.means._asdict() | {"learning_rate": self.learning_rate, "epochs": self.epochs}


class Learner:
    """A policy, a critic with its unit, and one Adam over all their parameters, which live in one flat tensor."""

    def __init__(self, policy: Policy, critic: Mlp, learning_rate: float, std_speed: float = 1.0) -> None:
        self.policy = policy
        self.critic = critic
        self.return_scale = ReturnScale(len(critic.biases[-1]))
        self.learning_rate = learning_rate
        self.actor_size = sum(parameter.numel() for parameter in policy.parameters())
        # Behind the gradient there is room for the losses' report: both are summed over the ranks at once.
        self.parameters, self._sums = flatten([*policy.parameters(), *critic.parameters()], extra=4)
        self.gradient, self._report = self._sums.split([len(self.parameters), 4])
        self._mean, self._var = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self._steps = {"actor": 0, "critic": 0}  # of Adam: the critic may be fitted alone for a while
        self._std, self._std_speed = std_logarithm(policy), std_speed

    def values(self, inputs: Tensor) -> Tensor:
        """Return V of the critic's inputs `[..., C]` by each of its H heads, `[..., H]`."""
        return self.return_scale.undo(self.critic(inputs))

    def differentiate(self, batch: Batch, settings: Settings, bonus: float) -> Losses:
        """Return the losses of a minibatch; their gradient, less `bonus` · entropy's, is left in `self.gradient`."""
        self._sums.zero_()
        distribution = self.policy.distribution(batch.inputs)
        result = losses(distribution.log_prob(batch.actions), self.critic(batch.critic_inputs), batch, settings)
        loss = result.policy + settings.value_coefficient * result.value
        if bonus:
            loss = loss - bonus * distribution.entropy().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # adds to the gradients, which are views of one tensor
        self._report.copy_(torch.stack([result.policy, result.value, result.divergence, result.clipped]).detach())
        return Losses(*(each.detach() for each in result))

    def step(self, max_norm: float, team: Ranks, fit_actor: bool) -> Means:
        """Take one step of Adam on the gradient averaged over ranks; return the means over them, and its norm."""
        if not fit_actor:
            self.gradient[: self.actor_size].zero_()
        if team.count > 1:
            team.sum(self._sums).div_(team.count)
        norm = float(self.gradient.norm())
        if not math.isfinite(norm):
            raise NumericError("the gradient is not finite")
        if norm > max_norm:
            self.gradient.mul_(max_norm / norm)
        self._adam(fit_actor)
        policy, value, divergence, clipped = self._report.tolist()
        return Means(policy, value, divergence, clipped, norm)

    def _adam(self, fit_actor: bool) -> None:
        """Take a step of Adam. Each part counts its own: by the critic's, an actor that joins late would leap."""
        moved = ["actor", "critic"] if fit_actor else ["critic"]
        for name in moved:
            self._steps[name] += 1
        if len(set(self._steps.values())) == 1:
            self._adam_part(slice(None), self._steps["critic"])
            return
        parts = {"actor": slice(0, self.actor_size), "critic": slice(self.actor_size, None)}
        for name in moved:
            self._adam_part(parts[name], self._steps[name])

    def _adam_part(self, part: slice, steps: int) -> None:
        adam_step(
            self.parameters[part], self.gradient[part], self._mean[part], self._var[part],
            steps=steps, rate=self.learning_rate, epsilon=1e-5,
            quick=self._std, factor=1.0 if part.start else self._std_speed,
        )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next update depends on."""
        return {
            "parameters": self.parameters,
            "adam_mean": self._mean,
            "adam_var": self._var,
            "returns": self.return_scale.statistics,
            "adam_steps": torch.tensor(list(self._steps.values())),
            "learning_rate": torch.tensor(self.learning_rate, dtype=torch.float64),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        self.parameters.copy_(state["parameters"])
        self._mean.copy_(state["adam_mean"])
        self._var.copy_(state["adam_var"])
        self.return_scale.statistics = state["returns"]
        self._steps = dict(zip(self._steps, state["adam_steps"].tolist(), strict=True))
        self.learning_rate = float(state["learning_rate"])


def std_speed(samples: int) -> float:
    """Return by how much longer steps the logarithm of a std learns while customizing, by the samples of an update."""
    return STD_SPEED if samples >= STD_SAMPLES else 1.0


def std_logarithm(policy: Policy) -> slice:
    """Return which of a policy's flat parameters are the logarithm of one std for all states; perhaps none are."""
    found = policy.log_std
    if found is None or found.dim() > 1 or policy.spec.std != "exp":
        return slice(0, 0)
    return slice(found.storage_offset(), found.storage_offset() + found.numel())


def losses(log_probs: Tensor, values: Tensor, batch: Batch, settings: Settings) -> Losses:
    """Return PPO's loss (Eq. 2) without its entropy: the surrogate, and the critic's squared error."""
    log_ratios = log_probs - batch.log_probs
    ratios = log_ratios.exp()
    clipped_ratios = ratios.clip(1.0 - settings.clip, 1.0 + settings.clip)
    if settings.surrogate == "vanilla":  # Eq. 6, with the baseline of Eq. 11
        policy = -(log_probs * batch.advantages).mean()
    else:
        policy = -torch.minimum(ratios * batch.advantages, clipped_ratios * batch.advantages).mean()
    with torch.no_grad():
        divergence = (ratios - 1.0 - log_ratios).mean()  # KL(old ‖ new), from samples of the old
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
) -> Report:
    """Go over the batch several times, in shuffled minibatches of `settings.minibatch` over all ranks together."""
    size = max(1, min(settings.minibatch // team.count, len(batch.inputs)))
    far = math.inf if settings.target_kl is None else settings.target_kl
    steps: list[Means] = []
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
            if kls[-1] > far:
                break
        if kls[-1] > far:
            break

    if settings.schedule == "adaptive" and fit_actor:  # a policy that stands still has no KL to steer by
        learner.learning_rate = adapted(learner.learning_rate, sum(kls) / len(kls), settings.desired_kl)
    means = Means(*torch.tensor(steps, dtype=torch.float64).mean(0).tolist())
    return Report(means, learner.learning_rate, epochs)


def check_first_minibatch(result: Losses, batch: Batch) -> None:
    """Raise unless, before the first step, the policy is the one that acted: every ratio 1, every number finite."""
    if not math.isfinite(float(result.policy + result.value)):
        raise NumericError("the loss is not finite")
    worst = float((result.log_ratios.abs() / (1.0 + batch.log_probs.abs())).max())
    if not worst < 1e-3:
        raise NumericError(
            "in the first minibatch the policy's log-probabilities differ from those recorded while acting (by "
            f"{worst:.2g}): the normalizer moved, they are stale, or the policy is not a function of the observation"
        )


def adapted(learning_rate: float, kl: float, desired: float) -> float:
    """Return the KL-adaptive schedule: slower when an update moved the policy too far, faster when too little."""
    if kl > 2.0 * desired:
        return max(learning_rate / 1.5, 1e-5)
    if 0.0 < kl < 0.5 * desired:
        return min(learning_rate * 1.5, 1e-2)
    return learning_rate
