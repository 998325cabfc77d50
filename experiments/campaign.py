"""Many runs and a ledger: what is in the ledger is not repeated, and what was cut off goes on where it was."""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.ledger import Ledger, Row
from experiments.one import Run, machine
from repolicy.cli.main import errors_as_exit_codes
from repolicy.cli.main import main as command_line
from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import read_json
from repolicy.many.pool import Job, LocalProcess, connect_to_ray, run_jobs
from repolicy.runs.result import Result

Rows = dict[str, Row]
Options = argparse.Namespace
Wanted = dict[str, Any]  # by key what measures a row
PAUSE = 1.0  # seconds between two looks at the runs


def parser(
    name: str, description: str | None, takes: Collection[str] = ("ledger", "runs", "jobs", "ray"), **settings: Any
) -> argparse.ArgumentParser:
    """Return a program's options: those of a campaign that it takes, and its own settings.

    settings: by name the default, which tells what is asked for: any of a list's choices, several values like those of
    a tuple, something of a type, or else one like the default. A dictionary is what argparse is to be told.
    """
    stem = name.rpartition(".")[2]
    campaigns: dict[str, Any] = {
        "ledger": Path(f"results/{stem}.jsonl"),
        "runs": Path(f"runs/{stem}"),
        "jobs": 2,  # runs side by side, each on one core
        "ray": {"metavar": "ADDRESS", "help": "run on a Ray cluster (auto, HOST:PORT), --jobs tasks at a time"},
        "only": {"nargs": "*", "default": [""], "help": "how the keys of those rows begin"},
    }
    found = argparse.ArgumentParser(
        prog=f"python -m {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for setting, value in ({each: campaigns[each] for each in takes} | settings).items():
        told: dict[str, Any] = {"default": value, "type": type(value), "help": f"by default {value}"}
        if isinstance(value, dict):
            told = value
        elif isinstance(value, type):
            told = {"type": value}
        elif isinstance(value, bool):
            told = {"default": value, "action": argparse.BooleanOptionalAction}
        elif isinstance(value, list | tuple):
            told |= {"nargs": "+", "type": type(value[0])} | ({"choices": value} if isinstance(value, list) else {})
        found.add_argument(f"--{setting.replace('_', '-')}", **told)
    return found


def program(
    *takes: str, draw: Callable[[Rows, Path], None] | None = None, **settings: Any
) -> Callable[[Callable[[Options], Any]], Callable[[], None]]:
    """Make a program of the last function of a file, whose name and first words it takes; `parser` has the options.

    The rows that the function returns, by their keys, are measured, and the runs are made, unless the ledger has them;
    with --picture, what the ledger has is drawn, and nothing else is done.
    """
    settings |= {"picture": Path} if draw else {}

    def made(main: Callable[[Options], Any]) -> Callable[[], None]:
        file: Any = main.__globals__

        def run() -> None:
            name = file["__spec__"].name.removesuffix(".__main__")
            options = parser(name, file["__doc__"], takes, **settings).parse_args()
            if draw and options.picture:
                return draw(finished(Ledger(options.ledger)), options.picture)
            wanted, only = main(options), tuple(options.only if "only" in takes else [""])
            if isinstance(wanted, dict):
                measure(options.ledger, {key: each for key, each in wanted.items() if key.startswith(only)})
            elif wanted:
                fill([each for each in wanted if each.key.startswith(only)], options)

        if main.__module__ == "__main__":
            run_main(run)
        return run

    return made


def run_main(main: Callable[[], None]) -> None:
    """Say errors in one sentence, and Ctrl-C too."""
    with errors_as_exit_codes():
        try:
            main()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("; the same command goes on") from None


def measure(path: Path, wanted: Mapping[str, Callable[[], Row]]) -> None:
    """Add a row to the ledger for each key that it lacks, one after the other, as soon as it is measured."""
    ledger = Ledger(path)
    with ledger.claimed():
        known = ledger.by_key()
        missing = {key: measured for key, measured in wanted.items() if key not in known}
        for number, (key, measured) in enumerate(missing.items(), 1):
            began = time.process_time()
            row = {"key": key} | measured()
            ledger.add({"machine": machine()} | row | {"cpu_seconds": round(time.process_time() - began, 1)})
            print(f"{number}/{len(missing)}  {key}", flush=True)


def whole(result: Result) -> Result:
    """Return a run's result. A signal that has ended the run early ends the campaign, which else took it for whole."""
    if not result.finished:
        raise KeyboardInterrupt
    return result


def customized(words: Sequence[str], folder: Path) -> str:
    """Customize in that folder, or go on with it. Returns the command."""
    asked = ["customize", *words]
    command_line([*asked, "--no-report", "--resume", "--out", str(folder)])
    return shlex.join(["repolicy", *asked])


def flow_of(data: Path, env: str, chunk: int) -> Path:
    """Return a flow that is fitted to demonstrations, and lies beside them."""
    flow = data.with_suffix(".onnx")
    if not flow.exists():
        command_line(["imitate", str(data), "--flow", "--chunk", str(chunk), "--env", env, "--out", str(flow)])
    return flow


def fill(
    runs: Sequence[Run],
    options: argparse.Namespace,
    *,
    ready: Callable[[Run, Rows], bool] = lambda run, rows: True,
    done: Callable[[Run, Rows], None] = lambda run, rows: None,
    needs: str = "",
) -> None:
    """Make the runs that the ledger lacks, in order, each as soon as it is ready; `done` is told of each success."""
    if options.jobs < 1:
        raise UsageError(f"jobs is {options.jobs}; it must be 1 or more")
    ledger = Ledger(options.ledger)
    with ledger.claimed():
        rows, failed = finished(ledger), list[str]()
        jobs = {job_of(run, options.runs): run for run in runs if run.key not in rows}
        print(f"{len(runs) - len(jobs)} of {len(runs)} runs are in {ledger.path}", flush=True)

        def ended(job: Job, error: str) -> None:
            run = jobs[job]
            row = {"key": run.key, "error": error} if error else left_by(job)
            ledger.add(row)
            print(f"{time.strftime('%H:%M:%S')} {run.key}: {said(row)}", flush=True)
            if "error" in row:
                failed.append(run.key)
            else:
                rows[run.key] = row
                done(run, rows)

        start = connect_to_ray(options.ray) if options.ray else LocalProcess
        left = run_jobs(
            list(jobs), start, options.jobs, ended=ended, ready=lambda job: ready(jobs[job], rows), pause=PAUSE
        ) if jobs else []  # fmt: skip
    for job in left:
        print(f"{jobs[job].key} was not begun: {needs}", flush=True)
    if failed or left:
        raise RepolicyError(
            f"{len(failed)} runs failed and {len(left)} were not begun; the same command tries them again"
        )


def left_by(job: Job) -> Row:
    """Return what a run that ended well has left in its folder."""
    file = job.log.with_name("row.json")
    try:
        return dict(read_json(file))
    except RepolicyError:
        return {"key": job.name, "error": f"it left no {file}; on Ray all machines must see that folder"}


def finished(ledger: Ledger) -> Rows:
    """Return by their keys the rows of runs that ended well."""
    return {key: row for key, row in ledger.by_key().items() if "error" not in row}


def job_of(run: Run, runs: Path) -> Job:
    folder = runs / run.folder
    program = (sys.executable, "-m", "experiments.one", run.as_json(), str(folder))
    return Job(run.key, program, folder / "log.txt")


def said(row: Row) -> str:
    """Return a run in a line."""
    if "error" in row:
        return f"failed: {row['error']}"
    parts = [f"{name.removesuffix('_reward')} {value[0]:,.2f}" for name, value in row["last"]["mean"].items()]
    speed = f"{row['steps'] / row['seconds']:,.0f} steps a second" if row.get("seconds") else ""
    return ", ".join([*parts, speed])
