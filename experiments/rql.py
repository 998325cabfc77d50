"""Compare Residual Q-learning with Residual PPO on RQL's tasks, from the same priors. The ledger has one row per run.

    python -m experiments.rql --tasks cartpole mountain_car --jobs 2
    python -m experiments.rql --picture docs/images/rql.png             # of what is in the ledger

Runs in the ledger are not repeated, and a policy that is trained already is only evaluated.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import matplotlib.pyplot as plt

from experiments import campaign
from experiments.campaign import Rows
from experiments.ledger import Row, group_by
from experiments.one import Run
from experiments.pages import markdown_table
from experiments.paper.results import task_of
from repolicy.rql.hyperparameters import TASKS

ADDON = "repolicy.rql.tasks:addon"
METHODS = {  # method -> label, color, marker
    "prior": ("prior", "black", "o"),
    "rql": ("residual Q-learning", "tab:blue", "^"),
    "ppo": ("residual PPO", "tab:green", "s"),
    "full": ("full: told both rewards", "tab:gray", "*"),
    "greedy": ("greedy: add-on alone", "tab:red", "x"),
}


@dataclass(frozen=True)
class Plan:
    """ω′ and α̂ for both residual methods, and further options of Residual PPO."""

    omega: float
    alpha: float
    ppo: str
    sampled: bool = True  # whether to evaluate sampled actions too: some simulators are slow


PLANS = {
    "cartpole": Plan(0.5, 0.5, "--steps 100000 --envs 16 --n-steps 128 --minibatch 256 --learning-rate 1e-3"),
    "mountain_car": Plan(0.035, 0.02, "--steps 200000 --envs 16 --n-steps 256 --minibatch 512 --learning-rate 1e-3"),
    "highway": Plan(0.1, 0.1, "--steps 5000 --envs 8 --n-steps 32 --minibatch 64 --gamma 0.8", False),
    "parking": Plan(0.01, 0.01, "--steps 10000 --envs 8 --n-steps 128 --minibatch 256 --gamma 0.95", False),
}


def make_run(task: str, method: str, seed: int, folder: Path, episodes: int) -> Run:
    """Return a run of a method; the residual methods start from the prior of the same seed."""
    plan = PLANS[task]
    prior = folder / f"{task}-prior-{seed}"
    coefficients = f"--omega {plan.omega} --alpha {plan.alpha}"
    command = {
        "prior": f"rql train {task}",
        "full": f"rql train {task} --objective full",
        "greedy": f"rql train {task} --objective greedy",
        "rql": f"rql customize {prior} {coefficients}",
        "ppo": f"customize {prior} --addon {ADDON} {coefficients} {plan.ppo} --ranks 1 --no-report",
    }[method]
    return Run(
        f"{task}/{method}/{seed}", (*command.split(), "--seed", str(seed)), TASKS[task].env, ADDON,
        episodes=episodes, evaluation_seed=1000, sampled=plan.sampled,
    )  # fmt: skip


def table(found: Rows) -> str:
    """Return means over seeds, ± sample std, and their shares of the prior's basic return and of full's total."""
    headings = ["task", "policy", "seeds", "basic", "add-on", "total", "of prior's basic", "of full total"]
    lines = list[list[str]]()
    for task, rows in group_by(found.values(), task_of).items():
        for method, (label, *_) in METHODS.items():
            basic = values(rows, method, "mean", "basic")
            if basic:
                cells = [str(len(basic))]
                for part in ("basic", "addon", "total"):
                    each = values(rows, method, "mean", part)
                    cells.append(f"{mean(each):,.1f}" + (f" ± {stdev(each):,.1f}" if len(each) > 1 else ""))
                for reference, part in (("prior", "basic"), ("full", "total")):
                    cells.append(relative_return(rows, method, reference, part))
                sampled = values(rows, method, "sampled", "total")
                cells.append(f"{mean(sampled):,.1f}" if sampled else "")
                lines.append([task if method == "prior" else "", label, *cells])
    return markdown_table([*headings, "total, sampled"], lines)


def values(rows: list[Row], method: str, action: str, part: str) -> list[float]:
    """Return a method's mean returns, one number per seed."""
    evaluations = [row["last"] for row in rows if row["key"].split("/")[1] == method]
    return [each[action][f"{part}_reward"][0] for each in evaluations if action in each]


def relative_return(rows: list[Row], method: str, reference: str, part: str) -> str:
    """Return the mean return as a share of the reference's, or nothing if that is not positive."""
    returns, references = values(rows, method, "mean", part), values(rows, reference, "mean", part)
    return f"{mean(returns) / mean(references):.1%}" if references and mean(references) > 0 else ""


def draw_returns(found: Rows, path: Path) -> None:
    """Draw add-on return against basic return, a panel per task and a point per seed."""
    tasks = group_by(found.values(), task_of)
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.6))
    for axis, (task, rows) in zip(axes.flat, tasks.items(), strict=False):
        for method, (label, color, marker) in METHODS.items():
            basic, addon = (values(rows, method, "mean", part) for part in ("basic", "addon"))
            if basic:
                axis.scatter(basic, addon, s=60, color=color, marker=marker, label=label)
        axis.set(title=task, xlabel="basic return", ylabel="add-on return")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


@campaign.program(
    "ledger", "runs", "jobs", "ray", tasks=[*PLANS], seeds=3, methods=[*METHODS], episodes=100, draw=draw_returns
)
def main(options: campaign.Options) -> None:
    def ready(run: Run, rows: Rows) -> bool:
        task, method, seed = run.key.split("/")
        return method not in ("rql", "ppo") or f"{task}/prior/{seed}" in rows

    combinations = product(options.tasks, range(options.seeds), options.methods)
    runs = [make_run(task, method, seed, options.runs, options.episodes) for task, seed, method in combinations]
    campaign.run_missing(runs, options, ready=ready, needs="its prior is not in the ledger; add prior to --methods")
