"""The table and the picture of docs/rql.md, from results/rql, so that no figure is typed by hand.

python benchmarks/rql_report.py
"""

import re
from pathlib import Path
from statistics import mean, pstdev

import matplotlib.pyplot as plt
from ledger import Row, rows_of

ROOT = Path(__file__).parent.parent
PAGE, PICTURE = ROOT / "docs" / "rql.md", ROOT / "docs" / "images" / "rql.png"
LOOKS = {  # method: what it is called, colour, marker
    "prior": ("prior", "black", "o"),
    "rql": ("residual Q-learning", "tab:blue", "^"),
    "ppo": ("residual PPO", "tab:green", "s"),
    "full": ("full: told both rewards", "tab:gray", "*"),
    "greedy": ("greedy: add-on alone", "tab:red", "x"),
}
Rows = list[Row]


def main() -> None:
    found = {
        name: rows_of(ROOT / "results" / "rql" / f"{name}.jsonl")
        for name in ("cartpole", "mountain_car", "highway", "parking")
    }
    tasks = {name: rows for name, rows in found.items() if rows}
    page = re.sub(
        r"(<!-- results -->\n).*?(<!-- end -->)",
        lambda match: match[1] + table(tasks) + "\n" + match[2],
        PAGE.read_text(),
        flags=re.DOTALL,
    )
    PAGE.write_text(page)
    draw(tasks)


def table(tasks: dict[str, Rows]) -> str:
    """Means over seeds and their std; what is kept of the prior's basic return, and reached of the full total."""
    lines = [
        "| task | policy | seeds | basic | add-on | total | of prior's basic | of full total | total, sampled |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for task, rows in tasks.items():
        for method, (label, *_) in LOOKS.items():
            own = values(rows, method, "mode", "basic")
            if own:
                cells = [str(len(own))]
                for part in ("basic", "addon", "total"):
                    found = values(rows, method, "mode", part)
                    cells.append(f"{mean(found):,.1f} ± {pstdev(found):,.1f}")
                cells += [share(rows, method, "prior", "basic"), share(rows, method, "full", "total")]
                sampled = values(rows, method, "sampled", "total")
                cells.append(f"{mean(sampled):,.1f}" if sampled else "")
                lines.append(f"| {task if method == 'prior' else ''} | {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def values(rows: Rows, method: str, action: str, part: str) -> list[float]:
    """The mean over episodes of each seed."""
    return [row[action][part][0] for row in rows if row["method"] == method and action in row]


def share(rows: Rows, method: str, reference: str, part: str) -> str:
    """What part of the reference's return this is, where that is a positive number."""
    found, wanted = values(rows, method, "mode", part), values(rows, reference, "mode", part)
    return f"{mean(found) / mean(wanted):.1%}" if wanted and mean(wanted) > 0 else ""


def draw(tasks: dict[str, Rows]) -> None:
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.5 * len(tasks), 4), squeeze=False)
    for axis, (task, rows) in zip(axes[0], tasks.items(), strict=True):
        for method, (label, colour, marker) in LOOKS.items():
            basic, addon = (values(rows, method, "mode", part) for part in ("basic", "addon"))
            if basic:
                axis.scatter(basic, addon, s=60, color=colour, marker=marker, label=label)
        axis.set(title=task, xlabel="basic return", ylabel="add-on return")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=80)


if __name__ == "__main__":
    main()
