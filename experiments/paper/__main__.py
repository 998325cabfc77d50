"""Measure the paper's Tables 1, 2 and 5 again.

    python -m experiments.paper run --jobs 2                        # all of it: 150 rows, days of one core
    python -m experiments.paper run --only table1 hopper --seeds 3  # a part
    python -m experiments.paper report                              # docs/results-paper.md and its picture

Runs in the ledger are not repeated, and an interrupted run resumes from its last checkpoint.
"""

import argparse
from itertools import product
from pathlib import Path

from experiments import campaign
from experiments.campaign import Rows
from experiments.ledger import Ledger
from experiments.one import Run
from experiments.paper.runs import plan_runs
from repolicy.errors import FileError, UsageError
from repolicy.files import file_sum, write_bytes
from repolicy.runs.folder import RunFolder


def main() -> None:
    page, priors = Path("docs/results-paper.md"), Path("results/paper")
    only = {"nargs": "+", "default": [], "help": "tables, environments, variants; by default all"}
    parser = campaign.make_parser("experiments.paper", __doc__, only=only, seeds=5, priors=priors, page=page)
    parser.add_argument("what", choices=["run", "report"])
    options = parser.parse_args()
    {"run": run, "report": report}[options.what](options)


def prior_path(task: str, options: argparse.Namespace) -> Path:
    """Return the file of a task's prior: the best policy of `soft`, once all its seeds are in the ledger."""
    return Path(options.priors / f"{task}.safetensors")


def run(options: argparse.Namespace) -> None:
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


def report(options: argparse.Namespace) -> None:
    """Write the page's tables and its picture, from the ledger alone."""
    if options.only:
        raise UsageError("a report is of all that is in the ledger: leave out --only")
    from experiments.paper.report import read_results, write_page

    write_page(read_results(options.ledger, options.seeds), options.page)
    print(f"written: {options.page}")


if __name__ == "__main__":
    campaign.run_main(main)
