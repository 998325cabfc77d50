"""The paper's Tables 1, 2 and 5, measured again.

    python -m experiments.paper run --jobs 2                        # all of it: 150 rows, days of one core
    python -m experiments.paper run --only table1 hopper --seeds 3  # a part
    python -m experiments.paper status
    python -m experiments.paper report                              # docs/paper.md and results/paper.html

What is in the ledger is not repeated, and a run that was cut off goes on where its last checkpoint stands.
"""

import argparse
import shutil
from pathlib import Path

from experiments import campaign
from experiments.campaign import Rows
from experiments.one import Run
from experiments.paper.runs import Planned, planned
from repolicy.engine.folder import RunFolder
from repolicy.errors import FileError
from repolicy.loading import file_sum
from repolicy.many.ledger import Ledger, Row


def main() -> None:
    options = parsed()
    {"run": run, "status": status, "report": report}[options.what](options)


def parsed() -> argparse.Namespace:
    parser = campaign.parser("paper", __doc__)
    parser.add_argument("what", choices=["run", "status", "report"])
    parser.add_argument("--only", nargs="+", default=[], help="tables, environments, variants; by default all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--priors", type=Path, default=Path("results/paper"), help="where the best of soft are kept")
    parser.add_argument("--page", type=Path, default=Path("docs/paper.md"))
    parser.add_argument("--html", type=Path, default=Path("results/paper.html"))
    return parser.parse_args()


def prior_of(task: str, options: argparse.Namespace) -> Path:
    """The best policy of `soft`, once all seeds of it are in the ledger."""
    return Path(options.priors / f"{task}.safetensors")


def run(options: argparse.Namespace) -> None:
    """Make the runs that the ledger lacks."""
    plans = {plan.key: plan for plan in planned(tuple(options.only), options.seeds)}

    def ready(wanted: Run, rows: Rows) -> bool:
        plan = plans[wanted.key]
        return not plan.needs_prior or all(f"{plan.task}/soft/{seed}" in rows for seed in range(options.seeds))

    def done(made: Run, rows: Rows) -> None:
        if plans[made.key].variant == "soft":
            keep_best(plans[made.key], rows, options)

    check_priors(list(plans.values()), campaign.finished(Ledger(options.ledger)), options)
    runs = [plan.run(prior_of(plan.task, options)) for plan in plans.values()]
    campaign.fill(
        runs, options, ready=ready, done=done, needs="its prior is the best of soft, of which not all seeds are trained"
    )


def keep_best(plan: Planned, rows: Rows, options: argparse.Namespace) -> None:
    """Where the policy is the best of its task so far, by the mean action, it is what customizing will begin from."""
    which, value = max(((which, score(rows[plan.key], which)) for which in ("last", "best")), key=lambda pair: pair[1])
    softs = (key for key in rows if key.startswith(f"{plan.task}/soft/") and key != plan.key)
    if all(value > score(rows[key], name) for key in softs for name in ("last", "best")):
        folder = RunFolder(options.runs / plan.key.replace("/", "-"))
        options.priors.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder.last_policy if which == "last" else folder.best_policy, prior_of(plan.task, options))


def score(row: Row, which: str) -> float:
    return float(row[which]["mean"]["basic_reward"][0])


def check_priors(plans: list[Planned], rows: Rows, options: argparse.Namespace) -> None:
    """Raise where the ledger has runs of soft, and the file is not the best policy of them."""
    for task in dict.fromkeys(plan.task for plan in plans):
        path = prior_of(task, options)
        trained = {key: row for key, row in rows.items() if key.startswith(f"{task}/soft/")}
        found = [(score(row, name), row["policies"][name]) for row in trained.values() for name in ("last", "best")]
        best = {checksum for value, checksum in found if value == max(found)[0]}
        if trained and (not path.exists() or file_sum(path) not in best):
            wrong = "is another than" if path.exists() else "is missing,"
            raise FileError(
                f"{path} {wrong} the best policy of {', '.join(trained)}: restore it, "
                f"or delete these lines of {options.ledger} to train them again"
            )


def status(options: argparse.Namespace) -> None:
    plans = planned(tuple(options.only), options.seeds)
    campaign.status([plan.run(prior_of(plan.task, options)) for plan in plans], options)


def report(options: argparse.Namespace) -> None:
    """Write the page's tables and the page of its own, from the ledger alone."""
    from experiments.paper.report import results_of, write

    write(results_of(options.ledger, options.seeds), options.page, options.html)
    print(f"written: {options.page}, {options.html}")


if __name__ == "__main__":
    campaign.run_main(main)
