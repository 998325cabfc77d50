"""What is not named is measured by the prior's own episodes, in the host's own environments."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from runner_envs import OURS, Drift
from runners import runner
from sb3_models import Drift as Sb3Drift
from sb3_models import residual as sb3
from sb3_models import trained
from small import small_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from repolicy import Policy
from repolicy.errors import UsageError
from repolicy.hosts.measuring import (
    MIN_SHARED_ENVS,
    EnvStep,
    HostEpisodes,
    PriorEpisodes,
    Sizes,
    run_episodes,
    run_side_by_side,
)
from repolicy.hosts.sb3 import Unclipped
from repolicy.hosts.sb3_vec_envs import ModelEnvs, flat_observations
from repolicy.objective import residual
from repolicy.prepare.states import MIN_OBSERVATIONS, SKIPPED_STEPS
from repolicy.prepare.weights import DEFAULT_KL_BUDGET
from repolicy.prepare.worth import WORTH_EPISODES
from repolicy.rql import WithAddon
from repolicy.rql.wrapping import TaskReward

PAID_ADDON = {"class_name": OURS, "addon": "addon"}
STD = 0.5  # of every prior here: with −|action|² as the reward, a nat is worth 2 · STD² of it, whatever the mean


def resting(hidden: tuple[int, ...] = (16, 16)) -> Policy:
    """A policy whose likeliest action is 0 everywhere."""
    policy = small_policy(hidden=hidden)
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1].zero_()
        policy.log_std.fill_(np.log(STD))
    return policy.requires_grad_(False)


class Ages:
    """Environments whose episodes last 3 and 5 steps by turns; the add-on is the action, the own reward 10 a step."""

    sizes: Any = None
    wish_weight = 1.0

    def reset(self) -> tuple[torch.Tensor, bool]:
        self.time = torch.zeros(self.count, 1)
        return self.time, self.fresh

    def __init__(self, fresh: bool, count: int = 2) -> None:
        self.fresh, self.count, self.limits = fresh, count, False

    def step(self, actions: torch.Tensor) -> EnvStep:
        self.time = self.time + 1
        ended = self.time.squeeze(-1) == torch.tensor([3.0, 5.0]).repeat(self.count // 2)
        self.time = torch.where(ended[:, None], 0.0, self.time)
        return EnvStep(
            self.time, torch.full((self.count,), 10.0), actions.squeeze(-1), ended, ended & (not self.limits)
        )

    @property
    def states(self) -> torch.Tensor:
        return self.time


class Telling:
    """Acts by the time, and tells 7 nats a step."""

    has_memory = False

    def act(self, observations: torch.Tensor, sample: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return observations + float(sample), torch.full((len(observations),), 7.0)

    def reset(self, ended: torch.Tensor | None = None) -> None: ...


@pytest.mark.parametrize("fresh", [True, False])
def test_of_each_environment_one_episode_counts_from_its_beginning(fresh: bool) -> None:
    """Where the first episode had begun before, the next one counts: this one may be short."""
    found = run_episodes(Ages(fresh), Telling(), sample=False)
    assert found.lengths.tolist() == [3, 5]
    assert found.basic.tolist() == [30, 50]
    assert found.addon.tolist() == [0 + 1 + 2, 0 + 1 + 2 + 3 + 4]
    assert found.nats.tolist() == [21, 35]
    assert found.squared_addon.tolist() == [0 + 1 + 4, 0 + 1 + 4 + 9 + 16]


def test_the_states_before_an_end_are_kept_and_the_episodes_are_counted() -> None:
    found = run_episodes(Ages(fresh=True), Telling(), sample=True)
    assert found.last_states.tolist() == [[2.0], [4.0]]
    assert found.ended == 2
    cut = Ages(fresh=True)
    cut.limits = True
    found = run_episodes(cut, Telling(), sample=True)
    assert (len(found.last_states), found.ended) == (0, 2), "a time limit's are none"


def test_of_an_episode_that_goes_on_the_second_thousand_steps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.hosts.measuring.MAX_EPISODE_STEPS", 2)
    found = run_episodes(Ages(fresh=False), Telling(), sample=False)
    assert found.lengths.tolist() == [1, 2]
    assert found.addon.tolist() == [2, 2 + 3]


def test_many_environments_are_shared_by_who_acts() -> None:
    envs, who = Ages(fresh=True, count=MIN_SHARED_ENVS), [(Telling(), False), (Telling(), True)]
    [by_mean], [sampled] = run_side_by_side(envs, who) or []
    assert {*by_mean.lengths.tolist()} == {3.0}  # the first of each two environments
    assert {*sampled.lengths.tolist()} == {5.0}
    assert {*by_mean.addon.tolist()} == {0 + 1 + 2.0}
    assert {*sampled.addon.tolist()} == {1 + 2 + 3 + 4 + 5.0}
    assert {*by_mean.nats.tolist()} == {21.0}
    assert len(by_mean.nats) == len(sampled.nats) == MIN_SHARED_ENVS // 2
    who[0][0].has_memory = True
    assert run_side_by_side(envs, who) is None
    assert run_side_by_side(Ages(fresh=True), who[1:]) is None


def test_a_runner_of_many_environments_measures_the_same() -> None:
    env = Drift(count=MIN_SHARED_ENVS)
    assert in_runner(env).objective.omega == pytest.approx(2 * STD**2, rel=0.2)
    assert len(env.paid) == 2 * env.max_episode_length  # both at once, after episodes that were under way


def in_runner(env: Drift | None = None, **more: Any) -> Any:
    """The steering of a runner whose environments pay −|action|² beside a reward that does not know of actions."""
    env = Drift(count=64) if env is None else env
    env.push.zero_()
    started = runner(algorithm=PAID_ADDON | {"prior": resting()} | more, env=env).alg
    started.train_mode()
    return started.steering


def test_the_runner_measures_what_a_nat_is_worth(capsys: pytest.CaptureFixture[str]) -> None:
    weights = in_runner().objective
    assert weights.omega == pytest.approx(2 * STD**2, rel=0.2)
    assert weights.alpha == pytest.approx(weights.omega / 3, rel=0.05)
    assert weights.states == 0.0
    said = capsys.readouterr().out
    assert "ResidualPPO: omega is " in said
    assert "what a nat of the prior is worth of the add-on" in said
    assert "omega and states set others" in said


def test_a_wish_that_weighs_more_counts_more_beside_the_prior(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is measured at weight 1, as in the engine; one that weighs less, at its own."""
    (tmp_path / "mine.py").write_text("def quiet(before, actions, after, info): return -(actions**2).sum(1)")
    monkeypatch.chdir(tmp_path)
    found = {}
    for weight in ("", "=10", "=0.1"):
        found[weight] = in_runner(addon=f"mine.py:quiet{weight}").objective.omega
        assert ("of the add-on at weight 1," in capsys.readouterr().out) == (weight == "=10")
    assert found == pytest.approx({"": 2 * STD**2, "=10": 2 * STD**2, "=0.1": 0.2 * STD**2}, rel=0.2)

    def made() -> Any:
        return TaskReward(WithAddon(Unclipped(Resting()), "mine.py:quiet=10"), residual(0.1, 0.1))

    monkeypatch.setattr("repolicy.hosts.measuring.MAX_EPISODE_STEPS", 40)
    how: dict[str, Any] = {"prior": resting((8, 8)), "omega": None, "alpha": None, "states": 0, "n_steps": 8}
    model = sb3(env=DummyVecEnv([made] * 40), **how)
    assert model.learn(1).steering.objective.omega == pytest.approx(2 * STD**2, rel=0.2)


def test_an_environment_that_pays_the_wish_may_tell_its_own_reward_in_a_column() -> None:
    class Telling(Drift):
        def step(self, actions: torch.Tensor) -> Any:
            observations, _, ended, extras = super().step(actions)
            return observations, torch.zeros(64), ended, extras | {"basic_reward": extras["addon"].unsqueeze(1)}

    assert in_runner(Telling(count=64), addon=None).objective.omega == pytest.approx(2 * STD**2, rel=0.2)


def test_a_worth_that_cannot_be_told_falls_back_to_a_budget_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Indifferent(Drift):
        def step(self, actions: torch.Tensor) -> Any:
            observations, rewards, *rest = super().step(actions)
            return observations, torch.ones_like(rewards), *rest

    found = in_runner(Indifferent(count=64), addon=None)
    assert found.kl_budget == DEFAULT_KL_BUDGET
    assert found.objective.omega == found.objective.alpha > 0
    said = capsys.readouterr().out
    assert "cannot be told from these episodes: does it act as it should?\n" in said
    assert "drifts 2 nats a step from its prior; kl_budget sets another distance" in said


class Resting(Sb3Drift):
    """Pays −|action|²; its state wanders by itself, in episodes without an end."""

    def step(self, action: Any) -> Any:
        observation, basic, _, _, info = super().step(0 * action)
        return observation, -float(np.square(action).sum()), False, False, info | {"basic_reward": basic}


@pytest.mark.parametrize("shown", [True, False])
def test_stable_baselines3_measures_learns_states_and_saves_both(
    shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 60 if shown else 160  # states take longer episodes
    monkeypatch.setattr("repolicy.hosts.measuring.MAX_EPISODE_STEPS", longest)
    monkeypatch.setattr("repolicy.hosts.measuring.MAX_OBSERVATIONS", 8_000)  # after two rounds of them
    env = DummyVecEnv([lambda: Unclipped(Resting())] * 40)
    model = sb3(env=env, prior=resting((8, 8)), omega=None, alpha=None, n_steps=8, **({} if shown else {"states": 0.3}))
    model.learn(1)
    weights = model.steering.objective
    assert weights.omega == pytest.approx(2 * STD**2, rel=0.1)
    assert weights.states == (0.0 if shown else 0.3)  # its own reward does not know what the actions are
    assert (model.method.density is None) == shown
    if not shown:
        density, states = model.method.density, torch.tensor([[0.0] * 3, [5.0] * 3])
        near, far = density.familiarity(density.normalized(states))
        assert near == 0.0
        assert far < -10.0
        model.save(tmp_path / "model.zip")
        again = type(model).load(tmp_path / "model.zip", env)
        assert again.steering.objective == weights
        torch.testing.assert_close(again.method.density.tensors(), density.tensors())


class Wide(Resting):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-4.0, 4.0, (2,))


def test_actions_that_a_policy_scales_itself_are_sent_as_in_training() -> None:
    env = DummyVecEnv([Wide] * 2)
    how: dict[str, Any] = {"use_sde": True, "policy_kwargs": {"squash_output": True}}
    acted_in = ModelEnvs(sb3(env=env, prior=trained(env, **how), **how))
    acted_in.reset()
    assert acted_in.step(torch.tensor([[0.5, -1.0], [0.0, 0.25]])).addon.tolist() == [-(2.0**2 + 4.0**2), -1.0]


@pytest.mark.usefixtures("_few_episodes")
@pytest.mark.parametrize(("sees", "policy"), [("both", "MultiInputPolicy"), ("images", "CnnPolicy")])
def test_observations_of_too_many_numbers_are_measured_and_their_states_are_not_learned(sees: str, policy: str) -> None:
    env = DummyVecEnv([partial(Sb3Drift, sees)] * 4)
    given: dict[str, Any] = {"env": env, "policy": policy, "prior": trained(env, policy), "omega": None, "alpha": None}
    assert sb3(**given).learn(1).steering.objective.states == 0
    with pytest.raises(UsageError, match="states of over 1,000 numbers or in a Dict are not learned"):
        sb3(**given, states=0.3).learn(1)


def test_states_of_short_episodes_are_refused_in_the_words_of_a_host() -> None:
    with pytest.raises(UsageError, match=r"episodes end after \d+ steps on average.*: states 0 goes without them"):
        sb3(prior=trained(), states=0.3).learn(1)


def test_few_environments_run_as_many_episodes_as_their_states_take() -> None:
    """Episodes of the length from which on the default learns states."""
    count = 16

    class Wandering:
        """Episodes of 100 steps, in which each state is drawn anew."""

        sizes, generator = Sizes(1, None), torch.Generator().manual_seed(0)

        def __init__(self) -> None:
            self.count = count

        def reset(self) -> tuple[torch.Tensor, bool]:
            self.time = 0
            self.states = torch.zeros(count, 1)
            return self.states, True

        def step(self, actions: torch.Tensor) -> EnvStep:
            self.time += 1
            self.states = torch.randn(count, 1, generator=self.generator)
            ended = torch.full((count,), self.time % (2 * SKIPPED_STEPS) == 0)
            return EnvStep(self.states, actions.squeeze(-1), actions.squeeze(-1), ended, ended)

    look = PriorEpisodes(Wandering(), Telling())
    density = look.density()
    assert -2.0 < float(density.usual_end) < 0.0, "its episodes end in any of its states"
    assert MIN_OBSERVATIONS <= sum(len(each.states) for each in look.sampled) < MIN_OBSERVATIONS + 100 * count


@pytest.mark.parametrize("shape", [(2, 12, 13), (12, 13, 2)])
def test_an_image_is_as_the_environment_shows_it_and_the_newest_of_a_stack(shape: tuple[int, ...]) -> None:
    """Stable-Baselines3 moves the channels to the front, for its own networks."""
    pixels = np.arange(math.prod(shape)) % 250

    class Counting(gymnasium.Env[Any, Any]):
        """Shows which step it is, in pixels that differ."""

        observation_space = spaces.Box(0, 255, shape, np.uint8)
        action_space = spaces.Box(-1.0, 1.0, (2,))

        def reset(self, **_: Any) -> Any:
            return self.step(None)[::4]

        def step(self, action: Any) -> Any:
            self.steps = getattr(self, "steps", 0) + 1
            return (pixels + self.steps).reshape(shape).astype(np.uint8), 0.0, False, False, {}

    for env in (DummyVecEnv([Counting] * 4), VecFrameStack(DummyVecEnv([Counting] * 4), 3)):
        model = sb3(env=env, omega=0.0, alpha=0.0)
        model.env.reset()
        seen, *_ = model.env.step(np.zeros((4, 2)))
        assert flat_observations(model.env, seen[None])[0].tolist() == [(pixels + 2.0).tolist()] * 4
        found = model.prior_observations(seen[None])
        newest = found[..., -2:] if shape[-1] == 2 else found[:, :, -2:]
        assert newest.flatten(2)[0].tolist() == [(pixels + 2.0).tolist()] * 4, "what any prior but its own kind sees"


def test_the_verdict_is_the_engines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An actor whose std is a tenth of its prior's pays less for its noise, when it samples."""
    monkeypatch.setattr("repolicy.hosts.measuring.MAX_EPISODE_STEPS", 20)
    env = DummyVecEnv([lambda: Unclipped(Resting())] * 32)
    model = sb3(env=env, prior=resting((8, 8)), n_steps=8, batch_size=256)
    with torch.no_grad():
        model.policy.log_std.sub_(np.log(10.0))
    said = model.verdict()
    assert "prior with the mean action: total reward" in said
    assert "in total, beside its prior: cannot tell with the mean action" in said
    assert "better with sampled actions" in said
    for verbose in (0, 1):
        model.verbose = verbose
        model.learn(256)
        assert ("ResidualPPO: " in capsys.readouterr().out) == bool(verbose)
    algorithm = PAID_ADDON | {"prior": resting(), "omega": 0.3, "alpha": 0.1}
    alg = runner(algorithm=algorithm, env=Drift(count=64)).alg
    with torch.no_grad():
        alg.actor.distribution.std_param.div_(10.0)
    assert "than its prior" in (said := alg.verdict()) or "beside its prior" in said


def test_what_a_step_earns_is_told_by_as_many_episodes_of_each_kind() -> None:
    look = PriorEpisodes(Ages(fresh=True), Telling())
    look.earnings()
    assert [sum(len(each.nats) for each in kind) for kind in (look.by_mean, look.sampled)] == [WORTH_EPISODES] * 2


def test_what_a_step_earns_has_the_error_of_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.hosts.measuring.WORTH_EPISODES", 2)
    look, no = PriorEpisodes(None, None), torch.empty(0)
    paid, steps = torch.tensor([2.0, 4.0, 9.0]), torch.tensor([1.0, 2.0, 3.0])
    look.by_mean = [HostEpisodes(paid, no, no, steps, steps, no, no)]
    look.sampled = [HostEpisodes(torch.tensor([3.0, 3.0]), no, no, steps[:2], steps[:2], no, no)]
    by_age, (by_mean, sampled) = look.earnings()
    assert by_mean == pytest.approx((2.5, math.sqrt((0.5**2 + 1.0**2 + 1.5**2) * 3 / 2) / 6))
    assert sampled == pytest.approx((2.0, math.sqrt((1.0**2 + 1.0**2) * 2) / 3))
    assert by_age == [2.0, 1.0, 0.0]
    monkeypatch.setattr("repolicy.hosts.measuring.MAX_EPISODE_STEPS", 2)
    assert look.earnings()[0] == [2.0, 1.0], "some still went on when nobody counted any more"


class Ending(Drift):
    """Drift whose episodes only ever end after 12 steps, and which may be able to begin anew."""

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        self.state = self.state.clamp(-1.0, 1.0)
        return super().step(actions)


class Resettable(Ending):
    def reset(self) -> None:
        self.episode_length_buf = torch.zeros_like(self.episode_length_buf)


class OnlyObserves(Ending):
    """Its reset returns observations and begins nothing anew."""

    def reset(self) -> Any:
        return self.get_observations()


@pytest.mark.parametrize(("env", "count"), [(Ending, 32), (Resettable, MIN_SHARED_ENVS), (OnlyObserves, 32)])
def test_episodes_that_a_runner_left_under_way_are_neither_measured_nor_compared(env: Any, count: int) -> None:
    algorithm = PAID_ADDON | {"prior": resting(), "num_mini_batches": 1}
    started = runner(algorithm=algorithm, env=env(count=count))
    started.learn(1, init_at_random_ep_len=True)
    assert started.alg.steering.objective.omega == pytest.approx(2 * STD**2, rel=0.1)
    started.alg.verdict()
    assert {length for told in started.alg.method.verdict_episodes for length in told["lengths"]} == {12.0}
