"""Jobs of the programs, which are rows of their ledgers once they are measured, and cells of their tables."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from experiments import campaign
from experiments.ledger import Row

PRIORS = Path("runs/llm-toy")  # folder of the priors
Job = Mapping[str, Any]


def job_grid(settings: Any, common: Iterable[str] = (), **axes: Iterable[Any]) -> list[Job]:
    """Return a job for each combination of these values, each with the common settings."""
    same = {name: getattr(settings, name) for name in common}
    return [dict(zip(axes, values, strict=True)) | same for values in product(*axes.values())]


def measurements(jobs: Iterable[Job], run: Callable[[Job, Path], Row], priors: Path) -> campaign.Measurements:
    """Return a measurement for each job, whose key is the job itself. `run` gets the job and the priors' folder."""
    torch.set_num_threads(1)

    def measure(job: Job) -> Row:
        versions = {name: version(name) for name in ("torch", "transformers", "trl")}
        return {"job": dict(job), **run(job, priors), "versions": versions, "threads": torch.get_num_threads()}

    return {" ".join(f"{name}={value}" for name, value in sorted(job.items())): partial(measure, job) for job in jobs}


def kl_cell(rows: list[Row]) -> str:
    """Return KL to the optimum of each of these rows, in the order of their seeds."""
    return ", ".join(f"{row['after']['kl']:.3f}" for row in sorted(rows, key=lambda row: row["job"]["seed"]))


def mean_and_spread(values: list[float]) -> str:
    """Return `mean ± standard deviation over runs`, or the number alone of a single run."""
    tensor = torch.tensor(values, dtype=torch.float64)
    spread = f" ± {tensor.std():.3f}" if len(values) > 1 else ""
    return f"{tensor.mean():.3f}{spread}"
