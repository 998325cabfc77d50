"""Lagrange multipliers: weights that move until a budget of nats, a kept share of the old return, or limits hold.

A weight rises while its constraint is broken and falls while it holds. It follows the constraint's violation, which is
above 0 where it is broken, by a proportional-integral (PI) rule on its logarithm:

    log weight ← log weight + STEERING · violation + DAMPING · (violation − last violation)

A budget or a kept share moves the weights of the prior in the objective. Each limit has a weight of its own, by which
the reward falls with each unit of its quantity beyond the bound. (If the whole quantity had a price, ending an episode
early would pay off.) The engine measures limits and shares with the action that is deployed (the mean; of a
generative policy sampled noise), in environments of their own; hosts measure them in the training rollouts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.addons import Limit, parse_limits
from repolicy.envs import Rollout, make_envs, probe_env
from repolicy.evaluation import episode_cap, run_episodes
from repolicy.objective import Objective
from repolicy.policies import Policy
from repolicy.prepare.spending import RETURN_EPISODES
from repolicy.priors import MeanPrior
from repolicy.runs import Budget, Estimate, Ranks, Request, Stream, derived_seed
from repolicy.text import with_minus

MAX_VIOLATION = 2.0
STEERING = 0.03  # integral gain, per iteration
DAMPING = 1.0  # proportional gain; without it the weight answers too late, and the policy overshoots far
MAX_NOISE = 0.25  # std that a violation may have; noisier measurements are averaged over iterations
MIN_SMOOTHING = 0.05  # weight of the newest measurement in an average, at least
MIN_WEIGHT, MAX_WEIGHT = 1e-12, 1e12  # of the prior's terms: they can rise and fall again, and none overflows

LIMIT_UNIT = 0.1  # share of its bound by which a limit is broken at a violation of 1
MIN_SPREAD = 1e-7  # std of a quantity as a share of its size; a smaller one is rounding
SHARE_OF_TASK = 0.1  # of the task's reward in a step that a limit's weight begins at, where no omega tells
MAX_WEIGHT_CHANGE = 1e3  # a limit's weight stays within this factor of its initial value
MIN_MEANS = 8  # number of means from which the noise of a measurement is estimated
OVERSPENT_RATIO = 1.25  # spent/budget from which a warning follows
LAST_ITERATIONS = 20  # number of iterations by which a limit is judged at the end
MIN_EXPLAINED_VARIANCE = -0.5  # below it the critic cannot follow, so budgets and limits do not move the weights
STANDING_SHARE = 0.25  # of the iterations without such a move from which a warning tells why
MIN_LOST_SHARE = 0.01  # of the old return; the finest unit in which a kept share is steered


def smoothing_weight(noise: float) -> float:
    """Return the weight of the newest violation in a running average, by its std; the window is at most about 20."""
    return max(MIN_SMOOTHING, min(1.0, MAX_NOISE**2 / max(noise**2, 1e-12)))


def usual_noise(noise: float, last: float | None) -> float:
    """Return the running root mean square of a measurement's noise.

    A rare fall makes its own measurement noisy. Averaged by that noise alone, it would hardly count.
    """
    return noise if last is None else math.sqrt(last**2 + MIN_SMOOTHING * (noise**2 - last**2))


def budget_violation(
    spent: float, budget: float, last: float = 0.0, samples: float = math.inf, variance: float | None = None
) -> float:
    """Return log(spent / budget), clipped to ±`MAX_VIOLATION`.

    `spent` is a mean over samples, each with the given variance; for a KL near its budget, that is twice the budget.
    Where it is noisy (a measured KL may even be negative), it is averaged with the `last` violation.
    """
    variance = 2 * budget if variance is None else variance
    weight = smoothing_weight(math.sqrt(max(variance, 0.0) / samples) / budget)
    if weight < 1.0:
        spent = weight * spent + (1.0 - weight) * budget * math.exp(last)
    spent = max(spent, budget * math.exp(-2 * MAX_VIOLATION))  # a logarithm needs a number above 0
    return max(-MAX_VIOLATION, min(MAX_VIOLATION, math.log(spent / budget)))


def limit_violation(broken_by: float, noise: float, last: float | None) -> float:
    """Return a limit's violation, averaged with the last one; all arguments are in the limit's unit.

    The average is clipped, not the measurement, in which a rare fall costs much at once. The clip range is twice as
    wide as a budget's, so that noise around a bound is not cut on one side.
    """
    violation = broken_by if last is None else last + smoothing_weight(noise) * (broken_by - last)
    return max(-2 * MAX_VIOLATION, min(2 * MAX_VIOLATION, violation))


def limit_change(violation: float, last: float | None) -> float:
    """Return the change of a violation, of which only the part within ±1 of a limit counts."""
    last = violation if last is None else last
    return max(-1.0, min(1.0, violation)) - max(-1.0, min(1.0, last))


def moved_weight(weight: float, violation: float, change: float) -> float:
    """Return the weight of the next iteration, by the PI rule."""
    return weight * math.exp(STEERING * violation + DAMPING * change)


def steered_objective(objective: Objective, last: float, violation: float, *, omega_alone: bool = False) -> Objective:
    """Return the objective with the prior's weights moved by a budget's violation.

    omega and alpha move together: they are the multiplier of the constraint KL ≤ budget. A larger omega alone would
    sharpen the policy around the prior's mode, and so move it away from the prior. For a log-prior budget
    (`omega_alone`), omega is the multiplier by itself, as a larger one always makes actions likelier.
    """
    weights = dict[str, Any]()
    for name in ("omega",) if omega_alone else ("omega", "alpha"):
        moved = moved_weight(getattr(objective, name), violation, violation - last)
        weights[name] = min(MAX_WEIGHT, max(MIN_WEIGHT, moved))
    return replace(objective, **weights)


def follow_budget(
    objective: Objective, budget: Budget, metrics: Mapping[str, float], last: float, samples: int
) -> tuple[Objective, float]:
    """Return the objective of the next iteration, and the budget's violation in this one's means over `samples`."""
    spent, omega_alone = metrics[budget.metric], budget.metric == "below_prior"
    variance = metrics["below_prior_squares"] - spent**2 if omega_alone else None
    violation = budget_violation(spent, budget.amount, last, samples, variance)
    return steered_objective(objective, last, violation, omega_alone=omega_alone), violation


def with_omega(objective: Objective, omega: float) -> Objective:
    """Return the objective with the omega that a kept share moved; an alpha that is the same number stays the same."""
    return replace(objective, omega=omega, alpha=omega if objective.alpha == objective.omega else objective.alpha)


@dataclass
class HeldLimit:
    """A limit with its multiplier, and its violation and usual noise: None before they were measured."""

    limit: Limit
    weight: float = 0.0
    initial_weight: float = 0.0
    unit: float = 0.0  # by how much the limit is broken at a violation of 1
    violation: float | None = None
    noise: float | None = None

    def begin(self, size: float, worth: float, mean: float = 0.0) -> None:
        """Set the initial weight, at which the quantity's typical `size` in a step is worth this much reward.

        Where it was 0 in all steps, such as a collision that never happened, the bound is taken for its size. Where it
        varies by little beside its `mean`, such as a height over sea level, its std tells its size.
        """
        std = math.sqrt(max(size**2 - mean**2, 0.0))
        size = size or abs(self.limit.bound) or 1.0
        unit = LIMIT_UNIT * (abs(self.limit.bound) or size)
        if MIN_SPREAD * size < std < LIMIT_UNIT * size:
            size, unit = std / LIMIT_UNIT, min(unit, std)
        self.initial_weight = self.weight = worth / max(size, MIN_WEIGHT)
        self.unit = self.unit or unit

    def move(self, measured: Estimate) -> None:
        """Move the weight by the mean of the quantity that was measured."""
        last = self.violation
        broken_by = self.limit.excess(measured.mean) / self.unit
        self.noise = usual_noise(measured.error / self.unit, self.noise)
        self.violation = limit_violation(broken_by, self.noise, last)
        weight = moved_weight(self.weight, self.violation, limit_change(self.violation, last))
        lowest, highest = self.initial_weight / MAX_WEIGHT_CHANGE, self.initial_weight * MAX_WEIGHT_CHANGE
        self.weight = max(lowest, min(highest, weight))

    def state(self) -> list[float]:
        """Return the numbers of a checkpoint."""
        measured = (number for number in (self.violation, self.noise) if number is not None)
        return [self.weight, self.initial_weight, self.unit, *measured]

    def restore(self, numbers: Sequence[float]) -> None:
        """Load what `state` returned."""
        self.weight, self.initial_weight, self.unit, *measured = numbers
        self.violation, self.noise, *_ = [*measured, None, None]  # an older checkpoint has no noise


def initial_worth(objective: Objective, task: float) -> float:
    """Return what a limit's quantity is worth at first: as much as a nat of the prior, or a share of the task's reward.

    Without omega, alpha alone may be far too little for a limit to hold.
    """
    return objective.omega or max(objective.alpha, SHARE_OF_TASK * abs(task)) or 1.0


class Limits(dict[str, HeldLimit]):
    """Limits by their text; the engine and hosts measure their quantities in their own ways."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        super().__init__({str(limit): HeldLimit(limit) for limit in limits})
        self.measured: dict[str, Estimate] = {}

    def price(self, values: Iterable[Any]) -> Any:
        """Return what all limits take from the reward, from each one's quantity (any shape); at a bound it is 0."""
        return sum(held.weight * held.limit.excess(one) for held, one in zip(self.values(), values, strict=True))

    def metrics(
        self, measured: dict[str, Estimate], sizes: dict[str, float], worth: float, means: Mapping[str, float]
    ) -> dict[str, float]:
        """Store what was measured and return its log columns; the first call also begins every limit.

        sizes, means: of each quantity in the training steps, for `HeldLimit.begin`.
        """
        self.measured = measured
        metrics = dict[str, float]()
        for name, held in self.items():
            if not held.initial_weight:
                held.begin(sizes[name], worth, means[name])
            metrics |= {f"limit_{name}": measured[name].mean, f"multiplier_{name}": held.weight}
        return metrics

    def steer(self) -> None:
        """Move every weight by what was measured."""
        for name, held in self.items():
            held.move(self.measured[name])

    def state(self) -> dict[str, list[float]]:
        """Return the numbers of a checkpoint."""
        return {name: held.state() for name, held in self.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Load what `state` returned; a limit that is not in it begins anew."""
        for name, numbers in state.items():
            if held := self.get(name):
                held.restore(numbers)


class Multipliers:
    """All constraints of an engine's run. A budget's weights are in the objective, those of limits here."""

    def __init__(self, request: Request) -> None:
        self.settings = request.settings
        self.keep = request.settings.keep
        self.budget_violation = -MAX_VIOLATION
        self.limits = Limits(parse_limits(request.limits, request.env))
        # Omega holds the reward of a step beyond the share to keep of what the prior earns: `surplus`, at least 0.
        self.kept = HeldLimit(Limit("surplus", -1, 0.0), request.objective.omega, request.objective.omega)
        self.surplus = Estimate(0.0, 0.0)
        self.prior_rewards: Tensor | None = None  # at each age [L], where a share of them is kept
        self.may_lose = max(1.0 - (self.keep or 0.0), MIN_LOST_SHARE)  # a share; by how much more `kept` is off by 1

    def hold_share(self, prior_rewards: Tensor, step_reward: float) -> None:
        """Keep a share of the rewards that `measure_prior_rewards` returned."""
        self.prior_rewards = prior_rewards
        self.kept.unit = self.may_lose * max(abs(step_reward), 1e-12)

    def price(self, rollout: Rollout) -> Tensor | None:
        """Return what the limits take from the reward of each step, `[T, N]`."""
        if not self.limits:
            return None
        values = (held.limit.values(rollout) for held in self.limits.values())
        return torch.from_numpy(self.limits.price(values))

    def local_sums(self, deployed_rollout: Rollout | None, rollout: Rollout, ranks: int = 1) -> dict[str, float]:
        """Return this rank's share of the sums that `metrics` takes; empty where nothing is measured.

        Of each limit's quantity and, where a share is kept, of the reward beyond that share of the prior's: the sum of
        its means and of their squares; for a limit also its sum and the sum of its squares over the training rollout,
        which tell its typical size.
        """
        if deployed_rollout is None:
            return {}
        basic = torch.from_numpy(deployed_rollout.basic)
        sums = {"means": float(len(block_means(basic, ranks)))}
        values = dict[str, Tensor]()
        for name, held in self.limits.items():
            values[name] = torch.from_numpy(held.limit.values(deployed_rollout))
            trained = held.limit.values(rollout)
            sums |= {f"total {name}": float(trained.sum()), f"size {name}": float(np.square(trained).sum())}
        if self.keep and self.prior_rewards is not None:
            ages = torch.from_numpy(deployed_rollout.ages) - 1
            prior = expected_rewards(self.prior_rewards, ages, torch.from_numpy(deployed_rollout.terminated))
            may_lose = (1.0 - self.keep) * torch.sign(self.prior_rewards.sum())
            values["surplus"] = basic - prior * (1.0 - may_lose)
        for name, quantity in values.items():
            means = block_means(quantity, ranks)
            sums |= {f"sum {name}": float(means.sum()), f"squares {name}": float(means.square().sum())}
        return sums

    def metrics(self, sums: Mapping[str, float], objective: Objective) -> dict[str, float]:
        """Store what was measured and return its log columns, from `local_sums` summed over all ranks."""
        if "means" not in sums:
            return {}
        count, metrics = sums["means"], dict[str, float]()

        def measured(name: str) -> Estimate:
            return Estimate.of(sums[f"sum {name}"], sums[f"squares {name}"], count)

        if self.keep:
            self.surplus = measured("surplus")
            metrics["kept"] = self.keep + self.may_lose * self.surplus.mean / self.kept.unit
        if not self.limits:
            return metrics
        steps = self.settings.iteration_steps
        sizes = {name: math.sqrt(sums[f"size {name}"] / steps) for name in self.limits}
        means = {name: sums[f"total {name}"] / steps for name in self.limits}
        worth = initial_worth(objective, sums["reward_task"] / steps)
        return metrics | self.limits.metrics({name: measured(name) for name in self.limits}, sizes, worth, means)

    def steer(self, metrics: dict[str, float], objective: Objective) -> Objective:
        """Move every limit's weight, and return the objective with the weights that a budget or a kept share moves."""
        self.limits.steer()
        budget, steps = self.settings.budget, self.settings.iteration_steps
        if self.keep:
            self.kept.move(self.surplus)
            objective = with_omega(objective, self.kept.weight)
        elif budget is not None:
            objective, self.budget_violation = follow_budget(objective, budget, metrics, self.budget_violation, steps)
        return objective

    def warnings(self, logged: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return a sentence for each constraint that is broken at the end of a run: budget, limits, kept share."""
        budget, violation, sentences = self.settings.budget, self.budget_violation, list[str]()
        if budget is not None and violation > math.log(OVERSPENT_RATIO):
            spent = max(logged[budget.metric][-1], budget.amount * math.exp(violation))  # the last alone may be noise
            ends = f"the run ends beyond its budget: {budget.compare(spent)}"
            sentences.append(f"{ends}; the weights follow slowly, and more --steps give them time")
        limits = {f"limit_{name}": (held.limit, held.unit) for name, held in self.limits.items()}
        if self.keep:
            limits["kept"] = Limit("kept", -1, self.keep), self.may_lose
        for column, (limit, unit) in limits.items():
            whole = np.array(logged[column])
            values = whole[-LAST_ITERATIONS:]
            broken_by = limit.excess(values)
            error = broken_by.std() / math.sqrt(len(values))
            # Broken by more than a little, and by more than two standard errors.
            if broken_by.mean() > unit * math.log(OVERSPENT_RATIO) + 2.0 * error:
                count = len(values)
                best = min(np.convolve(whole, np.full(count, 1 / count), "valid"), key=limit.excess)
                found = f"the last {count} iterations have {values.mean():.3g}, the best {count} {best:.3g}"
                name = f"keep {self.keep:g}" if column == "kept" else f"limit {limit}"
                sentences.append(
                    f"{name} is broken: {with_minus(found)}; more --steps may do, or a wish that weighs less"
                )
        explained = logged.get("explained_variance", ())
        stood = sum(share is not None and share <= MIN_EXPLAINED_VARIANCE for share in explained)
        if sentences and stood > STANDING_SHARE * len(explained):
            why = "the critic could not follow the reward: is a large part of it the same in every step?"
            sentences.append(f"in {stood:,} of {len(explained):,} iterations no weight moved, since {why}")
        return sentences

    def state(self) -> dict[str, Any]:
        """Return the numbers of a checkpoint; `prior_rewards` is a tensor, which the worker stores."""
        kept = {"kept": self.kept.state()} if self.keep else {}
        return {"off_budget": self.budget_violation, "limits": self.limits.state(), **kept}

    def restore(self, state: dict[str, Any], prior_rewards: Tensor | None) -> None:
        """Load what `state` returned."""
        self.budget_violation = state["off_budget"]
        self.prior_rewards = prior_rewards
        self.limits.restore(state.get("limits", {}))
        if "kept" in state:
            self.kept.restore(state["kept"])
        elif self.keep and prior_rewards is not None:  # an older checkpoint
            self.hold_share(prior_rewards, float(prior_rewards[:-1].mean()))
            self.kept.weight = state["objective"]["omega"]
            self.kept.violation = state["off_budget"]


def block_means(values: Tensor, ranks: int = 1) -> Tensor:
    """Return means `[..., M]` of values `[..., T, N]`, whose spread shows the noise of the total mean.

    There is one for each environment; with few environments in all ranks, one for each of several blocks of steps.
    """
    *lead, steps, count = values.shape
    least = min(steps, max(1, MIN_MEANS // (count * ranks)))
    blocks = next(number for number in range(least, steps + 1) if steps % number == 0)
    return values.reshape(*lead, blocks, steps // blocks, count).mean(-2).flatten(-2)


def expected_rewards(prior_rewards: Tensor, ages: Tensor, ended: Tensor) -> Tensor:
    """Return the prior's rewards at these ages `[T, N]`; an early end gets all of the prior's later rewards as well.

    So the sum over an episode is the prior's return, however long it is. Ages beyond the last one count as the last.
    """
    later = prior_rewards.flip(0).cumsum(0).flip(0) - prior_rewards
    at = ages.clamp(max=len(prior_rewards) - 1)
    return prior_rewards[at] + torch.where(ended, later[at], 0.0)


def measure_prior_rewards(prior: MeanPrior | Policy, request: Request, team: Ranks) -> tuple[Tensor, float]:
    """Return the prior's mean reward at each age of an episode `[L]`, and of all steps.

    The last of `[L]` is 0, when all episodes have ended. The first rank measures, and every rank gets the same bits.
    """
    cap = episode_cap(probe_env(request.env, request.settings.backend).limit)
    measured = torch.zeros(cap + 1, dtype=torch.float64)
    if team.index == 0:
        seed = derived_seed(request.settings.seed, 0, Stream.KEPT_RETURN)
        with closing(make_envs(request.env, RETURN_EPISODES, seed, request.settings.backend)) as envs:
            episodes = run_episodes(prior, envs, RETURN_EPISODES, deterministic=request.is_judged_by_mean)
        assert episodes.steps is not None
        rewards = episodes.steps.rewards[:cap]
        is_running = np.arange(len(rewards))[:, None] < episodes.lengths
        measured[: len(rewards)] = torch.from_numpy(np.where(is_running, rewards, 0.0).mean(1))
        measured[-1] = episodes.lengths.mean()
    team.sum(measured)
    means, length = measured[:-1], float(measured[-1])
    last = int(means.nonzero().max()) if means.any() else 0
    rewards_by_age = means[: last + 1]
    return torch.cat([rewards_by_age, means.new_zeros(1)]), float(rewards_by_age.sum()) / length
