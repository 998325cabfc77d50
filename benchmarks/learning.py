"""Train the priors' tasks from nothing, over seeds, and measure what was learnt: a JSON line a run.

    python benchmarks/learning.py --out results/learning.jsonl --jobs 2

Each run is `repolicy train` followed by `repolicy evaluate`, word for word as recorded beside its figures. A run that
is in the file already is not repeated; one that was interrupted goes on where its last checkpoint stands.
"""

import argparse
import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

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
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {(row["env"], row["seed"]) for row in map(json.loads, lines)}
    lock = Lock()

    def measure(env: str, seed: int) -> None:
        row = run(env, seed, options.runs / as_file_name(f"{env}-{seed}"))
        with lock, options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(env, seed, row["last_mean"], row["best_mean"], flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        todo = [(env, seed) for seed in options.seeds for env in options.envs if (env, seed) not in done]
        list(pool.map(lambda pair: measure(*pair), todo))


def run(env: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train and evaluate once; the row tells the commands that do it again."""
    out = ["--out", str(folder)]
    train = ["train", env, *RUNS[env], "--seed", str(seed), "--ranks", "1"]
    trained = repolicy([*train, *out, "--resume"])
    row: dict[str, Any] = {"env": env, "seed": seed, "command": shlex.join(["repolicy", *train])}
    row["seconds"] = trained["metrics"].get("seconds")
    row["steps"] = trained["steps"]
    for which, file in (("last", "policy.safetensors"), ("best", "best.safetensors")):
        for action, flags in (("mean", []), ("sampled", ["--stochastic"])):
            plain = env.partition("?")[0]
            evaluate = ["evaluate", str(folder / file), "--env", plain, "--episodes", "100", *flags]
            reward = repolicy(evaluate)["summary"]["basic_reward"]
            row[f"{which}_{action}"] = [round(reward["mean"], 1), round(reward["std"], 1)]
    return row


def repolicy(words: list[str]) -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, "-m", "repolicy", *words, "--json"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise SystemExit(f"repolicy {' '.join(words)}: {found.stderr}")
    return json.loads(found.stdout)


if __name__ == "__main__":
    main()
