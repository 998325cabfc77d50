"""Pieces of a page that needs nothing but itself: tables, curves and films as HTML with SVG inside.

    page("Hopper-v4", [section("Table", table([...], [...]))])

Colours come from the reader's own dark or light setting; the few lines of JavaScript only read out curves and copy.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.envs.numbers import number

STYLE = (Path(__file__).parent / "page.css").read_text()
SCRIPT = (Path(__file__).parent / "page.js").read_text()

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
CURVE_POINTS = 240


def page(title: str, lead: str, parts: Sequence[str], script: str = "") -> str:
    """The whole document. `lead` is HTML; `script` is added to what every page does."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n'
        f'<body>\n<main>\n<header>\n<h1>{escape(title)}</h1>\n<p class="lead">{lead}</p>\n</header>\n{body}\n</main>\n'
        f"<script>\n{SCRIPT}{script}</script>\n</body>\n</html>\n"
    )


def section(heading: str, *content: str, note: str = "") -> str:
    said = f'<p class="note">{note}</p>' if note else ""
    return f"<section>\n<h2>{escape(heading)}</h2>\n{said}\n" + "\n".join(content) + "\n</section>"


def verdict(words: str, basis: str) -> str:
    """What a reader should take away, and what it rests on."""
    said = escape(words[0].upper() + words[1:])
    return f'<p class="verdict" id="verdict">{said}.</p>\n<p class="note">{escape(basis)}.</p>'


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Large numbers: (what it is, the number, what to compare it with)."""
    cells = [
        f'<div class="tile"><span class="what">{escape(what)}</span><span class="number">{escape(value)}</span>'
        f'<span class="beside">{escape(beside)}</span></div>'
        for what, value, beside in entries
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], attributes: Sequence[str] = ()) -> str:
    """Text first, numbers after it. `attributes[i]` is HTML that goes into the i-th row's tag."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = ""
    for index, row in enumerate(rows):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        body += f"<tr {attributes[index] if attributes else ''}>{cells}</tr>\n"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'


def film(content: bytes | None, caption: str, kind: str, attributes: str = "") -> str:
    """A short film that goes round; `kind` is prior or customized, for its color. None: an empty frame."""
    picture = '<div class="missing">no film</div>'
    if content is not None:
        source = f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
        picture = f'<video autoplay loop muted playsinline title="click to pause" src="{source}"></video>'
    return f'<figure class="film {kind}" {attributes}>{picture}<figcaption>{escape(caption)}</figcaption></figure>'


def films(figures: Sequence[str], complaint: str = "") -> str:
    if complaint:
        return f'<p class="complaint">No films: {escape(complaint)}.</p>'
    return f'<div class="films">{"".join(figures)}</div>'


def command(words: str) -> str:
    button = '<button type="button" class="copy">copy</button>'
    return f'<div class="command"><pre><code>{escape(words)}</code></pre>{button}</div>'


def settings(values: Mapping[str, Any]) -> str:
    """Names and values, folded away."""
    rows = "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>" for name, value in values.items()
    )
    return f"<details><summary>{len(values)} settings</summary><dl>{rows}</dl></details>"


# Numbers --------------------------------------------------------------------------------------------------------------


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float, digits: int = 3) -> str:
    """1.5M, 200k, 0.25."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{letter}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def labels(values: Sequence[float]) -> list[str]:
    """Labels of ticks, with as many digits as put them where they are."""
    near = 0.05 * min((b - a for a, b in pairwise(values)), default=math.inf)
    enough = (d for d in range(3, 16) if all(abs(float(f"{value:.{d}g}") - value) <= near for value in values))
    digits = next(enough, 16)
    return [short(value, digits) for value in values]


# Charts ---------------------------------------------------------------------------------------------------------------


class Axes:
    """From data to the drawing, and the drawing's frame."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], width: int = WIDTH, height: int = HEIGHT) -> None:
        self.width, self.height = width, height
        self.x0, self.x1 = _limits(xs, 0.0)
        self.y0, self.y1 = _limits(ys, 0.06)

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.height - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (self.height - TOP - BOTTOM)

    def widened(self, share: float) -> "Axes":
        """With room left and right of the data."""
        room = share * (self.x1 - self.x0)
        self.x0, self.x1 = self.x0 - room, self.x1 + room
        return self

    def frame(self, with_y: bool = True) -> str:
        drawn, end = [], self.width - RIGHT
        marks = ticks(self.y0, self.y1) if with_y else []
        for y, label in zip(map(self.y, marks), labels(marks), strict=True):
            drawn += [line("grid", LEFT, y, end, y), text("tick", LEFT - 6, y + 4, label, "end")]
        marks = ticks(self.x0, self.x1)
        for x, label in zip(map(self.x, marks), labels(marks), strict=True):
            drawn.append(text("tick", x, self.height - 8, label, "middle"))
        base = self.height - BOTTOM
        return "".join([*drawn, line("axis", LEFT, base, end, base)])

    def svg(self, drawn: str, label: str, attributes: str = "") -> str:
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}" {attributes}>'
            f"{drawn}</svg>"
        )


def curve(title: str, xs: Sequence[float | None], ys: Sequence[float | None]) -> str:
    """A line over environment steps; empty where there is nothing to draw."""
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None and math.isfinite(y)]
    if len(pairs) < 2:
        return ""
    points = np.array([chunk.mean(axis=0) for chunk in np.array_split(np.array(pairs), min(len(pairs), CURVE_POINTS))])
    axes = Axes(points[:, 0].tolist(), points[:, 1].tolist())
    path = "M" + "L".join(f"{_f(axes.x(x))},{_f(axes.y(y))}" for x, y in points)
    data = json.dumps([[round(axes.x(x), 1), round(axes.y(y), 1), short(x), number(y)] for x, y in points])
    drawn = f'{axes.frame()}<path class="line" d="{path}"/><circle class="dot" r="3.5" hidden="hidden"/>'
    svg = axes.svg(drawn, title, f"data-points='{escape(data)}'")
    return (
        f'<figure class="chart"><figcaption>{escape(title)}<output>{number(float(points[-1, 1]))}</output></figcaption>'
        f"{svg}</figure>"
    )


def charts(figures: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(figures)}</div>'


def histogram(series: Mapping[str, np.ndarray], what: str) -> str:
    """How the episodes spread, a row for each of the series (its name is its color), on one axis."""
    values = np.concatenate(list(series.values()))
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, 31)
    row = 76
    axes = Axes([low, high], [0.0, 1.0], 480, TOP + BOTTOM + row * len(series)).widened(0.02)
    drawn = axes.frame(with_y=False)
    for index, (name, found) in enumerate(series.items()):
        base = TOP + row * (index + 1) - 4
        counts, _ = np.histogram(found, edges)
        for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
            if count:
                tall = (row - 36) * count / counts.max()
                drawn += (
                    f'<rect class="{name}" x="{_f(axes.x(left) + 0.5)}" width="{_f(axes.x(right) - axes.x(left) - 1)}" '
                    f'y="{_f(base - tall)}" height="{_f(tall)}"><title>{count} of {len(found)} episodes</title></rect>'
                )
        mean, top = float(found.mean()), base - row + 22
        x, right = axes.x(mean), axes.x(mean) > 0.7 * axes.width
        label = f"{name}: mean {number(mean)}"
        drawn += line("mean", x, base, x, top)
        drawn += text("label", x - 6 if right else x + 6, top + 4, label, "end" if right else "start")
    return (
        f'<figure class="chart">{axes.svg(drawn, what)}<figcaption class="below">{escape(what)}</figcaption></figure>'
    )


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{_f(x1)}" y1="{_f(y1)}" x2="{_f(x2)}" y2="{_f(y2)}"/>'


def text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{_f(x)}" y="{_f(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def _limits(values: Sequence[float], room: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        return low - 0.5 * max(1e-6, abs(low)), high + 0.5 * max(1e-6, abs(high))
    return low - room * (high - low), high + room * (high - low)


def _f(value: float) -> str:
    return f"{value:.1f}"
