"""Experiments as a list of jobs and a file with a line for each that is done, so that a stopped one goes on."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from repolicy.engine.machine import commit
from repolicy.errors import FileError, UsageError
from repolicy.llm.requirements import require_trl

Job = Mapping[str, Any]


def read_records(file: Path) -> list[dict[str, Any]]:
    """The lines of a results file. A last line that was cut off by a crash is left out."""
    if not file.exists():
        return []
    lines = file.read_text().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise FileError(f"line {number} of {file} is damaged; remove it, and its job is run again") from error
    return records


def run_missing(
    jobs: Iterable[Job], file: Path, command: str, run: Callable[[Job], dict[str, Any]], train: bool = True
) -> list[dict[str, Any]]:
    """Run the jobs that have no line in the file yet, one after the other; each line is written as it comes.

    Returns the lines of these jobs; without `train`, of those that are done.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    records = read_records(file)
    if file.exists() and len(records) < len(file.read_text().splitlines()):
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    jobs = list(jobs)
    done = [record["job"] for record in records]
    missing = [job for job in jobs if dict(job) not in done]
    for number, job in enumerate(missing if train else [], 1):
        started = time.process_time()
        outcome = run(job)
        record = {
            "job": dict(job),
            **outcome,
            "cpu_seconds": round(time.process_time() - started, 1),
            "command": command,
            "versions": {name: version(name) for name in ("torch", "transformers", "trl")},
            "threads": torch.get_num_threads(),
            "commit": commit(),
        }
        with file.open("a") as lines:
            lines.write(json.dumps(record) + "\n")
        records.append(record)
        print(
            f"{number}/{len(missing)}  {' '.join(map(str, job.values()))}  {record['cpu_seconds']} s",
            file=sys.stderr,
            flush=True,
        )
    wanted = [dict(job) for job in jobs]
    found = [record for record in records if record["job"] in wanted]
    if not found:
        raise UsageError(f"{file} has no run with these settings; without --no-train they are made")
    return found


def mean_and_spread(values: list[float]) -> str:
    """`mean ± standard deviation over runs`, or the number alone of a single run."""
    tensor = torch.tensor(values, dtype=torch.float64)
    spread = f" ± {tensor.std():.3f}" if len(values) > 1 else ""
    return f"{tensor.mean():.3f}{spread}"


# What every command needs ---------------------------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    """The extra is there, and so is the folder: better found out before the work than after it."""
    require_trl()
    make_folder(folder)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder} cannot be made a folder for the results: {error.strerror}") from error


def done(records: list[dict[str, Any]], page: Path) -> dict[str, Any]:
    print(f"table: {page}", file=sys.stderr)
    return {"table": str(page), "records": records}


def command_line(options: Any) -> str:
    """The command that these options came from: those that change a result, where they are not the usual ones."""
    words = ["python -m experiments.llm", type(options).__name__.lower()]
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, Path) or field.name in ("train", "json") or value == field.default:
            continue
        name = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
    return " ".join(words)
