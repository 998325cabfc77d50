"""The paper's Tables 1, 2 and 5, measured again.

    python -m experiments.paper run --jobs 2                        # all of it: 150 rows, days of one core
    python -m experiments.paper run --only table1 hopper --seeds 3  # a part
    python -m experiments.paper report                              # docs/results-paper.md and its picture

What is in the ledger is not repeated, and a run that was cut off goes on where its last checkpoint stands.
"""

import argparse
from pathlib import Path

from experiments import campaign
from experiments.campaign import Rows
from experiments.ledger import Ledger, Row
from experiments.one import Run
from experiments.paper.runs import planned
from repolicy.errors import FileError, UsageError
from repolicy.loading import file_sum
from repolicy.policies.storage import write_bytes
from repolicy.runs.folder import RunFolder


def main() -> None:
    parser = campaign.parser("paper", __doc__)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--only", nargs="+", default=[], help="tables, environments, variants; by default all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--priors", type=Path, default=Path("results/paper"), help="where the best of soft are kept")
    parser.add_argument("--page", type=Path, default=Path("docs/results-paper.md"))
    options = parser.parse_args()
    {"run": run, "report": report}[options.what](options)


def prior_of(task: str, options: argparse.Namespace) -> Path:
    """Return the best policy of `soft`, once all seeds of it are in the ledger."""
    return Path(options.priors / f"{task}.safetensors")


def run(options: argparse.Namespace) -> None:
    """Make the runs that the ledger lacks."""
    plans = {plan.key: plan for plan in planned(tuple(options.only), options.seeds)}

    def ready(wanted: Run, rows: Rows) -> bool:
        plan = plans[wanted.key]
        return not plan.needs_prior or all(f"{plan.task}/soft/{seed}" in rows for seed in range(options.seeds))

    def done(made: Run, rows: Rows) -> None:
        if plans[made.key].variant == "soft":
            keep_prior(plans[made.key].task, rows, options)

    for task in dict.fromkeys(plan.task for plan in plans.values() if plan.needs_prior):
        keep_prior(task, campaign.finished(Ledger(options.ledger)), options)
    runs = [plan.run(prior_of(plan.task, options)) for plan in plans.values()]
    campaign.fill(
        runs, options, ready=ready, done=done, needs="its prior is the best of soft, of which not all seeds are trained"
    )


def keep_prior(task: str, rows: Rows, options: argparse.Namespace) -> None:
    """Keep what customizing begins from: the best policy of `soft`, by the mean action.

    Once a run has begun from it, it stays, even if a seed that is trained later is better.
    """
    path, trained = prior_of(task, options), {key: row for key, row in rows.items() if key.startswith(f"{task}/soft/")}
    if not trained:
        return
    policies = [(row["policies"][name], key, name) for key, row in trained.items() for name in ("last", "best")]
    used = {row["prior"] for key, row in rows.items() if key.startswith(f"{task}/") and row.get("prior")}
    highest = max(score(trained[key], name) for _, key, name in policies)
    wanted = used & {checksum for checksum, *_ in policies} or {
        checksum for checksum, key, name in policies if score(trained[key], name) == highest
    }
    if path.exists() and file_sum(path) in wanted:
        return
    for checksum, key, name in policies:
        folder = RunFolder(options.runs / key.replace("/", "-"))
        file = folder.last_policy if name == "last" else folder.policy
        if checksum in wanted and file.exists() and file_sum(file) == checksum:
            write_bytes(path, file.read_bytes())
            return
    raise FileError(
        f"{path} {'is another than' if path.exists() else 'is missing,'} the best policy of {', '.join(trained)}: "
        f"restore it, or delete these lines of {options.ledger} and their folders in {options.runs} to train them again"
    )


def score(row: Row, which: str) -> float:
    return float(row[which]["mean"]["basic_reward"][0])


def report(options: argparse.Namespace) -> None:
    """Write the page's tables and its picture, from the ledger alone."""
    if options.only:
        raise UsageError("a report is of all that is in the ledger: leave out --only")
    from experiments.paper.report import results_of, write

    write(results_of(options.ledger, options.seeds), options.page)
    print(f"written: {options.page}")


if __name__ == "__main__":
    campaign.run_main(main)
