"""The method, whatever the host: a rollout's rewards, the scale of the critic's targets, and what frames an update.

All of it is torch on the device of the host's tensors, once an iteration. With fixed weights and a prior that is a
network, only `Method.iteration_metrics` waits for the device.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import NumericError, UsageError
from repolicy.hosts.normalized_critic import NormalizedCritic
from repolicy.hosts.priors import squashes
from repolicy.hosts.steering import Steering, has_weight
from repolicy.learning.multipliers import block_means, initial_worth
from repolicy.learning.ppo import ReturnScale, adaptive_learning_rate, explained_share, std_speed
from repolicy.learning.worker import MIN_WARMUP_LEARNING_RATE
from repolicy.objective import DIALED, Reward, reformulated
from repolicy.policies import Density, Mlp, log_tanh_slope, moment_sums
from repolicy.prepare.states import familiarity
from repolicy.runs import Estimate, Settings

DESIRED_KL = Settings().desired_kl  # of an update
TARGET_RATIO = 3.0  # an update ends early at this many times its desired KL, as the engine's does
REWARD_PARTS = {  # each in words
    "task": "reward",
    "prior": "prior's log-probability",
    "entropy": "policy's log-probability",
    "states": "price on states",
}
BUDGET_METRICS = ("prior_kl", "below_prior", "below_prior_squares")  # nats a step, estimated from the sampled actions
ROLLOUT_SUMS = (*REWARD_PARTS, *BUDGET_METRICS, "later", "steps")  # later: reward from ends later than the prior's
LATER_AVERAGING = 0.05  # share of the newest rollout in the running mean of "later"


def accelerate_std(optimizer: torch.optim.Optimizer, log_std: Tensor, samples: int) -> None:
    """Make an optimizer's steps of `log_std` longer, as the engine's are with this number of samples an update.

    A matrix of gSDE keeps its steps, as in the engine.
    """
    if log_std.dim() > 1:
        return
    before = log_std.detach().clone()

    def save_log_std(*_: Any) -> None:
        before.copy_(log_std.detach())

    def lengthen_step(*_: Any) -> None:
        log_std.data.add_(log_std.detach() - before, alpha=std_speed(samples) - 1.0)

    optimizer.register_step_pre_hook(save_log_std)
    optimizer.register_step_post_hook(lengthen_step)


class HostRollout(NamedTuple):
    """A rollout as a host collected it. All tensors are `[T, N, ...]` and on one device."""

    observations: Any  # in the form that the prior takes
    actions: Tensor  # as they were sampled
    log_policy: Tensor
    task_rewards: Tensor
    ended: Tensor  # bool
    terminated: Tensor  # bool: ended, and not at a time limit
    states: Callable[[], Tensor]  # returns the observations before each step and after the last, `[T + 1, N, O]`
    limit_values: Tensor  # the quantities that have limits, `[L, T, N]`
    gamma: float  # the host's discount


class RolloutRewards(NamedTuple):
    """The rewards of a rollout, and sums for the log. The sums run over all GPUs."""

    reward: Reward
    sums: Tensor  # one for each name of `ROLLOUT_SUMS`
    limit_sums: Tensor  # of each limited quantity: sum of means, of squared means, and of squares, `[3, L]`
    steps_per_mean: int
    action_width: float  # infinite where the prior's entropy is unknown


class Method:
    """What a host calls in every iteration, in this order: `reward`, `credit`, `iteration_metrics`, `policy_update`."""

    critic: NormalizedCritic  # only where `changes_rewards`
    update_kl_sums: Tensor | None = None  # of the last update: KL(old ‖ new) summed over some states, and their number
    desired_kl: float = DESIRED_KL
    update_kl: float  # the mean KL by `update_kl_sums`; set by `iteration_metrics`
    spending: tuple[dict[str, float], int]  # means of `BUDGET_METRICS`, and the number of steps
    rollout_rewards: RolloutRewards  # set by `reward`
    # Set by `credit`: `moment_sums` of the critic's errors and of the returns, `[3, 2]`, and what the critic explains
    # of the returns' variance, None where that is to be computed from the moments.
    return_moments: Tensor
    explained_variance: float | None

    def __init__(self, steering: Steering, prior: Any, add_up: Callable[[Tensor], Any] = lambda tensor: tensor) -> None:
        """Take a `HostPrior`, or None for no prior. `add_up` sums a tensor over all GPUs, in place."""
        self.steering, self.prior, self.add_up = steering, prior, add_up
        self.user_settings = steering.objective, steering.settings.budget  # before anything is measured
        self.scale = ReturnScale()
        self.squashes = squashes(prior)  # the environment gets tanh of the actions, and their density after it counts
        self.density: Density | None = None  # of the prior's states, where the objective weighs them
        self.ages: Tensor | None = None  # steps into the running episodes, `[N]`
        self.curves: dict[str, list[Any]] = {"steps": []}  # every iteration's metrics, for the report
        self.verdict_episodes: list[dict[str, Any]] = []  # episodes of the last verdict, for the report

    @property
    def changes_rewards(self) -> bool:
        return has_weight(self.steering.objective) or bool(self.steering.priced_limits)

    @property
    def is_ready(self) -> bool:
        """Whether nothing is left to be measured by episodes of the prior."""
        steering, weights = self.steering, self.steering.objective
        has_density = not weights.states or self.density is not None
        has_limit = bool(steering.kept_limit) or not steering.keep
        return self.prior is None or (weights.is_set and has_density and has_limit)

    def reset_episodes(self) -> None:
        """Reset the prior's memory and the ages, because episodes begin anew in all environments."""
        self.ages = None
        if self.prior is not None:
            self.prior.reset()

    def normalize_critic(self, module: nn.Module, output_layer: nn.Linear | Mlp) -> None:
        """Train the host's critic on normalized returns. Without any weight the critic stays as the host has it."""
        if self.changes_rewards:
            last = output_layer.biases[-1] if isinstance(output_layer, Mlp) else output_layer.bias
            self.scale = ReturnScale(len(last))
            self.critic = NormalizedCritic(module, output_layer, self.scale)

    def reward(self, rollout: HostRollout, **weights: Tensor) -> Tensor:
        """Return the reformulated rewards `[T, N]` of a rollout, and store their sums for `iteration_metrics`.

        `weights`: the omega or alpha of each step, where that is a range.
        """
        task, log_policy = rollout.task_rewards, rollout.log_policy
        if self.squashes:
            slope = log_tanh_slope(rollout.actions).sum(-1)
            log_policy = log_policy - slope.to(log_policy.device)
        log_prior, below_prior, action_width = self._score_by_prior(rollout)
        ages = episode_ages(rollout.ended, self.ages)
        self.ages = ages[-1]
        familiar = self._familiarity(rollout, ages[1:])
        reward = reformulated(self.steering.objective, task, log_prior, log_policy, familiar, **weights)

        # sums for the log, in the order of `ROLLOUT_SUMS`
        prior_kl = below_prior if log_prior is None else log_policy - log_prior
        later = 0.0 * task
        if self.steering.kept_limit:
            later = self.steering.earned_later(ages[:-1], rollout.ended).to(task)
        parts = [getattr(reward, name) for name in REWARD_PARTS]
        summed = [*parts, prior_kl, below_prior, below_prior.square(), later, torch.ones_like(task)]
        values = rollout.limit_values.double()
        means = block_means(values)
        limit_sums = torch.stack([means.sum(-1), means.square().sum(-1), values.square().sum((1, 2))])
        totals = self.add_up(torch.stack([part.double().sum() for part in summed]))
        steps_per_mean = task.numel() // means.shape[-1]
        self.rollout_rewards = RolloutRewards(reward, totals, self.add_up(limit_sums), steps_per_mean, action_width)

        total: Tensor = reward.total
        limits = self.steering.priced_limits
        return total - limits.price(rollout.limit_values[: len(limits)]) if limits else total

    def _score_by_prior(self, rollout: HostRollout) -> tuple[Tensor | None, Tensor, float]:
        """Return log prior `[T, N]`, how many nats that is below the prior's own actions, and the actions' width."""
        task = rollout.task_rewards
        if self.prior is None:
            return None, torch.zeros_like(task), math.inf
        log_prior, entropy = self.prior.score(rollout.observations, rollout.actions, rollout.ended)
        if entropy is None and self.steering.log_prior_budget is not None:
            what = "log_prior_budget asks how likely the prior's own actions are, which this prior does not tell"
            raise UsageError(f"{what}: take kl_budget")
        below_prior = torch.zeros_like(log_prior) if entropy is None else -entropy - log_prior
        # A host may keep rollouts on another device than its networks: both go there in one copy.
        log_prior, below_prior = torch.stack([log_prior, below_prior]).to(task.device)
        return log_prior, below_prior, math.inf if entropy is None else rollout.actions.shape[-1]

    def credit(self, returns: Tensor, values: Tensor, explained_variance: float | None = None) -> None:
        """Take in a rollout's returns, and normalize returns and values in place: `[T, N]`, or `[T, N, H]`."""
        self.return_moments = moments = self.add_up(moment_sums(torch.stack([returns - values, returns], -1)))
        self.explained_variance = explained_variance
        if not self.changes_rewards:
            return
        outputs = self.scale.apply(values)
        factor, offset = self.scale.update(moments[:, 1:] if returns.dim() == 2 else self.add_up(moment_sums(returns)))
        self.critic.rescale(factor, offset)
        returns.copy_(self.scale.apply(returns))
        values.copy_(outputs * factor.to(outputs.dtype) + offset.to(outputs.dtype))

    def iteration_metrics(self) -> dict[str, float]:
        """Return the iteration's metrics, and add them to the curves. Raises where a mean is not finite."""
        steering, objective = self.steering, self.steering.objective
        rewards = self.rollout_rewards
        kl_sums = torch.zeros(2) if self.update_kl_sums is None else self.update_kl_sums
        totals, limit_sums, moments, (return_scale,), (kl, states) = to_numbers(  # the one wait for the device
            rewards.sums, rewards.limit_sums, self.return_moments, self.scale.std.mean(), kl_sums
        )
        self.update_kl = kl / max(states, 1.0)

        by_name = dict(zip(ROLLOUT_SUMS, totals, strict=True))
        steps = by_name.pop("steps")
        means = {name: total / steps for name, total in by_name.items()}
        limits = dict(zip(steering.all_limits, np.reshape(limit_sums, (3, -1)).T.tolist(), strict=True))
        check_finite(
            {name: means[name] for name in REWARD_PARTS} | {name: sum(three) for name, three in limits.items()}
        )
        self.spending = {name: means[name] for name in BUDGET_METRICS}, int(steps)

        explained = self.explained_variance
        if explained is None:
            explained = _explained_variance(np.reshape(moments, (3, 2)) / steps)
        steering.explained_variance = explained
        metrics = {f"reward_{name}": means[name] for name in REWARD_PARTS if name != "states" or objective.states}
        ranges = {dial.name for dial in objective.dials}
        metrics |= {name: getattr(objective, name) for name in DIALED if name not in ranges}
        if self.prior is not None:
            metrics["prior_kl"] = means["prior_kl"]
        metrics |= {"explained_variance": steering.explained_variance, "return_scale": return_scale}
        steering.later_earnings += LATER_AVERAGING * (means["later"] - steering.later_earnings)
        entropy_gain = means["below_prior"] - means["prior_kl"]
        metrics |= self._measure_limits(limits, steps, entropy_gain, means["task"])
        self._extend_curves(metrics, int(steps))
        return metrics

    def _measure_limits(
        self, limits: Mapping[str, list[float]], steps: float, entropy_gain: float, task: float
    ) -> dict[str, float]:
        """Pass the measured quantities to the limits, and return their metrics.

        limits: of each the sum of its means, of their squares, and over all steps of its square.
        entropy_gain: the policy's entropy above the prior's.
        task: the mean reward of the task.
        """
        steering, count = self.steering, steps / self.rollout_rewards.steps_per_mean
        measured = {name: Estimate.of(total, square, count) for name, (total, square, _) in limits.items()}
        means = {name: found.mean for name, found in measured.items()}
        if kept := measured.get(steering.kept_limit):
            # The limit is on the mean action, and these steps were sampled: add what their noise costs. That grows
            # with the variance of the noise, which follows from the entropies.
            noise_cost = steering.sampling_gap * min(
                1.0, math.exp(2.0 * entropy_gain / self.rollout_rewards.action_width)
            )
            # Episodes that end earlier than the prior's lose what it earned later. A later end counts for nothing,
            # because the prior's early ends may come from its noise alone.
            measured[steering.kept_limit] = kept._replace(
                mean=kept.mean + noise_cost + min(0.0, steering.later_earnings)
            )
        sizes = {name: math.sqrt(square / steps) for name, (*_, square) in limits.items()}
        worth = initial_worth(steering.objective, task)
        metrics = steering.priced_limits.metrics(measured, sizes, worth, means)
        ones, zeros = dict.fromkeys(sizes, 1.0), dict.fromkeys(sizes, 0.0)
        return metrics | steering.kept_share.metrics(measured, ones, worth, zeros)

    @contextmanager
    def policy_update(
        self, actor: Iterable[nn.Parameter], learning_rate: float | None, set_learning_rate: Callable[[float], None]
    ) -> Iterator[bool]:
        """Wrap the host's update: yield whether only the critic is trained in this iteration, then move the weights.

        learning_rate: None where it is fixed; else it adapts to the KL of the last update of the actor.
        """
        critic_only = not self.steering.trains_actor
        if learning_rate is not None:
            learning_rate = adaptive_learning_rate(learning_rate, self.update_kl, self.desired_kl)
            set_learning_rate(max(learning_rate, MIN_WARMUP_LEARNING_RATE) if critic_only else learning_rate)
        with without_gradient(actor if critic_only else ()):
            yield critic_only
        if not critic_only:
            self.verdict_episodes = []  # they were of the policy before
        if learning_rate is not None:
            set_learning_rate(learning_rate)  # the one that a checkpoint stores
        self.update_kl_sums = None
        self.steering.steer(*self.spending)

    def _extend_curves(self, metrics: Mapping[str, float], steps: int) -> None:
        """Add an iteration's metrics to the curves; a metric has None in iterations without it."""
        before = self.curves["steps"]
        count, new = len(before), {**metrics, "steps": (before[-1] if before else 0) + steps}
        for name in {**self.curves, **new}:
            self.curves.setdefault(name, [None] * count).append(new.get(name))

    def _familiarity(self, rollout: HostRollout, ages: Tensor) -> Tensor | None:
        """Return how familiar the next states are to the prior, `[T, N]`; None where they have no price.

        A host does not give an episode's last observation: the one before it takes its place where an episode is
        terminated, and at a time limit nothing is priced.
        """
        if self.density is None or not self.steering.objective.states:
            return None
        states, terminated = rollout.states(), rollout.terminated
        next_states = torch.where(terminated.unsqueeze(-1), states[:-1], states[1:])
        found = familiarity(self.density, next_states, ages, terminated, rollout.gamma)
        return found.to(rollout.task_rewards.dtype)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores beside the networks and the density, in plain numbers."""
        curves = {name: [*values] for name, values in self.curves.items()}
        moved = None if self.update_kl_sums is None else self.update_kl_sums.tolist()
        critic = self.critic.state() if self.changes_rewards else {}
        return self.steering.state() | critic | {"moved": moved, "curves": curves, "compared": self.verdict_episodes}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.steering.resume(state, *self.user_settings)
        self.curves = {name: [*values] for name, values in state.get("curves", self.curves).items()}
        self.verdict_episodes = [*state.get("compared", ())]
        moved = state.get("moved")
        self.update_kl_sums = torch.tensor(moved, dtype=torch.float64) if moved else None

    def critic_in_rewards(self) -> AbstractContextManager[None]:
        """Let the critic predict plain rewards inside the `with` block, so that others can load what is saved."""
        return self.critic.in_rewards() if self.changes_rewards else nullcontext()

    def resume_critic(self, state: Mapping[str, Any] | None) -> None:
        """Continue with a loaded critic. `state` is None where the host's own class saved it."""
        if self.changes_rewards:
            self.critic.resume(state if state and "returns" in state else None)


@contextmanager
def without_gradient(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Freeze the parameters inside the `with` block, so that an optimizer skips them."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def to_numbers(*tensors: Tensor) -> list[list[float]]:
    """Return the numbers of each tensor, with a single wait for the device of the first."""
    numbers = iter(torch.cat([tensor.to(tensors[0]).flatten() for tensor in tensors]).tolist())
    return [list(islice(numbers, tensor.numel())) for tensor in tensors]


def episode_ages(ended: Tensor, before: Tensor | None) -> Tensor:
    """Return the age of each state of a rollout in steps of its episode, `[T + 1, N]`; an episode begins at age 0.

    before: the ages of the rollout's first states, `[N]`; None where episodes begin there.
    """
    first = torch.zeros_like(ended[0], dtype=torch.long) if before is None else before
    steps = torch.arange(1, len(ended) + 1, device=ended.device).unsqueeze(-1)
    last = torch.where(ended, steps, 0).cummax(0).values  # the step behind the last end, 0 before the first one
    return torch.cat([first.unsqueeze(0), torch.where(last > 0, steps - last, first + steps)])


def _explained_variance(moments: np.ndarray) -> float:
    """Return the share of the returns' variance that the critic explains, by the mean moments `[3, 2]`."""
    _, means, squares = moments
    unexplained, variance = np.maximum(squares - means**2, 0.0).tolist()
    return explained_share(unexplained, variance)


def check_finite(parts: Mapping[str, float]) -> None:
    """Raise where a part of the reward is not finite, before anything learns from it."""
    for name, value in parts.items():
        if not math.isfinite(value):
            what = REWARD_PARTS.get(name, f"quantity of the limit {name}")
            raise NumericError(f"the {what} is not finite in this iteration; no update was made from it")
