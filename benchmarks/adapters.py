"""What Residual PPO costs inside its hosts: each beside its host's own PPO, in slices of two seconds, by turns.

    python -m benchmarks.adapters --out results/adapters.jsonl

All contenders live in one process with one torch thread, and take turns: the machine's speed drifts, and a slice is
compared only with the one beside it: the median and quartiles of the ratios. On a machine with other work the
processor's own time is the steadier of the two. HalfCheetah-v4 on EnvPool, 64 environments, networks of 64 and 64,
minibatches of 1024, 5 epochs; both begin as the shipped prior and, at a learning rate of 0, walk alike: a robot that
tumbles costs the physics more.
"""

import contextlib
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.turns import median_and_quartiles, slice_of
from experiments import campaign
from experiments.batches import AddonEnvs, RslRlEnvs, Sb3Envs, runner_config
from experiments.ledger import write_rows

ENV, ADDON, PRIOR, COUNT, STEPS = "HalfCheetah-v4", "hind_leg=10", "halfcheetah", 64, 64
WEIGHTS: dict[str, Any] = {"prior": PRIOR, "omega": 0.17, "alpha": 0.13472, "critic_warmup": 0}
UPDATE = {
    "learning_rate": 0.0,
    "num_learning_epochs": 5,
    "num_mini_batches": 4,
    "use_clipped_value_loss": True,
}
Iteration = Callable[[], Any]


def sb3(residual: bool) -> Iteration:
    from stable_baselines3 import PPO

    from repolicy import load_policy
    from repolicy.hosts.sb3 import ResidualPPO, from_repolicy, like

    settings: dict[str, Any] = {"n_steps": STEPS, "batch_size": 1024, "n_epochs": 5, "device": "cpu"}
    settings |= {"target_kl": None, "learning_rate": 0.0}  # as many minibatches for both
    settings["policy_kwargs"] = like(load_policy(PRIOR))  # the same networks for both
    envs = Sb3Envs(AddonEnvs(ENV, ADDON, COUNT, 0))
    model = ResidualPPO("MlpPolicy", envs, **settings, **WEIGHTS) if residual else PPO("MlpPolicy", envs, **settings)
    from_repolicy(load_policy(PRIOR), model)
    return lambda: model.learn(COUNT * STEPS, reset_num_timesteps=False)


def rsl_rl(residual: bool) -> Iteration:
    from rsl_rl.runners import OnPolicyRunner

    from repolicy import load_policy
    from repolicy.hosts.rsl_rl import from_repolicy

    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True}
    named = {"class_name": "PPO", "schedule": "fixed"}
    if residual:  # no schedule is named, so it looks after each minibatch whether the actor has moved too far
        named = {"class_name": "repolicy.hosts.rsl_rl:ResidualPPO"} | WEIGHTS
    actor = network | {"distribution_cfg": {"class_name": "GaussianDistribution"}}
    config = runner_config(STEPS, actor, network, UPDATE | named)
    runner = OnPolicyRunner(RslRlEnvs(AddonEnvs(ENV, ADDON, COUNT, 0)), config, None, "cpu")
    from_repolicy(load_policy(PRIOR), runner.alg.get_policy())
    return lambda: runner.learn(1)


@campaign.program(out=Path("results/adapters.jsonl"), rounds=15, seconds=2.0)
def main(options: campaign.Options) -> None:
    torch.set_num_threads(1)
    rows = []
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        pairs = {"stable-baselines3": (sb3(False), sb3(True)), "rsl_rl": (rsl_rl(False), rsl_rl(True))}
        times: dict[str, list[Any]] = {name: [] for name in pairs}
        for turn in range(-1, options.rounds):  # the first warms up
            for name, (host, ours) in pairs.items():
                order = [host, ours] if turn % 2 else [ours, host]
                found = {id(each): slice_of(each, options.seconds) for each in order}
                if turn >= 0:
                    times[name].append((found[id(host)], found[id(ours)]))
    for name, measured in times.items():
        row: dict[str, Any] = {"host": name, "rounds": len(measured)}
        for index, what in enumerate(("clock", "processor")):
            row[f"{what}_seconds"] = round(statistics.median(host[index] for host, _ in measured), 4)
            row[f"{what}_overhead"] = median_and_quartiles([ours[index] / host[index] - 1.0 for host, ours in measured])
        rows.append(row)
        print(json.dumps(row))
    write_rows(options.out, rows)
