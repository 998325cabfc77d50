"""How far to look ahead while customising HalfCheetah: residual and KL from the shipped prior at several discounts.

    python benchmarks/horizon.py --out results/horizon.jsonl

A run that is in the file is not repeated; one that was interrupted goes on.
"""

import argparse
from pathlib import Path

from customising import TASKS, command, evaluated
from ledger import Row, fill, repolicy

GAMMAS = ("0.99", "0.968", "0.9")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/horizon.jsonl"))
    parser.add_argument("--runs", type=Path, default=Path("runs/horizon"))
    options = parser.parse_args()
    keys = [{"gamma": gamma, "method": method} for gamma in GAMMAS for method in ("residual", "kl")]
    fill(options.out, keys, lambda gamma, method: run(gamma, method, options.runs / f"{method}-{gamma}"))


def run(gamma: str, method: str, folder: Path) -> Row:
    task = TASKS["halfcheetah"]
    words = [*command(task, method, "2.5e6"), "--gamma", gamma, "--seed", "0"]
    repolicy([*words, "--out", str(folder), "--resume"])
    found = {action: evaluated(task, str(folder / "policy.safetensors"), action) for action in ("mean", "sampled")}
    return {"command": " ".join(["repolicy", *words])} | found


if __name__ == "__main__":
    main()
