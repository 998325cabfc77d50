"""Customize robots of mjlab by `examples/mjlab_residual.py`; measure the old reward, the wish, falls and curves.

    train Mjlab-Velocity-Flat-Unitree-Go1 --env.scene.num-envs 4096 \\
        --agent.max-iterations 400 --agent.logger tensorboard
    python -m experiments.walking --prior logs/rsl_rl/go1_velocity/RUN/model_399.pt

in an environment with mjlab. The example's cart needs no GPU (`--gpu-ids None` behind `train`):

    python -m experiments.walking --robot cart --prior logs/rsl_rl/cartpole/RUN/model_50.pt \\
        --runs to_the_right/0 to_the_right/1 --iterations 100 --envs 128

The ledger has a row for the prior and for each run: one episode of 1,024 robots with the last policy's mean action, the
curves, and the seconds of an iteration.
"""

import runpy
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments import campaign
from experiments.ledger import Row
from repolicy.files import file_sum

ROBOTS = {  # mjlab's task, and its folder of runs
    "go1": ("Mjlab-Velocity-Flat-Unitree-Go1", "go1_velocity"),
    "cart": ("Mjlab-Cartpole-Balance", "cartpole"),
}
PLAIN = {"omega": 0.0, "alpha": 0.0, "critic_warmup": 5}  # PPO that starts from the prior
RUNS: dict[str, dict[str, Any]] = {  # settings beside the prior and the wish
    "less_power": {},
    "to_the_right": {},
    "few_minibatches": {"num_mini_batches": 4},
    "keep": {"num_mini_batches": 4, "keep": 0.97},
    "wish_alone": PLAIN,
    "both_rewards": {"critic_warmup": 5, "objective": {"task": "both", "omega": 0.0, "alpha": 0.0}},
}
CURVES = {"old_reward": "Train/mean_reward", "length": "Train/mean_episode_length"}
CURVES |= {"wish": "Loss/reward_task", "nats": "Loss/prior_kl"}
TIMES = {"collecting": "Perf/collection_time", "learning": "Perf/learning_time"}


def example_settings(task: str, prior: str) -> Any:
    """Return the example's settings of mjlab."""
    return runpy.run_path("examples/mjlab_residual.py")["wished"](task, prior)


def speed_error(env: Any) -> torch.Tensor:
    """Return the error of the velocity over ground in m/s, `[N]`."""
    commanded = env.command_manager.get_command("twist")[:, :2]
    return (commanded - env.scene["robot"].data.root_link_lin_vel_b[:, :2]).norm(dim=-1)


@torch.inference_mode()
def evaluate(robot: str, checkpoint: Path, envs: int) -> Row:
    """Return means over one episode per robot with the mean action; reward terms are per second."""
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.managers.metrics_manager import MetricsTermCfg
    from mjlab.rl import MjlabOnPolicyRunner, RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_rl_cfg

    task, _ = ROBOTS[robot]
    config, device = example_settings(task, "").env, "cuda:0" if torch.cuda.is_available() else "cpu"
    config.scene.num_envs, config.seed = envs, 12345
    if robot == "go1":
        config.metrics["speed_error"] = MetricsTermCfg(func=speed_error)
    env = RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg=config, device=device))
    runner = MjlabOnPolicyRunner(env, asdict(load_rl_cfg(task)), None, device)
    runner.load(str(checkpoint), load_cfg={"actor": True}, map_location=device)
    policy, terms, metrics = runner.get_inference_policy(), env.unwrapped.reward_manager, env.unwrapped.metrics_manager
    names = [*terms.active_terms, *metrics.active_terms]
    sums, lengths, falls = torch.zeros(envs, len(names), device=device), torch.zeros(envs, device=device), 0
    first = torch.ones(envs, dtype=torch.bool, device=device)
    observations = env.reset()[0]
    for _ in range(env.max_episode_length):
        observations, _, dones, extras = env.step(policy(observations))
        sums += torch.where(first.unsqueeze(-1), torch.cat([terms._step_reward, metrics._step_values], -1), 0.0)
        lengths += first
        falls += int((first & (dones > 0) & ~extras["time_outs"]).sum())
        first &= dones == 0
    env.close()
    steps = (sums / lengths.unsqueeze(-1)).T
    terms_and_metrics = {name: mean_and_error(steps[index]) for index, name in enumerate(names)}
    returns = sums[:, : len(terms.active_terms)].sum(-1) * env.unwrapped.step_dt
    row = {"return": mean_and_error(returns), "length": mean_and_error(lengths), "falls": falls, "robots": envs}
    return row | terms_and_metrics


def mean_and_error(values: torch.Tensor) -> list[float]:
    return [float(f"{each:.4g}") for each in (values.mean().item(), values.std().item() / len(values) ** 0.5)]


def read_curves(folder: Path) -> Row:
    """Return about 30 points of each curve of a run, and the median seconds of the later half of its iterations."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    scalars = {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    every = max(1, max(map(len, scalars.values()), default=1) // 30)
    curves = {name: [float(f"{value:.4g}") for value in scalars.get(tag, ())[::every]] for name, tag in CURVES.items()}
    times = {name: scalars[tag] for name, tag in TIMES.items() if tag in scalars}
    seconds = {name: round(median(each[len(each) // 2 :]), 3) for name, each in times.items()}
    row = {"iterations": max(map(len, scalars.values()), default=0), "seconds": seconds}
    return row | {"curves": curves | {"every": every}}


def train(robot: str, name: str, seed: int, prior: Path, iterations: int, envs: int) -> Path:
    """Train a run; return its last checkpoint."""
    from mjlab.scripts.train import launch_training
    from mjlab.tasks.registry import load_rl_cfg

    (task, folder), settings = ROBOTS[robot], RUNS[name]
    config = example_settings(task, str(prior))
    defaults = asdict(load_rl_cfg(task).algorithm) if "critic_warmup" in settings else {}  # mjlab's own PPO
    config.agent.algorithm = defaults | config.agent.algorithm | settings
    config.agent.run_name, config.agent.seed = f"{name}_{seed}", seed
    config.agent.max_iterations, config.env.scene.num_envs = iterations, envs
    launch_training(task, config)
    return max(Path("logs/rsl_rl", folder).glob(f"*_{name}_{seed}/model_{iterations - 1}.pt"))


def measure(robot: str, checkpoint: Path, robots: int, **more: Any) -> Row:
    """Evaluate a checkpoint; `more` becomes part of the row."""
    packages = {name: version(name) for name in ("mjlab", "rsl-rl-lib", "mujoco-warp", "warp-lang", "torch")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    row = {"device": device, "packages": packages, "policy": file_sum(checkpoint)} | more
    return row | evaluate(robot, checkpoint, robots) | read_curves(checkpoint.parent)


def train_and_measure(robot: str, name: str, seed: int, prior: Path, iterations: int, envs: int, robots: int) -> Row:
    checkpoint = train(robot, name, seed, prior, iterations, envs)
    return measure(robot, checkpoint, robots, envs=envs, named=RUNS[name])


@campaign.program(
    "ledger", robot={"choices": ROBOTS, "default": "go1"}, prior={"type": Path, "required": True},
    runs=("less_power/0",), iterations=150, envs=4096, robots=1024,
    group={"default": "", "help": "what the rows' keys begin with; by default cart/ for the cart"},
)  # fmt: skip
def main(options: campaign.Options) -> campaign.Measurements:
    size = (options.prior, options.iterations, options.envs, options.robots)
    group = options.group or ("" if options.robot == "go1" else f"{options.robot}/")
    work = {f"{group}prior": partial(measure, options.robot, options.prior, options.robots, envs=options.envs)}
    for key in options.runs:
        name, _, seed = key.partition("/")
        work[f"{group}{key}"] = partial(train_and_measure, options.robot, name, int(seed), *size)
    return work
