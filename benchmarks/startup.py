"""Seconds from the shell's prompt to the first environment step, and to the end of `repolicy --help`.

python benchmarks/startup.py --out results/startup.json
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from repolicy.engine.machine import commit

# The command line's own start, with the first step of the run's environments announced on stdout.
PROGRAM = """
import os, sys, time
from repolicy.cli.main import main
from repolicy.rollout import Collector
def first(self, policy):
    self.envs.step(policy.to_environment(policy.distribution(policy.normalizer(
        __import__("torch").from_numpy(self._current))).mode().detach().numpy()))
    print(time.time(), flush=True)
    os._exit(0)
Collector.collect = first
main(sys.argv[1:])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/startup.json"))
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    figures = {"command": "python benchmarks/startup.py", "commit": commit()}
    for ranks in ("1", "2"):
        found = [first_step(ranks) for _ in range(options.times)]
        figures[f"seconds_to_first_step_{ranks}_rank"] = summary(found)
    figures["seconds_for_help"] = summary([help_page() for _ in range(options.times)])
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


def first_step(ranks: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "HalfCheetah-v4", "--alpha", "0.1", "--ranks", ranks, "--out", f"{folder}/run"]
        began = time.time()
        found = subprocess.run([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True, check=True)
        return float(found.stdout.split()[-1]) - began


def help_page() -> float:
    began = time.time()
    subprocess.run([sys.executable, "-m", "repolicy", "train", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.time() - began


def summary(found: list[float]) -> dict[str, float]:
    return {"min": round(min(found), 2), "median": round(statistics.median(found), 2), "max": round(max(found), 2)}


if __name__ == "__main__":
    main()
