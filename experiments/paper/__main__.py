"""Measure the paper's Tables 1, 2 and 5 again.

    python -m experiments.paper --jobs 2                            # all of it: 150 rows, days of one core
    python -m experiments.paper --only table1 hopper --seeds 3      # a part
    python -m experiments.paper --picture docs/images/paper.png     # of what is in the ledger

Runs in the ledger are not repeated, and an interrupted run resumes from its last checkpoint.
"""

import argparse
from itertools import product
from pathlib import Path

from experiments import campaign
from experiments.campaign import Rows
from experiments.ledger import Ledger
from experiments.one import Run
from experiments.paper.curves import draw
from experiments.paper.runs import SEEDS, plan_runs
from repolicy.errors import FileError
from repolicy.files import file_sum, write_bytes
from repolicy.runs.folder import RunFolder

ONLY = {"nargs": "+", "default": [], "help": "tables, environments, variants; by default all"}


def prior_path(task: str, options: argparse.Namespace) -> Path:
    """Return the file of a task's prior: the best policy of `soft`, once all its seeds are in the ledger."""
    return Path(options.priors / f"{task}.safetensors")


def keep_prior(task: str, rows: Rows, options: argparse.Namespace) -> None:
    """Store the prior once all seeds of `soft` are trained: their best policy, by the mean action.

    A prior that exists already is not replaced, because runs may have started from it.
    """
    path, keys = prior_path(task, options), [f"{task}/soft/{seed}" for seed in range(options.seeds)]
    if path.exists() or not all(key in rows for key in keys):
        return
    policies = product((rows[key] for key in keys), ("last", "best"))
    best, name = max(policies, key=lambda policy: float(policy[0][policy[1]]["mean"]["basic_reward"][0]))
    folder = RunFolder(options.runs / best["key"].replace("/", "-"))
    file = folder.last_policy if name == "last" else folder.policy
    if not file.exists() or file_sum(file) != best["policies"][name]:
        raise FileError(
            f"{path} is missing, and {file} is not what {best['key']} was: restore one of them, or delete that line of "
            f"{options.ledger} and its folder in {options.runs} to train it again"
        )
    write_bytes(path, file.read_bytes())


@campaign.program("ledger", "runs", "jobs", "ray", only=ONLY, seeds=SEEDS, priors=Path("results/paper"), draw=draw)
def main(options: campaign.Options) -> None:
    """Make the runs that the ledger lacks. Each prior is stored as soon as all seeds of `soft` are trained."""
    plans = {plan.key: plan for plan in plan_runs(tuple(options.only), options.seeds)}

    def ready(run: Run, rows: Rows) -> bool:
        plan = plans[run.key]
        return not plan.needs_prior or all(f"{plan.task}/soft/{seed}" in rows for seed in range(options.seeds))

    def done(run: Run, rows: Rows) -> None:
        if plans[run.key].variant == "soft":
            keep_prior(plans[run.key].task, rows, options)

    for task in dict.fromkeys(plan.task for plan in plans.values() if plan.needs_prior):
        keep_prior(task, campaign.finished_rows(Ledger(options.ledger)), options)
    runs = [plan.run(prior_path(plan.task, options)) for plan in plans.values()]
    campaign.run_missing(
        runs, options, ready=ready, done=done, needs="its prior is the best of soft, of which not all seeds are trained"
    )
