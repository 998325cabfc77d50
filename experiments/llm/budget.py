"""Omega from a budget on the expected log prior, from two starts, by two trainers: python -m experiments.llm budget."""

from pathlib import Path

from experiments import campaign
from experiments.ledger import Row
from experiments.llm.jobs import PRIORS, Job, job_grid, measurements
from experiments.llm.toy import policy_log_probs
from experiments.llm.toy_training import compare_with_optimum, open_world, train_online
from experiments.pages import markdown_table
from repolicy.objective import residual


def run(job: Job, priors: Path) -> Row:
    """Train once: the omega that was found, and what the policy spends, over all responses."""
    toy, folder, log_prior = open_world("standard", priors)
    model, values = train_online(
        folder, residual(job["start"], job["alpha"]), job["method"], length=toy.length, steps=job["steps"],
        samples=job["samples"], seed=job["seed"], budget=(job["nats"], job["rate"], job["drawn"]),
    )  # fmt: skip
    objective = residual(values["omega"], job["alpha"])
    found = compare_with_optimum(toy, objective, log_prior, policy_log_probs(toy, model))
    own = found["before"]["log_prior"]
    return {**values, "own_exact": own, "spent": own - found["after"]["log_prior"], **found}


def table(rows: list[Row]) -> str:
    """Return a row a run: what it spent of its budget, and by which omega."""
    lines = []
    for row in rows:
        job, after = row["job"], row["after"]
        cells = [job["method"], f"{job['start']:g}", str(job["seed"]), f"{job['nats']:g}", f"{row['spent']:.3f}"]
        lines.append([*cells, f"{row['omega']:.4f}", f"{after['kl']:.3f}", f"{after['addon']:.3f}"])
    return markdown_table(["trainer", "from omega", "seed", "budget", "spent", "omega", "KL", "add-on"], lines)


@campaign.program(
    "ledger", priors=PRIORS, nats=2.0, methods=["whole", "rloo"], starts=(0.1, 0.4), alpha=0.2, seeds=1, steps=400,
    samples=64, drawn=8192, rate=0.05,
)  # fmt: skip
def main(options: campaign.Options) -> campaign.Measurements:
    common = ("nats", "alpha", "steps", "samples", "drawn", "rate")
    jobs = job_grid(options, common, seed=range(options.seeds), method=options.methods, start=options.starts)
    return measurements(jobs, run, options.priors)
