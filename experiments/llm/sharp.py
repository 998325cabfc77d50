"""Two remedies for sharp targets (omega of 3 alpha and more) on the toy: python -m experiments.llm sharp."""

from typing import Any

from experiments import campaign
from experiments.ledger import Row
from experiments.llm.jobs import PRIORS, job_grid, kl_cell, measurements
from experiments.llm.toy_training import run_online
from experiments.pages import markdown_table

MENDS: dict[str, dict[str, Any]] = {
    "none": {},
    "omega_schedule 0.6": {"omega_schedule": 0.6},
    "prior_share 0.25": {"prior_share": 0.25},
}


def table(rows: list[Row]) -> str:
    """Return KL to the exact optimum: a row for each omega, a column for each mend, a number for each seed."""
    lines = []
    for omega in sorted({row["job"]["omega"] for row in rows}):
        groups = [[row for row in rows if (row["job"]["omega"], row["job"]["mend"]) == (omega, mend)] for mend in MENDS]
        lines.append([f"{omega:g}", *map(kl_cell, groups)])
    return markdown_table(["omega", *MENDS], lines)


@campaign.program("ledger", priors=PRIORS, omegas=(0.6, 0.1, 0.2, 0.3), alpha=0.2, seeds=3, steps=300, samples=64)
def main(options: campaign.Options) -> campaign.Measurements:
    common = ("alpha", "steps", "samples")
    jobs = job_grid(options, common, seed=range(options.seeds), omega=options.omegas, mend=MENDS)
    return measurements(jobs, lambda job, priors: run_online(job, priors, **MENDS[job["mend"]]), options.priors)
