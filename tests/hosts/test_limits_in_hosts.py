"""Limits in hosts: the engine's multipliers, moved by what an environment tells beside its reward."""

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from both import PRIOR, InRslRl, InSb3, hosts
from runners import small_policy
from sb3_models import Drift
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from repolicy.envs.rollout import Transitions
from repolicy.errors import NumericError, UsageError
from repolicy.hosts.measuring import HostEpisodes, PriorEpisodes
from repolicy.hosts.method import ROLLOUT_SUMS, HostRollout, Method
from repolicy.hosts.sb3 import Unclipped
from repolicy.hosts.steering import Steering
from repolicy.learning.multipliers import Multipliers
from repolicy.objective import Objective
from repolicy.objective import residual as weights
from repolicy.rql.wrapping import TaskReward
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

STEPS, ENVS = 8, 4
HELD = ["power<=2", "speed>=0.5"]


class Unlikely:
    """A prior that finds everything equally likely."""

    def score(self, observations: Tensor, actions: Tensor, ended: Tensor) -> tuple[Tensor, None]:
        return torch.zeros(ended.shape), None


def with_critic(steering: Steering, prior: Any) -> Method:
    method = Method(steering, prior)
    method.normalize_critic(nn.Linear(1, 1), nn.Linear(1, 1))
    return method


def seen(held: Tensor) -> HostRollout:
    still = torch.zeros(held.shape[1:])
    none, wide = still.bool(), still[..., None]
    return HostRollout(wide, wide, still, still, none, none, lambda: wide, held, gamma=0.99)


def followed(method: Method, rollouts: list[Tensor]) -> tuple[list[dict[str, float]], list[Tensor]]:
    """What a host's log says of limits over some rollouts, and what it pays in each."""
    told, paid = list[dict[str, float]](), list[Tensor]()
    for held in rollouts:
        paid.append(method.reward(seen(held)))
        method.credit(torch.randn(STEPS, ENVS), torch.zeros(STEPS, ENVS))
        told.append(method.iteration_metrics())
        method.steering.explained_variance = 1.0
        method.steering.steer(*method.spending)
    return told, paid


@pytest.mark.parametrize("zero", [0.0, 100.0], ids=["near 0", "far from it"])
def test_multipliers_move_as_the_engines_do(zero: float) -> None:
    """The engine measures in environments of its own; here both measure the same steps."""
    rollouts = [zero + torch.randn(2, STEPS, ENVS).abs() * (3.0 - 0.1 * i) for i in range(25)]
    settings = Settings(envs=ENVS, n_steps=STEPS, steps=100 * STEPS * ENVS)
    engine = Multipliers(Request("HalfCheetah-v4", weights(0.5, 0.25), settings, ("height",), limits=tuple(HELD)))
    method = with_critic(Steering(weights(0.5, 0.25), limits=HELD), Unlikely())
    told, paid = followed(method, rollouts)
    for held, found, got in zip(rollouts, told, paid, strict=True):
        numbers = held.double().numpy()
        steps: Any = SimpleNamespace(
            transitions=Transitions(*(np.zeros((STEPS, ENVS, 1)),) * 3, {"power": numbers[0], "speed": numbers[1]}),
            per_decision=lambda values, mean: values,
            basic=np.zeros((STEPS, ENVS)),
        )
        price = engine.price(steps)
        torch.testing.assert_close(got, -price.float())
        log = engine.metrics(engine.local_sums(steps, steps) | {"reward_task": 0.0}, weights(0.5, 0.25))
        assert log == pytest.approx({name: found[name] for name in log}, rel=1e-9)
        assert len(log) == 4
        engine.steer({}, weights(0.5, 0.25))
    assert len({found["multiplier_power<=2"] for found in told}) == 25


class Telling(Drift):
    """Its info tells the old reward, and how far from 0 the state is."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"basic_reward": reward, "far": abs(self.state[0])}


def told(host: Any, **more: Any) -> dict[str, Any]:
    """Options of a host whose environment tells the old reward."""
    in_sb3 = {"env": DummyVecEnv([lambda: Unclipped(Telling())] * 4), "n_steps": 16, "learning_rate": 3e-4}
    return (in_sb3 if host is InSb3 else {"addon": "addon"}) | more


def multipliers(method: Method, limit: str) -> list[float]:
    return [value for value in method.curves[f"multiplier_{limit}"] if value is not None]


@pytest.fixture(autouse=True)
def following(monkeypatch: pytest.MonkeyPatch) -> None:
    """A critic that has seen four rollouts explains nothing; weights move all the same."""
    monkeypatch.setattr("repolicy.hosts.steering.MIN_EXPLAINED_VARIANCE", -1e9)


@hosts
def test_a_multiplier_rises_while_its_limit_is_broken_and_falls_while_it_holds(host: Any) -> None:
    broken, holds = ("basic_reward>=5", "basic_reward<=5")  # it is a cost, so below 0
    started = host(**told(host, limits=[broken, holds]))
    started.learn(4)
    if host is InRslRl:
        paid = float(torch.stack(started.started.env.paid).mean())
        assert np.mean(started.method.curves["limit_" + holds]) == pytest.approx(paid)
    rises, falls = multipliers(started.method, broken), multipliers(started.method, holds)
    assert len(rises) == len(falls) == 4
    assert all(a < b for a, b in pairwise(rises))
    assert all(a > b for a, b in pairwise(falls))


@hosts
@pytest.mark.parametrize("limits", ["basic_reward>=-1.0", ["basic_reward>=-1.0"]])
def test_a_resumed_multiplier_is_the_same_to_the_bit(host: Any, limits: Any, tmp_path: Path) -> None:
    options = told(host, limits=limits)
    first = host(**options)
    first.learn(3)
    first.save(tmp_path)
    [held] = first.method.steering.priced_limits.values()
    assert held.violation is not None
    assert held.weight > 0
    assert host.resumed(tmp_path, PRIOR, **options).method.steering.priced_limits == {"basic_reward>=-1": held}


@pytest.mark.usefixtures("_few_episodes")
def test_measuring_after_a_resume_keeps_the_multipliers(tmp_path: Path) -> None:
    first = InRslRl(limits=["addon>=-0.3"])
    first.learn(2)
    first.save(tmp_path)
    again = InRslRl.resumed(tmp_path, PRIOR, limits=["addon>=-0.3"], omega=None, alpha=0.05)
    again.started.alg.measure()
    assert again.method.steering.priced_limits == first.method.steering.priced_limits


@hosts
@pytest.mark.usefixtures("_short_episodes")
def test_a_share_that_is_kept_is_a_limit_on_the_old_reward(host: Any, tmp_path: Path, capsys: Any) -> None:
    """The old reward is a cost, so of 0.9 a tenth may be added to it; its mean was measured by the prior's episodes."""
    options = told(host, keep=0.9)
    started = host(**options)
    started.learn(2)
    started.save(tmp_path)
    said = capsys.readouterr().out
    first, again = started.method, host.resumed(tmp_path, PRIOR, **options).method
    [held] = first.steering.kept_share.values()
    earned = -float(re.search(r"keep is 0.9 of −(\S+) ± \S+, what the prior's mean", said)[1])
    assert (held.limit.name, held.limit.sign) == ("basic_reward", -1)
    assert held.limit.bound == pytest.approx(1.1 * earned, rel=0.01)
    assert first.steering.sampling_gap != 0.0
    assert len(multipliers(first, first.steering.kept_limit)) == 2
    assert first.steering.objective.omega == held.weight != 0.3
    assert again.steering == first.steering
    assert again.steering.kept_share == first.steering.kept_share
    assert "errors are larger than what may be lost" in said, "0.2 of 1.4 is more than a tenth"
    capsys.readouterr()
    InRslRl(**told(InRslRl, keep=0.5))
    assert "errors are larger" not in capsys.readouterr().out


@pytest.mark.parametrize(("keep", "limit"), [(0.9, "basic_reward>=-1.1"), (None, "basic_reward>=-1.1"), (0.5, "")])
def test_another_share_than_the_saved_one_is_to_be_measured_anew(keep: float | None, limit: str) -> None:
    saved, again = Steering(weights(0.3, 0.2), keep=0.9), Steering(weights(0.3, 0.2), keep=keep)
    saved.hold_share("basic_reward>=-1.1")
    again.resume(saved.state(), again.objective, again.settings.budget)
    assert again.kept_limit == limit
    assert again.keep == (keep or 0.9), "an unnamed share is the saved one"


@pytest.mark.parametrize("std", [0.5, 0.2])
def test_what_the_mean_action_keeps_is_told_by_sampled_steps(std: float) -> None:
    """A step costs the squares of its two actions, so those of noise are its variance; the prior's std is 0.5."""

    class Wide(Unlikely):
        def score(self, observations: Tensor, actions: Tensor, ended: Tensor) -> Any:
            found = torch.distributions.Normal(torch.zeros_like(actions), 0.5)
            return found.log_prob(actions).sum(-1), found.entropy().sum(-1)

    torch.manual_seed(0)
    method = with_critic(Steering(weights(0.3, 0.2), keep=0.9), Wide())
    method.steering.hold_share("basic_reward>=-1", sampling_gap=2 * 0.5**2)
    acting = torch.distributions.Normal(torch.full((200, 64, 2), 0.4), std)
    actions = acting.sample()
    paid, nothing = -actions.square().sum(-1), torch.zeros(200, 64)
    rollout = seen(paid[None])._replace(actions=actions, log_policy=acting.log_prob(actions).sum(-1))
    method.reward(rollout)
    method.credit(nothing, nothing)
    assert method.iteration_metrics()["limit_basic_reward>=-1"] == pytest.approx(-2 * 0.4**2, abs=0.01)


@pytest.mark.parametrize("falls", [0.002, 0.05])
def test_ends_earlier_than_the_sampled_priors_cost_what_it_earned_later(falls: float) -> None:
    """A step earns 2. Of a hundred steps of the prior one is a fall, and no episode lasts longer than 40."""
    torch.manual_seed(0)
    ended, age = torch.zeros(4000, 64, dtype=torch.bool), torch.zeros(64)
    for row in ended:
        row |= (torch.rand(64) < falls) | (age == 39)
        age = torch.where(row, 0, age + 1)
    method = with_critic(Steering(weights(0.3, 0.2), keep=0.9), Unlikely())
    method.steering.hold_share("basic_reward>=1.8", earnings_by_age=[*(2.0 * 0.99 ** torch.arange(40)).tolist(), 0.0])
    later, kept = [], []
    for steps in ended.split(25):
        method.reward(seen(torch.full((1, *steps.shape), 2.0))._replace(ended=steps))
        method.credit(torch.zeros(steps.shape), torch.zeros(steps.shape))
        kept.append(method.iteration_metrics()["limit_basic_reward>=1.8"])
        later.append(float(method.rollout_rewards.sums[ROLLOUT_SUMS.index("later")]) / steps.numel())
    length, usual = ended.numel() / float(ended.sum()), (1 - 0.99**40) / 0.01
    assert np.mean(later) == pytest.approx(2.0 * (length - usual) / length, abs=0.03)
    assert np.mean(kept[80:]) == pytest.approx(2.0 + min(0.0, np.mean(later)), abs=0.05)


def test_where_steps_cost_a_later_end_than_the_sampled_priors_counts_for_nothing() -> None:
    """A step costs 2, and one in two of the prior's episodes ends after its first step."""
    lengths, no = torch.tensor([1.0, 40.0]).repeat(16), torch.empty(0)
    look = PriorEpisodes(None, None)
    look.by_mean = look.sampled = [HostEpisodes(-2.0 * lengths, no, no, lengths, lengths, no, no)]
    by_age, _ = look.earnings()
    method = with_critic(Steering(weights(0.3, 0.2), keep=0.9), Unlikely())
    method.steering.hold_share("basic_reward>=-2.2", earnings_by_age=by_age)
    method.reward(seen(torch.full((1, 40, 8), -2.0)))
    method.credit(torch.zeros(40, 8), torch.zeros(40, 8))
    assert method.iteration_metrics()["limit_basic_reward>=-2.2"] == -2.0


class Wished(Drift):
    """Its info tells an add-on, and a part of its reward as Gymnasium's robots do; no episode ends early."""

    def step(self, action: Any) -> Any:
        observation, *_, info = super().step(action)
        info |= {"addon_reward": -float(np.square(action).sum()), "reward_ctrl": -1.0}
        return observation, 2.0, False, self.time >= 9, info


def test_the_wrapper_that_pays_the_add_on_tells_the_old_reward_and_limits_are_logged_by_name() -> None:
    env = DummyVecEnv([lambda: Unclipped(TaskReward(Wished(), weights(0.3, 0.2)))] * 4)
    limits = ["basic_reward<=3", "reward_ctrl>=-0.5"]
    started = InSb3(**told(InSb3, limits=limits, env=env, keep=0.9)).started.learn(64, log_interval=None)
    assert list(started.steering.all_limits) == [*limits, "basic_reward>=1.8"]
    assert list(started.steering.priced_limits) == limits
    logged = started.logger.name_to_value
    assert logged["limit/reward_ctrl>=-0.5"] == -1.0
    assert {"multiplier/reward_ctrl>=-0.5", "residual/task", "residual/prior_kl"} <= logged.keys()
    assert started.method.curves["limit_basic_reward>=1.8"] == [2.0]
    assert started.method.curves["reward_task"][0] < 0.0
    with pytest.raises(UsageError, match="basic_reward>=1 and basic_reward>=1.8 name the same side twice"):
        InSb3(**told(InSb3, limits="basic_reward>=1", env=env, keep=0.9)).learn(1)


def test_what_is_to_be_kept_must_be_told_before_anything_is_measured() -> None:
    env = DummyVecEnv([Drift] * 4)
    for unnamed in ({}, {"omega": None, "alpha": None}):
        steps = list[object]()
        env.step_wait = lambda steps=steps: steps.append(0) or DummyVecEnv.step_wait(env)
        with pytest.raises(UsageError, match="keep needs 'basic_reward' in the environment's info;"):
            InSb3(env=env, keep=0.9, **unnamed).learn(1)
        assert len(steps) == 1
    with pytest.raises(UsageError, match="keep needs 'basic_reward' in the environment's extras;"):
        InRslRl(keep=0.9).learn(1)

    class Untold(Drift):
        def step(self, action: Any) -> Any:
            *told, _ = super().step(action)
            return *told, {"basic_reward": None}

    with pytest.raises(UsageError, match="keep goes by basic_reward, and the environment tells one that is no finite"):
        InSb3(env=DummyVecEnv([Untold] * 4), keep=0.9).learn(1)


@pytest.mark.usefixtures("_short_episodes")
def test_the_table_at_the_end_says_whether_a_limit_holds() -> None:
    started = InRslRl(**told(InRslRl, limits=["basic_reward<=5"])).started
    assert "with the mean action limit basic_reward<=5 holds (−" in started.alg.verdict()
    said = InSb3(**told(InSb3, keep=0.9)).started.verdict()
    assert "limit" not in said, "the share that is to be kept is not measured yet"


@pytest.mark.parametrize(
    ("limits", "more", "sentence"),
    [
        (["torque<=1"], {}, "torque<=1 limits 'torque' in the environment's .*; there is .*basic_reward"),
        (["far<=1", "far>=2"], {}, "the limits far<=1 and far>=2 contradict each other"),
        ([], {"keep": 0.9, "kl_budget": 1.0}, "kl_budget and keep are two ways to find omega: choose one"),
        ([], {"keep": 0.9, "prior": None, "omega": 0.0}, "a budget adapts omega, so omega must start above 0"),
    ],
)
@hosts
def test_what_cannot_be_held_is_one_sentence(host: Any, limits: list[str], more: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        host(**told(host, limits=limits, **more)).learn(1)


def test_a_quantity_that_is_no_number_is_one_sentence() -> None:
    method = with_critic(Steering(Objective(), limits=HELD), None)
    with pytest.raises(NumericError, match="the quantity of the limit speed>=0.5 is not finite"):
        followed(method, [torch.stack([torch.ones(STEPS, ENVS), torch.full((STEPS, ENVS), torch.nan)])])


@pytest.mark.usefixtures("_short_episodes")
def test_the_verdict_tells_a_limit_by_sampled_actions_and_a_kept_share_by_the_mean_action() -> None:
    """The mean action is near 0, and noise costs, so that the limit holds for the mean action alone."""

    class Loud(Unclipped):
        def step(self, action: Any) -> Any:
            *found, info = super().step(action)
            return *found, info | {"loud": float(np.square(action).sum()), "basic_reward": found[1]}

    quiet = small_policy()
    with torch.no_grad():
        for part in quiet.network.parameters():
            part.mul_(1e-3)
    env = DummyVecEnv([lambda: Loud(Drift())] * 4)
    said = InSb3(quiet, **told(InSb3, limits="loud<=0.1", env=env, keep=0.9)).started.learn(1).verdict()
    assert "with the mean action limit loud<=0.1 holds" in said
    assert "with sampled actions limit loud<=0.1 is broken by" in said
    assert said.count("limit basic_reward>=") == 1, "of the mean action, which keeps the share"


@hosts
def test_no_limits_may_be_named_none_as_any_other_option_may(host: Any) -> None:
    """A settings class, as Isaac Lab's, names every option."""
    assert not host(omega=0.3, alpha=0.2, limits=None, keep=None, kl_budget=None).method.steering.priced_limits
