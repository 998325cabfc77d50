"""Training speed beside Stable-Baselines3 and rsl_rl: same machine, same run, in alternating slices.

    python benchmarks/peers.py --out results/peers.jsonl

Every contender trains HalfCheetah-v4 with tanh 64-64 networks in a process of its own, warms up, and then says how many
environment steps a second it did. The contenders take turns, round after round, because the machine's speed drifts.
Each may use all cores in the way that its library does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENV = "HalfCheetah-v4"


def ours(*options: str) -> float:
    """Repolicy with one rank a core, evaluation and checkpoints included."""
    words = ["-m", "repolicy", "bench", ENV, "--slices", "8", "--json", *options]
    found = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return float(json.loads(found.stdout)["training_steps_per_second"])


def ours_same() -> float:
    """Repolicy with the batch that the peers are given below: 64 environments, minibatches of 1024."""
    return ours("--envs", "64", "--minibatch", "1024")


def sb3(**settings: Any) -> float:
    """Stable-Baselines3's PPO."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    count = settings.pop("n_envs", 1)
    envs = make_vec_env(ENV, n_envs=count)
    model = PPO(
        "MlpPolicy",
        envs,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
        device="cpu",
        **settings,
    )
    iteration = count * model.n_steps
    return paced(lambda: model.learn(iteration, reset_num_timesteps=False), iteration)


def sb3_same() -> float:
    """Stable-Baselines3 with 32 environments, minibatches of 1024 and 5 epochs."""
    return sb3(n_envs=32, n_steps=128, batch_size=1024, n_epochs=5)


def sb3_large() -> float:
    """Stable-Baselines3 with the batch that Repolicy takes by itself: 128 environments, minibatches of 2048."""
    return sb3(n_envs=128, n_steps=64, batch_size=2048, n_epochs=5)


def sb3_defaults() -> float:
    """Stable-Baselines3 as it comes."""
    return sb3()


def rsl_rl() -> float:
    """rsl_rl's PPO on 64 of EnvPool's environments, two threads, four minibatches of 1024 and 5 epochs."""
    import contextlib

    from rsl_rl.runners import OnPolicyRunner

    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh"}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0}
    config = {
        "num_steps_per_env": 64,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": network | {"obs_normalization": True, "distribution_cfg": gaussian},
        "critic": network | {"obs_normalization": True},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 5, "num_mini_batches": 4},
        "multi_gpu": None,
    }
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        runner = OnPolicyRunner(pool_for_rsl_rl(64), config, log_dir=None, device="cpu")
        return paced(lambda: runner.learn(1), 64 * 64)


def pool_for_rsl_rl(count: int) -> Any:
    """EnvPool as the vector environment that rsl_rl drives."""
    import envpool
    import numpy as np
    import torch
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    class Pool(VecEnv):
        def __init__(self) -> None:
            self.pool = envpool.make(ENV, env_type="gymnasium", num_envs=count, num_threads=2, seed=0)
            self.num_envs, self.num_actions, self.max_episode_length = count, 6, 1000
            self.device, self.cfg = "cpu", {}
            self.episode_length_buf = torch.zeros(count, dtype=torch.long)
            self.current = self.packed(self.pool.reset()[0])

        def packed(self, observations: Any) -> TensorDict:
            return TensorDict({"policy": torch.from_numpy(observations.astype(np.float32))}, batch_size=[count])

        def get_observations(self) -> TensorDict:
            return self.current

        def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
            found, rewards, terminated, truncated, _ = self.pool.step(actions.numpy().astype(np.float64))
            self.current = self.packed(found)
            dones = torch.from_numpy(terminated | truncated)
            return self.current, torch.from_numpy(rewards), dones, {"time_outs": torch.from_numpy(truncated)}

    return Pool()


def paced(iterate: Callable[[], Any], steps: int, seconds: float = 12.0) -> float:
    """Steps a second of an iteration repeated for some seconds, after a warm-up."""
    iterate()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        iterate()
        done += steps
    return done / (time.perf_counter() - began)


CONTENDERS: dict[str, Callable[[], float]] = {
    "repolicy": ours,  # 128 environments, minibatches of 2048
    "repolicy, minibatches of 1024": ours_same,
    "stable-baselines3, minibatches of 1024": sb3_same,
    "stable-baselines3, minibatches of 2048": sb3_large,
    "stable-baselines3, defaults": sb3_defaults,
    "rsl_rl on EnvPool, minibatches of 1024": rsl_rl,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/peers.jsonl"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=list(CONTENDERS), help="run just this one, once, and print its speed")
    options = parser.parse_args()
    if options.contender:
        print(CONTENDERS[options.contender]())
        return
    speeds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(options.rounds):
        for name, found in speeds.items():
            words = [sys.executable, __file__, "--contender", name]
            output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            found.append(float(output.split()[-1]))
            print(f"{name:40s} {found[-1]:10,.0f} steps a second", flush=True)

    def faster(which: str, found: list[float]) -> float:
        """By how much that one is faster than what was found, in the same rounds."""
        return statistics.median(a / b for a, b in zip(speeds[which], found, strict=True))

    rows = [
        {
            "command": "python benchmarks/peers.py",
            "env": ENV,
            "contender": name,
            "steps_per_second": found,
            "median": statistics.median(found),
            "repolicy_is_faster_by": faster("repolicy", found),
            "repolicy_with_1024_is_faster_by": faster("repolicy, minibatches of 1024", found),
        }
        for name, found in speeds.items()
    ]
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        factor = row["repolicy_is_faster_by"]
        print(f"{row['contender']:40s} {row['median']:10,.0f} steps a second, repolicy × {factor:.1f}")


if __name__ == "__main__":
    main()
