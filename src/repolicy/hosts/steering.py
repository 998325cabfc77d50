"""The objective in force, and what moves it from iteration to iteration: a warm-up, a budget, limits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from repolicy.envs import parse_limits
from repolicy.errors import UsageError
from repolicy.learning.multipliers import (
    MAX_VIOLATION,
    HeldLimit,
    Limits,
    budget_violation,
    expected_rewards,
    steered_objective,
)
from repolicy.learning.worker import MAX_WARMUPS, MIN_EXPLAINED_VARIANCE
from repolicy.objective import WEIGHTS, Objective
from repolicy.objective_names import given_objective, plain
from repolicy.prepare.checks import check_budget
from repolicy.runs import Budget, Settings
from repolicy.text import nearest

WARMUP = 5  # iterations in which a critic that begins with nothing learns alone, where nobody names another number
EXPLAINS = 0.3  # share of the returns that it must explain by then, or it has up to three times as many


@dataclass
class Steering:
    """The objective in force, and what a warm-up, a budget and limits make of it from iteration to iteration.

    `critic_warmup` of None: the usual one, which waits longer for a critic that explains too little.
    """

    objective: Objective
    kl_budget: float | None = None
    log_prior_budget: float | None = None
    critic_warmup: int | None = 0
    limits: Sequence[str] | str = ()
    keep: float | None = None  # share of what the prior's mean action earns of the old reward a step
    kept: str = ""  # the limit that this is, once it is known what the prior earns; its weight is omega
    gap: float = 0.0  # how much less the prior's sampled steps earn
    earns: Sequence[float] = (0.0,)  # by the prior's sampled actions at each age of an episode: 0 once all ended
    later: float = 0.0  # what a step has earned lately because episodes ended later than theirs
    ranges: bool = False  # whether the host knows a weight that is a range
    iterations: int = 0
    off_budget: float = -MAX_VIOLATION
    explained: float = field(default=0.0, compare=False)  # share of the returns, in the iteration under way

    def __post_init__(self) -> None:
        self.limits = tuple(map(str, (self.limits,) if isinstance(self.limits, str | Real) else self.limits))
        self.held, self.share = Limits(parse_limits(self.limits)), Limits(())
        if self.objective.is_set or self.objective.dials:
            plain(self.objective, "this host", states=True, ranges=self.ranges)
        warmup = self.critic_warmup
        if warmup is not None and not (isinstance(warmup, Real) and float(warmup).is_integer() and warmup >= 0):
            raise UsageError(f"critic_warmup is {warmup!r}; here it counts iterations, so it must be 0, 1, 2 ...")
        self.settings.resolved()  # checked as the engine's
        if self.settings.budget is not None and not self.objective.reads_prior:
            raise UsageError("a budget adapts omega, so omega must start above 0")
        if self.objective.dials and (self.settings.budget is not None or self.held):
            raise UsageError("a range trains for many weights at once, and a budget or a limit moves one: leave it out")
        self._check_budget()

    def _check_budget(self) -> None:
        if self.objective.is_set and not self.objective.dials:
            check_budget(self.objective, self.settings)

    @property
    def settings(self) -> Settings:
        return Settings(kl_budget=self.kl_budget, log_prior_budget=self.log_prior_budget, keep=self.keep)

    @property
    def budget(self) -> Budget | None:
        """What the policy may spend."""
        return None if self.keep else self.settings.budget

    @property
    def limited(self) -> dict[str, HeldLimit]:
        """All limits, by their text: those that are priced, and the share that is kept."""
        return {**self.held, **self.share}

    @property
    def reads(self) -> list[tuple[str, str]]:
        """What an environment must tell beside its reward, and why."""
        unknown = [("basic_reward", "keep needs")] if self.keep and not self.kept else []
        return [(held.limit.name, f"{text} limits") for text, held in self.limited.items()] + unknown

    def hold(self, kept: str, unit: float = 0.0, gap: float = 0.0, earns: Sequence[float] = (0.0,)) -> None:
        """Hold the share that is to be kept, by this limit; `unit` is what must be lacking until it is off by 1."""
        self.gap, self.earns = gap, [*earns]
        *_, limit = parse_limits([*self.limits, kept])
        self.kept = str(limit)
        self.share = Limits([limit])
        self.share[self.kept] = HeldLimit(limit, unit=unit)

    def earned_later(self, ages: Tensor, ended: Tensor) -> Tensor:
        """Return what steps at these ages `[T, N]` earn by later ends than the sampled prior's; below 0 by earlier."""
        earns = torch.tensor(self.earns, dtype=torch.double, device=ended.device)
        return earns[0] - expected_rewards(earns, ages, ended)

    @property
    def fits_actor(self) -> bool:
        """Whether the actor learns in the iteration under way; the critic always does."""
        if self.critic_warmup is not None:
            return self.iterations >= self.critic_warmup
        explains = self.explained >= EXPLAINS or self.iterations >= MAX_WARMUPS * WARMUP
        return self.iterations >= WARMUP and explains

    def steer(self, spent: Mapping[str, float], samples: int) -> None:
        """End an iteration over so many steps, in which so many nats a step were spent."""
        if self.fits_actor and self.explained > MIN_EXPLAINED_VARIANCE:
            self.held.steer()
            self.share.steer()
            for held in self.share.values():
                self.objective = replace(self.objective, omega=held.weight)
            if self.budget is not None:
                self._spend(self.budget, spent, samples)
        self.iterations += 1

    def _spend(self, budget: Budget, spent: Mapping[str, float], samples: int) -> None:
        before, nats, alone = self.off_budget, spent[budget.metric], self.log_prior_budget is not None
        variance = spent["below_prior_squares"] - nats**2 if alone else None
        self.off_budget = budget_violation(nats, budget.amount, before, samples, variance)
        self.objective = steered_objective(self.objective, before, self.off_budget, omega_alone=alone)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold to go on from here; plain numbers and words."""
        names = ("iterations", "off_budget", "kl_budget", "kept", "gap", "earns", "later")
        told = {"objective": self.objective.as_dict(), "limits": self.held.state() | self.share.state()}
        return told | {name: getattr(self, name) for name in names}

    def check_same_ranges(self, state: Mapping[str, Any]) -> None:
        """Raise where `state` is of another range: what was learnt of places on the dial would be of other weights."""
        theirs, today = (
            " and ".join(map(str, each.dials)) or "none" for each in (Objective(**state["objective"]), self.objective)
        )
        if theirs != today:
            raise UsageError(f"the checkpoint's range is {theirs}, and today's {today}: name its own, or begin anew")

    def resume(self, state: Mapping[str, Any], named: Objective | None = None, budget: Budget | None = None) -> None:
        """Go on where `state` was taken, with its weights and its budget.

        `named` and `budget` are what today's settings name. A budget goes before that of the state. Where a weight
        differs from the state's, today's weights stay, also those that were measured beside it; but not where a budget
        moves them.
        """
        told = Objective(**state["objective"])
        weights = {name: getattr(told, name) for name in WEIGHTS}
        today = {name: getattr(named, name, None) for name in WEIGHTS}
        unchanged = all(isinstance(weight, str | None) or weight == weights[name] for name, weight in today.items())
        self.iterations, self.off_budget = int(state["iterations"]), float(state["off_budget"])
        if self.keep and state.get("kept"):
            self.hold(state["kept"], gap=state.get("gap", 0.0), earns=state.get("earns", (0.0,)))
            self.later = state.get("later", 0.0)
        for each in (self.held, self.share):
            each.restore(state.get("limits", {}))
        if budget is None and unchanged:
            self.kl_budget = state.get("kl_budget")
        if self.settings.budget is not None or unchanged:
            self.objective = replace(self.objective, **weights)
        self._check_budget()


def weights_named(objective: Any, omega: Any, alpha: Any, states: Any) -> Objective:
    """Return the objective that settings name; beside a range, states have no price where none is named."""
    found = given_objective(objective, omega, alpha, states)
    return replace(found, states=0.0) if found.dials and found.states is None else found


def check_options(named: Iterable[str], *takers: Callable[..., Any]) -> None:
    """Raise where a name is that of no option which one of these takes."""
    known = {option for taker in takers for option in signature(taker).parameters}
    for name in named:
        if name not in known:
            raise UsageError(f"ResidualPPO has no option {name}{nearest(name, known)}")


def usual_warmup(named: int | None, begins_as_prior: bool) -> int | None:
    """Return how long the critic learns alone: where nobody names it, only beside an actor that begins as the prior."""
    return named if named is not None or begins_as_prior else 0


def weighs(objective: Objective) -> bool:
    """Say whether there is a weight, perhaps one that is not measured yet; without any, a class is its host's own."""
    return any(weight != 0 for weight in (objective.omega, objective.alpha, objective.states))


def say_of_bonus(name: str, host: Mapping[str, Any]) -> None:
    """Print that a host's own bonus for entropy does harm beside a prior."""
    if bonus := host.get(name):
        print(f"ResidualPPO: {name} is {bonus:g}, and alpha pays for the entropy already: set it to 0")
