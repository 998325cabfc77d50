"""The paper's Tables 1, 2 and 5, measured again.

    python -m experiments.paper run --jobs 2                        # all of it: 135 runs, days of one core
    python -m experiments.paper run --only table1 hopper --seeds 3  # a part
    python -m experiments.paper status

What is in the ledger is not repeated, and a run that was cut off goes on where its last checkpoint stands.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from experiments.paper.runs import TASKS, Run, campaign, named
from repolicy.checkpoint import RunFolder
from repolicy.errors import RepolicyError
from repolicy.many.ledger import Ledger, Row
from repolicy.many.pool import Here, Job, work


def main() -> None:
    options = parsed()
    try:
        if options.what == "one":
            from experiments.paper.one import measure

            run = named(options.only[0])
            measure(run, options.runs / run.folder, prior_of(run.task, options))
        else:
            {"run": fill, "status": status}[options.what](options)
    except RepolicyError as error:
        print(f"repolicy: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("stopped; run it again to go on", file=sys.stderr)
        sys.exit(130)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.paper", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "status", "one"])
    parser.add_argument("--only", nargs="+", default=[], help="tables, environments, variants; by default all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ledger", type=Path, default=Path("results/paper.jsonl"))
    parser.add_argument("--priors", type=Path, default=Path("results/paper"), help="where the best of soft are kept")
    parser.add_argument("--runs", type=Path, default=Path("runs/paper"))
    return parser.parse_args()


def prior_of(task: str, options: argparse.Namespace) -> Path:
    return options.priors / f"{task}.safetensors"


def fill(options: argparse.Namespace) -> None:
    """Make the runs that the ledger lacks."""
    ledger, runs = Ledger(options.ledger), campaign(tuple(options.only), options.seeds)
    with ledger.claimed():
        rows = done(ledger)
        jobs = {job_of(run, options): run for run in runs if run.key not in rows}
        print(f"{len(runs) - len(jobs)} of {len(runs)} runs are in {ledger.path}", flush=True)

        def ready(job: Job) -> bool:
            run = jobs[job]
            softs = [f"{run.task}/soft/{seed}" for seed in range(options.seeds)]
            return not run.needs_prior or all(key in rows for key in softs)

        def ended(job: Job, error: str) -> None:
            run = jobs[job]
            row = {"key": run.key, "error": error} if error else json.loads(row_of(run, options).read_text())
            ledger.add(row)
            print(f"{time.strftime('%H:%M:%S')} {run.key}: {said(row)}", flush=True)
            if not error:
                rows[run.key] = row
                if run.variant == "soft":
                    keep_best(run, rows, options)

        left = work(list(jobs), Here, options.jobs, ended=ended, ready=ready, pause=1.0)
    for job in left:
        print(f"{jobs[job].key} was not begun: it needs a prior, and not all seeds of soft could be trained")


def done(ledger: Ledger) -> dict[str, Row]:
    """Rows of the runs that ended well."""
    return {key: row for key, row in ledger.by_key().items() if "error" not in row}


def job_of(run: Run, options: argparse.Namespace) -> Job:
    words = ["one", "--only", run.key, "--runs", str(options.runs), "--priors", str(options.priors)]
    log = options.runs / f"{run.folder}.log"
    return Job(run.key, (sys.executable, "-m", "experiments.paper", *words), log)


def row_of(run: Run, options: argparse.Namespace) -> Path:
    return options.runs / run.folder / "row.json"


def score(row: Row, which: str) -> float:
    return row[which]["mean"]["basic_reward"][0]


def keep_best(run: Run, rows: dict[str, Row], options: argparse.Namespace) -> None:
    """Where the policy is the best of its task so far, by the mean action, it is what customizing will begin from."""
    which = max(("last", "best"), key=lambda name: score(rows[run.key], name))
    others = [
        row for row in rows.values() if row["task"] == run.task and row["variant"] == "soft" and row["key"] != run.key
    ]
    if all(score(rows[run.key], which) > score(row, name) for row in others for name in ("last", "best")):
        folder = RunFolder(options.runs / run.folder)
        options.priors.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder.last_policy if which == "last" else folder.best_policy, prior_of(run.task, options))


def said(row: Row) -> str:
    if "error" in row:
        return f"failed: {row['error']}"
    parts = {name: round(value[0], 2) for name, value in row["last"]["mean"].items() if name.endswith("reward")}
    speed = f", {row['steps'] / row['seconds']:,.0f} steps a second" if row.get("seconds") else ""
    return f"{parts}{speed}"


def status(options: argparse.Namespace) -> None:
    """What is done, at work and missing."""
    ledger = Ledger(options.ledger).by_key()
    for task in TASKS:
        for run in campaign((task, *[word for word in options.only if word not in TASKS]), options.seeds):
            if not options.only or task in options.only or not set(options.only) & set(TASKS):
                print(f"{run.key:30s} {said(ledger[run.key]) if run.key in ledger else share(run, options)}")


def share(run: Run, options: argparse.Namespace) -> str:
    """How far a run is that is not done."""
    try:
        logged = RunFolder(options.runs / run.folder).metrics.read_text().splitlines()
        return f"at {json.loads(logged[-1])['steps']:,} steps"
    except (OSError, ValueError, IndexError, KeyError):
        return "missing"


if __name__ == "__main__":
    main()
