"""The report: the tables and the picture of `docs/results-paper.md`, from the ledger."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.ledger import Ledger, Row
from experiments.pages import Tables, markdown_table, update_page
from experiments.paper import tables
from experiments.paper.claims import examine_all
from experiments.paper.results import Results
from experiments.paper.runs import ALL_VARIANTS, OWN_TASKS, TASKS, plan_runs
from experiments.statistics import bootstrap_interval, iqm
from repolicy.errors import UsageError
from repolicy.loading import read_bytes

COLORS = {  # the same in each chart; the paper's own are green
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


def read_results(path: Path, seeds: int) -> Results:
    """Return the rows of the campaign's own runs, whatever else the ledger holds."""
    keys = {plan.key for plan in plan_runs((*TASKS, *OWN_TASKS, *ALL_VARIANTS), seeds)}
    rows = {key: row for key, row in Ledger(path).by_key().items() if key in keys}
    if not rows:
        raise UsageError(f"{path} has none of these runs: python -m experiments.paper run")
    return Results(rows, seeds)


def page_tables(results: Results) -> Tables:
    """Return what makes the tables of `docs/results-paper.md`, by their names there."""
    found = examine_all(results)
    return {
        "paper_summary": lambda: markdown_table(*tables.summary(results, found)),
        "paper_missing": lambda: tables.missing(results),
        "paper_claims": lambda: markdown_table(*tables.claims(found)),
        "paper_table1": lambda: markdown_table(*tables.learning(results)),
        "paper_table2": lambda: markdown_table(*tables.customizing(results)),
        "paper_ways": lambda: markdown_table(*tables.ways(results)),
        "paper_beyond": lambda: markdown_table(*tables.beyond(results)),
        "paper_expense": lambda: markdown_table(*tables.expense(results)),
        "paper_settings": lambda: markdown_table(*tables.settings(results)),
    }


def write_page(results: Results, text: Path) -> None:
    """Write the tables of the page, and its picture."""
    if "<!-- table: paper_" not in read_bytes(text).decode(errors="replace"):
        raise UsageError(
            f"{text} has no place for these tables: copy the lines <!-- table: … --> of docs/results-paper.md"
        )
    update_page(text, page_tables(results))
    draw_curves(learning_curves(results), text.with_name("images") / "paper.png")


def learning_curves(results: Results) -> dict[str, dict[str, Curve]]:
    """Return curves by title: for each environment, those that learn the basic task, and those that customize."""
    found: dict[str, dict[str, Curve]] = {}
    for task, name in tables.ENVIRONMENTS.items():
        for part, variants in (
            ("basic", (*tables.TABLE_VARIANTS["table1"], "soft_state_std")),
            ("total", ("greedy", "kl", "residual", "full")),
        ):
            curves = {tables.NAMES[key]: learning_curve(results, task, key, part == "total") for key in variants}
            known = {key: curve for key, curve in curves.items() if curve is not None}
            found |= {f"{name}: {part} return": known} if known else {}
    return found


def y_limits(curves: Mapping[str, Curve]) -> list[float]:
    """Return the lowest and the highest return to show: a policy that has lost all would flatten the others."""
    ys = np.concatenate([part for _, *parts in curves.values() for part in parts])
    low, top = float(ys.min()), float(ys.max())
    return [max(low, -top) if top > 0 else low, top]


def draw_curves(learning_curves: Mapping[str, Mapping[str, Curve]], path: Path) -> None:
    """Draw all charts in one file, an environment a row."""
    import matplotlib.pyplot as plt

    if not learning_curves:
        return
    count = (len(learning_curves) + 1) // 2
    drawn, grid = plt.subplots(count, 2, figsize=(12, 3.6 * count), squeeze=False, layout="constrained")
    for panel, (title, curves) in zip(grid.flat, learning_curves.items(), strict=False):
        low, top = y_limits(curves)
        room = 0.04 * (top - low) or 1.0
        for name, (steps, middle, lowest, highest) in curves.items():
            panel.plot(steps / 1e6, middle, color=COLORS[name], lw=1.4, label=name)
            panel.fill_between(steps / 1e6, lowest, highest, color=COLORS[name], alpha=0.15, lw=0)
        panel.set(title=title, xlabel="million steps", ylim=(low - room, top + room))
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    for panel in grid.flat[len(learning_curves) :]:
        panel.set_axis_off()
    path.parent.mkdir(exist_ok=True)
    drawn.savefig(path, dpi=90)
    plt.close(drawn)


def learning_curve(results: Results, task: str, variant: str, total: bool) -> Curve | None:
    """Return the interquartile mean and its interval over the steps of training, whose actions are sampled."""
    known = [found for row in results.of(task, variant) if len((found := episode_returns(row, total))[0])]
    if not known:
        return None
    last = min(steps[-1] for steps, _ in known)
    grid = np.linspace(last / GRID, last, GRID)
    lines = np.stack([np.interp(grid, *found) for found in known])  # [S, GRID]
    middle = np.array([iqm(lines[:, [i]]) for i in range(GRID)])
    if len(known) == 1:
        return grid, middle, middle, middle
    band = np.array([bootstrap_interval(iqm, lines[:, [i]], resamples=RESAMPLES) for i in range(GRID)])
    return grid, middle, band[:, 0], band[:, 1]


def episode_returns(row: Row, total: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and returns of an episode, where episodes ended; nothing where none did."""
    if not {"basic_return", "episode_length"} <= row.get("curve", {}).keys():
        return np.empty(0), np.empty(0)
    curve = {name: np.array(values, np.float64) for name, values in row["curve"].items()}
    task = curve["reward_task"] * curve["episode_length"]  # of an episode
    customized = row["request"]["objective"]["task"] == "addon"
    found = curve["basic_return"] + task if customized else task if total else curve["basic_return"]
    known = np.isfinite(found)
    return curve["steps"][known], found[known]
