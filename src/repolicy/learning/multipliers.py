"""Weights that move until something holds: a budget of nats, a share of the old return, limits in a user's own units.

Each is a Lagrange multiplier. It is raised while what it holds is broken and lowered while that holds, by a
proportional and an integral part (PI) of how far off it is, of its logarithm:

    log weight ← log weight + STEERING · off + DAMPING · (off − off before)

A budget moves the weights of the prior in the objective, and so does a share of the old return. Each limit has a weight
of its own, with which the reward has what its quantity is beyond the bound. (With the whole quantity, a fall would pay
where it is bounded from above.) The engine measures shares and limits with the mean action, as that is what becomes of
a policy, in environments beside those that train; hosts by the steps that train.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import EPISODE_CAP, Evaluation, Limit, Rollout, make_envs, parse_limits, run_episodes
from repolicy.objective import Objective
from repolicy.policies import Policy
from repolicy.prepare.spending import RETURN_EPISODES
from repolicy.runs import Estimate, Ranks, Request, derived_seed

FARTHEST = 2.0  # bound of how far off something is
STEERING = 0.03  # how much a weight follows it in an iteration
DAMPING = 1.0  # how much it follows its change: without this it answers too late, and the policy drifts far beyond
NOISE = 0.25  # the std that a measurement near the budget may have, as a share of the budget
LEAST_WEIGHT = 1e-6  # smallest value of a weight
BEYOND = 1.25  # spent/budget from which the end of a run is said to be beyond its budget

LIMIT_UNIT = 0.1  # of a limit's bound: broken by so much, it is off by 1
WIDEST = 1e3  # times as much, or as little, as at first a limit may weigh later
LAST_ITERATIONS = 20  # iterations, by which a limit is judged at the end
FEWEST_MEANS = 8  # by which the noise of a measurement is told
FINEST_SHARE = 0.01  # share of the old return, to which one can be held


def newest(noise: float) -> float:
    """Return the share of the newest measurement in an average, by its std, in the unit of what is off.

    So what is off is averaged over at most some 20 iterations.
    """
    return max(0.05, min(1.0, NOISE**2 / max(noise**2, 1e-12)))


def off_budget(
    spent: float, budget: float, before: float = 0.0, samples: float = math.inf, variance: float | None = None
) -> float:
    """Return how far the nats that are spent are from the budget: the logarithm of their ratio, within bounds.

    They are a mean over samples, each with some variance (of a KL near its budget, twice the budget). Where its std is
    much for a small budget (the measured KL may be below 0), this one is averaged with those `before`.
    """
    variance = 2 * budget if variance is None else variance
    share = newest(math.sqrt(max(variance, 0.0) / samples) / budget)
    if share < 1.0:
        spent = share * spent + (1.0 - share) * budget * math.exp(before)
    return max(-FARTHEST, min(FARTHEST, math.log(max(spent, budget * math.exp(-2 * FARTHEST)) / budget)))


def off_limit(broken_by: float, noise: float, before: float | None) -> float:
    """Return how far a limit is from just holding, averaged with those before; all in the unit of the limit.

    Within bounds twice as wide, so that noise is cut on neither side.
    """
    off = max(-2 * FARTHEST, min(2 * FARTHEST, broken_by))
    return off if before is None else before + newest(noise) * (off - before)


def near(off: float) -> float:
    """Return how far off a limit is, within the bounds where its change says something."""
    return max(-1.0, min(1.0, off))


def raised(weight: float, off: float, change: float) -> float:
    """Return a weight, larger where what it holds is broken or on its way there."""
    return max(LEAST_WEIGHT, weight * math.exp(STEERING * off + DAMPING * change))


def steered(objective: Objective, before: float, now: float, *, omega_alone: bool = False) -> Objective:
    """Return the objective with more weight on the prior where the policy is beyond the budget or on its way there.

    omega and alpha move together: they are the multiplier of the constraint KL ≤ budget. A larger omega alone would
    sharpen the policy around the prior's mode, and so move it away from the prior. But omega alone is the multiplier of
    E[log prior] ≥ its own − budget, and a larger one always makes likelier actions.
    """
    alpha = objective.alpha if omega_alone else raised(objective.alpha, now, now - before)
    return replace(objective, omega=raised(objective.omega, now, now - before), alpha=alpha)


@dataclass
class HeldLimit:
    """A limit, the weight that holds it, and how far it is off: None before it was measured."""

    limit: Limit
    weight: float = 0.0
    first: float = 0.0  # where the weight began
    unit: float = 0.0  # of what is off
    off: float | None = None

    def begin(self, size: float, objective: Objective) -> None:
        """Set the first weight, at which the quantity's `size` in a usual step is worth as much as a nat."""
        self.first = self.weight = (objective.omega or objective.alpha or 1.0) / max(size, LEAST_WEIGHT)
        self.unit = self.unit or LIMIT_UNIT * (abs(self.limit.bound) or size or 1.0)

    def move(self, measured: Estimate) -> None:
        """Follow what was measured of its quantity."""
        now = off_limit(self.limit.excess(measured.mean) / self.unit, measured.error / self.unit, self.off)
        weight = raised(self.weight, now, near(now) - near(now if self.off is None else self.off))
        self.weight = max(self.first / WIDEST, min(self.first * WIDEST, weight))
        self.off = now

    def state(self) -> list[float]:
        """Return what a checkpoint holds of it."""
        numbers = [self.weight, self.first, self.unit]
        return numbers if self.off is None else [*numbers, self.off]

    def restore(self, numbers: Sequence[float]) -> None:
        """Go on where `state` was taken."""
        self.weight, self.first, self.unit, *off = numbers
        self.off = off[0] if off else None


class Limits(dict[str, HeldLimit]):
    """Limits by their text, whoever measures their quantities: the engine or a host."""

    def __init__(self, limits: Iterable[Limit]) -> None:
        super().__init__({str(limit): HeldLimit(limit) for limit in limits})
        self.measured: dict[str, Estimate] = {}

    def price(self, values: Iterable[Any]) -> Any:
        """Return what all of them take from the reward, by the quantity of each, of any shape: nothing at a bound."""
        return sum(held.weight * held.limit.excess(one) for held, one in zip(self.values(), values, strict=True))

    def told(self, measured: dict[str, Estimate], sizes: dict[str, float], objective: Objective) -> dict[str, float]:
        """Return what the log says of the quantities' means; and begin the weights, where they have not.

        `sizes`: how large each quantity is in a usual step.
        """
        self.measured, found = measured, dict[str, float]()
        for name, held in self.items():
            if not held.first:
                held.begin(sizes[name], objective)
            found |= {f"limit_{name}": measured[name].mean, f"multiplier_{name}": held.weight}
        return found

    def steer(self) -> None:
        """Move every weight by what was measured."""
        for name, held in self.items():
            held.move(self.measured[name])

    def state(self) -> dict[str, list[float]]:
        """Return what a checkpoint holds of them."""
        return {name: held.state() for name, held in self.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Go on where `state` was taken; a limit that it does not know begins."""
        for name, numbers in state.items():
            if name in self:
                self[name].restore(numbers)


class Multipliers:
    """What a run holds. The weights that a budget moves stand in the run's objective, those of the limits here."""

    def __init__(self, request: Request, size: int) -> None:
        """`size`: how many numbers of an observation a limit's quantity sees."""
        self.settings, self.size = request.settings, size
        self.keep = request.settings.keep
        self.off_budget: float | None = None if self.keep else -FARTHEST
        self.limits = Limits(parse_limits(request.limits, request.env))
        self.kept = Estimate(1.0, 0.0)  # the share of the prior's return
        self.prior_earns: Tensor | None = None  # at each age of an episode [L], where a share of it is kept

    @property
    def measures(self) -> bool:
        """Whether something is measured with the mean action."""
        return bool(self.limits or self.keep)

    def price(self, rollout: Rollout) -> Tensor | None:
        """Return what the limits take from the reward of each step, `[T, N]`."""
        if not self.limits:
            return None
        each = (held.limit.values(rollout, self.size) for held in self.limits.values())
        return torch.from_numpy(self.limits.price(each))

    def sums(self, probed: Rollout | None, rollout: Rollout) -> Tensor:
        """Return what is to be summed over the ranks, `[P]`: nothing where nothing is measured with the mean action.

        Of each quantity, the sum of its means over the mean action's steps; the sums of those squared; of each limit's,
        how large it is: the sum of its squares over the steps that train; what the prior is expected to have earned;
        and how many means there are. The last quantity is what was earned beyond that, where it is kept.
        """
        if probed is None:
            return torch.empty(0, dtype=torch.float64)
        values = [torch.from_numpy(held.limit.values(probed, self.size)) for held in self.limits.values()]
        basic = torch.from_numpy(probed.basic)
        usual = torch.zeros_like(basic)
        if self.prior_earns is not None:
            usual = expected(self.prior_earns, torch.from_numpy(probed.ages) - 1, torch.from_numpy(probed.terminated))
            values.append(basic - usual)
        sizes = [np.square(held.limit.values(rollout, self.size)).sum() for held in self.limits.values()]
        means = [means_of(each) for each in values]
        sums, squares = [mean.sum() for mean in means], [mean.square().sum() for mean in means]
        usual = means_of(usual)
        numbers = [*sums, *squares, *sizes, usual.sum(), len(usual)]
        return torch.tensor([float(number) for number in numbers], dtype=torch.float64)

    def told(self, totals: Tensor, objective: Objective) -> dict[str, float]:
        """Return what the log says, from the sums; and begin the weights of limits, where they have not."""
        if not len(totals):
            return {}
        limits, quantities = len(self.limits), len(self.limits) + (self.keep is not None)
        sums, squares, sizes, (usual, count) = map(Tensor.tolist, totals.split([quantities, quantities, limits, 2]))
        measured = [Estimate.of(total, square, count) for total, square in zip(sums, squares, strict=True)]
        found = dict[str, float]()
        if self.keep:
            a_step = max(abs(usual / count), 1e-12)
            more, noise = measured.pop()
            self.kept = Estimate(1.0 + more / a_step, noise / a_step)
            found["kept"] = self.kept.mean
        typical = [math.sqrt(size / self.settings.iteration_steps) for size in sizes]
        by_name = dict(zip(self.limits, measured, strict=True))
        return found | self.limits.told(by_name, dict(zip(self.limits, typical, strict=True)), objective)

    def steer(self, metrics: dict[str, float], objective: Objective) -> Objective:
        """Move every weight by what was measured; return the objective with those that a budget moves."""
        self.limits.steer()
        budget, before = self.settings.budget, self.off_budget
        if budget is None:
            return objective
        if self.keep:
            (value, noise), unit = self.kept, max(1.0 - self.keep, FINEST_SHARE)
            self.off_budget = now = off_limit((self.keep - value) / unit, noise / unit, before)
            change = near(now) - near(now if before is None else before)
            return replace(objective, omega=raised(objective.omega, now, change))
        assert before is not None
        spent = metrics[budget.metric]
        variance = None if self.settings.kl_budget else metrics["below_prior_squares"] - spent**2
        self.off_budget = off_budget(spent, budget.amount, before, self.settings.iteration_steps, variance)
        return steered(objective, before, self.off_budget, omega_alone=not self.settings.kl_budget)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it; `prior_earns` is a tensor, and apart."""
        off = {} if self.off_budget is None else {"off_budget": self.off_budget}
        return off | ({"limits": self.limits.state()} if self.limits else {})

    def restore(self, state: dict[str, Any], prior_earns: Tensor | None) -> None:
        self.off_budget, self.prior_earns = state.get("off_budget"), prior_earns
        self.limits.restore(state.get("limits", {}))


def means_of(values: Tensor) -> Tensor:
    """Return means `[..., M]` of what environments gave `[..., T, N]`: one of each, or of parts of the steps of few."""
    *lead, steps, count = values.shape
    parts = math.gcd(steps, max(1, FEWEST_MEANS // count))
    return values.reshape(*lead, parts, steps // parts, count).mean(-2).flatten(-2)


def expected(prior_earns: Tensor, ages: Tensor, ended: Tensor) -> Tensor:
    """Return what the prior earns at the ages `[T, N]` of these steps, and in what an early end leaves out.

    So the sum over an episode is the prior's return, however long it is. Beyond the last age, that one's goes on.
    """
    rest = prior_earns.flip(0).cumsum(0).flip(0) - prior_earns
    at = ages.clamp(max=len(prior_earns) - 1)
    return prior_earns[at] + torch.where(ended, rest[at], 0.0)


def mean_episodes(policy: Policy, request: Request) -> Evaluation:
    """Run the first episodes of a policy's mean action, which begin alike for whatever policy."""
    seed = derived_seed(request.settings.seed, 0, 3000)
    with closing(make_envs(request.env, RETURN_EPISODES, seed, request.settings.backend)) as envs:
        return run_episodes(policy, envs, RETURN_EPISODES)


def earned_by_age(prior: Policy, request: Request, team: Ranks) -> Tensor:
    """Return what the prior earns with the mean action at each age of an episode `[L]`; the last is 0: all have ended.

    Found by the first rank, and the same bits on every rank.
    """
    earned = torch.zeros(EPISODE_CAP, dtype=torch.float64)
    if team.index == 0:
        found = mean_episodes(prior, request)
        assert found.steps is not None
        rewards = found.steps.rewards
        lasts = np.arange(len(rewards))[:, None] < found.lengths
        earned[: len(rewards)] = torch.from_numpy(np.where(lasts, rewards, 0.0).mean(1))[:EPISODE_CAP]
    team.sum(earned)
    last = int(earned.nonzero().max()) if earned.any() else 0
    return torch.cat([earned[: last + 1], earned.new_zeros(1)])


LATER = "the weights follow slowly, and more --steps give them time"


def share_kept(prior: Policy, policy: Policy, request: Request) -> str:
    """Return which share of its prior's return a finished run's policy keeps, in a sentence."""
    before, after = (mean_episodes(each, request).basic for each in (prior, policy))
    lost = (before - after) / max(abs(float(before.mean())), 1e-12)  # of episodes that began alike
    kept = Estimate.of(float((1.0 - lost).sum()), float(np.square(1.0 - lost).sum()), len(lost))
    asked = float(request.settings.keep or 0.0)
    sentence = f"it keeps {kept.mean:.1%} ± {kept.error:.1%} of the old return with the mean action"
    sentence += f", and was to keep {asked:.4g}"
    return f"{sentence}; {LATER}" if asked - kept.mean > 2.0 * kept.error else sentence


def broken(multipliers: Multipliers, logged: dict[str, list[Any]]) -> list[str]:
    """Return what is to be said of a finished run that ends beyond its budget, or with a limit that is broken."""
    budget, off, said = multipliers.settings.budget, multipliers.off_budget, []
    if budget is not None and off is not None and not multipliers.keep and off > math.log(BEYOND):
        beside = budget.comparison.format(logged[budget.metric][-1], budget.amount)
        said.append(f"the run ends beyond its budget: {beside}; {LATER}")
    for name, held in multipliers.limits.items():
        values = np.array(logged[f"limit_{name}"])
        if beyond_noise(held.limit.excess(values[-LAST_ITERATIONS:]), held.unit):
            count = min(LAST_ITERATIONS, len(values))
            nearest = min(np.convolve(values, np.full(count, 1 / count), "valid"), key=held.limit.excess)
            said.append(
                f"limit {name} is broken: the last {count} iterations have {values[-count:].mean():.3g}, and no "
                f"{count} came nearer than {nearest:.3g}; more --steps may do, or a wish that weighs less"
            )
    return said


def beyond_noise(broken_by: np.ndarray, unit: float) -> bool:
    """Return whether something is broken by more than a little and by more than two standard errors."""
    error = broken_by.std() / math.sqrt(len(broken_by))
    return bool(broken_by.mean() > unit * math.log(BEYOND) + 2.0 * error)
