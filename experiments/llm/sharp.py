"""Two remedies for sharp targets (omega of 3 alpha and more) on the toy: python -m experiments.llm sharp."""

from pathlib import Path
from typing import Any

from experiments.ledger import Row
from experiments.llm.program import Job, Program, job_grid, kl_cell
from experiments.llm.toy import policy_log_probs
from experiments.llm.toy_training import compare_with_optimum, open_world, train_online
from experiments.pages import markdown_table
from repolicy.objective import residual

USUAL = {"omegas": (0.6, 0.1, 0.2, 0.3), "alpha": 0.2, "seeds": 3, "steps": 300, "samples": 64}
MENDS: dict[str, dict[str, Any]] = {
    "none": {},
    "omega_schedule 0.6": {"omega_schedule": 0.6},
    "prior_share 0.25": {"prior_share": 0.25},
}


def jobs(settings: Any) -> list[Job]:
    common = ("alpha", "steps", "samples")
    return job_grid(settings, common, seed=range(settings.seeds), omega=settings.omegas, mend=MENDS)


def run(job: Job, priors: Path) -> Row:
    """Train once, and compare the policy with the exact optimum."""
    toy, folder, log_prior = open_world("standard", priors)
    objective, how = residual(job["omega"], job["alpha"]), {name: job[name] for name in ("steps", "samples", "seed")}
    model, _ = train_online(folder, objective, length=toy.length, **how, **MENDS[job["mend"]])
    return compare_with_optimum(toy, objective, log_prior, policy_log_probs(toy, model))


def table(rows: list[Row]) -> str:
    """Return KL to the exact optimum: a row for each omega, a column for each mend, a number for each seed."""
    lines = []
    for omega in sorted({row["job"]["omega"] for row in rows}):
        groups = [[row for row in rows if (row["job"]["omega"], row["job"]["mend"]) == (omega, mend)] for mend in MENDS]
        lines.append([f"{omega:g}", *map(kl_cell, groups)])
    return markdown_table(["omega", *MENDS], lines)


PROGRAM = Program(USUAL, jobs, run, table)
