"""How fast a generative policy's environment is stepped through its decoder, beside the environment alone.

    python -m benchmarks.decoding --out results/decoding.jsonl

The decoder has three layers of 256 numbers, as ONNX, and one pass. In turns of two seconds, one contender steps from
noise through `NoiseEnvs`, and then the other steps the same environments without it, by the actions that were decoded.
"""

import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.turns import median_and_quartiles
from experiments import campaign
from experiments.ledger import write_rows
from repolicy.envs.making import make_envs
from repolicy.envs.names import with_decoder
from repolicy.policies.export import onnx_graph
from repolicy.policies.policy import one_thread
from repolicy.priors.decoders import decoder_digest

ENVS, COUNT, CHUNK, SECONDS = ("MetaWorld/Push-v3?partially_observable=false", "HalfCheetah-v4"), 64, 8, 2.0


class Layers(nn.Module):
    """Observations `[N, O]` and noise `[N, Z]` to the actions of a chunk, `[N, Z]`."""

    def __init__(self, inputs: int, noise: int) -> None:
        super().__init__()
        sizes, layers = (inputs + noise, 256, 256, 256), list[nn.Module]()
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.SiLU()]
        self.network = nn.Sequential(*layers, nn.Linear(256, noise), nn.Tanh())

    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:
        return self.network(torch.cat([observations, noise], 1))  # type: ignore[no-any-return]


def measure(env: str, rounds: int, file: Path) -> dict[str, object]:
    alone = make_envs(env, COUNT, 0)
    noise = alone.actions.width * CHUNK
    torch.manual_seed(0)
    example = torch.zeros(2, alone.observation_size), torch.zeros(2, noise)
    file.write_bytes(onnx_graph(Layers(alone.observation_size, noise).eval().requires_grad_(False), example))
    through = make_envs(with_decoder(env, str(file), noise, CHUNK, decoder_digest(str(file))), COUNT, 0)
    random, speeds = np.random.default_rng(0), {"through": list[float](), "alone": list[float]()}
    alone.reset(), through.reset()
    for _ in range(rounds + 1):
        began, chunks = time.perf_counter(), list[np.ndarray]()
        while time.perf_counter() - began < SECONDS:
            step = through.step(random.standard_normal((COUNT, noise), np.float32))
            assert step.chunk is not None
            chunks.append(step.chunk.actions)
        between = time.perf_counter()
        for actions in chunks:
            for each in actions:
                alone.step(each)
        ended, steps = time.perf_counter(), COUNT * CHUNK * len(chunks)
        speeds["through"].append(steps / (between - began))
        speeds["alone"].append(steps / (ended - between))
    alone.close()
    through.close()
    found = {name: each[1:] for name, each in speeds.items()}  # the first is a warm-up
    return {
        "env": env,
        "share": median_and_quartiles([a / b for a, b in zip(found["through"], found["alone"], strict=True)], 2),
        "steps_per_second": {name: round(statistics.median(each)) for name, each in found.items()},
    }


@campaign.program(out=Path("results/decoding.jsonl"), rounds=15)
def main(options: campaign.Options) -> None:
    with tempfile.TemporaryDirectory() as folder, one_thread():
        rows = [measure(env, options.rounds, Path(folder) / f"{n}.onnx") for n, env in enumerate(ENVS)]
    write_rows(options.out, rows)
    for row in rows:
        print(f"{row['env']}: {row['share']} of the speed of the environment alone")
