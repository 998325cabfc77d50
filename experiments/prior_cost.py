"""What the prior's forward pass costs while customizing: residual beside greedy, iteration by iteration in turns.

    python -m experiments.prior_cost --out results/prior.jsonl

Both read the same add-on in the same environment; only residual asks the prior for its log-probabilities.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.customizing import TASKS, Task, settings_of
from repolicy.engine.folder import RunFolder
from repolicy.engine.ranks import Alone, one_thread
from repolicy.engine.request import Request
from repolicy.engine.segments import Segments
from repolicy.engine.worker import Worker
from repolicy.objective import Objective, greedy, residual
from repolicy.policies.file import find_policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/prior.jsonl"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tasks", nargs="+", default=["halfcheetah", "hopper", "ant"], choices=list(TASKS))
    options = parser.parse_args()
    with one_thread():
        rows = [measure(TASKS[name], options.rounds) for name in options.tasks]
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        print(f"{row['task']:12s} the prior costs {100 * row['overhead']:.1f} % of an iteration")


def measure(task: Task, rounds: int) -> dict[str, Any]:
    alpha = float(task.alpha)
    with tempfile.TemporaryDirectory() as path:
        workers = {
            "residual": worker(task, residual(float(task.omega), alpha), Path(path) / "residual"),
            "greedy": worker(task, greedy(alpha), Path(path) / "greedy"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(rounds + 1):
            for name, made in workers.items():
                began = time.perf_counter()
                made.iterate(stop=False)
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(found[1:]) for name, found in seconds.items()}
    ratios = [a / b for a, b in zip(seconds["residual"][1:], seconds["greedy"][1:], strict=True)]
    return {
        "command": "python -m experiments.prior_cost",
        "task": task.prior,
        "seconds_an_iteration": medians,
        "overhead": statistics.median(ratios) - 1.0,
    }


def worker(task: Task, objective: Objective, path: Path) -> Worker:
    """At the start of a customizing run's first segment, with or without a prior in sight."""
    settings = replace(settings_of(task.env), ranks=1)
    folder = RunFolder(path)
    prior = find_policy(task.prior)
    request = Request(task.env, objective, settings, (task.addon,), prior="shipped")
    folder.begin(request.as_dict(), {}, resume=False, prior=prior.read_bytes())
    segments = Segments(request, folder, Alone())
    if not objective.reads_prior:
        segments.worker.prior = None
    segments.begin()
    return segments.worker


if __name__ == "__main__":
    main()
