"""Eight short runs and the sha256 of the weights that each ends in: did a change of the code change its results?

    python -m benchmarks.same_bits                  # compare with results/same_bits.jsonl, line by line
    python -m benchmarks.same_bits --write          # write that file anew

The bits belong to a processor and to the versions of torch, NumPy and EnvPool, so compare on one machine: write the
file at the old commit, and compare at the new one.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy

from experiments import campaign
from experiments.ledger import write_rows

TABLE = Path("results/same_bits.jsonl")
SHORT = "--steps 12000 --checkpoint-every 2 --evaluation-episodes 2 --envs 16 --minibatch 256"
RUNS = {
    "gaussian, 1 rank": "train HalfCheetah-v4 --alpha 0.13472 --ranks 1",
    "gaussian, 2 ranks": "train Hopper-v4 --alpha 0.001 --ranks 2 --activation elu",
    "state_gaussian": "train Hopper-v4 --alpha 0.001 --ranks 1 --family state_gaussian",
    "squashed": "train Pendulum-v1 --alpha 0.01 --ranks 1 --family squashed",
    "state_squashed, 2 ranks": "train Pendulum-v1 --alpha 0.01 --ranks 2 --family state_squashed",
    "categorical, relu": "train CartPole-v1 --alpha 0.01 --ranks 1 --activation relu",
    "customize, 1 rank": "customize halfcheetah --addon hind_leg --omega 0.17 --ranks 1",
    "customize, budget, 2 ranks": "customize hopper --addon height --omega auto --kl-budget 2 --ranks 2",
}


def weights(words: str, out: Path) -> str:
    """Run it, and take the checksum of the policy's tensors at its end."""
    words += f" {SHORT}" + " --no-report" * words.startswith("customize")
    program = [sys.executable, "-m", "repolicy", *words.split(), "--out", str(out)]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    digest = hashlib.sha256()
    for name, tensor in sorted(safetensors.numpy.load_file(out / "policy.safetensors").items()):
        if name.startswith("policy."):
            digest.update(name.encode() + np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


@campaign.program(write={"action": "store_true"})
def main(options: campaign.Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {name: weights(words, Path(folder, str(index))) for index, (name, words) in enumerate(RUNS.items())}
    if options.write:
        write_rows(TABLE, ({"run": name, "sha256": bits} for name, bits in found.items()))
    known = {row["run"]: row["sha256"] for row in map(json.loads, TABLE.read_text().splitlines())}
    for name, bits in found.items():
        print(f"{'same' if known.get(name) == bits else 'OTHER':6} {bits[:16]}  {name}", flush=True)
    sys.exit(found != known)
