"""The table and the picture of docs/results-rql.md, from results/rql.jsonl, so that no figure is typed by hand.

python -m experiments.rql_report
"""

from pathlib import Path
from statistics import mean, stdev

import matplotlib.pyplot as plt

from experiments.campaign import finished
from experiments.ledger import Ledger, Row
from experiments.pages import fill, markdown

ROOT = Path(__file__).parent.parent
PAGE, PICTURE = ROOT / "docs" / "results-rql.md", ROOT / "docs" / "images" / "rql.png"
LOOKS = {  # method: what it is called, color, marker
    "prior": ("prior", "black", "o"),
    "rql": ("residual Q-learning", "tab:blue", "^"),
    "ppo": ("residual PPO", "tab:green", "s"),
    "full": ("full: told both rewards", "tab:gray", "*"),
    "greedy": ("greedy: add-on alone", "tab:red", "x"),
}
Rows = list[Row]


def main() -> None:
    tasks = by_task()
    fill(PAGE, {"rql": lambda: table(tasks)})
    draw(tasks)


def by_task() -> dict[str, Rows]:
    """Return the rows of each task."""
    tasks: dict[str, Rows] = {}
    for row in finished(Ledger(ROOT / "results" / "rql.jsonl")).values():
        tasks.setdefault(row["key"].partition("/")[0], []).append(row)
    return tasks


def table(tasks: dict[str, Rows]) -> str:
    """Return means over seeds, ± std (of a sample: n − 1); shares of the prior's basic return and of the full total."""
    headings = ["task", "policy", "seeds", "basic", "add-on", "total", "of prior's basic", "of full total"]
    lines = list[list[str]]()
    for task, rows in tasks.items():
        for method, (label, *_) in LOOKS.items():
            own = values(rows, method, "mean", "basic")
            if own:
                cells = [str(len(own))]
                for part in ("basic", "addon", "total"):
                    found = values(rows, method, "mean", part)
                    cells.append(f"{mean(found):,.1f}" + (f" ± {stdev(found):,.1f}" if len(found) > 1 else ""))
                cells += [share(rows, method, "prior", "basic"), share(rows, method, "full", "total")]
                sampled = values(rows, method, "sampled", "total")
                cells.append(f"{mean(sampled):,.1f}" if sampled else "")
                lines.append([task if method == "prior" else "", label, *cells])
    return markdown([*headings, "total, sampled"], lines)


def values(rows: Rows, method: str, action: str, part: str) -> list[float]:
    """Return the mean over episodes of each seed."""
    mine = [row["last"] for row in rows if row["key"].split("/")[1] == method]
    return [found[action][f"{part}_reward"][0] for found in mine if action in found]


def share(rows: Rows, method: str, reference: str, part: str) -> str:
    """Return what part of the reference's return this is, where that is a positive number."""
    found, wanted = values(rows, method, "mean", part), values(rows, reference, "mean", part)
    return f"{mean(found) / mean(wanted):.1%}" if wanted and mean(wanted) > 0 else ""


def draw(tasks: dict[str, Rows]) -> None:
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.5 * len(tasks), 4), squeeze=False)
    for axis, (task, rows) in zip(axes[0], tasks.items(), strict=True):
        for method, (label, color, marker) in LOOKS.items():
            basic, addon = (values(rows, method, "mean", part) for part in ("basic", "addon"))
            if basic:
                axis.scatter(basic, addon, s=60, color=color, marker=marker, label=label)
        axis.set(title=task, xlabel="basic return", ylabel="add-on return")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=80)


if __name__ == "__main__":
    main()
