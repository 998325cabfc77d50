"""Make the priors that ship from the runs of `python -m experiments.learning`: the best seed's policy.

    python -m experiments.priors --runs runs/learning

The file is the run's own, with the scores that `results/learning.jsonl` holds added to its card.
"""

import argparse
from pathlib import Path

from experiments import campaign
from experiments.campaign import finished
from experiments.learning import VARIED, run
from experiments.ledger import Ledger
from repolicy.policies.file import save_policy
from repolicy.priors.finding import PRIORS
from repolicy.priors.opening import read_policy

NAMES = {VARIED: "halfcheetah", "Hopper-v4": "hopper", "Ant-v4": "ant"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--results", type=Path, default=Path("results/learning.jsonl"))
    options = parser.parse_args()
    rows = list(finished(Ledger(options.results)).values())
    for env, name in NAMES.items():
        candidates = [row for row in rows if row["key"].rpartition("/")[0] == env]
        if not candidates:
            continue
        row = max(candidates, key=lambda row: row["best"]["mean"]["basic_reward"][0])
        best = row["best"]
        saved = read_policy(options.runs / run(env, int(row["key"].rpartition("/")[2])).folder / "policy.safetensors")
        scores = {
            "episodes": 100,
            "mean action": best["mean"]["basic_reward"],
            "sampled": best["sampled"]["basic_reward"],
        }
        request = saved.card["request"] | {"env": env.partition("?")[0]}  # what it is for, wherever it learned
        card = saved.card | {"name": name, "request": request, "command": row["command"], "scores": scores}
        path = PRIORS / f"{name}.safetensors"
        save_policy(path, saved.policy, card)
        print(f"{path.name}: {scores}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    campaign.run_main(main)
