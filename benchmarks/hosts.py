"""What Residual PPO costs inside rsl_rl on a device: 4,096 environments of random dynamics, in turns with rsl_rl's PPO.

    python -m benchmarks.hosts --device cuda
    python -m benchmarks.hosts --device meta    # shapes alone: nothing is computed

The prior is a policy of Repolicy of the actor's size; both learn at a rate of 0, so both walk alike.
"""

import contextlib
import json
import os
import statistics
from pathlib import Path
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor

from benchmarks.turns import median_and_quartiles, slice_of
from experiments import campaign
from experiments.batches import runner_config
from experiments.ledger import Ledger
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import PolicySpec, make_policy

SIZE, ACTIONS, HIDDEN, LIMIT = 48, 12, (512, 256, 128), 1000  # as a walking robot has them


class RandomDynamics(VecEnv):  # type: ignore[misc]
    """N states that a fixed random matrix moves, and the actions push; all on one device."""

    def __init__(self, count: int, device: str) -> None:
        self.num_envs, self.num_actions, self.max_episode_length, self.device = count, ACTIONS, LIMIT, device
        self.cfg: dict[str, Any] = {}
        self.drift = torch.randn(SIZE, SIZE, device=device) / SIZE**0.5
        self.push = torch.randn(ACTIONS, SIZE, device=device) / ACTIONS**0.5
        self.state = torch.randn(count, SIZE, device=device)
        self.episode_length_buf = torch.randint(LIMIT, (count,), device=device)

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": self.state}, batch_size=[self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Tensor]]:
        self.state = torch.tanh(self.state @ self.drift + actions @ self.push)
        rewards = -self.state.square().mean(-1)
        self.episode_length_buf = self.episode_length_buf + 1
        cut = self.episode_length_buf >= LIMIT
        self.state = torch.where(cut.unsqueeze(-1), torch.randn_like(self.state), self.state)
        self.episode_length_buf = torch.where(cut, 0, self.episode_length_buf)
        return self.get_observations(), rewards, cut.long(), {"time_outs": cut}


def runner(count: int, steps: int, device: str, algorithm: dict[str, Any]) -> Any:
    network = {"class_name": "MLPModel", "hidden_dims": [*HIDDEN], "activation": "elu"}
    fixed = {"num_learning_epochs": 5, "num_mini_batches": 4, "schedule": "fixed", "learning_rate": 0.0}
    actor = network | {"distribution_cfg": {"class_name": "GaussianDistribution"}}
    config = runner_config(steps, actor, network, fixed | algorithm)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        return OnPolicyRunner(RandomDynamics(count, device), config, None, device)


def residual() -> dict[str, Any]:
    bounds = (-1.0,) * ACTIONS, (1.0,) * ACTIONS
    spec = PolicySpec(SIZE, ActionSpace("continuous", (ACTIONS,), *bounds), hidden=HIDDEN, activation="elu")
    named = {"omega": 0.2, "alpha": 0.1, "critic_warmup": 0, "prior": make_policy(spec, 0)}
    return {"class_name": "repolicy.hosts.rsl_rl:ResidualPPO"} | named


@torch.inference_mode()
def shapes(ours: Any) -> dict[str, list[int]]:
    """Run a rollout up to its advantages; return the shapes of what the update would learn from."""
    ours.alg.train_mode()
    observations = ours.env.get_observations()
    for _ in range(ours.cfg["num_steps_per_env"]):
        observations, rewards, dones, extras = ours.env.step(ours.alg.act(observations))
        ours.alg.process_env_step(observations, rewards, dones, extras)
    ours.alg.compute_returns(observations)
    storage = ours.alg.storage
    return {name: [*getattr(storage, name).shape] for name in ("observations", "rewards", "returns", "advantages")}


@campaign.program(device="cuda", out=Path("results/hosts.jsonl"), envs=4096, steps=24, rounds=15, seconds=2.0)
def main(options: campaign.Options) -> None:
    size = options.envs, options.steps, options.device
    ours = runner(*size, residual())
    if options.device == "meta":
        print(json.dumps(shapes(ours)))
        return
    pair, ratios, seconds = (runner(*size, {"class_name": "PPO"}), ours), list[float](), list[float]()
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        for turn in range(-1, options.rounds):  # the first warms up
            order = pair if turn % 2 else pair[::-1]
            took = {id(each): slice_of(lambda each=each: each.learn(1), options.seconds)[0] for each in order}  # type: ignore[misc]
            if turn >= 0:
                seconds.append(took[id(pair[0])])
                ratios.append(took[id(ours)] / took[id(pair[0])] - 1.0)
    row = {
        "key": torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device,
        "envs": options.envs,
        "rounds": options.rounds,
        "seconds": round(statistics.median(seconds), 4),
        "overhead": median_and_quartiles(ratios),
    }
    Ledger(options.out).add(row)
    print(json.dumps(row))
