"""Kill a run at random instants, resume it each time, and compare its end with an uninterrupted run's, to the bit.

python benchmarks/kill.py --kills 10 --ranks 2 --out results/kill.jsonl
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from repolicy.runs.machine import command, commit

COMPARED = ["policy.safetensors", "last.safetensors"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--env", default="Hopper-v4")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--out", type=Path, default=Path("results/kill.jsonl"))
    options = parser.parse_args()
    words = ["train", options.env, "--alpha", "0.001", "--ranks", str(options.ranks), "--checkpoint-every", "2"]
    words += ["--steps", str(options.steps), "--resume", "--evaluation-episodes", "2"]
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        began = time.time()
        start(words, whole).wait()
        seconds = time.time() - began
        instants, chance = [], random.Random(options.seed)
        while len(instants) < options.kills:
            process = start(words, killed)
            instants.append(round(chance.uniform(3.0, seconds / 2), 2))
            time.sleep(instants[-1])
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        start(words, killed).wait()
        same = {name: digest(whole / name) == digest(killed / name) for name in COMPARED}
    row = {
        "command": command(),
        "kills_after_seconds": instants,
        "same_bits": same,
        "commit": commit(),
    }
    options.out.parent.mkdir(exist_ok=True)
    with options.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row, indent=2))
    sys.exit(0 if all(same.values()) else 1)


def start(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "repolicy", *words, "--out", str(folder)]
    return subprocess.Popen(program, stderr=subprocess.DEVNULL, start_new_session=True)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"


if __name__ == "__main__":
    main()
