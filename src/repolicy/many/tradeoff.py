"""The result of a sweep over ω′: what each point keeps of the basic reward, what it gains, and where the knee is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.addons import Addon
from repolicy.differences import Column, difference
from repolicy.envs import Backend, parse_env_name
from repolicy.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.files import replace_nonfinite
from repolicy.policies import Policy
from repolicy.runs import format_table
from repolicy.text import format_number, with_minus

MIN_AGREEMENT = 0.95  # share of the bootstrap resamplings that must agree on the knee
RESAMPLINGS = 1000
SAMPLED = ("log_prior_a_step", "kl_a_step")  # quantities of sampled actions


@dataclass(frozen=True)
class Point:
    """One value of ω′, and the evaluations of the policy that was trained with it."""

    omega: float
    policy: Path  # its file; of a dial, the one file of all positions
    mean: Evaluation  # with the mean action
    sampled: Evaluation
    label: str = ""  # name of the point, where omega alone is not enough

    @property
    def main_evaluation(self) -> Evaluation:
        """The evaluation that decides: with the mean action or, for a generative policy, with sampled noise."""
        return self.mean if parse_env_name(self.mean.env).is_judged_by_mean else self.sampled

    def column(self, name: str) -> Column:
        """Return a quantity of the main evaluation; log prior and KL are always of sampled actions."""
        return (self.sampled if name in SAMPLED else self.main_evaluation).columns[name]

    @property
    def addon(self) -> float:
        return self.main_evaluation.columns["addon_reward"].mean

    @property
    def total(self) -> float:
        return (self.basic or 0.0) + self.addon

    @property
    def basic(self) -> float | None:
        """The mean basic return, or None where the environment has no basic reward."""
        column = self.main_evaluation.columns.get("basic_reward")
        return None if column is None else column.mean

    def as_dict(self) -> dict[str, Any]:
        """Return the distance to the prior (with sampled actions), and both evaluations."""
        columns = self.sampled.columns
        distance = {"kl": columns["kl_a_step"].mean, "log_prior": columns["log_prior_a_step"].mean}
        return distance | {"mean_action": self.mean.as_dict(), "sampled_action": self.sampled.as_dict()}


@dataclass(frozen=True, repr=False)
class SweepResult:
    """The result of a sweep: the prior, the points that could be trained, and the knee of their trade-off."""

    request: dict[str, Any]
    folder: Path
    prior: Point
    points: list[Point]
    failed: dict[float, str]  # error message by ω′
    symbol: str = "ω′"  # symbol of the quantity that is swept
    is_curve: bool = True  # whether the points lie on one curve
    is_addon_dialed: bool = False  # whether the weight of an add-on is what changes: no total compares the points then

    def name(self, point: Point) -> str:
        """Return a point's name, such as `ω′ 0.3`."""
        return point.label or f"{self.symbol} {point.omega:g}"

    @property
    def has_basic_reward(self) -> bool:
        return all(point.basic is not None for point in [self.prior, *self.points])

    @property
    def has_total(self) -> bool:
        return self.has_basic_reward and not self.is_addon_dialed

    @property
    def has_a_run_a_point(self) -> bool:
        """Whether each point was trained by itself; the positions of a dial are one network's."""
        return "settings" in self.request

    @property
    def cost_name(self) -> str:
        """The quantity on the horizontal axis of the trade-off."""
        return "basic_reward" if self.has_basic_reward else "kl_a_step"

    @property
    def knee(self) -> int | None:
        """Index of the point at the knee of the trade-off, or None where there is no knee, or no certain one."""
        return self._knee_and_verdict[0]

    @property
    def verdict(self) -> str:
        """A sentence on the knee."""
        return self._knee_and_verdict[1]

    @cached_property
    def _knee_and_verdict(self) -> tuple[int | None, str]:
        """Return the index and the sentence; a knee must stay where episodes are resampled (bootstrap).

        Another run with another seed may move it: a sweep has one a point.
        """
        if not self.is_curve:
            return None, "the points lie on no one curve, so none of them is a bend"
        if not any(point.addon > self.prior.addon for point in self.points):
            return None, f"no value of {self.symbol} gains on the prior"
        [position] = self._knee_positions(None)  # 0: the prior, also where nothing bends
        if position == 0:
            return None, "the trade-off has no knee: no point lies above the straight line between its ends"
        bend = self.points[position - 1]
        if bend.addon == max(point.addon for point in self.points):  # beyond a knee lies more of the wish
            return None, f"the trade-off has no knee: it bends at {self.name(bend)}, and nothing has more of the wish"
        has_errors = len(self.prior.mean.basic) > 1  # one episode has none
        if not has_errors or np.mean(self._knee_positions(np.random.default_rng(0)) == position) < MIN_AGREEMENT:
            return None, "no clear knee: the points' errors are too large; try more --episodes or --steps"
        one_run = ", of one training run a point: another --seed may move it" if self.has_a_run_a_point else ""
        return int(position) - 1, f"the trade-off bends at {self.name(bend)}{one_run}"

    @property
    def best(self) -> int | None:
        """Index of the point with the highest total reward, or None where the prior ties with it or it is unknown."""
        if not self.has_total or self._tied[0]:
            return None
        return int(np.argmax([point.total for point in self.points]))

    @property
    def tied_points(self) -> int:
        """Number of other points that tie with the best one."""
        return 0 if self.best is None else sum(self._tied) - 1  # itself

    @cached_property
    def _tied(self) -> list[bool]:
        """Whether each total, the prior's first, cannot be told from the highest, by the test of the verdicts."""
        everyone = [point.main_evaluation.columns["total_reward"] for point in [self.prior, *self.points]]
        highest = max(everyone, key=lambda column: column.mean)
        comparisons = 2 * len(self.points)  # a verdict on each point, with two kinds of action
        gaps = [difference(column, highest, paired=True, comparisons=comparisons) for column in everyone]
        return [not gap.is_significant for gap in gaps]

    @property
    def first_shown(self) -> int:
        """Index of the point that a page shows first: that of the highest total, else the knee, else the middle."""
        if self.has_total:  # also where the prior is better still
            return int(np.argmax([point.total for point in self.points]))
        return len(self.points) // 2 if self.knee is None else self.knee

    def marks(self, index: int) -> str:
        """Return the remarks after a point's name, such as ` (knee)`."""
        remarks = ["knee"] if index == self.knee else []
        if index == self.best:
            remarks.append(f"one of {self.tied_points + 1} best totals" if self.tied_points else "best total")
        return f" ({', '.join(remarks)})" if remarks else ""

    def _knee_positions(self, random: np.random.Generator | None) -> np.ndarray:
        """Return the knee's position in each resampling `[R]`; without `random`, that of the episodes as they are."""
        names = [self.cost_name, "addon_reward"]
        everyone = [self.prior, *self.points]
        count = len(self.prior.main_evaluation.basic)
        # Episodes are drawn for all points at once, because they are paired: each begins at the same start.
        episodes = np.arange(count)[None] if random is None else random.integers(0, count, (RESAMPLINGS, count))
        means = [[_resampled_mean(point.column(name), episodes) for name in names] for point in everyone]
        costs, gains = (np.stack([each[index] for each in means], axis=-1) for index in (0, 1))  # [R, points]
        if self.has_basic_reward:
            least = 0.0 if (self.prior.basic or 0.0) > 0 else -math.inf
            costs = -np.maximum(least, costs)  # a lower bound: a return of −10⁶ would dwarf the others
        return knee(costs, gains)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows, the prior first; a quantity has the digits of its largest mean."""
        everyone = [self.prior, *self.points]

        def column(name: str, title: str = "") -> list[str]:
            quantities = [point.column(name) for point in everyone]
            size = max(abs(each.mean) for each in quantities)
            return [title or quantities[0].title, *(each.describe(size) for each in quantities)]

        names = self.prior.main_evaluation.columns
        labels = [(point.label or f"{point.omega:g}") + self.marks(index) for index, point in enumerate(self.points)]
        columns = [[self.symbol, "prior", *labels]]
        if self.has_basic_reward:
            columns.append(column("basic_reward"))
            prior_reward = self.prior.basic or 0.0
            if prior_reward > 0:  # a share of a negative reward says nothing
                shares = [(point.basic or 0.0) / prior_reward for point in everyone]
                columns.append(["kept", *(with_minus(f"{share:z.0%}") for share in shares)])
        if "metric" in names:
            columns.append(column("metric"))
        columns.append(column("addon_reward"))
        size = max(abs(point.addon) for point in everyone)
        gains = [format_number(point.addon - self.prior.addon, size, plus=True) for point in self.points]
        columns.append(["gained", "–", *gains])
        columns += [column(name) for name in names if name.startswith("addon_reward_")]  # of several wishes
        if self.has_basic_reward:
            columns.append(column("total_reward", "total"))
        columns += [column(name) for name in names if name.startswith("limit_")]
        columns += [column(name) for name in SAMPLED]
        headings, *rows = map(list, zip(*columns, strict=True))
        return headings, rows

    @property
    def basis(self) -> str:
        """The episodes and the kind of action that the table's numbers are of, in words."""
        return f"{self.prior.main_evaluation.basis} (log prior and KL: with sampled ones)"

    def __repr__(self) -> str:
        lines = [self.verdict, f"{self.request['env']}: what each {self.symbol} keeps and gains, {self.basis}"]
        lines.append(format_table(*self.table()))
        chosen = self.knee if self.knee is not None else self.best
        if chosen is not None and self.has_a_run_a_point:
            point = self.points[chosen]
            lines.append(f"the policy of {self.name(point)}{self.marks(chosen)}: {point.policy}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `sweep.json`; numbers that are not finite become null."""

        def point_as_dict(point: Point) -> dict[str, Any]:
            return {"omega": point.omega, "policy": str(point.policy)} | point.as_dict()

        content = {
            "request": self.request,
            "omegas": sorted([*(point.omega for point in self.points), *self.failed]),
            "prior": point_as_dict(self.prior),
            "points": [point_as_dict(point) for point in self.points],
            "failed": [{"omega": omega, "error": error} for omega, error in self.failed.items()],
            "knee": None if self.knee is None else self.points[self.knee].omega,
        }
        return dict(replace_nonfinite(content))


def evaluate_point(
    policy: Policy,
    prior: Policy,
    env: str,
    addon: Addon,
    episodes: int,
    backend: Backend = "auto",
    limits: Sequence[str] = (),
) -> tuple[Evaluation, Evaluation]:
    """Evaluate a point's policy in whole episodes, with the mean action and with sampled actions."""
    options: dict[str, Any] = {"addon": addon, "prior": prior, "seed": EVALUATION_SEED}
    options |= {"backend": backend, "limits": limits}
    mean = evaluate(policy, env, episodes, deterministic=True, **options)
    return mean, evaluate(policy, env, episodes, deterministic=False, **options)


def knee(costs: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Return the knees of trade-offs `[..., P]`: indices of the points farthest above the line between the ends.

    Both are scaled to [0, 1] first, so the distance is gain − cost up to a factor (the "kneedle" of Satopää et al.).
    """
    return np.argmax(_scaled_to_unit(gains) - _scaled_to_unit(costs), axis=-1)


def _resampled_mean(column: Column, episodes: np.ndarray) -> np.ndarray:
    """Return the mean of a quantity `[R]` over each of R draws of its episodes, `[R, E]`."""
    weights = np.ones(len(column.values)) if column.weights is None else column.weights
    means: np.ndarray = (column.values * weights)[episodes].sum(-1) / weights[episodes].sum(-1)
    return means


def _scaled_to_unit(values: np.ndarray) -> np.ndarray:
    above_lowest = values - values.min(-1, keepdims=True)
    span = above_lowest.max(-1, keepdims=True)
    return above_lowest / np.where(span > 0, span, 1.0)
