"""Make the priors that ship from the runs of `benchmarks/learning.py`: for each task the best seed's best policy.

    python benchmarks/priors.py --runs runs/learning

The file is the run's own, with the scores that `results/learning.jsonl` holds added to its card.
"""

import argparse
from pathlib import Path

from learning import VARIED
from ledger import rows_of

from repolicy.loading import as_file_name
from repolicy.policies.file import PRIORS, read_policy, save_policy

NAMES = {VARIED: "halfcheetah", "Hopper-v4": "hopper", "Ant-v4": "ant"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--results", type=Path, default=Path("results/learning.jsonl"))
    options = parser.parse_args()
    rows = rows_of(options.results)
    for env, name in NAMES.items():
        candidates = [row for row in rows if row["env"] == env]
        if not candidates:
            continue
        row = max(candidates, key=lambda row: row["best_mean"][0])
        saved = read_policy(options.runs / as_file_name(f"{env}-{row['seed']}") / "best.safetensors")
        scores = {"episodes": 100, "mean action": row["best_mean"], "sampled": row["best_sampled"]}
        request = saved.card["request"] | {"env": env.partition("?")[0]}  # what it is for, wherever it learnt
        card = saved.card | {"name": name, "request": request, "command": row["command"], "scores": scores}
        path = PRIORS / f"{name}.safetensors"
        save_policy(path, saved.policy, card)
        print(f"{path.name}: {scores}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
