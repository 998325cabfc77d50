"""Write the tables of README and docs from `results/`, between their markers, so that no figure is typed by hand.

python benchmarks/tables.py            # write
python benchmarks/tables.py --check    # exit 1 if a table is not what the results say
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def rows(name: str) -> list[dict[str, Any]]:
    path = RESULTS / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def learning() -> str:
    lines = [
        "| environment | seeds | mean action, last | best | sampled, last | command |",
        "|---|---|---|---|---|---|",
    ]
    for env in dict.fromkeys(row["env"] for row in rows("learning.jsonl")):
        found = sorted((row for row in rows("learning.jsonl") if row["env"] == env), key=lambda row: row["seed"])
        cells = [
            f"**{mean(row[key][0] for row in found):,.0f}** ({', '.join(f'{row[key][0]:,.0f}' for row in found)})"
            for key in ("last_mean", "best_mean", "last_sampled")
        ]
        command = re.sub(r" --seed \d+", " --seed S", found[0]["command"])
        lines.append(f"| {env} | {len(found)} | {' | '.join(cells)} | `{command}` |")
    return "\n".join(lines)


def speed() -> str:
    lines = [
        "| environment | ranks | physics alone | training, end to end | share | slices | memory a rank |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows("speed.jsonl"):
        spread = row["slice_shares"]
        lines.append(
            f"| {row['env']} | {row['ranks']} | {row['physics_steps_per_second']:,.0f} | "
            f"{row['training_steps_per_second']:,.0f} | **{row['share']:.2f}** | "
            f"{spread['min']:.2f} – {spread['max']:.2f} | {row['memory_mb_a_rank']:,.0f} MB |"
        )
    return "\n".join(lines)


def peers() -> str:
    lines = ["| | steps a second, median | repolicy is faster by |", "|---|---|---|"]
    for row in rows("peers.jsonl"):
        lines.append(f"| {row['contender']} | {row['median']:,.0f} | × {row['repolicy_is_faster_by']:.1f} |")
    return "\n".join(lines)


def table(name: str) -> str:
    return TABLES[name]() if rows(f"{name}.jsonl") else "Not measured yet."


TABLES: dict[str, Callable[[], str]] = {"learning": learning, "speed": speed, "peers": peers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        fresh = re.sub(
            r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
            lambda match: match[1] + table(match[2]) + "\n" + match[3],
            text,
            flags=re.DOTALL,
        )
        if fresh != text:
            stale.append(path.name)
            if not options.check:
                path.write_text(fresh)
    print(f"{'stale' if options.check else 'written'}: {', '.join(stale) or 'none'}")
    sys.exit(1 if options.check and stale else 0)


if __name__ == "__main__":
    main()
