"""Two mends for sharp targets (omega of 3 alpha and more) on the toy: `python -m experiments.llm sharp`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.llm.frontier import WORLDS
from experiments.llm.records import Job, command_line, done, prepare, run_missing
from experiments.llm.toy import make_prior, measure, optimum, policy_log_probs
from repolicy.errors import UsageError
from repolicy.objective import residual

MENDS: dict[str, dict[str, float]] = {
    "none": {},
    "omega_schedule 0.6": {"omega_schedule": 0.6},
    "prior_share 0.25": {"prior_share": 0.25},
}


@dataclass(frozen=True)
class Sharp:
    """Omega on a schedule, a share of the responses from the prior, or neither, at several omegas.

    Example: python -m experiments.llm sharp --omegas 0.6 --seeds 1
    """

    omegas: tuple[float, ...] = (0.6, 0.1, 0.2, 0.3)
    """Weights of the prior's log-probability."""
    alpha: float = 0.2
    """Weight of the policy's entropy."""
    seeds: int = 3
    """How often every run is repeated."""
    steps: int = 300
    """Online steps."""
    samples: int = 64
    """Responses in a step."""
    train: bool = True
    """Run what is missing. Without it, only the table is made anew."""
    output: Path = Path("results/llm")
    """Folder of sharp.jsonl and its table. Runs that have a line there are not run again."""
    priors: Path = Path("runs/llm-toy")
    """Folder of the prior, which is made where it is missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.alpha <= 0 or not self.omegas or min(self.omegas) <= 0:
            raise UsageError("alpha and every omega must be greater than 0")
        if min(self.seeds, self.steps, self.samples - 3) < 1:
            raise UsageError("seeds and steps must be 1 or more, samples 4 or more")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        return done(sharp(self), self.output / "sharp.md")


def sharp(options: Sharp) -> list[dict[str, Any]]:
    """Run what is missing, write the table, and return the records."""
    torch.set_num_threads(1)
    size = {"steps": options.steps, "samples": options.samples}
    jobs: list[Job] = [
        {"mend": mend, "omega": omega, "alpha": options.alpha, "seed": seed, **size}
        for seed in range(options.seeds)
        for omega in options.omegas
        for mend in MENDS
    ]
    records = run_missing(
        jobs, options.output / "sharp.jsonl", command_line(options), lambda job: run_job(job, options), options.train
    )
    (options.output / "sharp.md").write_text(table(records))
    return records


def run_job(job: Job, options: Sharp) -> dict[str, Any]:
    """Train once; what came out, and the exact optimum."""
    from experiments.llm import toy_training

    toy, pretraining = WORLDS["standard"]
    folder = options.priors / "standard"
    make_prior(toy, folder, pretraining)
    objective = residual(job["omega"], job["alpha"])
    log_prior = policy_log_probs(toy, toy_training.load(folder)[0])
    trained = toy_training.online(
        toy, folder, objective, "whole", job["steps"], job["samples"], job["seed"], **MENDS[job["mend"]]
    )
    best = optimum(objective, log_prior, toy.rewards)
    return {
        "after": asdict(measure(toy, objective, trained, log_prior)),
        "best": asdict(measure(toy, objective, best, log_prior)),
    }


def table(records: list[dict[str, Any]]) -> str:
    """KL to the exact optimum: a row for each omega, a column for each mend, a number for each seed."""
    lines = [
        "Made by `python -m experiments.llm sharp`. KL to the exact optimum, in nats, one number a seed.\n",
        f"| omega | {' | '.join(MENDS)} |",
        "|---|" + "---|" * len(MENDS),
    ]
    for omega in sorted({record["job"]["omega"] for record in records}):
        cells = []
        for mend in MENDS:
            runs = [r for r in records if (r["job"]["omega"], r["job"]["mend"]) == (omega, mend)]
            cells.append(", ".join(f"{r['after']['kl']:.3f}" for r in sorted(runs, key=lambda r: r["job"]["seed"])))
        lines.append(f"| {omega:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
