"""Training speed beside Stable-Baselines3 and rsl_rl: same machine, same minutes, in turns of two seconds.

    python -m benchmarks.peers --out results/peers.jsonl

Every contender trains HalfCheetah-v4 with tanh 64-64 networks in a process of its own, which stays alive: it works for
two seconds, to the end of an iteration, and is then stopped (SIGSTOP) while the others have their turns. So the speed
of a shared machine, which drifts, is the same for all. A row has the contender's median speed, and the median and the
middle half of repolicy's speed divided by the contender's, turn by turn. Each may use all cores in its library's way.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.turns import median_and_quartiles
from experiments import campaign
from experiments.ledger import write_rows

ENV = "HalfCheetah-v4"
SECONDS = 2.0


class Turns:
    """This process's side: it works while it has its turn, and says what it did."""

    def __init__(self) -> None:
        self._wait()

    def did(self, steps: int) -> None:
        """An iteration of so many steps is done; the turn ends here once its time is over."""
        self._steps += steps
        elapsed = time.perf_counter() - self._began
        if elapsed >= SECONDS:
            print(json.dumps([self._steps, elapsed]), file=sys.__stdout__, flush=True)
            self._wait()

    def _wait(self) -> None:
        sys.stdin.readline()
        self._steps, self._began = 0, time.perf_counter()


# The contenders -------------------------------------------------------------------------------------------------------


def ours(turns: Turns, envs: int, minibatch: int) -> None:
    """Repolicy with one rank a core; evaluations and checkpoints count."""
    from repolicy.learning.training import train
    from repolicy.objective import soft
    from repolicy.prepare.defaults import train_defaults

    settings = replace(train_defaults(ENV), steps=10**10, envs=envs, minibatch=minibatch)

    class Callback:
        def begin(self, *_: Any) -> None: ...
        def write(self, metrics: dict[str, float]) -> None:
            turns.did(settings.iteration_steps)

        def say(self, sentence: str) -> None: ...
        def close(self) -> None: ...

    with tempfile.TemporaryDirectory() as folder:
        train(ENV, soft(0.13472), Path(folder) / "run", settings, callbacks=[Callback()])


def sb3(turns: Turns, n_envs: int = 1, **settings: Any) -> None:
    """Stable-Baselines3's PPO, its environments in its own process: as processes of their own they are slower."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    network = {"net_arch": [64, 64], "activation_fn": torch.nn.Tanh}
    model = PPO("MlpPolicy", make_vec_env(ENV, n_envs=n_envs), policy_kwargs=network, device="cpu", **settings)
    while True:
        model.learn(n_envs * model.n_steps, reset_num_timesteps=False)
        turns.did(n_envs * model.n_steps)


def rsl_rl(turns: Turns, envs: int, threads: int, steps: int, minibatches: int) -> None:
    """rsl_rl's PPO on EnvPool, 5 epochs."""
    from rsl_rl.runners import OnPolicyRunner

    from experiments.batches import runner_config

    network: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh"}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0}
    network |= {"obs_normalization": True}
    ppo = {"class_name": "PPO", "num_learning_epochs": 5, "num_mini_batches": minibatches}
    config = runner_config(steps, network | {"distribution_cfg": gaussian}, network, ppo)
    if threads == 1:
        import torch

        torch.set_num_threads(1)
    runner = OnPolicyRunner(pool_for_rsl_rl(envs, threads), config, log_dir=None, device="cpu")
    while True:
        runner.learn(1)
        turns.did(envs * steps)


def pool_for_rsl_rl(count: int, threads: int) -> Any:
    """EnvPool as the vector environment that rsl_rl drives."""
    import envpool
    import numpy as np
    import torch
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    class Pool(VecEnv):
        def __init__(self) -> None:
            self.pool = envpool.make(ENV, env_type="gymnasium", num_envs=count, num_threads=threads, seed=0)
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


CONTENDERS: dict[str, Callable[[Turns], None]] = {
    "repolicy": lambda turns: ours(turns, 128, 2048),
    "repolicy, minibatches of 1024": lambda turns: ours(turns, 64, 1024),
    "stable-baselines3, 128 environments, minibatches of 2048": lambda turns: sb3(
        turns, n_envs=128, n_steps=64, batch_size=2048, n_epochs=5
    ),
    "stable-baselines3, 32 environments, minibatches of 1024": lambda turns: sb3(
        turns, n_envs=32, n_steps=128, batch_size=1024, n_epochs=5
    ),
    "stable-baselines3, defaults": lambda turns: sb3(turns),
    "rsl_rl on EnvPool, 256 environments, 1 thread, minibatches of 2048": lambda turns: rsl_rl(turns, 256, 1, 32, 4),
    "rsl_rl on EnvPool, 64 environments, 2 threads, minibatches of 1024": lambda turns: rsl_rl(turns, 64, 2, 64, 4),
}


# Turns ----------------------------------------------------------------------------------------------------------------


class Contender:
    """A contender's process, with all that it started, as it is seen from here: stopped unless it has its turn."""

    def __init__(self, name: str) -> None:
        words = [sys.executable, "-m", "benchmarks.peers", "--contender", name]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def turn(self) -> float:
        """Steps a second of one turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        while line and not line.startswith("["):  # rsl_rl prints a table an iteration
            line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a contender ended: {self._process.args}")
        self._signal(signal.SIGSTOP)
        steps, seconds = json.loads(line)
        return float(steps / seconds)

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        for pid in family(self._process.pid):
            os.kill(pid, number)


def family(pid: int) -> list[int]:
    """A process and all that it started, by Linux's /proc."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in family(int(child)))]


@campaign.program(
    out=Path("results/peers.jsonl"), rounds=15, contender={"choices": [*CONTENDERS], "help": argparse.SUPPRESS}
)
def main(options: campaign.Options) -> None:
    if options.contender:
        turns = Turns()
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        CONTENDERS[options.contender](turns)
        return
    contenders = {name: Contender(name) for name in CONTENDERS}
    speeds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    try:
        for number in range(options.rounds + 1):
            for name, contender in contenders.items():
                speed = contender.turn()
                if number:  # the first turn is a warm-up
                    speeds[name].append(speed)
            print(f"round {number} of {options.rounds}", flush=True)
    finally:
        for contender in contenders.values():
            contender.end()
    rows = []
    for name, found in speeds.items():
        row: dict[str, Any] = {"env": ENV, "contender": name, "rounds": options.rounds}
        row["steps_per_second"] = statistics.median(found)
        for mine in list(CONTENDERS)[:2]:
            ratios = [a / b for a, b in zip(speeds[mine], found, strict=True)]
            row[f"{mine} is faster by"] = median_and_quartiles(ratios, 2)
        rows.append(row)
        factor, low, high = row["repolicy is faster by"]
        speed = row["steps_per_second"]
        print(f"{name:68s} {speed:8,.0f} steps a second; repolicy × {factor:.2f} ({low:.2f} – {high:.2f})")
    write_rows(options.out, rows)
