"""What a user of Stable-Baselines3 names: an add-on in the environment, and settings beside a saved model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
from sb3_models import Drift, envs, model, residual, trained
from small import small_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from repolicy.errors import UsageError
from repolicy.hosts.sb3 import ResidualPPO, Unclipped
from repolicy.rql import WithAddon
from repolicy.rql.wrapping import TaskReward


def quiet(before: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Any) -> np.ndarray:
    return -np.square(actions).sum(-1)


def test_an_add_on_that_nothing_pays_is_refused() -> None:
    def with_addon() -> WithAddon:
        return WithAddon(Unclipped(Drift()), quiet)

    with pytest.raises(UsageError, match="WithAddon alone leaves the environment's own reward: wrap it in "):
        residual(env=DummyVecEnv([with_addon] * 4), prior=small_policy())
    env = DummyVecEnv([lambda: TaskReward(with_addon())] * 4)
    residual(env=env, prior=small_policy())
    env.reset()
    _, rewards, _, infos = env.step(np.full((4, 2), 2.0, np.float32))
    assert rewards.tolist() == [-8.0] * 4
    assert all(info["basic_reward"] != -8.0 for info in infos)


def test_a_learning_rate_that_is_named_beside_a_file_stays(tmp_path: Path) -> None:
    made = model(prior=trained(), omega=0.3, alpha=0.2, critic_warmup=0).learn(64)
    assert made.lr_schedule(1.0) != pytest.approx(1e-5)
    made.save(tmp_path / "model.zip")
    named = ResidualPPO.load(tmp_path / "model.zip", envs(), learning_rate=1e-5).learn(64)
    assert named.lr_schedule(1.0) == 1e-5
