"""One customization through three trainers: Repolicy's engine, Stable-Baselines3 and rsl_rl. A JSON line a run.

    python -m experiments.through_hosts

Each by its defaults: nothing is named but the prior, the wish and how many steps. The environments are the same, as
many for each, and each acts for as long between two updates.
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
from experiments.batches import ForRslRl, ForSb3, Paid, runner_config
from experiments.ledger import Row
from repolicy import Policy, customize, evaluate, load_policy
from repolicy.prepare.defaults import customize_defaults
from repolicy.runs.folder import RunFolder

TASKS = {  # by the prior's name
    "halfcheetah": ("HalfCheetah-v4", "hind_leg=10"),
    "ant": ("Ant-v4", "sideways"),
    "playground:go1": ("Go1JoystickFlatTerrain-v1?observe=state", "energy"),
}

OURS = {"class_name": "repolicy.hosts.rsl_rl:PolicyActor"}  # for a std that depends on the state


def paid(prior: str, seed: int) -> Paid:
    """Return the environments of a task, which get actions as the prior sends them."""
    policy = load_policy(prior)
    send = policy.to_environment if policy.family.squashes else None
    return Paid(*TASKS[prior], customize_defaults(prior).envs, seed, send)


def through_engine(prior: str, seed: int, steps: int) -> Policy:
    """Customize with Repolicy's own engine, one rank."""
    env, addon = TASKS[prior]
    settings = replace(customize_defaults(prior), steps=steps, seed=seed, ranks=1)  # updates as large as the hosts'
    with tempfile.TemporaryDirectory() as folder:
        made = campaign.require_finished(customize(prior, addon, out=Path(folder) / "run", settings=settings, env=env))
        return load_policy(RunFolder(made.folder).last_policy)  # as the hosts give it


def through_sb3(prior: str, seed: int, steps: int) -> Policy:
    """Customize in Stable-Baselines3."""
    from repolicy.hosts.sb3 import ResidualPPO, to_repolicy

    model = ResidualPPO("MlpPolicy", ForSb3(paid(prior, seed)), prior=prior, seed=seed, device="cpu")
    model.learn(steps)
    return to_repolicy(model)


def through_rsl_rl(prior: str, seed: int, steps: int) -> Policy:
    """Customize in rsl_rl, with its own kind of std; its critic has a normalizer of its own."""
    from rsl_rl.runners import OnPolicyRunner

    from repolicy.hosts.priors import as_squashed
    from repolicy.hosts.rsl_rl import to_repolicy

    torch.manual_seed(seed)
    settings, start = customize_defaults(prior), load_policy(prior)
    spec, std = start.spec, start.std
    network = {"class_name": "MLPModel", "obs_normalization": True, "activation": spec.activation}
    network |= {"hidden_dims": [*spec.hidden]}
    gaussian = {"class_name": "GaussianDistribution", "std_type": "scalar"}
    actor = OURS if std is None else network | {"distribution_cfg": gaussian}
    ours = {"class_name": "repolicy.hosts.rsl_rl:ResidualPPO", "prior": prior}
    config = runner_config(settings.n_steps, actor, network, ours)
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        runner = OnPolicyRunner(ForRslRl(paid(prior, seed)), config, None, "cpu")
        runner.learn(-(-steps // settings.iteration_steps))
    made = to_repolicy(runner.alg.get_policy())
    return as_squashed(made, start.actions) if start.family.squashes else made


HOSTS: dict[str, Callable[[str, int, int], Policy]]
HOSTS = {"engine": through_engine, "stable-baselines3": through_sb3, "rsl_rl": through_rsl_rl}


def measure(host: str, prior: str, seed: int, steps: int) -> Row:
    torch.set_num_threads(1)
    policy = HOSTS[host](prior, seed, steps)
    gc.collect()  # a host's model is a circle that holds its environments, and 64 of the Go1 hold 3.4 GB
    drift = evaluate(policy, TASKS[prior][0], 20, prior=load_policy(prior), deterministic=False, seed=12345)
    assert drift.log_prior is not None
    nats = float(np.sum(drift.log_policy - drift.log_prior) / np.sum(drift.lengths))
    return {"host": host, "prior": prior, "seed": seed, "nats": round(nats, 2)} | summary(policy, *TASKS[prior])


def summary(policy: Policy, env: str, addon: str, episodes: int = 100) -> Row:
    """Return mean and std of each part of the return."""
    row: Row = {}
    for which, deterministic in (("mean", True), ("sampled", False)):
        found = evaluate(policy, env, episodes, addon=addon, deterministic=deterministic, seed=12345)
        row[which] = {name: [round(column.mean, 2), round(column.std, 2)] for name, column in found.columns.items()}
    return row


@campaign.program(
    "ledger", prior={"choices": TASKS, "default": "halfcheetah"}, seeds=(0, 1, 2), steps=300_000, hosts=[*HOSTS]
)
def main(options: campaign.Options) -> campaign.Measurements:
    runs = [(host, options.prior, seed, options.steps) for seed, host in product(options.seeds, options.hosts)]
    return {"/".join(map(str, run)): partial(measure, *run) for run in runs}
