"""The common part of all measurements of the trainers: settings, jobs, rows, and a page with a table."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from experiments.campaign import make_parser, measure_missing
from experiments.ledger import Ledger, Row
from repolicy.errors import UsageError
from repolicy.files import write_bytes

Job = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """A measurement, run by `python -m experiments.llm NAME`. The key of a row is its job."""

    usual: Job  # the settings; each is an option of the command line
    jobs: Callable[[Any], list[Job]]  # from the settings
    run: Callable[[Job, Path], Row]  # of one job, and the folder of the priors
    table: Callable[[list[Row]], str]
    draw: Callable[[list[Row], Path, Path], None] | None = None  # of the rows and the priors, into a file

    def main(self, name: str, description: str | None, words: list[str]) -> None:
        """Run the missing jobs, and write a page with the table of all jobs, and the picture if there is one."""
        settings: dict[str, Any] = {
            "output": Path("results/llm"),
            "priors": Path("runs/llm-toy"),
            "no_train": {"action": "store_true"},
        }
        options = make_parser(f"experiments.llm {name}", description, (), **self.usual, **settings).parse_args(words)
        rows = self.rows(options, options.output / f"{name}.jsonl")
        page = f"Made by `python -m experiments.llm {name}`.\n\n{self.table(rows)}\n"
        write_bytes(options.output / f"{name}.md", page.encode())
        if self.draw:
            self.draw(rows, options.priors, options.output / f"{name}.png")
        print(f"table: {options.output / name}.md")

    def rows(self, options: argparse.Namespace, file: Path) -> list[Row]:
        """Return the rows of all jobs of these options, after measuring those that the ledger lacks."""
        torch.set_num_threads(1)
        jobs = {" ".join(f"{name}={value}" for name, value in sorted(job.items())): job for job in self.jobs(options)}
        if not options.no_train:
            measure_missing(file, {key: partial(self.row, job, options.priors) for key, job in jobs.items()})
        found = [row for key, row in Ledger(file).by_key().items() if key in jobs]
        if not found:
            raise UsageError(f"{file} has no run with these settings; without --no-train they are made")
        return found

    def row(self, job: Job, priors: Path) -> Row:
        versions = {name: version(name) for name in ("torch", "transformers", "trl")}
        return {"job": dict(job), **self.run(job, priors), "versions": versions, "threads": torch.get_num_threads()}


def job_grid(settings: Any, common: Iterable[str] = (), **axes: Iterable[Any]) -> list[Job]:
    """Return a job for each combination of these values, each with the common settings."""
    same = {name: getattr(settings, name) for name in common}
    return [dict(zip(axes, values, strict=True)) | same for values in product(*axes.values())]


def kl_cell(rows: list[Row]) -> str:
    """Return KL to the optimum of each of these rows, in the order of their seeds."""
    return ", ".join(f"{row['after']['kl']:.3f}" for row in sorted(rows, key=lambda row: row["job"]["seed"]))


def mean_and_spread(values: list[float]) -> str:
    """Return `mean ± standard deviation over runs`, or the number alone of a single run."""
    tensor = torch.tensor(values, dtype=torch.float64)
    spread = f" ± {tensor.std():.3f}" if len(values) > 1 else ""
    return f"{tensor.mean():.3f}{spread}"
