"""Draw charts as SVG: curves over steps, histograms, and the axes and shapes of which pages make other charts."""

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from repolicy.ranges import enough_digits
from repolicy.text import format_number, with_minus

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 64, 10, 12, 28
CURVE_POINTS = 240
UNIT_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Axes:
    """The scales of a chart, from data to SVG coordinates, and its frame."""

    def __init__(
        self, xs: Sequence[float], ys: Sequence[float], width: int = WIDTH, height: int = HEIGHT, min_span: float = 0.0
    ) -> None:
        """Span the data; the vertical axis spans at least `min_span`, in its unit."""
        self.width, self.height, self.left, self.bottom = width, height, LEFT, BOTTOM
        self.x0, self.x1 = _limits(xs, 0.0)
        self.y0, self.y1 = _limits(ys, 0.06, min_span)

    def x(self, value: float) -> float:
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.width - self.left - RIGHT)

    def y(self, value: float) -> float:
        return self.height - self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.height - TOP - self.bottom)

    def widen(self, share: float) -> None:
        """Add a margin left and right of the data, as a share of the horizontal range."""
        margin = share * (self.x1 - self.x0)
        self.x0, self.x1 = self.x0 - margin, self.x1 + margin

    def name_axes(self, horizontal: str, vertical: str) -> str:
        """Make room for the names of both axes, and return them as SVG."""
        self.left, self.bottom = LEFT + 28, BOTTOM + 22
        middle = (TOP + self.height - self.bottom) / 2
        below = text("name", (self.left + self.width - RIGHT) / 2, self.height - 6, horizontal, "middle")
        tag = f'<text class="name" transform="translate(14 {_coordinate(middle)}) rotate(-90)" text-anchor="middle">'
        return f"{below}{tag}{escape(vertical)}</text>"

    def frame(self, with_y: bool = True) -> str:
        """Return the horizontal axis and all ticks as SVG; `with_y` is whether the vertical scale has ticks."""
        parts, end, base = [], self.width - RIGHT, self.height - self.bottom
        values = ticks(self.y0, self.y1) if with_y else []
        for y, label in zip(map(self.y, values), tick_labels(values), strict=True):
            parts += [line("grid", self.left, y, end, y), text("tick", self.left - 6, y + 4, label, "end")]
        values = ticks(self.x0, self.x1)
        for x, label in zip(map(self.x, values), tick_labels(values), strict=True):
            parts.append(text("tick", x, base + 18, label, "end" if x > end - 14 else "middle"))
        return "".join([*parts, line("axis", self.left, base, end, base)])

    def svg(self, content: str, label: str) -> str:
        tag = f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">'
        return f"{tag}{content}</svg>"


def curve(
    title: str,
    xs: Sequence[float | None],
    ys: Sequence[float | None],
    last_step: float = 0.0,
    min_span: float = 0.0,
    levels: Mapping[str, float] | None = None,
) -> str:
    """Return a learning curve over steps from 0 to `last_step`; empty for fewer than two points.

    `levels` are named horizontal lines, such as the prior's value or a budget. The vertical axis spans at least
    `min_span` and a tenth of the largest value, so a quantity that hardly changes looks flat.
    """
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None and math.isfinite(y)]
    if len(pairs) < 2:
        return ""
    points = np.array([chunk.mean(axis=0) for chunk in np.array_split(np.array(pairs), min(len(pairs), CURVE_POINTS))])
    levels = {name: value for name, value in (levels or {}).items() if math.isfinite(value)}
    heights = [*points[:, 1].tolist(), *levels.values()]
    axes = Axes([0.0, last_step or points[-1, 0]], heights, min_span=max(min_span, 0.1 * max(map(abs, heights))))
    content = axes.frame()
    for name, value in levels.items():
        y, is_above = axes.y(value), value > points[-1, 1]  # the label stands on the side without the curve's end
        y_label = y - 5 if (is_above and y > TOP + 12) or y > axes.height - axes.bottom - 18 else y + 14
        content += line(f"level {name}", axes.left, y, axes.width - RIGHT, y)
        content += text("level", axes.width - RIGHT, y_label, f"{name} {short_number(value)}", "end")
    path = "M" + "L".join(f"{_coordinate(axes.x(x))},{_coordinate(axes.y(y))}" for x, y in points)
    content += f'<path class="line" d="{path}"/>'
    first, last = (format_value(pairs[index][1]) for index in (0, -1))
    level_words = "".join(f"; {name}: {format_value(value)}" for name, value in levels.items())
    label = f"{title}: from {first} to {last} over {short_number(float(points[-1, 0]))} steps{level_words}"
    head = f'<figure class="chart"><figcaption>{escape(title)}<output>{last}</output></figcaption>'
    return f"{head}{axes.svg(content, label)}</figure>"


def chart_grid(figures: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(figures)}</div>'


def histogram(series: Mapping[str, np.ndarray], title: str) -> str:
    """Return histograms on one axis, a row for each series of steps `[M]`; its name is the CSS class."""
    values = np.concatenate([*series.values()])
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    edges, row = np.linspace(low, high, 31), 76
    axes = Axes([low, high], [0.0, 1.0], 400, TOP + BOTTOM + row * len(series))
    axes.widen(0.02)
    content = axes.frame(with_y=False)
    for index, (name, sample) in enumerate(series.items()):
        base = TOP + row * (index + 1) - 4
        counts, _ = np.histogram(sample, edges)
        for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
            if count:
                height = (row - 36) * count / counts.max()
                x, width = axes.x(left) + 0.5, axes.x(right) - axes.x(left) - 1
                content += (
                    f'<rect class="{name}" x="{_coordinate(x)}" width="{_coordinate(width)}" '
                    f'y="{_coordinate(base - height)}" height="{_coordinate(height)}">'
                    f"<title>{count} of {len(sample)} steps</title></rect>"
                )
        mean, top = float(sample.mean()), base - row + 22
        x, is_right = axes.x(mean), axes.x(mean) > 0.5 * axes.width
        content += line("mean", x, base, x, top)
        anchor = "end" if is_right else "start"
        content += text("label", x - 6 if is_right else x + 6, top + 4, f"{name}: mean {format_number(mean)}", anchor)
    means = ", ".join(f"{name} {format_number(float(sample.mean()))} on average" for name, sample in series.items())
    chart = axes.svg(content, f"{title}: {means}")
    return f'<figure class="chart">{chart}<figcaption class="below">{escape(title)}</figcaption></figure>'


def line(css_class: str, x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{_coordinate(x1)}" y1="{_coordinate(y1)}" x2="{_coordinate(x2)}" y2="{_coordinate(y2)}"'
    return f'<line class="{css_class}" {ends}/>'


def text(css_class: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    start = f'<text class="{css_class}" x="{_coordinate(x)}" y="{_coordinate(y)}" text-anchor="{anchor}">'
    return f"{start}{escape(words)}</text>"


def circle(css_class: str, x: float, y: float, radius: float, tip: str = "", attributes: str = "") -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    start = f'<circle class="{css_class}" cx="{_coordinate(x)}" cy="{_coordinate(y)}" r="{radius:g}" {attributes}>'
    return f"{start}{title}</circle>"


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


def short_number(value: float, digits: int = 3) -> str:
    """Return a short number: 1.5M, 200k, 0.25."""
    near = float(f"{value:.{digits}g}")  # rounded first, so 999.7 becomes 1k
    size, letter = next(((size, letter) for size, letter in UNIT_PREFIXES if abs(near) >= size), (1.0, ""))
    return with_minus(f"{near / size:.{max(digits, 4)}g}{letter}")


def format_value(value: float) -> str:
    """Return a value of a curve; a small value, such as a weight, keeps its digits."""
    return short_number(value) if 0 < abs(value) < 0.01 else format_number(value)


def tick_labels(values: Sequence[float]) -> list[str]:
    """Return labels with enough digits to tell the ticks apart."""
    digits = enough_digits(values)
    return [short_number(value, digits) for value in values]


def _limits(values: Sequence[float], margin: float, min_span: float = 0.0) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        min_span = max(min_span, 1e-6, abs(low))
    margin = max(margin * (high - low), 0.5 * (min_span - (high - low)))
    return low - margin, high + margin


def _coordinate(value: float) -> str:
    return f"{value:.1f}"
