"""Sweep ω′ on the shipped priors with `repolicy sweep`, and draw the docs' picture. The ledger has one row per point.

    python -m experiments.sweeps

Sweeps in the ledger are not repeated; an interrupted sweep is resumed.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt

from experiments import campaign
from experiments.ledger import Ledger, Row
from repolicy.cli.main import main as command_line
from repolicy.many.sweep_folder import SweepFolder
from repolicy.runs.machine import versions


@dataclass(frozen=True)
class Sweep:
    prior: str
    addon: str  # with a weight of the order of the old task's
    omegas: str
    more: str = ""


OMEGAS = "0.1 0.17 0.3 0.6 1 3"
SWEEPS = {
    "halfcheetah": Sweep("halfcheetah", "hind_leg=10", OMEGAS),
    "hopper": Sweep("hopper", "height", "0 0.003 0.01 0.03 0.1 0.3 1 3"),
    "halfcheetah_plain": Sweep("halfcheetah", "hind_leg=10", OMEGAS, "--states 0"),  # the paper's objective
}
STEPS = "1e6"


def customize_arguments(name: str) -> list[str]:
    sweep = SWEEPS[name]
    named = ["sweep", sweep.prior, "--addon", sweep.addon, "--omega", *sweep.omegas.split()]
    return [*named, *sweep.more.split(), "--steps", STEPS]


def make_sweep(name: str, runs: Path, jobs: int) -> Path:
    """Make or resume a sweep unless it is finished, and return its folder."""
    folder = runs / name
    if "points" not in SweepFolder(folder).read():
        command_line([*customize_arguments(name), "--out", str(folder), "--resume", "--jobs", str(jobs)])
    return folder


def read_points(name: str, folder: Path) -> list[Row]:
    """Return a row for the prior and for each point of a finished sweep."""
    sweep = json.loads((folder / "sweep.json").read_text())
    rows = []
    for point in [sweep["prior"], *sweep["points"]]:
        key = "prior" if point["omega"] is None else f"{point['omega']:g}"
        row: Row = {"key": f"{name}/{key}", "task": name, "addon": SWEEPS[name].addon}
        row |= {"command": shlex.join(["repolicy", *customize_arguments(name)]), "versions": versions()}
        row |= {"omega": point["omega"], "kl": point["kl"], "states": sweep["request"]["states"]}
        for action in ("mean", "sampled"):
            summary = point[f"{action}_action"]["summary"]
            row[action] = {name: [round(part["mean"], 4), round(part["std"], 4)] for name, part in summary.items()}
        rows.append(row | {"knee": point["omega"] is not None and point["omega"] == sweep["knee"]})
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Draw add-on return over basic return, a point per ω′, with a line of the prior's total."""
    priors = list(dict.fromkeys(SWEEPS[row["task"]].prior for row in rows))
    figure, axes = plt.subplots(1, len(priors), figsize=(6 * len(priors), 4.2), squeeze=False)
    for prior, axis in zip(priors, axes[0], strict=True):
        for name in (name for name in dict.fromkeys(row["task"] for row in rows) if SWEEPS[name].prior == prior):
            start, *points = [row for row in rows if row["task"] == name]
            basic, addon = ([row["mean"][part][0] for row in points] for part in ("basic_reward", "addon_reward"))
            plain, priced = ("#b5532a", "states 0", (-36, -10)), ("#0b6e99", "states priced", (6, 5))
            color, label, place = plain if SWEEPS[name].more else priced
            axis.plot(basic, addon, "o-", color=color, label=label)
            for row, x, y in zip(points, basic, addon, strict=True):
                label = f"ω′ {row['omega']:g}"
                axis.annotate(label, (x, y), textcoords="offset points", xytext=place, fontsize=8, color=color)
            x, y = start["mean"]["basic_reward"][0], start["mean"]["addon_reward"][0]
        axis.plot(x, y, "s", color="#777777")
        axis.annotate("prior", (x, y), textcoords="offset points", xytext=(6, -12), fontsize=9, color="#777777")
        axis.axline((x, y), slope=-1, color="#bbbbbb", linewidth=0.8, linestyle=":")
        axis.set(xlabel="basic return (never read)", ylabel=f"add-on return: {SWEEPS[name].addon}")
        axis.set_title(prior, loc="left")
        axis.legend(frameon=False)
        axis.margins(0.15)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


@campaign.program("ledger", "runs", "jobs", picture=Path("docs/images/omega.png"), tasks=[*SWEEPS])
def main(options: campaign.Options) -> None:
    ledger = Ledger(options.ledger)
    with ledger.locked():
        known = {row["task"] for row in ledger.rows()}
        for name in [name for name in options.tasks if name not in known]:
            for row in read_points(name, make_sweep(name, options.runs, options.jobs)):
                ledger.add(row)
    draw(ledger.rows(), options.picture)
