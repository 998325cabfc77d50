"""Customize a policy of mjlab. Nothing is named but the policy and the wish: a robot that walks is to need less power.

    train Mjlab-Velocity-Flat-Unitree-Go1 --env.scene.num-envs 4096 \\
        --agent.max-iterations 400 --agent.logger tensorboard
    python examples/mjlab_residual.py Mjlab-Velocity-Flat-Unitree-Go1 logs/rsl_rl/go1_velocity/RUN/model_399.pt

The task stays as it is, and so do its curves; a metric tells the wish. The run ends with a verdict on both rewards.
A cart on a CPU, where `train` takes `--gpu-ids None`; the numbers are iterations and environments:

    python examples/mjlab_residual.py Mjlab-Cartpole-Balance logs/rsl_rl/cartpole/RUN/model_50.pt 100 128
"""

import sys
from collections.abc import Callable

import mjlab.tasks
import torch
from mjlab.envs import ManagerBasedRlEnv
from mjlab.managers.metrics_manager import MetricsTermCfg
from mjlab.scripts.train import TrainConfig, launch_training

from repolicy.addons.gaits import power

assert mjlab.tasks  # importing it registers the tasks


def thrifty(env: ManagerBasedRlEnv) -> torch.Tensor:
    """Return −0.001 a watt of mechanical power, `[N]`. It pays to walk slowly; a smaller price asks for less."""
    robot = env.scene["robot"].data
    return 0.001 * power(robot.qfrc_actuator, robot.joint_vel)


def right(env: ManagerBasedRlEnv) -> torch.Tensor:
    """Return −5 a second for the squared distance of the cart from half a meter to the right, `[N]`.

    With −1 it hardly goes there: the old reward, which pays for the middle, counts about once.
    """
    return -5.0 * env.step_dt * (env.scene["cartpole"].data.joint_pos[:, 0] - 0.5).square()


WISHES = {"Mjlab-Velocity-Flat-Unitree-Go1": thrifty, "Mjlab-Cartpole-Balance": right}


def told(env: ManagerBasedRlEnv, wish: Callable[[ManagerBasedRlEnv], torch.Tensor]) -> torch.Tensor:
    """Put the wish where the algorithm looks for its add-on."""
    env.extras["wish"] = wish(env)
    return env.extras["wish"]


def wished(task: str, prior: str) -> TrainConfig:
    """Return mjlab's settings of the task, with the wish and Repolicy's algorithm."""
    config = TrainConfig.from_task(task)
    config.env.metrics["wish"] = MetricsTermCfg(func=told, params={"wish": WISHES[task]})
    config.agent.algorithm = {
        "class_name": "repolicy.hosts.rsl_rl:ResidualPPO",
        "prior": prior,
        "addon": "wish",
    }
    config.agent.logger, config.agent.run_name = "tensorboard", "residual"
    if not torch.cuda.is_available():
        object.__setattr__(config, "gpu_ids", None)
    return config


def main(task: str, prior: str, iterations: int = 150, envs: int = 4096) -> None:
    config = wished(task, prior)
    config.agent.max_iterations, config.env.scene.num_envs = iterations, envs
    launch_training(task, config)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
