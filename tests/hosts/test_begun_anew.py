"""After a measurement or a verdict episodes begin anew, and nothing is remembered of those before."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runner_envs import OURS
from runner_envs import Drift as RunnerDrift
from runners import POLICY_ACTOR, OnPolicyRunner, checkpoint, collected, residual, runner
from sb3_models import Drift as Sb3Drift
from sb3_models import residual as sb3
from sb3_models import trained
from small import Far, small_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from repolicy.prepare.states import SKIPPED_STEPS


def away(started: OnPolicyRunner) -> float:
    """How far the actor's log-probabilities are from the prior's in a rollout, at most."""
    collected(started)
    paid, weights = started.alg.method.rollout_rewards.reward, started.alg.steering.objective
    return float((paid.entropy / weights.alpha + paid.prior / weights.omega).abs().max())


@pytest.mark.usefixtures("_few_episodes")
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
    model = sb3(env=DummyVecEnv([Endless] * 4), prior=trained(), states=0.0, n_epochs=1)
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


def test_after_a_callback_stopped_within_a_rollout_episodes_begin_anew() -> None:
    model = sb3(env=DummyVecEnv([Endless] * 4), prior=trained(), states=0.0)
    model.learn(32)
    model.learn(32, callback=lambda locals, _: locals["n_steps"] < 3, reset_num_timesteps=False)
    model.learn(32, reset_num_timesteps=False)
    assert model.method.ages.tolist() == [env.unwrapped.time for env in model.env.envs] == [8] * 4


class Resettable(RunnerDrift):
    """Changes its state in place where it begins anew, as some simulators do."""

    def reset(self) -> None:
        self.state.copy_(torch.randn(self.state.shape, generator=self.generator))
        self.episode_length_buf.zero_()


def seen_by_the_actor(started: OnPolicyRunner) -> list[bool]:
    """A list that gets, at each step, whether the actor saw what the environments show."""
    found, act = list[bool](), started.alg.act

    def compared(observations: Any) -> Any:
        actions = act(observations)
        found.append(torch.equal(started.alg.transition.observations["policy"], started.env.state))
        return actions

    started.alg.act = compared
    return found


MEASURED = {"class_name": OURS, "states": 0.0}


@pytest.mark.usefixtures("_few_episodes")
@pytest.mark.parametrize("more", [{}, {"omega": "0.1..1"}])
def test_after_a_measurement_the_runner_goes_on_where_it_was(more: dict[str, Any]) -> None:
    env, actor = Resettable(count=32), {"actor": POLICY_ACTOR} if more else {}
    started = runner(algorithm=MEASURED | {"prior": small_policy(hidden=(16, 16))} | more, env=env, **actor)
    before = env.episode_length_buf.clone()
    started.alg.train_mode()
    assert torch.equal(env.episode_length_buf, before)
    started = runner(algorithm=MEASURED | {"prior": small_policy(hidden=(16, 16))} | more, env=env, **actor)
    seen = seen_by_the_actor(started)
    started.learn(1, init_at_random_ep_len=True)
    assert seen == [True] * 6


@pytest.mark.usefixtures("_few_episodes")
def test_after_a_verdict_the_runner_sees_how_the_next_episodes_begin() -> None:
    started = runner(algorithm=residual(small_policy(hidden=(16, 16))), env=Resettable(count=32), max_iterations=1)
    seen = seen_by_the_actor(started)
    started.learn(2)
    assert seen == [True] * 12


@pytest.mark.usefixtures("_few_episodes")
def test_a_prior_is_measured_where_its_own_runner_had_trained_it(tmp_path: Path) -> None:
    """What rsl_rl's runner has stepped cannot be changed in place outside of inference mode."""
    env = Resettable(count=32)
    first = runner(env=env)
    first.learn(1)
    first.save(str(tmp_path / "prior.pt"))
    started = runner(algorithm=MEASURED | {"prior": str(tmp_path / "prior.pt")}, env=env)
    started.learn(1)
    assert started.alg.steering.objective.is_set
