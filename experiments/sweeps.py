"""The trade-off over ω′ on the shipped priors: `repolicy sweep`, a line of the ledger a point, and the docs' picture.

    python -m experiments.sweeps

A sweep that is in the ledger is not repeated; one that was interrupted goes on.
"""

import json
import shlex
from pathlib import Path

import matplotlib.pyplot as plt

from experiments import campaign
from experiments.customizing import TASKS, pinned
from repolicy.cli.main import main as command_line
from repolicy.many.ledger import Ledger, Row

SWEEPS = {  # the add-on with a weight that makes it worth something beside the old task, and the values of ω′
    "halfcheetah": ("hind_leg=10", "0.1 0.17 0.3 0.6 1 3"),
    "hopper": ("height", "0 0.003 0.01 0.03 0.1 0.3 1 3"),
}
STEPS = "1e6"


def main() -> None:
    parser = campaign.parser("sweeps", __doc__)
    parser.add_argument("--picture", type=Path, default=Path("docs/images/omega.png"))
    parser.add_argument("--tasks", nargs="*", default=list(SWEEPS), choices=list(SWEEPS))
    options = parser.parse_args()
    ledger = Ledger(options.ledger)
    with ledger.claimed():
        known = {row["task"] for row in ledger.rows()}
        for task in options.tasks:
            for row in [] if task in known else run(task, options.runs / task, options.jobs):
                ledger.add(row)
    draw(ledger.rows(), options.picture)


def run(task: str, folder: Path, jobs: int) -> list[Row]:
    addon, omegas = SWEEPS[task]
    words = ["sweep", task, "--addon", addon, "--omega", *omegas.split(), "--alpha", TASKS[task].alpha]
    words = pinned([*words, "--steps", STEPS], TASKS[task].env)
    command_line([*words, "--out", str(folder), "--resume", "--jobs", str(jobs)])
    found = json.loads((folder / "sweep.json").read_text())
    rows = []
    for point in [found["prior"], *found["points"]]:
        name = "prior" if point["omega"] is None else f"{point['omega']:g}"
        row: Row = {"key": f"{task}/{name}", "task": task, "addon": addon, "command": shlex.join(["repolicy", *words])}
        row |= {"omega": point["omega"], "kl": point["kl"]}
        for action in ("mean", "sampled"):
            summary = point[f"{action}_action"]["summary"]
            row[action] = {name: [round(part["mean"], 4), round(part["std"], 4)] for name, part in summary.items()}
        rows.append(row | {"knee": point["omega"] is not None and point["omega"] == found["knee"]})
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Basic return against add-on return, a point each ω′, with lines of equal total."""
    names = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(6 * len(names), 4.2), squeeze=False)
    for name, axis in zip(names, axes[0], strict=True):
        prior, *points = [row for row in rows if row["task"] == name]
        basic, addon = ([row["mean"][part][0] for row in points] for part in ("basic_reward", "addon_reward"))
        axis.plot(basic, addon, "o-", color="#0b6e99")
        for row, x, y in zip(points, basic, addon, strict=True):
            axis.annotate(f"ω′ {row['omega']:g}", (x, y), textcoords="offset points", xytext=(6, 5), fontsize=9)
        x, y = prior["mean"]["basic_reward"][0], prior["mean"]["addon_reward"][0]
        axis.plot(x, y, "s", color="#777777")
        axis.annotate("prior", (x, y), textcoords="offset points", xytext=(6, -12), fontsize=9, color="#777777")
        axis.axline((x, y), slope=-1, color="#bbbbbb", linewidth=0.8, linestyle=":")
        axis.set_xlabel("basic return (never read)")
        axis.set_ylabel(f"add-on return: {SWEEPS[name][0]}")
        axis.set_title(name, loc="left")
        axis.margins(0.15)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    campaign.run_main(main)
