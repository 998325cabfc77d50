"""How far to look ahead while customising HalfCheetah: residual and KL from the shipped prior at several discounts.

    python benchmarks/horizon.py --out results/horizon.jsonl

A run that is in the file is not repeated; one that was interrupted goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from customising import TASKS, command, evaluated
from learning import repolicy

GAMMAS = ("0.99", "0.968", "0.9")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/horizon.jsonl"))
    parser.add_argument("--runs", type=Path, default=Path("runs/horizon"))
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {(row["gamma"], row["method"]) for row in map(json.loads, lines)}
    task = TASKS["halfcheetah"]
    for gamma in GAMMAS:
        for method in ("residual", "kl"):
            if (gamma, method) in done:
                continue
            folder = options.runs / f"{method}-{gamma}"
            words = [*command(task, method, "2.5e6"), "--gamma", gamma, "--seed", "0"]
            repolicy([*words, "--out", str(folder), "--resume"])
            row: dict[str, Any] = {"gamma": gamma, "method": method, "command": " ".join(["repolicy", *words])}
            for action in ("mean", "sampled"):
                row[action] = evaluated(task, str(folder / "policy.safetensors"), action)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(gamma, method, row["mean"]["total_reward"], flush=True)


if __name__ == "__main__":
    main()
