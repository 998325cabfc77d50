"""Customize a policy of mjlab: a cart that balances its pole in the middle learns to do so half a meter to the right.

    train Mjlab-Cartpole-Balance --env.scene.num-envs 256 --agent.max-iterations 150 \
        --agent.logger tensorboard --gpu-ids None                                    # mjlab's own command: the prior
    python examples/mjlab_residual.py logs/rsl_rl/cartpole/<run>/model_50.pt

The task's own reward terms get the weight 0, the wish is a term like any other, and the algorithm is a class name.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import mjlab.tasks
import torch
from mjlab.envs import ManagerBasedRlEnv
from mjlab.managers.metrics_manager import MetricsTermCfg
from mjlab.managers.reward_manager import RewardTermCfg
from mjlab.rl import MjlabOnPolicyRunner, RslRlPpoAlgorithmCfg, RslRlVecEnvWrapper
from mjlab.scripts.train import TrainConfig, launch_training

TASK = "Mjlab-Cartpole-Balance"


@dataclass
class ResidualCfg(RslRlPpoAlgorithmCfg):  # type: ignore[misc]
    """mjlab's settings of PPO, with what Repolicy's takes beside them."""

    class_name: str = "repolicy.hosts.rsl_rl:ResidualPPO"
    entropy_coef: float = 0.0  # alpha pays for the entropy of every step
    schedule: Literal["adaptive", "fixed"] = "fixed"  # adaptive went up to 1e-2 here, and the policy was lost
    learning_rate: float = 3e-4
    prior: str = ""
    omega: float = 0.003
    alpha: float = 0.003
    critic_warmup: int = 5
    kl_budget: float | None = None


def right(env: ManagerBasedRlEnv) -> torch.Tensor:
    """The wish: minus the squared distance of the cart from half a meter to the right, `[N]`."""
    return -(env.scene["cartpole"].data.joint_pos[:, 0] - 0.5).square()


def wished(prior: str, envs: int, iterations: int) -> TrainConfig:
    """mjlab's settings of the task, with the wish in the place of its reward."""
    config = TrainConfig.from_task(TASK)
    for name, term in config.env.rewards.items():  # paid no more, only shown
        term.weight = 0.0
        config.env.metrics[name] = MetricsTermCfg(func=term.func, params=term.params)
    config.env.rewards["right"] = RewardTermCfg(func=right, weight=1.0)
    config.env.metrics["right"] = MetricsTermCfg(func=right)
    config.env.scene.num_envs = envs
    config.agent.algorithm = ResidualCfg(prior=prior)
    config.agent.max_iterations, config.agent.logger, config.agent.run_name = iterations, "tensorboard", "residual"
    object.__setattr__(config, "gpu_ids", None)  # the CPU; leave this out on a GPU
    return config


def shown(checkpoint: str, config: TrainConfig, steps: int = 400) -> dict[str, float]:
    """The task's reward and the wish's, a step, over the second half of some steps with the mean action."""
    env = RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg=config.env, device="cpu"))
    runner = MjlabOnPolicyRunner(env, asdict(config.agent), None, "cpu")
    runner.load(checkpoint)
    policy, manager = runner.get_inference_policy(), env.unwrapped.metrics_manager
    sums = torch.zeros(len(manager.active_terms))
    with torch.inference_mode():
        observations = env.get_observations()
        for step in range(steps):
            observations = env.step(policy(observations))[0]
            sums += manager._step_values.mean(0) * (step >= steps // 2)
    env.close()
    return dict(zip(manager.active_terms, (sums / (steps - steps // 2)).tolist(), strict=True))


def main(prior: str, envs: int = 128, iterations: int = 100) -> None:
    assert mjlab.tasks  # importing it registers the tasks
    launch_training(TASK, wished(prior, envs, iterations))
    runs = Path("logs/rsl_rl/cartpole").glob(f"*_residual/model_{iterations - 1}.pt")
    for name, checkpoint in (("prior", prior), ("customized", str(max(runs)))):
        print(name, {key: round(value, 4) for key, value in shown(checkpoint, wished(prior, 32, 1)).items()})


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
