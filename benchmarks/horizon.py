"""How far to look ahead while customising: HalfCheetah with a wish that weighs, at several discounts.

    python benchmarks/horizon.py --out results/horizon.jsonl

A run that is in the file is not repeated; one that was interrupted goes on.
"""

import argparse
from pathlib import Path

from customising import TASKS, command, evaluated
from ledger import Row, fill, repolicy

GAMMAS = ("0.99", "0.9", "0.6")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/horizon.jsonl"))
    parser.add_argument("--runs", type=Path, default=Path("runs/horizon"))
    options = parser.parse_args()
    fill(options.out, [{"gamma": gamma} for gamma in GAMMAS], lambda gamma: run(gamma, options.runs / gamma))


def run(gamma: str, folder: Path) -> Row:
    task = TASKS["halfcheetah_10"]
    words = [*command(task, "residual", "2.5e6"), "--gamma", gamma, "--seed", "0"]
    repolicy([*words, "--out", str(folder), "--resume"])
    found = {action: evaluated(task, str(folder / "policy.safetensors"), action) for action in ("mean", "sampled")}
    return {"command": " ".join(["repolicy", *words])} | found


if __name__ == "__main__":
    main()
