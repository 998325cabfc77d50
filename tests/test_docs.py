"""The pages' code does what the pages say."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from repolicy import load_policy

DOCS = Path(__file__).parents[1] / "docs"


def test_a_policy_of_stable_baselines3_is_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    theirs = sb3.PPO("MlpPolicy", gymnasium.make("Pendulum-v1"), seed=3)
    with torch.no_grad():
        for parameter in theirs.policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    theirs.save("theirs.zip")
    section = (DOCS / "customize.md").read_text().split("## A policy of another library")[1].split("\n## ")[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    ") or not line)
    exec(code, {})  # as a reader types it
    ours = load_policy("theirs.safetensors")
    observations = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32))
    actions = torch.linspace(-3.0, 3.0, 50)[:, None]
    with torch.no_grad():
        _, expected, _ = theirs.policy.evaluate_actions(observations, actions)
    torch.testing.assert_close(ours.log_prob(observations, actions), expected, rtol=1e-4, atol=1e-4)
