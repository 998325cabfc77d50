"""Customize a policy of mjlab: a cart that balances its pole learns to do so with less effort.

    train Mjlab-Cartpole-Balance --env.scene.num-envs 256 --agent.max-iterations 150 \
        --agent.logger tensorboard --gpu-ids None                      # mjlab's own command: the prior
    python examples/mjlab_residual.py logs/rsl_rl/cartpole/<run>/model_149.pt

The task's own reward gets the weight 0, the wish is a reward term like any other, and the algorithm is a class name.
"""

import sys
from dataclasses import dataclass

import torch
from mjlab.envs import ManagerBasedRlEnv
from mjlab.managers.metrics_manager import MetricsTermCfg
from mjlab.managers.reward_manager import RewardTermCfg
from mjlab.rl import RslRlPpoAlgorithmCfg
from mjlab.scripts.train import TrainConfig, launch_training


@dataclass
class ResidualCfg(RslRlPpoAlgorithmCfg):
    """mjlab's settings of PPO, with what Repolicy's takes beside them."""

    class_name: str = "repolicy.adapters.rsl_rl:ResidualPPO"
    prior: str = ""
    omega: float = 0.05
    alpha: float = 0.01
    critic_warmup: int = 5
    kl_budget: float | None = None


def effort(env: ManagerBasedRlEnv) -> torch.Tensor:
    """The wish: minus the squared force on the cart, `[N]`."""
    return -env.action_manager.action.square().sum(dim=-1)


def main(prior: str, envs: int = 256, iterations: int = 60) -> None:
    import mjlab.tasks  # noqa: F401  (it registers the tasks)

    config = TrainConfig.from_task("Mjlab-Cartpole-Balance")
    for name, term in config.env.rewards.items():  # paid no more, only shown
        term.weight = 0.0
        config.env.metrics[name] = MetricsTermCfg(func=term.func, params=term.params)
    config.env.rewards["effort"] = RewardTermCfg(func=effort, weight=1.0)
    config.env.metrics["effort"] = MetricsTermCfg(func=effort)
    config.env.scene.num_envs = envs
    plain = {name: getattr(config.agent.algorithm, name) for name in RslRlPpoAlgorithmCfg.__dataclass_fields__}
    named = {"class_name": ResidualCfg.class_name, "entropy_coef": 0.0}  # alpha pays for the entropy of every step
    config.agent.algorithm = ResidualCfg(**plain | named, prior=prior)
    config.agent.max_iterations, config.agent.logger, config.agent.run_name = iterations, "tensorboard", "residual"
    object.__setattr__(config, "gpu_ids", None)  # the CPU; leave this out on a GPU
    launch_training("Mjlab-Cartpole-Balance", config)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
