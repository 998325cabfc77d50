"""rsl_rl's runner over a small environment."""

from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner
from runner_envs import Drift, settings

Algorithm = dict[str, Any]


def runner(network: str = "mlp", algorithm: Algorithm | None = None, seed: int = 0, **env: Any) -> OnPolicyRunner:
    torch.manual_seed(seed)
    return OnPolicyRunner(Drift(images=network == "cnn", **env), settings(network, algorithm), None, "cpu")
