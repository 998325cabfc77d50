"""The paper's Tables 1, 2 and 5, measured again.

    python -m experiments.paper run --jobs 2                        # all of it: 150 rows, days of one core
    python -m experiments.paper run --only table1 hopper --seeds 3  # a part
    python -m experiments.paper report                              # docs/results-paper.md and its picture

What is in the ledger is not repeated, and a run that was cut off goes on where its last checkpoint stands.
"""

import argparse
from itertools import product
from pathlib import Path

from experiments import campaign
from experiments.campaign import Rows
from experiments.ledger import Ledger, Row
from experiments.one import Run
from experiments.paper.runs import plan_runs
from repolicy.errors import FileError, UsageError
from repolicy.loading import file_sum
from repolicy.policies.storage import write_bytes
from repolicy.runs.folder import RunFolder


def main() -> None:
    page, kept = Path("docs/results-paper.md"), Path("results/paper")  # the best of soft
    only = {"nargs": "+", "default": [], "help": "tables, environments, variants; by default all"}
    parser = campaign.make_parser("experiments.paper", __doc__, only=only, seeds=5, priors=kept, page=page)
    parser.add_argument("what", choices=["run", "report"])
    options = parser.parse_args()
    {"run": run, "report": report}[options.what](options)


def prior_path(task: str, options: argparse.Namespace) -> Path:
    """Return where the best policy of `soft` is, once all seeds of it are in the ledger."""
    return Path(options.priors / f"{task}.safetensors")


def run(options: argparse.Namespace) -> None:
    """Make the runs that the ledger lacks."""
    plans = {plan.key: plan for plan in plan_runs(tuple(options.only), options.seeds)}

    def ready(wanted: Run, rows: Rows) -> bool:
        plan = plans[wanted.key]
        return not plan.needs_prior or all(f"{plan.task}/soft/{seed}" in rows for seed in range(options.seeds))

    def done(made: Run, rows: Rows) -> None:
        if plans[made.key].variant == "soft":
            keep_prior(plans[made.key].task, rows, options)

    for task in dict.fromkeys(plan.task for plan in plans.values() if plan.needs_prior):
        keep_prior(task, campaign.finished_rows(Ledger(options.ledger)), options)
    runs = [plan.run(prior_path(plan.task, options)) for plan in plans.values()]
    campaign.run_missing(
        runs, options, ready=ready, done=done, needs="its prior is the best of soft, of which not all seeds are trained"
    )


def keep_prior(task: str, rows: Rows, options: argparse.Namespace) -> None:
    """Keep what customizing begins from, once all seeds of `soft` are trained: their best policy, by the mean action.

    What is there already stays: runs may have begun from it.
    """
    path, trained = prior_path(task, options), [rows.get(f"{task}/soft/{seed}") for seed in range(options.seeds)]
    known = [row for row in trained if row is not None]
    if path.exists() or len(known) < options.seeds:
        return
    best, name = max(product(known, ("last", "best")), key=lambda each: basic_return(*each))
    folder = RunFolder(options.runs / best["key"].replace("/", "-"))
    file = folder.last_policy if name == "last" else folder.policy
    if not file.exists() or file_sum(file) != best["policies"][name]:
        raise FileError(
            f"{path} is missing, and {file} is not what {best['key']} was: restore one of them, or delete that line of "
            f"{options.ledger} and its folder in {options.runs} to train it again"
        )
    write_bytes(path, file.read_bytes())


def basic_return(row: Row, which: str) -> float:
    return float(row[which]["mean"]["basic_reward"][0])


def report(options: argparse.Namespace) -> None:
    """Write the page's tables and its picture, from the ledger alone."""
    if options.only:
        raise UsageError("a report is of all that is in the ledger: leave out --only")
    from experiments.paper.report import read_results, write_page

    write_page(read_results(options.ledger, options.seeds), options.page)
    print(f"written: {options.page}")


if __name__ == "__main__":
    campaign.run_main(main)
