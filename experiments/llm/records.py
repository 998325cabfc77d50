"""Experiments as a list of jobs and a ledger with a row for each that is done, so that a stopped one goes on."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from repolicy.errors import FileError, UsageError
from repolicy.llm.requirements import require_trl
from repolicy.many.ledger import Ledger, Row

Job = Mapping[str, Any]


def run_missing(
    jobs: Iterable[Job], file: Path, command: str, run: Callable[[Job], dict[str, Any]], train: bool = True
) -> list[Row]:
    """Run the jobs that have no row in the ledger yet, one after the other; each row is written as it comes.

    Returns the rows of these jobs; without `train`, of those that are done.
    """
    ledger, wanted = Ledger(file), {key_of(job): dict(job) for job in jobs}
    with ledger.claimed() if train else contextlib.nullcontext():
        known = ledger.by_key()
        missing = {key: job for key, job in wanted.items() if key not in known} if train else {}
        for number, (key, job) in enumerate(missing.items(), 1):
            started = time.process_time()
            row = {"key": key, "job": job, **run(job), "cpu_seconds": round(time.process_time() - started, 1)}
            versions = {name: version(name) for name in ("torch", "transformers", "trl")}
            ledger.add(row | {"command": command, "versions": versions, "threads": torch.get_num_threads()})
            print(f"{number}/{len(missing)}  {key}  {row['cpu_seconds']} s", file=sys.stderr, flush=True)
    found = [row for key, row in ledger.by_key().items() if key in wanted]
    if not found:
        raise UsageError(f"{file} has no run with these settings; without --no-train they are made")
    return found


def key_of(job: Job) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(job.items()))


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
