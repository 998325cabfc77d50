"""Run many experiments and store their results in a ledger.

A row that is already in the ledger is not measured again. An interrupted run is resumed from its last checkpoint.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.ledger import Ledger, Row
from experiments.one import Run, machine_info
from repolicy.cli.main import errors_as_exit_codes
from repolicy.cli.main import main as command_line
from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.files import read_json
from repolicy.many.pool import Job, LocalProcess, connect_to_ray, run_jobs
from repolicy.runs.machine import versions
from repolicy.runs.result import Result

Rows = dict[str, Row]
Options = argparse.Namespace
Measurements = dict[str, Any]  # key of a row -> function that measures the row
POLL_SECONDS = 1.0  # between two checks of the running jobs


def make_parser(
    name: str, description: str | None, takes: Collection[str] = ("ledger", "runs", "jobs", "ray"), **settings: Any
) -> argparse.ArgumentParser:
    """Return a program's parser, with the campaign options named in `takes` and the program's own settings.

    settings: a default for each option, whose type decides what the option accepts. A list holds the choices, a tuple
        means several values, a type means no default. A dictionary is passed to argparse.
    """
    stem = name.removeprefix("experiments.").replace(".", "/")
    campaign_options: dict[str, Any] = {
        "ledger": Path(f"results/{stem}.jsonl"),
        "runs": Path(f"runs/{stem}"),
        "jobs": 2,  # runs side by side, each on one core
        "ray": {"metavar": "ADDRESS", "help": "run on a Ray cluster (auto, HOST:PORT), --jobs tasks at a time"},
        "only": {"nargs": "*", "default": [""], "help": "how the keys of those rows begin"},
    }
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for setting, value in ({option: campaign_options[option] for option in takes} | settings).items():
        arguments: dict[str, Any] = {"default": value, "type": type(value), "help": f"by default {value}"}
        if isinstance(value, dict):
            arguments = value
        elif isinstance(value, type):
            arguments = {"type": value}
        elif isinstance(value, bool):
            arguments = {"default": value, "action": argparse.BooleanOptionalAction}
        elif isinstance(value, list | tuple):
            arguments |= {"nargs": "+", "type": type(value[0])}
            if isinstance(value, list):
                arguments["choices"] = value
        parser.add_argument(f"--{setting.replace('_', '-')}", **arguments)
    return parser


def program(
    *takes: str, draw: Callable[[Rows, Path], None] | None = None, **settings: Any
) -> Callable[[Callable[[Options], Any]], Callable[..., None]]:
    """Decorate the last function of a file to make the file a program, with the options of `make_parser`.

    The function returns measurements by key, or a list of runs, or nothing. Those that the ledger lacks are made. With
    --picture, the program only draws what the ledger has.
    """
    if draw:
        settings["picture"] = Path

    def decorate(main: Callable[[Options], Any]) -> Callable[..., None]:
        module: Any = main.__globals__

        def run(words: list[str] | None = None) -> None:
            name = module["__spec__"].name.removesuffix(".__main__")
            options = make_parser(name, module["__doc__"], takes, **settings).parse_args(words)
            if draw and options.picture:
                rows = finished_rows(Ledger(options.ledger))
                if not rows:
                    raise FileError(f"{options.ledger} has no row to draw: run the program without --picture first")
                return draw(rows, options.picture)
            work, prefixes = main(options), tuple(options.only if "only" in takes else [""])
            if isinstance(work, dict):
                chosen = {key: measure for key, measure in work.items() if key.startswith(prefixes)}
                measure_missing(options.ledger, chosen)
            elif work:
                run_missing([each for each in work if each.key.startswith(prefixes)], options)

        if main.__module__ == "__main__":
            run_main(run)
        return run

    return decorate


def run_main(main: Callable[[], None]) -> None:
    """Run a program; report errors, and Ctrl-C too, in one sentence instead of a traceback."""
    with errors_as_exit_codes():
        try:
            main()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("; the same command goes on") from None


def measure_missing(path: Path, measurements: Mapping[str, Callable[[], Row]]) -> None:
    """Measure the keys that the ledger lacks, one after the other, and add each row as soon as it is measured."""
    ledger = Ledger(path)
    with ledger.locked():
        known = ledger.by_key()
        missing = {key: measure for key, measure in measurements.items() if key not in known}
        print(f"{len(measurements) - len(missing)} of {len(measurements)} rows are in {path}", flush=True)
        for number, (key, measure) in enumerate(missing.items(), 1):
            start = time.process_time()
            row = {"key": key} | measure()
            origin = {"machine": machine_info(), "versions": versions()}
            ledger.add(origin | row | {"cpu_seconds": round(time.process_time() - start, 1)})
            print(f"{number}/{len(missing)}  {key}", flush=True)


def require_finished(result: Result) -> Result:
    """Return the result of a run; end the campaign if a signal stopped the run early, so that no row is written."""
    if not result.finished:
        raise KeyboardInterrupt
    return result


def run_customize(arguments: Sequence[str], folder: Path) -> str:
    """Run `repolicy customize` in a folder, or resume it there. Return the command."""
    command = ["customize", *arguments]
    command_line([*command, "--no-report", "--resume", "--out", str(folder)])
    return shlex.join(["repolicy", *command])


def fit_flow(data: Path, env: str, chunk: int) -> Path:
    """Fit a flow to demonstrations, unless its file is already beside them. Return the file."""
    flow = data.with_suffix(".onnx")
    if not flow.exists():
        command_line(["imitate", str(data), "--flow", "--chunk", str(chunk), "--env", env, "--out", str(flow)])
    return flow


def run_missing(
    runs: Sequence[Run],
    options: argparse.Namespace,
    *,
    ready: Callable[[Run, Rows], bool] = lambda run, rows: True,
    done: Callable[[Run, Rows], None] = lambda run, rows: None,
    needs: str = "",
) -> None:
    """Make the runs that the ledger lacks, in order, several at a time.

    ready: returns whether a run can start, given the finished rows.
    done: is called after each run that succeeds.
    needs: explains why a run that never became ready was not started.
    """
    if options.jobs < 1:
        raise UsageError(f"jobs is {options.jobs}; it must be 1 or more")
    ledger = Ledger(options.ledger)
    with ledger.locked():
        rows, failed = finished_rows(ledger), list[str]()
        jobs = {_make_job(run, options.runs): run for run in runs if run.key not in rows}
        print(f"{len(runs) - len(jobs)} of {len(runs)} runs are in {ledger.path}", flush=True)

        def on_end(job: Job, error: str) -> None:
            run = jobs[job]
            row = {"key": run.key, "error": error} if error else _read_row(job)
            ledger.add(row)
            print(f"{time.strftime('%H:%M:%S')} {run.key}: {_describe(row)}", flush=True)
            if "error" in row:
                failed.append(run.key)
            else:
                rows[run.key] = row
                done(run, rows)

        waiting = list[Job]()
        if jobs:
            start = connect_to_ray(options.ray) if options.ray else LocalProcess
            waiting = run_jobs(
                list(jobs), start, options.jobs, on_end=on_end, is_ready=lambda job: ready(jobs[job], rows),
                pause=POLL_SECONDS,
            )  # fmt: skip
    for job in waiting:
        print(f"{jobs[job].key} was not begun: {needs}", flush=True)
    if failed or waiting:
        raise RepolicyError(
            f"{len(failed)} runs failed and {len(waiting)} were not begun; the same command tries them again"
        )


def finished_rows(ledger: Ledger) -> Rows:
    """Return by key the rows of runs that succeeded."""
    return {key: row for key, row in ledger.by_key().items() if "error" not in row}


def _make_job(run: Run, runs: Path) -> Job:
    folder = runs / run.folder
    command = (sys.executable, "-m", "experiments.one", run.as_json(), str(folder))
    return Job(run.key, command, folder / "log.txt")


def _read_row(job: Job) -> Row:
    """Return the row that a successful run wrote into its folder, or a row with an error if there is none."""
    file = job.log.with_name("row.json")
    try:
        return dict(read_json(file))
    except RepolicyError:
        return {"key": job.name, "error": f"it left no {file}; on Ray all machines must see that folder"}


def _describe(row: Row) -> str:
    """Return a run's returns and speed, or its error, in one line."""
    if "error" in row:
        return f"failed: {row['error']}"
    parts = [f"{name.removesuffix('_reward')} {value[0]:,.2f}" for name, value in row["last"]["mean"].items()]
    speed = f"{row['steps'] / row['seconds']:,.0f} steps a second" if row.get("seconds") else ""
    return ", ".join([*parts, speed])
