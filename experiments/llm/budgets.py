"""Omega from a budget on the expected log prior, on the toy: `python -m experiments.llm budget`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.llm.frontier import WORLDS
from experiments.llm.records import Job, command_line, done, prepare, run_missing
from experiments.llm.toy import make_prior, measure, policy_log_probs
from repolicy.errors import UsageError
from repolicy.objective import residual


@dataclass(frozen=True)
class Budget:
    """Two starts and two trainers: the nats that were spent, counted exactly, against the budget.

    Example: python -m experiments.llm budget --methods whole --starts 0.1 0.4
    """

    nats: float = 2.0
    """How much less likely a response may be to the prior, on average, than the prior's own."""
    methods: tuple[str, ...] = ("whole", "rloo")
    """ResidualGRPOTrainer (whole), and TRL's RLOO with PriorBudget."""
    starts: tuple[float, ...] = (0.1, 0.4)
    """Omegas to begin with."""
    alpha: float = 0.2
    """Weight of the policy's entropy."""
    seeds: int = 1
    """How often every run is repeated."""
    steps: int = 400
    """Online steps."""
    samples: int = 64
    """Responses in a step."""
    drawn: int = 8192
    """Responses of the prior that tell its own log-probability."""
    rate: float = 0.05
    """Share of a Newton step by which omega moves."""
    train: bool = True
    """Run what is missing. Without it, only the table is made anew."""
    output: Path = Path("results/llm")
    """Folder of budget.jsonl and its table. Runs that have a line there are not run again."""
    priors: Path = Path("runs/llm-toy")
    """Folder of the prior, which is made where it is missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.alpha <= 0 or not self.starts or min(self.starts) <= 0 or self.nats <= 0:
            raise UsageError("nats, alpha and every start must be greater than 0")
        if not set(self.methods) <= {"whole", "rloo"} or min(self.seeds, self.steps, self.samples - 1) < 1:
            raise UsageError("methods are whole and rloo; seeds and steps must be 1 or more, samples 2 or more")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        return done(budgets(self), self.output / "budget.md")


def budgets(options: Budget) -> list[dict[str, Any]]:
    """Run what is missing, write the table, and return the records."""
    torch.set_num_threads(1)
    names = ("nats", "alpha", "steps", "samples", "drawn", "rate")
    jobs: list[Job] = [
        {"method": method, "start": start, "seed": seed, **{name: getattr(options, name) for name in names}}
        for seed in range(options.seeds)
        for method in options.methods
        for start in options.starts
    ]
    records = run_missing(
        jobs, options.output / "budget.jsonl", command_line(options), lambda job: run_job(job, options), options.train
    )
    (options.output / "budget.md").write_text(table(records))
    return records


def run_job(job: Job, options: Budget) -> dict[str, Any]:
    """Train once: the omega that was found, and what the policy spends, over all responses."""
    from experiments.llm import toy_training

    toy, pretraining = WORLDS["standard"]
    folder = options.priors / "standard"
    make_prior(toy, folder, pretraining)
    log_prior = policy_log_probs(toy, toy_training.load(folder)[0])
    trained, values = toy_training.budgeted(toy, folder, job)
    own = float((log_prior.exp() * log_prior).sum())
    after = measure(toy, residual(values["omega"], job["alpha"]), trained, log_prior)
    return {
        "omega": values["omega"],
        "own": values["own"],
        "own_exact": own,
        "spent": own - after.log_prior,
        "after": asdict(after),
    }


def table(records: list[dict[str, Any]]) -> str:
    lines = [
        "Made by `python -m experiments.llm budget`. `spent` is exact: the prior's own expected log-probability minus "
        "the policy's. `KL` is to the optimum at the omega that was found.\n",
        "| trainer | from omega | seed | budget | spent | omega | KL | add-on |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        job, after = r["job"], r["after"]
        row = [job["method"], f"{job['start']:g}", str(job["seed"]), f"{job['nats']:g}"]
        row += [f"{r['spent']:.3f}", f"{r['omega']:.4f}", f"{after['kl']:.3f}", f"{after['addon']:.3f}"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"
