"""The weights in force, and what moves them from iteration to iteration: a warm-up, a budget, limits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from repolicy.addons import parse_limits
from repolicy.errors import UsageError
from repolicy.learning.multipliers import (
    MAX_VIOLATION,
    MIN_EXPLAINED_VARIANCE,
    HeldLimit,
    Limits,
    expected_rewards,
    follow_budget,
    with_omega,
)
from repolicy.learning.worker import MAX_WARMUPS
from repolicy.objective import WEIGHTS, Objective
from repolicy.objective_names import check_supported, resolve_objective
from repolicy.prepare.checks import check_budget
from repolicy.runs import BUDGETS, Budget, Settings
from repolicy.text import suggest

DEFAULT_WARMUP = 5  # iterations in which an untrained critic is trained alone
WARMUP_EXPLAINED_VARIANCE = 0.3  # of the returns; below it the default warm-up lasts up to three times as long


@dataclass
class Steering:
    """The weights in force, which a budget and limits move at the end of each iteration.

    `critic_warmup` of None is the default one, which lasts longer for a critic that explains too little.
    """

    objective: Objective
    kl_budget: float | None = None
    log_prior_budget: float | None = None
    critic_warmup: int | None = 0
    limits: Sequence[str] | str = ()
    keep: float | None = None  # share of the old reward a step that the prior's mean action earns
    kept_share: Limits = field(default_factory=Limits)  # the limit that `keep` becomes; omega holds it
    sampling_gap: float = 0.0  # how much less a step of the prior earns with sampled actions than with mean ones
    earnings_by_age: Sequence[float] = (0.0,)  # of the prior's sampled actions at each episode age; 0 once all ended
    later_earnings: float = 0.0  # running mean of what a step earns because episodes end later than the prior's
    ranges: bool = False  # whether the host supports weights that are ranges
    iterations: int = 0
    is_trained: bool = False  # whether the actor was trained in any iteration so far
    budget_violation: float = -MAX_VIOLATION  # averaged log(nats spent / budget)
    explained_variance: float = field(default=0.0, compare=False)  # of the returns in the running iteration

    def __post_init__(self) -> None:
        self.limits = (self.limits,) if isinstance(self.limits, str) else tuple(self.limits)
        self.priced_limits = Limits(parse_limits(self.limits))
        if self.objective.is_set or self.objective.dials:
            check_supported(self.objective, "this host", states=True, ranges=self.ranges)
        warmup = self.critic_warmup
        if warmup is not None and (warmup < 0 or warmup % 1):
            raise UsageError(f"critic_warmup is {warmup:g}; here it counts iterations, so it must be 0, 1, 2 ...")
        self.settings.resolved()  # raises where the engine's checks of settings do
        if self.settings.budget is not None and not self.objective.reads_prior:
            raise UsageError("a budget adapts omega, so omega must start above 0")
        if self.objective.dials and (self.settings.budget is not None or self.priced_limits):
            raise UsageError("a range trains for many weights at once, and a budget or a limit moves one: leave it out")
        self._check_budget()

    def _check_budget(self) -> None:
        if self.objective.is_set and not self.objective.dials:
            check_budget(self.objective, self.settings)

    @property
    def kept_limit(self) -> str:
        """The limit that `keep` becomes, once the prior's earnings are measured; empty before."""
        return next(iter(self.kept_share), "")

    @property
    def settings(self) -> Settings:
        return Settings(kl_budget=self.kl_budget, log_prior_budget=self.log_prior_budget, keep=self.keep)

    @property
    def budget(self) -> Budget | None:
        """The nats that the policy may spend. None beside `keep`, which moves omega itself."""
        return None if self.keep else self.settings.budget

    @property
    def all_limits(self) -> dict[str, HeldLimit]:
        """All limits by their text: those with a price in the reward, then the kept share."""
        return {**self.priced_limits, **self.kept_share}

    @property
    def required_entries(self) -> list[tuple[str, str]]:
        """The name of each entry that an environment must give beside its reward, and the beginning of messages."""
        entries = [(held.limit.name, f"{text} limits {held.limit.name!r}") for text, held in self.all_limits.items()]
        if self.keep and not self.kept_limit:
            entries.append(("basic_reward", "keep needs 'basic_reward'"))
        return entries

    def hold_share(
        self, limit: str, unit: float = 0.0, sampling_gap: float = 0.0, earnings_by_age: Sequence[float] = (0.0,)
    ) -> None:
        """Hold the kept share by this limit on the old reward. A reward that misses the bound by `unit` is off by 1."""
        self.sampling_gap, self.earnings_by_age = sampling_gap, [*earnings_by_age]
        *_, parsed = parse_limits([*self.limits, limit])  # raises where a user's limit is on the same side
        self.kept_share = Limits([parsed])
        self.kept_share[str(parsed)] = HeldLimit(parsed, unit=unit)

    def earned_later(self, ages: Tensor, ended: Tensor) -> Tensor:
        """Return what steps at these ages `[T, N]` earn by ends later than the sampled prior's; negative if earlier."""
        earnings = torch.tensor(self.earnings_by_age, dtype=torch.double, device=ended.device)
        return earnings[0] - expected_rewards(earnings, ages, ended)

    @property
    def trains_actor(self) -> bool:
        """Whether the actor is trained in this iteration; the critic always is."""
        if self.critic_warmup is not None:
            return self.iterations >= self.critic_warmup
        if self.iterations < DEFAULT_WARMUP:
            return False
        is_good = self.explained_variance >= WARMUP_EXPLAINED_VARIANCE
        return is_good or self.iterations >= MAX_WARMUPS * DEFAULT_WARMUP

    def steer(self, spending: Mapping[str, float], samples: int) -> None:
        """End an iteration: move the weights by its metrics in nats a step, which are means over `samples` steps."""
        self.is_trained |= self.trains_actor
        if self.trains_actor and self.explained_variance > MIN_EXPLAINED_VARIANCE:
            self.priced_limits.steer()
            self.kept_share.steer()
            for held in self.kept_share.values():
                self.objective = with_omega(self.objective, held.weight)
            if self.budget is not None:
                self.objective, self.budget_violation = follow_budget(
                    self.objective, self.budget, spending, self.budget_violation, samples
                )
        self.iterations += 1

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, in plain numbers and words."""
        return {
            "objective": self.objective.as_dict(),
            "limits": self.priced_limits.state() | self.kept_share.state(),
            "iterations": self.iterations,
            "is_trained": self.is_trained,
            "off_budget": self.budget_violation,
            **{name: getattr(self, name) for name in BUDGETS},
            "kept": self.kept_limit,
            "gap": self.sampling_gap,
            "earns": self.earnings_by_age,
            "later": self.later_earnings,
        }

    def check_same_ranges(self, state: Mapping[str, Any]) -> None:
        """Raise where `state` has another range: its networks have learned places on a dial of other weights."""
        objectives = Objective(**state["objective"]), self.objective
        theirs, today = (" and ".join(map(str, each.dials)) or "none" for each in objectives)
        if theirs != today:
            raise UsageError(f"the checkpoint's range is {theirs}, and today's {today}: name its own, or begin anew")

    def resume(self, state: Mapping[str, Any], named: Objective | None = None, budget: Budget | None = None) -> None:
        """Continue from `state`, with its weights and its budget.

        `named` and `budget` are what today's settings name. A budget named today replaces the state's (another share to
        keep is to be measured anew). Where a weight named today differs from the state's, today's weights stay; beside
        a budget in both, those that it moves are the state's, as alpha is beside the state's KL budget where omega is
        not named. A first KL budget begins from the state's omega.
        """
        saved = Objective(**state["objective"])
        weights = {name: getattr(saved, name) for name in WEIGHTS}
        today = {name: getattr(named, name, None) for name in WEIGHTS}
        unnamed = {name for name, weight in today.items() if isinstance(weight, str | None)}
        if budget is None and state.get("kl_budget") is not None and "omega" in unnamed:
            unnamed.add("alpha")  # a KL budget moves it, too
        unchanged = all(today[name] == weight for name, weight in weights.items() if name not in unnamed)
        self.iterations, self.budget_violation = int(state["iterations"]), float(state["off_budget"])
        self.is_trained = bool(state.get("is_trained", True))
        saved_budgets = tuple(map(state.get, BUDGETS))
        if budget is None and unchanged:
            self.kl_budget, self.log_prior_budget, self.keep = saved_budgets
        if self.keep and state.get("kept") and state.get("keep", self.keep) == self.keep:
            gap, earnings = state.get("gap", 0.0), state.get("earns", (0.0,))
            self.hold_share(state["kept"], sampling_gap=gap, earnings_by_age=earnings)
            self.later_earnings = state.get("later", 0.0)
        for each in (self.priced_limits, self.kept_share):
            each.restore(state.get("limits", {}))
        if unchanged or (any(saved_budgets) and self.settings.budget is not None):
            is_one = saved.omega == saved.alpha and self.objective.omega == self.objective.alpha
            both = self.kl_budget is not None or is_one
            moved = {"omega", "alpha"} if both else {"omega"}
            self.objective = replace(self.objective, **{name: weights[name] for name in unnamed | moved})
            if self.kl_budget is not None and state.get("kl_budget") is None:
                self.objective = replace(self.objective, alpha=self.objective.omega)
        self._check_budget()


def objective_from_settings(objective: Any, omega: Any, alpha: Any, states: Any) -> Objective:
    """Return the objective that settings name. Beside a range, `states` is 0 where it is not named."""
    found = resolve_objective(objective, omega, alpha, states)
    return replace(found, states=0.0) if found.dials and found.states is None else found


def check_options(names: Iterable[str], *functions: Callable[..., Any]) -> None:
    """Raise where a name is not a parameter of any of these functions."""
    known = {parameter for function in functions for parameter in signature(function).parameters}
    for name in names:
        if name not in known:
            raise UsageError(f"ResidualPPO has no option {name}{suggest(name, known)}")


def default_warmup(named: int | None, begins_as_prior: bool) -> int | None:
    """Return the setting `critic_warmup`; where it is not named, only an actor that is to begin as its prior waits."""
    return named if named is not None or begins_as_prior else 0


def has_weight(objective: Objective) -> bool:
    """Return whether a weight is not 0, or still to be measured. Without any, a class is its host's own PPO."""
    return any(weight != 0 for weight in (objective.omega, objective.alpha, objective.states))


def warn_about_entropy_bonus(name: str, bonus: float | None) -> None:
    """Print that a host's own entropy bonus does harm beside a prior."""
    if bonus:
        print(f"ResidualPPO: {name} is {bonus:g}, and alpha pays for the entropy already: set it to 0")
