"""Run one customization in three trainers: Repolicy's engine, Stable-Baselines3 and rsl_rl.

    python -m experiments.through_hosts

Each trainer uses its defaults; only the prior, the wish and the number of steps are given. All trainers have the same
environments, the same number of them, and rollouts of the same length. The ledger has one row per run.
"""

import contextlib
import gc
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from experiments import campaign
from experiments.batches import AddonEnvs, RslRlEnvs, Sb3Envs, runner_config
from experiments.ledger import Row
from repolicy import Policy, customize, evaluate, load_policy
from repolicy.prepare.defaults import customize_defaults
from repolicy.runs.folder import RunFolder

TASKS = {  # prior -> environment and wish
    "halfcheetah": ("HalfCheetah-v4", "hind_leg=10"),
    "ant": ("Ant-v4", "sideways"),
    "playground:go1": ("Go1JoystickFlatTerrain-v1?observe=state", "energy"),
}
POLICY_ACTOR = {"class_name": "repolicy.hosts.rsl_rl:PolicyActor"}  # for a std that depends on the state


def make_addon_envs(prior: str, seed: int) -> AddonEnvs:
    """Return the environments of a task. For a squashed prior, actions are before tanh."""
    policy = load_policy(prior)
    to_environment = policy.to_environment if policy.family.squashes else None
    return AddonEnvs(*TASKS[prior], customize_defaults(prior).envs, seed, to_environment)


def train_with_engine(prior: str, seed: int, steps: int) -> Policy:
    """Customize with Repolicy's own engine, one rank."""
    env, addon = TASKS[prior]
    settings = replace(customize_defaults(prior), steps=steps, seed=seed, ranks=1)  # updates as large as the hosts'
    with tempfile.TemporaryDirectory() as folder:
        result = customize(prior, addon, out=Path(folder) / "run", settings=settings, env=env)
        campaign.require_finished(result)
        return load_policy(RunFolder(result.folder).last_policy)  # the hosts too return their last policy


def train_with_sb3(prior: str, seed: int, steps: int) -> Policy:
    """Customize in Stable-Baselines3."""
    from repolicy.hosts.sb3 import ResidualPPO, to_repolicy

    model = ResidualPPO("MlpPolicy", Sb3Envs(make_addon_envs(prior, seed)), prior=prior, seed=seed, device="cpu")
    model.learn(steps)
    return to_repolicy(model)


def train_with_rsl_rl(prior: str, seed: int, steps: int) -> Policy:
    """Customize in rsl_rl. Its own model is the actor if the std is global; its critic has its own normalizer."""
    from rsl_rl.runners import OnPolicyRunner

    from repolicy.hosts.priors import as_squashed
    from repolicy.hosts.rsl_rl import to_repolicy

    torch.manual_seed(seed)
    settings, start = customize_defaults(prior), load_policy(prior)
    critic = {"class_name": "MLPModel", "obs_normalization": True, "activation": start.spec.activation}
    critic |= {"hidden_dims": [*start.spec.hidden]}
    gaussian = {"class_name": "GaussianDistribution", "std_type": "scalar"}
    actor = POLICY_ACTOR if start.std is None else critic | {"distribution_cfg": gaussian}
    algorithm = {"class_name": "repolicy.hosts.rsl_rl:ResidualPPO", "prior": prior}
    config = runner_config(settings.n_steps, actor, critic, algorithm)
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        runner = OnPolicyRunner(RslRlEnvs(make_addon_envs(prior, seed)), config, None, "cpu")
        runner.learn(-(-steps // settings.iteration_steps))
    policy = to_repolicy(runner.alg.get_policy())
    return as_squashed(policy, start.actions) if start.family.squashes else policy


HOSTS: dict[str, Callable[[str, int, int], Policy]]
HOSTS = {"engine": train_with_engine, "stable-baselines3": train_with_sb3, "rsl_rl": train_with_rsl_rl}


def measure(host: str, prior: str, seed: int, steps: int) -> Row:
    """Customize in a trainer; return the returns and the KL to the prior, in nats per step."""
    torch.set_num_threads(1)
    policy = HOSTS[host](prior, seed, steps)
    gc.collect()  # a host's model is in a reference cycle with its environments: 3.4 GB for 64 of the Go1
    sampled = evaluate(policy, TASKS[prior][0], 20, prior=load_policy(prior), deterministic=False, seed=12345)
    assert sampled.log_prior is not None
    nats = float(np.sum(sampled.log_policy - sampled.log_prior) / np.sum(sampled.lengths))
    row: Row = {"host": host, "prior": prior, "seed": seed, "nats": round(nats, 2)}
    return row | evaluate_returns(policy, *TASKS[prior])


def evaluate_returns(policy: Policy, env: str, addon: str, episodes: int = 100) -> Row:
    """Return mean and std of each part of the return, with the mean action and with sampled actions."""
    row: Row = {}
    for which, deterministic in (("mean", True), ("sampled", False)):
        result = evaluate(policy, env, episodes, addon=addon, deterministic=deterministic, seed=12345)
        row[which] = {name: [round(column.mean, 2), round(column.std, 2)] for name, column in result.columns.items()}
    return row


@campaign.program(
    "ledger", prior={"choices": TASKS, "default": "halfcheetah"}, seeds=(0, 1, 2), steps=300_000, hosts=[*HOSTS]
)
def main(options: campaign.Options) -> campaign.Measurements:
    runs = [(host, options.prior, seed, options.steps) for seed, host in product(options.seeds, options.hosts)]
    return {"/".join(map(str, run)): partial(measure, *run) for run in runs}
