"""How much of the time of training is physics: `repolicy bench` over environments and ranks, a JSON line each.

python -m benchmarks.speed --out results/speed.jsonl                        # all of them
python -m benchmarks.speed --out results/speed.jsonl --envs Ant-v4 --ranks 1  # one again
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from experiments.ledger import commit

ENVS = ["HalfCheetah-v4", "Hopper-v4", "Ant-v4"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/speed.jsonl"))
    parser.add_argument("--envs", nargs="+", default=ENVS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for env in options.envs:
        for ranks in options.ranks:
            words = ["bench", env, "--ranks", str(ranks), "--slices", "12"]
            program = [sys.executable, "-m", "repolicy", *words, "--json"]
            found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
            rows = [row for row in rows if (row["env"], row["ranks"]) != (env, ranks)]
            rows.append({"command": " ".join(["repolicy", *words]), "commit": commit()} | found)
            options.out.parent.mkdir(exist_ok=True)
            options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
