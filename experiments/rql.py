"""Residual Q-learning beside Residual PPO on RQL's tasks, from the same priors: a line of the ledger a run.

    python -m experiments.rql --tasks cartpole mountain_car --jobs 2

A run that is in the ledger is not repeated, and a policy that is trained already is only evaluated.
"""

from dataclasses import dataclass
from pathlib import Path

from experiments import campaign
from experiments.campaign import Rows
from experiments.one import Run
from repolicy.rql.hyperparameters import TASKS

ADDON = "repolicy.rql.tasks:addon"
METHODS = ("prior", "rql", "ppo", "greedy", "full")


@dataclass(frozen=True)
class Plan:
    """ω′ and α̂ for both residual methods, and what Residual PPO needs beside them."""

    omega: float
    alpha: float
    ppo: str
    sampled: bool = True  # whether to evaluate sampled actions too: some simulators are slow


PLANS = {
    "cartpole": Plan(0.5, 0.5, "--steps 100000 --envs 16 --n-steps 128 --minibatch 256 --learning-rate 1e-3"),
    "mountain_car": Plan(0.035, 0.02, "--steps 200000 --envs 16 --n-steps 256 --minibatch 512 --learning-rate 1e-3"),
    "highway": Plan(1.0, 1.0, "--steps 2000 --envs 8 --n-steps 32 --minibatch 64 --gamma 0.8", False),
    "parking": Plan(0.01, 0.01, "--steps 10000 --envs 8 --n-steps 128 --minibatch 256 --gamma 0.95", False),
}


def run(task: str, method: str, seed: int, folder: Path, episodes: int) -> Run:
    plan = PLANS[task]
    prior = folder / f"{task}-prior-{seed}"
    coefficients = f"--omega {plan.omega} --alpha {plan.alpha}"
    words = {
        "prior": f"rql train {task}",
        "full": f"rql train {task} --objective full",
        "greedy": f"rql train {task} --objective greedy",
        "rql": f"rql customize {prior} {coefficients}",
        "ppo": f"customize {prior} --addon {ADDON} {coefficients} {plan.ppo} --ranks 1 --no-report",
    }[method]
    return Run(
        f"{task}/{method}/{seed}", (*words.split(), "--seed", str(seed)), TASKS[task].env, ADDON,
        episodes=episodes, evaluation_seed=1000, sampled=plan.sampled,
    )  # fmt: skip


def main() -> None:
    parser = campaign.parser("rql", __doc__)
    parser.add_argument("--tasks", nargs="+", choices=PLANS, default=list(PLANS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()

    def ready(wanted: Run, rows: Rows) -> bool:
        task, method, seed = wanted.key.split("/")
        return method not in ("rql", "ppo") or f"{task}/prior/{seed}" in rows

    campaign.fill(
        [
            run(task, method, seed, options.runs, options.episodes)
            for task in options.tasks
            for seed in range(options.seeds)
            for method in options.methods
        ],
        options,
        ready=ready,
        needs="its prior is not in the ledger; add prior to --methods",
    )


if __name__ == "__main__":
    campaign.run_main(main)
