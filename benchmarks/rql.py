"""Residual Q-learning beside Residual PPO on RQL's tasks, from the same priors: a JSON line a run.

    python benchmarks/rql.py cartpole --out results/rql/cartpole.jsonl
    python benchmarks/rql.py mountain_car --out results/rql/mountain_car.jsonl

Each run is a command of `repolicy` followed by `repolicy evaluate`, word for word as recorded beside its figures. A run
that is in the file already is not repeated, and a policy that is trained already is only evaluated.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from ledger import Row, fill, repolicy

from repolicy.rql.settings import TASKS

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
    "cartpole": Plan(0.5, 0.5, "--steps 100000 --envs 16 --horizon 128 --minibatch 256 --learning-rate 1e-3"),
    "mountain_car": Plan(0.035, 0.02, "--steps 200000 --envs 16 --horizon 256 --minibatch 512 --learning-rate 1e-3"),
    "highway": Plan(1.0, 1.0, "--steps 2000 --envs 8 --horizon 32 --minibatch 64 --gamma 0.8", False),
    "parking": Plan(0.01, 0.01, "--steps 10000 --envs 8 --horizon 128 --minibatch 256 --gamma 0.95", False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("task", choices=PLANS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/rql"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    keys = [
        {"task": options.task, "method": method, "seed": seed} for seed in options.seeds for method in options.methods
    ]
    fill(options.out, keys, lambda task, method, seed: run(task, method, seed, options.runs, options.episodes))


def run(task: str, method: str, seed: int, runs: Path, episodes: int) -> Row:
    """Train and evaluate once; the row tells the commands that do it again."""
    plan = PLANS[task]
    policy, prior = (runs / f"{task}-{name}-{seed}.safetensors" for name in (method, "prior"))
    coefficients = f"--omega {plan.omega} --alpha {plan.alpha}"
    words = {
        "prior": f"rql train {task}",
        "full": f"rql train {task} --objective full",
        "greedy": f"rql train {task} --objective greedy",
        "rql": f"rql customize {prior} {coefficients}",
        "ppo": f"customize {prior} --addon {ADDON} {coefficients} {plan.ppo} --ranks 1 --no-report",
    }[method]
    if method == "ppo":
        folder, policy = policy.with_suffix(""), policy.with_suffix("") / "policy.safetensors"
        command = f"{words} --seed {seed} --out {folder}"
    else:
        command = f"{words} --seed {seed} --out {policy}"
    started = time.perf_counter()
    if method == "ppo":
        repolicy([*command.split(), "--resume"])
    elif not policy.exists():
        repolicy(command.split())
    row: Row = {"command": f"repolicy {command}", "seconds": round(time.perf_counter() - started)}
    evaluate = f"evaluate {policy} --env {TASKS[task].env} --addon {ADDON} --episodes {episodes} --seed 1000"
    row["evaluation"] = f"repolicy {evaluate}"
    for action, flag in [("mode", ""), ("sampled", " --stochastic")][: 1 + plan.sampled]:
        summary = repolicy((evaluate + flag).split())["summary"]
        row[action] = {
            name: [round(summary[f"{name}_reward"][part], 2) for part in ("mean", "std")]
            for name in ("basic", "addon", "total")
        }
    return row


if __name__ == "__main__":
    main()
