"""Draw the picture of `docs/results-paper.md`: the learning curves of the rows in the ledger."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.ledger import Row
from experiments.paper import tables
from experiments.paper.results import Results
from experiments.statistics import bootstrap_interval, iqm

COLORS = {  # the paper's own methods are green
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
GRID = 60  # points of a curve
RESAMPLES = 500
Curve = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # steps, interquartile mean, low, high


def draw(rows: dict[str, Row], path: Path) -> None:
    """Draw all charts in one file, with a row per environment."""
    import matplotlib.pyplot as plt

    charts = learning_curves(Results(rows))
    count = (len(charts) + 1) // 2
    figure, grid = plt.subplots(count, 2, figsize=(12, 3.6 * count), squeeze=False, layout="constrained")
    for panel, (title, curves) in zip(grid.flat, charts.items(), strict=False):
        low, top = y_limits(curves)
        margin = 0.04 * (top - low) or 1.0
        for name, (steps, middle, lowest, highest) in curves.items():
            panel.plot(steps / 1e6, middle, color=COLORS[name], lw=1.4, label=name)
            panel.fill_between(steps / 1e6, lowest, highest, color=COLORS[name], alpha=0.15, lw=0)
        panel.set(title=title, xlabel="million steps", ylim=(low - margin, top + margin))
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    for panel in grid.flat[len(charts) :]:
        panel.set_axis_off()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def learning_curves(results: Results) -> dict[str, dict[str, Curve]]:
    """Return curves by the chart's title: for each environment, a chart of training and one of customizing."""
    charts: dict[str, dict[str, Curve]] = {}
    for task, name in tables.ENVIRONMENTS.items():
        for part, variants in (
            ("basic", (*tables.TABLE_VARIANTS["table1"], "soft_state_std")),
            ("total", ("greedy", "kl", "residual", "full")),
        ):
            curves = {tables.NAMES[key]: learning_curve(results, task, key, part == "total") for key in variants}
            known = {key: curve for key, curve in curves.items() if curve is not None}
            charts |= {f"{name}: {part} return": known} if known else {}
    return charts


def y_limits(curves: Mapping[str, Curve]) -> list[float]:
    """Return the lowest and highest return to show; a failed policy does not flatten the other curves."""
    ys = np.concatenate([part for _, *parts in curves.values() for part in parts])
    low, top = float(ys.min()), float(ys.max())
    return [max(low, -top) if top > 0 else low, top]


def learning_curve(results: Results, task: str, variant: str, total: bool) -> Curve | None:
    """Return the interquartile mean over seeds, and its interval, during training, where actions are sampled."""
    runs = [episode_returns(row, total) for row in results.of(task, variant)]
    runs = [(steps, values) for steps, values in runs if len(steps)]
    if not runs:
        return None
    last = min(steps[-1] for steps, _ in runs)
    grid = np.linspace(last / GRID, last, GRID)
    lines = np.stack([np.interp(grid, *run) for run in runs])  # [S, GRID]
    middle = np.array([iqm(lines[:, [i]]) for i in range(GRID)])
    if len(runs) == 1:
        return grid, middle, middle, middle
    band = np.array([bootstrap_interval(iqm, lines[:, [i]], resamples=RESAMPLES) for i in range(GRID)])
    return grid, middle, band[:, 0], band[:, 1]


def episode_returns(row: Row, total: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and mean returns of those points of a run's curve at which episodes ended."""
    if not {"basic_return", "episode_length"} <= row.get("curve", {}).keys():
        return np.empty(0), np.empty(0)
    curve = {name: np.array(values, np.float64) for name, values in row["curve"].items()}
    task_return = curve["reward_task"] * curve["episode_length"]
    if row["request"]["objective"]["task"] == "addon":
        values = curve["basic_return"] + task_return
    else:
        values = task_return if total else curve["basic_return"]
    known = np.isfinite(values)
    return curve["steps"][known], values[known]
