"""rsl_rl's runner over a small environment."""

from functools import partial
from pathlib import Path
from typing import Any

import small
import torch
from rsl_rl.runners import OnPolicyRunner
from runner_envs import OURS, Drift, settings

Algorithm = dict[str, Any]


POLICY_ACTOR = {"class_name": "repolicy.hosts.rsl_rl:PolicyActor"}


def runner(
    network: str = "mlp",
    algorithm: Algorithm | None = None,
    seed: int = 0,
    env: Drift | None = None,
    folder: Path | None = None,
    **more: Any,
) -> OnPolicyRunner:
    """A runner with `settings(network, algorithm, **more)`."""
    torch.manual_seed(seed)
    env = Drift(images=network == "cnn") if env is None else env
    return OnPolicyRunner(env, settings(network, algorithm, **more), folder and str(folder), "cpu")


def residual(prior: Any = None, omega: float | None = 0.3, alpha: float = 0.2, **more: Any) -> Algorithm:
    weights = {"omega": omega, "alpha": alpha, "critic_warmup": 0, "schedule": "adaptive"}
    return {"class_name": OURS, "prior": prior} | weights | more


def checkpoint(folder: Path, network: str = "mlp", seed: int = 1) -> Path:
    """A checkpoint of rsl_rl's own PPO after an iteration."""
    trained = runner(network, seed=seed)
    trained.learn(1)
    trained.save(str(folder / f"{network}-{seed}.pt"))
    return folder / f"{network}-{seed}.pt"


small_policy = partial(small.small_policy, hidden=(16, 16))


@torch.no_grad()
def log_prob_of(actor: Any, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The log-probabilities of an actor of rsl_rl's."""
    actor({"policy": observations}, stochastic_output=True)
    return actor.get_output_log_prob(actions)


def collected(started: OnPolicyRunner) -> Any:
    """The storage after one rollout, before any update."""
    started.alg.train_mode()
    with torch.inference_mode():
        observations = started.env.get_observations()
        for _ in range(started.cfg["num_steps_per_env"]):
            observations, rewards, dones, extras = started.env.step(started.alg.act(observations))
            started.alg.process_env_step(observations, rewards, dones, extras)
        started.alg.compute_returns(observations)
    return started.alg.storage
