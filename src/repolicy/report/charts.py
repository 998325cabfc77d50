"""Drawings of a page, as SVG: curves over steps, how episodes spread, and the axes that others draw in."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from repolicy.envs import Evaluation, Limit
from repolicy.objective import reformulated, task_reward
from repolicy.ranges import enough_digits
from repolicy.report import page
from repolicy.runs import Request, RunFolder
from repolicy.text import capitalized, number

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 64, 10, 12, 28
CURVE_POINTS = 240
SIZES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
FEW = 30  # points that are marked one by one


class Axes:
    """From data to the drawing, and the drawing's frame."""

    def __init__(
        self, xs: Sequence[float], ys: Sequence[float], width: int = WIDTH, height: int = HEIGHT, least: float = 0.0
    ) -> None:
        """Span the data; `least` is how much the vertical axis spans at least, in its unit."""
        self.width, self.height, self.left, self.bottom = width, height, LEFT, BOTTOM
        self.x0, self.x1 = _limits(xs, 0.0)
        self.y0, self.y1 = _limits(ys, 0.06, least)

    def x(self, value: float) -> float:
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.width - self.left - RIGHT)

    def y(self, value: float) -> float:
        return self.height - self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.height - TOP - self.bottom)

    def widened(self, share: float) -> "Axes":
        """Widen the range, with room left and right of the data. Returns these axes."""
        room = share * (self.x1 - self.x0)
        self.x0, self.x1 = self.x0 - room, self.x1 + room
        return self

    def named(self, across: str, up: str) -> str:
        """Return the names of the axes, for which room is made on both sides."""
        self.left, self.bottom = LEFT + 28, BOTTOM + 22
        middle = (TOP + self.height - self.bottom) / 2
        below = text("name", (self.left + self.width - RIGHT) / 2, self.height - 6, across, "middle")
        tag = f'<text class="name" transform="translate(14 {_f(middle)}) rotate(-90)" text-anchor="middle">'
        return f"{below}{tag}{escape(up)}</text>"

    def frame(self, with_y: bool = True) -> str:
        drawn, end, base = [], self.width - RIGHT, self.height - self.bottom
        marks = ticks(self.y0, self.y1) if with_y else []
        for y, label in zip(map(self.y, marks), labels(marks), strict=True):
            drawn += [line("grid", self.left, y, end, y), text("tick", self.left - 6, y + 4, label, "end")]
        marks = ticks(self.x0, self.x1)
        for x, label in zip(map(self.x, marks), labels(marks), strict=True):
            drawn.append(text("tick", x, base + 18, label, "end" if x > end - 14 else "middle"))
        return "".join([*drawn, line("axis", self.left, base, end, base)])

    def svg(self, drawn: str, label: str, attributes: str = "") -> str:
        tag = f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}" {attributes}>'
        return f"{tag}{drawn}</svg>"


def curve(
    title: str,
    xs: Sequence[float | None],
    ys: Sequence[float | None],
    until: float = 0.0,
    least: float = 0.0,
    levels: Mapping[str, float] | None = None,
) -> str:
    """Return a line over environment steps from 0 to `until`; empty where there is nothing to draw.

    `levels` are horizontal lines with their names: where the prior is, or a budget. The vertical axis spans a tenth of
    the largest value, and `least`, at the least: what hardly moves looks like it.
    """
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None and math.isfinite(y)]
    if len(pairs) < 2:
        return ""
    points = np.array([chunk.mean(axis=0) for chunk in np.array_split(np.array(pairs), min(len(pairs), CURVE_POINTS))])
    level = {name: value for name, value in (levels or {}).items() if math.isfinite(value)}
    heights = [*points[:, 1].tolist(), *level.values()]
    axes = Axes([0.0, until or points[-1, 0]], heights, least=max(least, 0.1 * max(map(abs, heights))))
    drawn = axes.frame()
    for name, value in level.items():
        y, above = axes.y(value), value > points[-1, 1]  # the label stands on the side where the line does not end
        y_label = y - 5 if (above and y > TOP + 12) or y > axes.height - axes.bottom - 18 else y + 14
        drawn += line(f"level {name}", axes.left, y, axes.width - RIGHT, y)
        drawn += text("level", axes.width - RIGHT, y_label, f"{name} {short(value)}", "end")
    path = "M" + "L".join(f"{_f(axes.x(x))},{_f(axes.y(y))}" for x, y in points)
    drawn += f'<path class="line" d="{path}"/>'
    if len(points) <= FEW:
        drawn += "".join(circle("mark", axes.x(x), axes.y(y), 2.4) for x, y in points)
    drawn += '<circle class="dot" r="3.5" hidden="hidden"/>'
    data = json.dumps([[round(axes.x(x), 1), round(axes.y(y), 1), short(x), read_out(y)] for x, y in points])
    first, last = (read_out(float(points[index, 1])) for index in (0, -1))
    beside = "".join(f"; {name}: {read_out(value)}" for name, value in level.items())
    sentence = f"{title}: from {first} to {last} over {short(float(points[-1, 0]))} steps{beside}"
    head = f'<figure class="chart"><figcaption>{escape(title)}<output>{last}</output></figcaption>'
    return head + axes.svg(drawn, sentence, f"data-points='{escape(data)}'") + "</figure>"


def charts(figures: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(figures)}</div>'


def histogram(series: Mapping[str, np.ndarray], what: str, of: str = "episodes") -> str:
    """Return how episodes, or steps, spread: a row for each of the series, whose name is its color, on one axis."""
    low, high = (float(end(np.concatenate([*series.values()]))) for end in (np.min, np.max))
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    edges, row = np.linspace(low, high, 31), 76
    axes = Axes([low, high], [0.0, 1.0], 400, TOP + BOTTOM + row * len(series)).widened(0.02)
    drawn = axes.frame(with_y=False)
    for index, (name, sample) in enumerate(series.items()):
        base = TOP + row * (index + 1) - 4
        counts, _ = np.histogram(sample, edges)
        for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
            if count:
                tall = (row - 36) * count / counts.max()
                drawn += (
                    f'<rect class="{name}" x="{_f(axes.x(left) + 0.5)}" width="{_f(axes.x(right) - axes.x(left) - 1)}" '
                    f'y="{_f(base - tall)}" height="{_f(tall)}"><title>{count} of {len(sample)} {of}</title></rect>'
                )
        mean, top = float(sample.mean()), base - row + 22
        x, right = axes.x(mean), axes.x(mean) > 0.5 * axes.width
        label = f"{name}: mean {number(mean)}"
        drawn += line("mean", x, base, x, top)
        drawn += text("label", x - 6 if right else x + 6, top + 4, label, "end" if right else "start")
    means = ", ".join(f"{name} {number(float(sample.mean()))} on average" for name, sample in series.items())
    drawing = axes.svg(drawn, f"{what}: {means}")
    return f'<figure class="chart">{drawing}<figcaption class="below">{escape(what)}</figcaption></figure>'


Spot = tuple[float, float]


def beside(names: Sequence[str], at: Sequence[Spot], path: Sequence[Spot], axes: Axes) -> list[Spot]:
    """Return where the names of points stand, the middle of each foot: off the points, the path and each other."""
    taken = [*at, *(a + share * (b - a) for a, b in pairwise(map(np.array, path)) for share in np.linspace(0, 1, 40))]
    feet: list[Spot] = []
    for name, (x, y) in zip(names, at, strict=True):
        half = 4.0 * len(name) + 2
        ways = [(way * across, down) for across in (0, half + 12) for down in (-16, 26, 5, -30, 40) for way in (1, -1)]
        places = [(x + across, y + down) for across, down in ways if across or down != 5]
        fewest = math.inf
        for px, py in places:
            left, right, top, foot = px - half, px + half, py - 13, py + 4
            crowd = sum(left < tx < right and top < ty < foot for tx, ty in taken)
            if left <= axes.left or right >= axes.width or foot >= axes.height - axes.bottom:
                crowd += 99  # it would leave the drawing
            if crowd < fewest:
                fewest, spot, box = crowd, (px, py), (left, right, top, foot)
        left, right, top, foot = box
        taken += [(tx, ty) for tx in np.linspace(left, right, 9) for ty in (top, (top + foot) / 2, foot)]
        feet.append(spot)
    return feet


def line(css_class: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{css_class}" x1="{_f(x1)}" y1="{_f(y1)}" x2="{_f(x2)}" y2="{_f(y2)}"/>'


def text(css_class: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{css_class}" x="{_f(x)}" y="{_f(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def circle(css_class: str, x: float, y: float, radius: float, tip: str = "", attributes: str = "") -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<circle class="{css_class}" cx="{_f(x)}" cy="{_f(y)}" r="{radius:g}" {attributes}>{title}</circle>'


# Numbers on axes ------------------------------------------------------------------------------------------------------


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / 4
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float, digits: int = 3) -> str:
    """Return a short number: 1.5M, 200k, 0.25."""
    near = float(f"{value:.{digits}g}")  # 999.7 is 1k
    size, letter = next(((size, letter) for size, letter in SIZES if abs(near) >= size), (1.0, ""))
    return f"{near / size:.{max(digits, 4)}g}{letter}".replace("-", "−")


def read_out(value: float) -> str:
    """Return a value of a curve; a small one, such as a weight, keeps its digits."""
    return short(value) if 0 < abs(value) < 0.01 else number(value)


def labels(values: Sequence[float]) -> list[str]:
    """Return labels of ticks, with as many digits as put them where they are."""
    digits = enough_digits(values)
    return [short(value, digits) for value in values]


def _limits(values: Sequence[float], room: float, least: float = 0.0) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        least = max(least, 1e-6, abs(low))
    room = max(room * (high - low), 0.5 * (least - (high - low)))
    return low - room, high + room


def _f(value: float) -> str:
    return f"{value:.1f}"


# What a run logged while it learned, as curves; beside them where the prior stands, and the budget --------------------


@dataclass(frozen=True)
class Curve:
    """A quantity of metrics.jsonl; its axis spans `least` at the least, so that next to nothing looks like it."""

    name: str
    title: str
    least: float = 0.0


CURVES = [
    Curve("evaluation_objective", "The run's own objective, of an episode"),
    Curve("basic_return", "Basic reward of an episode"),
    Curve("evaluation_addon", "Add-on reward of an episode"),
    Curve("evaluation_metric", "{metric} in an episode"),
    Curve("reward_task", "Task's reward a step"),
    Curve("reward_states", "Price of states unlike the prior's, a step", 0.01),
    Curve("prior_kl", "KL to the prior, nats a step", 0.1),
    Curve("below_prior", "Less likely than the prior's own actions, nats a step", 0.1),
    Curve("log_prior", "Log prior a step, nats", 1.0),
    Curve("kept", "Share of the old return that the mean action keeps", 0.1),
    Curve("omega", "ω′"),
    Curve("entropy", "Entropy of the policy, nats", 1.0),
    Curve("std", "Mean std of the actions"),
    Curve("episode_length", "Length of an episode, steps"),
    Curve("explained_variance", "Share of the returns that the critic explains", 0.5),
    Curve("kl", "KL of an update, nats", 0.01),
]
NOTE = (
    "With sampled actions where no other are named, over environment steps. The number is the last one drawn, or that "
    "under the pointer."
)
OF_AN_EPISODE = "“Of an episode” is from short evaluations or from the episodes that ended in training."


def learning(folder: RunFolder, request: Request, sampled: dict[str, Evaluation], of_clone: bool = False) -> str:
    """Return the section; `sampled` are evaluations with sampled actions, by who acts.

    `of_clone`: the prior's is of a clone, and the run was scored by the prior, so its levels are others.
    """
    prior = sampled.get("prior")
    columns, settings = folder.read_metrics(), request.settings
    steps, levels = columns.get("steps", []), {} if of_clone else lines(request, prior)
    until = max([float(settings.steps), *(step for step in steps if step is not None)])
    metric = next((each.metric_name for each in sampled.values() if each.metric_name), "Metric")
    drawn = []
    for each in CURVES:
        values = columns.get(each.name)
        if values is None or (each.name == "omega" and len(set(values)) < 2):
            continue  # omega is drawn where a budget moves it
        if each.name == "evaluation_objective" and settings.budget is not None:
            continue  # each value of it has weights of its own
        title = each.title.format(metric=capitalized(metric))
        drawn.append(curve(title, steps, values, until, each.least, levels.get(each.name)))
    drawn += of_limits(request.limits, columns, steps, until, "the mean action")
    if not any(drawn):
        return page.section("While it learned", note="The run logged no metrics.")
    return page.section("While it learned", charts([chart for chart in drawn if chart]), note=f"{NOTE} {OF_AN_EPISODE}")


def of_limits(
    limits: Sequence[str], columns: Mapping[str, list[Any]], steps: list[Any], until: float, how: str
) -> list[str]:
    """Return two curves of each limit: its quantity, measured with some kind of action, and its weight."""
    drawn = []
    for limit in map(Limit.of, limits):
        values, weights = (columns.get(f"{what}_{limit}", [None] * len(steps)) for what in ("limit", "multiplier"))
        drawn.append(curve(f"{limit}: with {how}", steps, values, until, 0.0, {"limit": limit.bound}))
        drawn.append(curve(f"{limit}: its weight", steps, weights, until))
    return drawn


def lines(request: Request, prior: Evaluation | None) -> dict[str, dict[str, float]]:
    """Return the horizontal lines of each curve: what the prior has of it, with sampled actions, and the budget."""
    if prior is None:
        return {}
    objective, budget = request.objective, request.settings.budget
    columns = prior.columns
    means = {name: column.mean for name, column in columns.items()}
    at = {
        "basic_return": means.get("basic_reward"),
        "evaluation_addon": means.get("addon_reward"),
        "evaluation_metric": means.get("metric"),
        "episode_length": means["length"],
        "prior_kl": 0.0,
        "below_prior": 0.0,
        "log_prior": means.get("log_prior_a_step"),
        "entropy": -float(prior.log_policy.sum() / prior.lengths.sum()),
    }
    if objective.task == "addon" or "basic_reward" in columns:
        task = task_reward(objective, prior.basic, prior.addon)
        at["reward_task"] = float(task.sum() / prior.lengths.sum())
        if not objective.states and budget is None:  # which moves the weights
            parts = reformulated(objective, task, prior.log_prior, prior.log_policy)
            at["evaluation_objective"] = float(np.mean(parts.total))
    drawn = {name: {"prior": value} for name, value in at.items() if value is not None}
    if budget is not None:
        drawn.setdefault(budget.metric, {})["to keep" if request.settings.keep else "budget"] = budget.amount
    return drawn
