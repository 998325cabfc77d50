"""One customization through three trainers: Repolicy's engine, Stable-Baselines3 and rsl_rl. A JSON line a run.

    python -m experiments.through_hosts

HalfCheetah with `hind_leg=10`, from the shipped prior, with the same weights and, as far as the hosts have them, the
same settings. Every policy is evaluated by `repolicy.evaluate`, 100 episodes with the mean action and with samples. A
run that is in the file is not repeated.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

from experiments import campaign
from experiments.batches import ForRslRl, ForSb3, Paid
from experiments.settings import settings_of
from repolicy import Policy, customize, evaluate, load_policy
from repolicy.many.ledger import Row
from repolicy.objective import residual
from repolicy.runs.folder import RunFolder
from repolicy.runs.settings import Settings

ENV, ADDON, PRIOR, OMEGA, ALPHA = "HalfCheetah-v4", "hind_leg=10", "halfcheetah", 0.6, 0.13472


def through_engine(settings: Settings) -> Policy:
    """Customize with Repolicy's own engine, one rank."""
    with tempfile.TemporaryDirectory() as folder:
        made = customize(PRIOR, ADDON, residual(OMEGA, ALPHA), Path(folder) / "run", settings, env=ENV)
        return load_policy(RunFolder(made.folder).last_policy)  # as the hosts give it


def through_sb3(settings: Settings) -> Policy:
    """Customize in Stable-Baselines3; it normalizes a minibatch's advantages by themselves, and scales no rewards."""
    from repolicy.hosts.sb3 import ResidualPPO, to_repolicy

    model = ResidualPPO(
        "MlpPolicy",
        ForSb3(Paid(ENV, ADDON, settings.envs, settings.seed)),
        prior=PRIOR,
        omega=OMEGA,
        alpha=ALPHA,
        critic_warmup=warmup(settings),
        learning_rate=lambda left: settings.learning_rate * left,
        n_steps=settings.n_steps,
        batch_size=settings.minibatch,
        n_epochs=settings.epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        seed=settings.seed,
        device="cpu",
    )
    model.learn(settings.steps)
    return to_repolicy(model)


def through_rsl_rl(settings: Settings) -> Policy:
    """Customize in rsl_rl; its critic has a normalizer of its own, and it clips gradients of actor and critic apart."""
    from rsl_rl.runners import OnPolicyRunner

    from repolicy.hosts.rsl_rl import to_repolicy

    torch.manual_seed(settings.seed)
    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True}
    algorithm = {
        "class_name": "repolicy.hosts.rsl_rl:ResidualPPO",
        "prior": PRIOR,
        "omega": OMEGA,
        "alpha": ALPHA,
        "critic_warmup": warmup(settings),
        "num_learning_epochs": settings.epochs,
        "num_mini_batches": settings.iteration_steps // settings.minibatch,
        "gamma": settings.gamma,
        "lam": settings.gae_lambda,
        "schedule": "fixed",
        "entropy_coef": 0.0,
        "value_loss_coef": settings.value_coefficient,
        "use_clipped_value_loss": False,
        "max_grad_norm": settings.max_gradient_norm,
    }
    config = {
        "num_steps_per_env": settings.n_steps,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": network | {"distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": network,
        "algorithm": algorithm,
        "multi_gpu": None,
    }
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        runner = OnPolicyRunner(ForRslRl(Paid(ENV, ADDON, settings.envs, settings.seed)), config, None, "cpu")
        for iteration in range(settings.iterations):
            for group in runner.alg.optimizer.param_groups:
                group["lr"] = settings.learning_rate * (1.0 - iteration / settings.iterations)
            runner.learn(1)
    return to_repolicy(runner.alg.get_policy())


def warmup(settings: Settings) -> int:
    return round(settings.critic_warmup * settings.iterations)


HOSTS: dict[str, Callable[[Settings], Policy]] = {
    "engine": through_engine,
    "stable-baselines3": through_sb3,
    "rsl_rl": through_rsl_rl,
}


def measure(host: str, seed: int, steps: int) -> Row:
    torch.set_num_threads(1)
    policy = HOSTS[host](replace(settings_of(ENV), seed=seed, ranks=1, steps=steps))
    return {"host": host, "seed": seed} | summary(policy, ENV, ADDON)


def summary(policy: Policy, env: str, addon: str, episodes: int = 100) -> Row:
    """Return mean and std of each part of the return."""
    row: Row = {}
    for which, deterministic in (("mean", True), ("sampled", False)):
        found = evaluate(policy, env, episodes, addon=addon, deterministic=deterministic, seed=12345)
        row[which] = {name: [round(mean, 2), round(std, 2)] for name, mean, std in found.rows()}
    return row


def main() -> None:
    parser = campaign.parser("through_hosts", __doc__, ())
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    runs = [(host, seed, options.steps) for seed, host in product(options.seeds, HOSTS)]
    campaign.measure(options.ledger, {"/".join(map(str, run)): partial(measure, *run) for run in runs})


if __name__ == "__main__":
    campaign.run_main(main)
