"""Customise the shipped priors with the paper's add-ons and coefficients, over seeds: a JSON line a run.

    python benchmarks/customising.py --out results/customising.jsonl --jobs 2

For every task of the paper: the prior as it is, then residual, KL and greedy from it, and the Full policy, trained
from nothing with the basic reward in sight. Each line holds the command that makes it again, word for word. A run in
the file is not repeated; one that was interrupted goes on where its last checkpoint stands.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from ledger import Row, fill, repolicy

STEPS = "5e6"
METHODS = ("residual", "kl", "greedy", "full")


@dataclass(frozen=True)
class Task:
    """A row of the paper's Tables 3 and 4, or one of our own."""

    prior: str
    env: str
    addon: str
    alpha: str
    omega: str
    methods: tuple[str, ...] = METHODS


TASKS = {
    "halfcheetah": Task("halfcheetah", "HalfCheetah-v4", "hind_leg", "0.13472", "0.17"),
    # a wish that weighs: with the paper's ω′, with more of it, and with a budget instead
    "halfcheetah_10": Task("halfcheetah", "HalfCheetah-v4", "hind_leg=10", "0.13472", "0.17", ("residual",)),
    "halfcheetah_10_0.3": Task("halfcheetah", "HalfCheetah-v4", "hind_leg=10", "0.13472", "0.3", ("residual",)),
    "halfcheetah_10_0.6": Task("halfcheetah", "HalfCheetah-v4", "hind_leg=10", "0.13472", "0.6", ("residual",)),
    "halfcheetah_10_budget": Task(
        "halfcheetah", "HalfCheetah-v4", "hind_leg=10", "0.13472", "auto --kl-budget 2", ("residual",)
    ),
    "hopper": Task("hopper", "Hopper-v4", "height", "0.001", "0.01"),
    "hopper_0.3": Task("hopper", "Hopper-v4", "height", "0.001", "0.3", ("residual",)),
    "hopper_3": Task("hopper", "Hopper-v4", "height", "0.001", "3", ("residual",)),  # the best of the sweep
    "ant": Task("ant", "Ant-v4", "sideways", "0.0001", "0.01"),
}


def command(task: Task, method: str, steps: str = STEPS) -> list[str]:
    """What makes the policy, but for its seed and folder."""
    common = ["--addon", task.addon, "--alpha", task.alpha, "--steps", steps, "--ranks", "1"]
    if method == "full":
        return ["train", task.env, "--objective", "full", *common]
    omega = ["--omega", *task.omega.split()] if method == "residual" else []
    return ["customize", task.prior, "--env", task.env, "--objective", method, *omega, *common, "--no-report"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/customising.jsonl"))
    parser.add_argument("--runs", type=Path, default=Path("runs/customising"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options = parser.parse_args()
    priors = {(task.prior, task.addon): name for name, task in reversed(TASKS.items())}.values()
    keys = [{"task": task, "method": "prior", "seed": 0} for task in options.tasks if task in priors]
    for seed in options.seeds:
        for task in options.tasks:
            methods = [method for method in TASKS[task].methods if method in options.methods]
            keys += [{"task": task, "method": method, "seed": seed} for method in methods]
    fill(
        options.out,
        keys,
        lambda task, method, seed: run(TASKS[task], method, seed, options.runs / f"{task}-{method}-{seed}"),
        options.jobs,
    )


def run(task: Task, method: str, seed: int, folder: Path) -> Row:
    """Train, unless it is the prior itself, and evaluate the last and the best policy."""
    if method == "prior":
        found = {action: evaluated(task, task.prior, action) for action in ("mean", "sampled")}
        return {f"{which}_{action}": found[action] for which in ("last", "best") for action in found}
    train = [*command(task, method), "--seed", str(seed)]
    made = repolicy([*train, "--out", str(folder), "--resume"])
    row: Row = {"command": " ".join(["repolicy", *train]), "steps": made["steps"]}
    for which, file in (("last", "policy.safetensors"), ("best", "best.safetensors")):
        for action in ("mean", "sampled"):
            row[f"{which}_{action}"] = evaluated(task, str(folder / file), action)
    return row


def evaluated(task: Task, policy: str, action: str) -> dict[str, list[float]]:
    """Mean and std of each part of the return over 100 episodes."""
    flags = ["--stochastic"] if action == "sampled" else []
    found = repolicy(["evaluate", policy, "--env", task.env, "--addon", task.addon, "--episodes", "100", *flags])
    return {name: [round(part["mean"], 4), round(part["std"], 4)] for name, part in found["summary"].items()}


if __name__ == "__main__":
    main()
