"""Learning curves of many runs in one drawing: a line for the middle of the seeds, a band around it."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

import numpy as np

from experiments.ledger import Row
from experiments.paper.results import Results
from experiments.statistics import interval, iqm
from repolicy.report import charts

COLOURS = {  # the same in each chart; the paper's own are green
    "No-Entropy": "#64748b",
    "End-Entropy": "#2563eb",
    "Repeat-Entropy": "#dc2626",
    "Soft": "#059669",
    "Soft, std of the state": "#7c3aed",
    "Greedy": "#dc2626",
    "KL": "#2563eb",
    "Residual": "#059669",
    "Full": "#d97706",
}
GRID = 60  # points across
RESAMPLES = 500
Curve = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # steps, middle, low, high


def drawing(title: str, curves: Mapping[str, Curve]) -> str:
    """Draw one chart; the legend stands beneath it."""
    xs = [x for steps, *_ in curves.values() for x in (steps[0], steps[-1])]
    axes = charts.Axes(xs, limits(curves), 560, 300)
    drawn, legend = axes.frame(), ""
    for name, (steps, middle, low, high) in curves.items():
        color = COLOURS[name]
        edge = [*zip(steps, high, strict=True), *zip(steps[::-1], low[::-1], strict=True)]
        drawn += f'<path d="{_path(axes, edge)}Z" fill="{color}" fill-opacity="0.15"/>'
        line = _path(axes, list(zip(steps, middle, strict=True)))
        drawn += (
            f'<path d="{line}" fill="none" stroke="{color}" stroke-width="1.6"><title>{escape(name)}</title></path>'
        )
        legend += f'<span style="color:{color}">■</span> {escape(name)} &nbsp; '
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{axes.svg(drawn, title)}'
        f'<figcaption class="below"><span>{legend}</span></figcaption></figure>'
    )


def limits(curves: Mapping[str, Curve]) -> list[float]:
    """Return the lowest and the highest return to show: a policy that has lost all would flatten the others."""
    ys = np.concatenate([part for _, *parts in curves.values() for part in parts])
    low, top = float(ys.min()), float(ys.max())
    return [max(low, -top) if top > 0 else low, top]


def picture(figures: Mapping[str, Mapping[str, Curve]], path: Path) -> None:
    """Draw all charts in one file, an environment a row."""
    import matplotlib.pyplot as plt

    if not figures:
        return
    count = (len(figures) + 1) // 2
    drawn, grid = plt.subplots(count, 2, figsize=(12, 3.6 * count), squeeze=False, layout="constrained")
    for panel, (title, curves) in zip(grid.flat, figures.items(), strict=False):
        low, top = limits(curves)
        room = 0.04 * (top - low) or 1.0
        for name, (steps, middle, lowest, highest) in curves.items():
            panel.plot(steps / 1e6, middle, color=COLOURS[name], lw=1.4, label=name)
            panel.fill_between(steps / 1e6, lowest, highest, color=COLOURS[name], alpha=0.15, lw=0)
        panel.set(title=title, xlabel="million steps", ylim=(low - room, top + room))
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    for panel in grid.flat[len(figures) :]:
        panel.set_axis_off()
    path.parent.mkdir(exist_ok=True)
    drawn.savefig(path, dpi=90)
    plt.close(drawn)


def _path(axes: charts.Axes, points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{axes.x(x):.1f},{axes.y(min(max(y, axes.y0), axes.y1)):.1f}" for x, y in points)


def curve_of(results: Results, task: str, variant: str, total: bool) -> Curve | None:
    """Return the interquartile mean and its interval over the steps of training, whose actions are sampled."""
    known = [found for row in results.of(task, variant) if len((found := returns(row, total))[0])]
    if not known:
        return None
    last = min(steps[-1] for steps, _ in known)
    grid = np.linspace(last / GRID, last, GRID)
    lines = np.stack([np.interp(grid, *found) for found in known])  # [S, GRID]
    middle = np.array([iqm(lines[:, [i]]) for i in range(GRID)])
    if len(known) == 1:
        return grid, middle, middle, middle
    band = np.array([interval(iqm, lines[:, [i]], resamples=RESAMPLES) for i in range(GRID)])
    return grid, middle, band[:, 0], band[:, 1]


def returns(row: Row, total: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and returns of an episode, where episodes ended; nothing where none did."""
    if not {"basic_return", "episode_length"} <= row.get("curve", {}).keys():
        return np.empty(0), np.empty(0)
    curve = {name: np.array(values, np.float64) for name, values in row["curve"].items()}
    task = curve["reward_task"] * curve["episode_length"]  # of an episode
    customized = row["request"]["objective"]["task"] == "addon"
    found = curve["basic_return"] + task if customized else task if total else curve["basic_return"]
    known = np.isfinite(found)
    return curve["steps"][known], found[known]
