"""A small vector environment for rsl_rl's runner, all in torch, and settings that train on it in a moment."""

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

SIZE, ACTIONS = 3, 2


class Drift(VecEnv):
    """A state that drifts, is pushed by the actions, and pays for staying near 0; some episodes end, some are cut."""

    def __init__(self, count: int = 8, seed: int = 0, images: bool = False, clip_actions: Any = None) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = count, ACTIONS, 12
        self.device, self.cfg, self.images, self.clip_actions = "cpu", {}, images, clip_actions
        self.generator = torch.Generator().manual_seed(seed)
        self.state = torch.randn(count, SIZE, generator=self.generator)
        self.episode_length_buf = torch.arange(count) % 12
        self.push = torch.tensor([[0.5, 0.0, 0.2], [0.0, 0.4, -0.2]])
        self.paid: list[torch.Tensor] = []

    def get_observations(self) -> TensorDict:
        groups = {"policy": self.state.clone()}
        if self.images:
            groups["camera"] = self.state[:, None, :, None].expand(-1, 1, SIZE, 8).repeat(1, 1, 2, 1).clone()
        return TensorDict(groups, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        noise = torch.randn(self.num_envs, SIZE, generator=self.generator)
        self.state = 0.9 * self.state + actions.clone() @ self.push + 0.1 * noise
        self.episode_length_buf = self.episode_length_buf + 1
        rewards = -self.state.square().sum(-1)
        terminated = self.state.abs().amax(-1) > 3.0
        cut = (self.episode_length_buf >= 12) & ~terminated
        ended = terminated | cut
        self.state = torch.where(ended[:, None], torch.randn(self.state.shape, generator=self.generator), self.state)
        self.episode_length_buf = torch.where(ended, 0, self.episode_length_buf)
        self.paid.append(rewards.clone())
        extras = {"time_outs": cut, "addon": -actions.square().sum(-1), "log": {"/near": rewards.mean()}}
        return self.get_observations(), rewards, ended.long(), extras


NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"class_name": "MLPModel"},
    "lstm": {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 8},
    "gru": {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 8},
    "cnn": {"class_name": "CNNModel", "cnn_cfg": {"output_channels": [2], "kernel_size": 3}},
}
OURS = "repolicy.hosts.rsl_rl:ResidualPPO"


def settings(
    network: str = "mlp",
    algorithm: dict[str, Any] | None = None,
    actor: dict[str, Any] | None = None,
    distribution: dict[str, Any] | None = None,
    **run: Any,
) -> dict[str, Any]:
    """A runner's settings: rsl_rl's own PPO, or what is named."""
    model = {"hidden_dims": [16, 16], "activation": "tanh", "obs_normalization": True} | NETWORKS[network]
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.5} | (distribution or {})
    groups = ["policy", "camera"] if network == "cnn" else ["policy"]
    return {
        "num_steps_per_env": 6,
        "save_interval": 10**9,
        "obs_groups": {"actor": groups, "critic": groups},
        "actor": model | {"distribution_cfg": gaussian} | (actor or {}),
        "critic": dict(model),
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2} | (algorithm or {}),
        "multi_gpu": None,
    } | run
