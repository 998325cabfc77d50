"""Train the priors' tasks from nothing, over seeds, and measure what was learnt: a JSON line a run.

    python benchmarks/learning.py --out results/learning.jsonl --jobs 2

Each run is `repolicy train` followed by `repolicy evaluate`, word for word as recorded beside its figures. A run that
is in the file already is not repeated; one that was interrupted goes on where its last checkpoint stands.
"""

import argparse
import shlex
from pathlib import Path

from ledger import Row, fill, repolicy

from repolicy.loading import as_file_name

VARIED = "HalfCheetah-v4?reset_noise_scale=0.3"  # from varied starts, for a prior that knows how to get up
RUNS = {
    "HalfCheetah-v4": ["--objective", "soft", "--alpha", "0.13472", "--steps", "3e6"],
    VARIED: ["--objective", "soft", "--alpha", "0.13472", "--steps", "3e6"],
    "Hopper-v4": ["--objective", "soft", "--alpha", "0.001", "--steps", "3e6"],
    "Ant-v4": ["--objective", "soft", "--alpha", "0.0001", "--steps", "3e6"],
    "CartPole-v1": ["--objective", "no_entropy"],
    "Pendulum-v1": ["--objective", "no_entropy"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/learning.jsonl"))
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--envs", nargs="+", default=list(RUNS))
    options = parser.parse_args()
    keys = [{"env": env, "seed": seed} for seed in options.seeds for env in options.envs]
    fill(
        options.out,
        keys,
        lambda env, seed: run(env, seed, options.runs / as_file_name(f"{env}-{seed}")),
        options.jobs,
    )


def run(env: str, seed: int, folder: Path) -> Row:
    """Train and evaluate once; the row tells the commands that do it again."""
    out = ["--out", str(folder)]
    train = ["train", env, *RUNS[env], "--seed", str(seed), "--ranks", "1"]
    trained = repolicy([*train, *out, "--resume"])
    row: Row = {"command": shlex.join(["repolicy", *train])}
    row |= {"seconds": trained["metrics"].get("seconds"), "steps": trained["steps"]}
    for which, file in (("last", "policy.safetensors"), ("best", "best.safetensors")):
        for action, flags in (("mean", []), ("sampled", ["--stochastic"])):
            plain = env.partition("?")[0]
            evaluate = ["evaluate", str(folder / file), "--env", plain, "--episodes", "100", *flags]
            reward = repolicy(evaluate)["summary"]["basic_reward"]
            row[f"{which}_{action}"] = [round(reward["mean"], 1), round(reward["std"], 1)]
    return row


if __name__ == "__main__":
    main()
