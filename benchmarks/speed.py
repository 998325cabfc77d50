"""How much of the time of training is physics: `repolicy bench` over environments and ranks, a JSON line each.

python -m benchmarks.speed --out results/speed.jsonl                        # all of them
python -m benchmarks.speed --out results/speed.jsonl --envs Ant-v4 --ranks 1  # one again
"""

import json
import subprocess
import sys
from pathlib import Path

from experiments import campaign
from experiments.ledger import current_commit, write_rows

ENVS = ("HalfCheetah-v4", "Hopper-v4", "Ant-v4")


@campaign.program(out=Path("results/speed.jsonl"), envs=ENVS, ranks=(1, 2))
def main(options: campaign.Options) -> None:
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for env in options.envs:
        for ranks in options.ranks:
            words = ["bench", env, "--ranks", str(ranks), "--slices", "12"]
            program = [sys.executable, "-m", "repolicy", *words, "--json"]
            found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
            rows = [row for row in rows if (row["env"], row["ranks"]) != (env, ranks)]
            rows.append({"command": " ".join(["repolicy", *words]), "commit": current_commit()} | found)
            write_rows(options.out, rows)
