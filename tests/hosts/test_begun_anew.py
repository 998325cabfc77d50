"""After a measurement or a verdict episodes begin anew, and nothing is remembered of those before."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rsl_rl")
pytest.importorskip("stable_baselines3")
from runners import OnPolicyRunner, checkpoint, collected, residual, runner
from sb3_models import Drift as Sb3Drift
from sb3_models import residual as sb3
from sb3_models import trained
from small import Far
from stable_baselines3.common.vec_env import DummyVecEnv

from repolicy.prepare.states import SKIPPED_STEPS


def away(started: OnPolicyRunner) -> float:
    """How far the actor's log-probabilities are from the prior's in a rollout, at most."""
    collected(started)
    paid, weights = started.alg.method.rollout_rewards.reward, started.alg.steering.objective
    return float((paid.entropy / weights.alpha + paid.prior / weights.omega).abs().max())


@pytest.mark.parametrize("network", ["gru", "lstm"])
def test_an_actor_that_is_its_prior_remembers_what_it_does(network: str, tmp_path: Path) -> None:
    path = str(checkpoint(tmp_path, network))
    measured = residual(path, omega=None, alpha=None, states=0.0, critic_warmup=9, schedule="fixed")
    started = runner(network, measured)
    assert away(started) < 1e-6
    started.alg.update()
    started.alg.verdict()
    assert away(started) < 1e-6


class Endless(Sb3Drift):
    def step(self, action: Any) -> Any:
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {}


def test_how_an_episode_begins_has_no_price_in_the_second_learn_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.hosts.measuring.MAX_EPISODE_STEPS", 5)
    model = sb3(env=DummyVecEnv([Endless] * 4), prior=trained(), states=0.0)
    model.learn(1)
    model.method.density = Far()
    model.steering.objective = replace(model.steering.objective, states=0.1)

    def price(**named: Any) -> float:
        model.learn(32, **named)  # eight steps of each environment
        return float(model.method.rollout_rewards.reward.states.abs().max())

    for _ in range(SKIPPED_STEPS // 8 + 1):
        assert price() == 0.0
    for _ in range(SKIPPED_STEPS // 8 - 1):
        assert price(reset_num_timesteps=False) == 0.0
    assert price(reset_num_timesteps=False) > 0.0
    model.verdict()
    assert price(reset_num_timesteps=False) == 0.0
