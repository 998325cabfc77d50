"""Limits in a user's units, and a share of the old return: each is held by a weight of its own."""

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from known_optimum import ALPHA, FEW, GAIN, SETTINGS, SLOW, WISH, gain_and_std, of_both
from small_runs import Log
from threaded_ranks import customized
from tiny_envs import CONTROL, CONTROL_COST, DYNAMICS, STATE_COST, tiny

from repolicy.addons.limits import parse_limits
from repolicy.envs.rollout import Transitions
from repolicy.errors import UsageError
from repolicy.learning.multipliers import (
    HeldLimit,
    Limits,
    Multipliers,
    block_means,
    expected_rewards,
    initial_worth,
    limit_violation,
    measure_prior_rewards,
)
from repolicy.learning.terms import TaskRewards
from repolicy.learning.training import customize
from repolicy.learning.worker import Worker
from repolicy.objective import Reward, greedy, no_entropy, residual
from repolicy.prepare.checks import try_addon
from repolicy.prepare.spending import estimate_spending
from repolicy.prepare.weights import TRIAL_ENVS, TRIAL_STEPS, alpha_from_card
from repolicy.priors.opening import read_policy
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request
from repolicy.runs.result import Estimate
from repolicy.runs.settings import Settings

EFFORT = f"{__file__}:effort"


def effort(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return np.square(actions[..., 0])


def mean_effort(gain: float) -> float:
    """The mean of u² over eight steps of u = −gain·x from x between −2 and 2."""
    return gain**2 * 4 / 3 * float(np.mean((DYNAMICS - CONTROL * gain) ** (2 * np.arange(8))))


def mean_cost(gain: float) -> float:
    """The basic cost of the same steps."""
    return mean_effort(gain) * (STATE_COST / gain**2 + CONTROL_COST)


@pytest.mark.long
def test_a_limit_is_met_as_the_closed_form_says(prior: Path, tmp_path: Path) -> None:
    """The bound is what the exact optimum has at a known weight of the limit. So that is the weight to find."""
    omega, alpha, multiplier = 1.0, ALPHA, 2.0
    wanted = float(of_both(omega, alpha, control=multiplier).gain)
    bound, log = mean_effort(wanted), Log()
    found = customize(
        prior, WISH, residual(omega * ALPHA, alpha), tmp_path / "run", replace(SETTINGS, steps=250_000),
        env=tiny("LinearQuadratic"), callbacks=[log], limits=(f"{EFFORT}<={bound}", "distance<=9"),
    )  # fmt: skip
    name = f"effort<={bound}"
    met, weights = (np.array([each[what + name] for each in log.metrics[-120:]]) for what in ("limit_", "multiplier_"))
    assert met.mean() == pytest.approx(bound, rel=0.03)
    assert np.exp(np.log(weights).mean()) == pytest.approx(multiplier, rel=0.1)
    assert gain_and_std(found.policy)[0] == pytest.approx(wanted, rel=0.08)
    assert log.metrics[-1]["multiplier_distance<=9"] < 0.01 * log.metrics[0]["multiplier_distance<=9"]  # far from it
    assert not any("broken" in sentence for sentence in log.said)


def test_a_step_at_the_bound_costs_nothing_so_an_early_end_saves_nothing() -> None:
    held = Limits(parse_limits(["effort<=0.3", "speed>=2"]))
    for each in held.values():
        each.weight = 5.0
    costs = held.price([np.array([0.3, 0.5, 0.1, 0.3]), np.array([2.0, 2.0, 2.0, 1.0])])
    assert costs.tolist() == pytest.approx([0.0, 1.0, -1.0, 5.0])


@pytest.mark.long
def test_a_share_of_the_old_return_is_kept(prior: Path, tmp_path: Path) -> None:
    """The share is what the exact optimum at a known omega keeps, and that omega is found from another one.

    The share is one of the prior's return in 32 episodes, which depends much on where these start.
    """
    omega, alpha, env = 0.5, ALPHA, tiny("LinearQuadratic")
    wanted = float(of_both(omega, alpha).gain)
    request = Request(env, residual(0.2, alpha), replace(SLOW, keep=0.5), prior="a checksum")
    measured = -measure_prior_rewards(read_policy(prior).policy, request, SingleRank())[1]
    keep, log = 2.0 - mean_cost(wanted) / measured, Log()
    settings = replace(SLOW, keep=keep)
    found = customize(prior, WISH, residual(0.2, alpha), tmp_path / "run", settings, env=env, callbacks=[log])
    kept, omegas = (np.array([each[name] for each in log.metrics[-80:]]) for name in ("kept", "omega"))
    gain, _ = gain_and_std(found.policy)
    assert not any("is broken" in sentence for sentence in log.said)
    assert kept.mean() == pytest.approx(keep, abs=0.05)  # an iteration's has a std of 0.3
    assert np.exp(np.log(omegas).mean()) == pytest.approx(omega * ALPHA, rel=0.2)
    assert gain == pytest.approx(wanted, rel=0.08)


def test_what_moves_is_resumed_to_the_bit_and_a_limit_that_cannot_be_met_is_told(prior: Path, tmp_path: Path) -> None:
    settings = replace(FEW, keep=0.9, steps=8 * FEW.iteration_steps, critic_warmup=0.0)
    asked: dict[str, Any] = {"env": tiny("LinearQuadratic"), "limits": (f"{EFFORT}>=0.6", "distance<=9")}
    whole, stopped = Log(), Log()
    found = customize(prior, WISH, residual(0.2, "omega"), tmp_path / "whole", settings, callbacks=[whole], **asked)
    last = found.last["alpha"]
    assert last == found.last["omega"] != 0.2
    assert alpha_from_card(read_policy(found.folder / "policy.safetensors").card) == pytest.approx(last, rel=0.1)
    assert any("is read to tell what share of it is kept" in each for each in whole.said)
    assert any("limit effort>=0.6 is broken: the last 8 iterations have " in each for each in whole.said)

    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    max((tmp_path / "run" / "checkpoints").iterdir()).unlink()  # as if it had stopped in its last segment
    again = {"settings": settings, "env": asked["env"], "callbacks": [stopped]}
    with pytest.raises(UsageError, match="names code that would be run: .*:effort"):
        customize(prior, WISH, out=tmp_path / "run", resume=True, **again)
    customize(prior, WISH, out=tmp_path / "run", resume=True, trust=True, **again)
    moving = [name for name in whole.metrics[-1] if name.startswith(("limit", "multiplier", "kept", "omega"))]
    assert len(moving) == 6
    assert [[each[name] for name in moving] for each in stopped.metrics] == [
        [each[name] for name in moving] for each in whole.metrics[6:]
    ]

    done = Log()  # as if it had stopped after its last checkpoint, before it said what it ends with
    customize(prior, WISH, out=tmp_path / "whole", resume=True, trust=True, **again | {"callbacks": [done]})
    assert done.said[-1:] == whole.said[-1:]


def test_what_a_limit_holds_is_told_of_the_priors_mean_action(prior: Path) -> None:
    request = Request(tiny("LinearQuadratic"), residual(0.2, ALPHA), FEW, (WISH,), "a checksum")
    limited, policy = replace(request, limits=(f"{EFFORT}<=0.05",)), read_policy(prior).policy
    told = re.fullmatch(r"limit effort<=0.05: (.*) a step under the prior", try_addon(policy, limited)[0][0])
    assert told is not None
    assert float(told[1]) == pytest.approx(mean_effort(GAIN), rel=0.15)
    without, with_limit = (estimate_spending(each)["to try the wish"] for each in (request, limited))
    assert with_limit == without + TRIAL_ENVS * TRIAL_STEPS


def test_two_ranks_hold_what_one_holds(prior: Path, tmp_path: Path) -> None:
    """Each rank sees other steps, and all follow the mean."""
    settings = replace(FEW, keep=0.9, ranks=2, critic_warmup=0.0)
    limits = (f"{EFFORT}<=0.05",)
    request = Request(tiny("LinearQuadratic"), residual(0.2, ALPHA), settings, (WISH,), "a checksum", limits=limits)
    (_, ours), (_, theirs) = customized(request, prior, tmp_path / "run")
    moving = ("kept", "omega", "limit_effort<=0.05", "multiplier_effort<=0.05")
    assert [[each[name] for name in moving] for each in ours] == [[each[name] for name in moving] for each in theirs]
    assert ours[0]["kept"] == pytest.approx(1.0, abs=0.5)
    assert ours[0]["limit_effort<=0.05"] == pytest.approx(mean_effort(GAIN), rel=0.5)


def test_a_whole_episode_is_expected_to_earn_what_the_prior_earns() -> None:
    """However long it is: what an early end leaves out is lost."""
    earns = torch.tensor([1.0, 3.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    for length, ends in ((2, True), (4, False), (4, True), (9, False)):
        ages = torch.arange(length)[:, None]
        last = ages == length - 1
        assert float(expected_rewards(earns, ages, last & ends).sum()) == pytest.approx(4.75)


def test_the_prior_is_measured_for_as_long_as_its_time_limit(prior: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.evaluation.EPISODE_CAP", 3)
    request = Request(tiny("endless_with_time_limit"), residual(0.2, ALPHA), Settings(keep=0.9), prior="a checksum")
    rewards, reward = measure_prior_rewards(read_policy(prior).policy, request, SingleRank())
    assert (rewards.tolist(), reward) == ([1.0] * 5 + [0.0], 1.0)


def test_a_step_of_the_prior_earns_the_same_however_long_its_episodes_are(prior: Path) -> None:
    """Each step pays 1 and is the last one with probability 0.2, so few episodes are as long as the longest."""
    request = Request(tiny("Mortal"), residual(0.2, ALPHA), Settings(keep=0.9), prior="a checksum")
    rewards, reward = measure_prior_rewards(read_policy(prior).policy, request, SingleRank())
    assert reward == pytest.approx(1.0)
    assert float(rewards[:-1].mean()) < 0.5
    held = multipliers(keep=0.9)
    held.hold_share(rewards, reward)
    ages = np.ones((2, 8), int)
    steps: Any = SimpleNamespace(basic=np.full((2, 8), 0.9), ages=ages, terminated=np.zeros((2, 8), bool))
    assert held.metrics(held.local_sums(steps, steps), residual(0.2, 0.1))["kept"] == pytest.approx(0.9)
    held.steer({}, residual(0.2, 0.1))
    assert held.kept.violation == pytest.approx(0.0)


def test_few_environments_tell_their_noise_by_parts_of_their_steps() -> None:
    steps = torch.arange(32.0)
    assert block_means(steps.reshape(16, 2)).tolist() == [3, 4, 11, 12, 19, 20, 27, 28]
    assert block_means(steps[:27, None]).tolist() == list(range(1, 27, 3)), "parts are as long as each other"
    assert block_means(steps[:7, None]).tolist() == list(range(7)), "a single mean would tell no noise"
    eight, by_rank = torch.arange(64.0).reshape(8, 8), torch.arange(64.0).reshape(8, 8).split(1, dim=1)
    assert [float(block_means(each, ranks=8)) for each in by_rank] == block_means(eight).tolist(), "however many ranks"
    assert block_means(steps.reshape(2, 2, 8)).tolist() == [[4 + n for n in range(8)], [20 + n for n in range(8)]]


@pytest.mark.parametrize(
    ("noise", "steps"), [(0.01, 1), (0.25, 1), (10.0, 20)], ids=["told", "just told", "averaged over 20"]
)
def test_what_is_off_follows_a_measurement_as_far_as_that_is_certain(noise: float, steps: int) -> None:
    assert limit_violation(1.0, noise, 0.0) == pytest.approx(1 / steps)
    assert limit_violation(-50.0, noise, None) == -4.0


def test_a_limits_weight_follows_what_is_measured_and_how_that_changes() -> None:
    """Worked by hand: the integral gain is 0.03, the proportional one 1, and the limit is broken by 0.03 at 1."""
    held = HeldLimit(parse_limits("power<=0.3")[0])
    held.begin(0.5, 0.2)
    logs = []
    for measured in (0.36, 0.06, 0.345):  # broken by 2, −8 and 1½, each ± ½
        held.move(Estimate(measured, 0.015))
        logs.append(math.log(held.weight / 0.4))  # at first what a nat costs for the typical size, 0.2 / 0.5
    assert held.violation == pytest.approx(0.0)  # ¼ of the way from −½ to 1½; −½ is ¼ of the way from 2 to −8
    assert logs == pytest.approx([0.06, 0.06 - 0.015 - 1.5, 0.06 - 0.015 - 1.5 + 0.5])
    for _ in range(200):
        held.move(Estimate(-9.0, 0.0))
    assert held.weight == pytest.approx(0.4 / 1e3)


def test_what_a_limit_is_worth_at_first() -> None:
    """As much as a nat of the prior; without omega, where alpha may be tiny, a tenth of the task's reward."""
    assert initial_worth(residual(0.2, 0.1), 5.0) == 0.2
    assert initial_worth(no_entropy(), -5.0) == 0.5
    assert initial_worth(residual(1e-4, 1e-4), 5.0) == 1e-4
    assert initial_worth(greedy(1e-4), 5.0) == 0.5
    assert initial_worth(greedy(0.7), 5.0) == 0.7
    assert initial_worth(no_entropy(), 0.0) == 1.0


def multipliers(**settings: Any) -> Multipliers:
    return Multipliers(Request("CartPole-v1", residual(0.2, 0.1), Settings(**settings), prior="a checksum"))


def test_a_kept_share_is_measured_beside_the_prior_and_moves_omega_alone() -> None:
    """Eight environments of two steps, in which the prior earns 1 and then 3 a step: 2 on average."""
    held, weights = multipliers(keep=0.9), residual(0.2, 0.1)
    held.hold_share(torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64), 2.0)
    ages, noise = np.array([[1] * 8, [2] * 8]), 0.1 * 7**0.5 * np.repeat([1.0, -1.0], 4)  # an error of 0.1
    shares, logs = [], []
    for lost in (0.4, 0.2):
        basic = 2.0 * ages - 1.0 - lost + noise
        steps: Any = SimpleNamespace(basic=basic, ages=ages, terminated=np.zeros((2, 8), bool))
        shares.append(held.metrics(held.local_sums(steps, steps), weights)["kept"])
        weights = held.steer({}, weights)
        logs.append(math.log(weights.omega / 0.2))
    assert shares == pytest.approx([0.8, 0.9])
    # Off by 1, a tenth of the old return. Then by 0 ± ½, of which a quarter counts: ¾.
    assert logs == pytest.approx([0.03, 0.03 + 0.03 * 0.75 - 0.25])
    assert weights.alpha == 0.1
    same = held.steer({}, residual(0.3, "omega"))
    assert same.alpha == same.omega == held.kept.weight, "alpha is omega, wherever that moves"


@pytest.mark.parametrize("falls", [1, 4])
def test_falls_that_lose_what_may_be_lost_move_omega_as_often_up_as_down(falls: int) -> None:
    """The prior earns 1 in each of 1,000 steps. Of 10 episodes some fall half-way: just the share is kept."""
    held = multipliers(keep=1.0 - 0.05 * falls)
    held.hold_share(torch.cat([torch.ones(1000, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]), 1.0)
    lengths = [500 if episode < falls else 1000 for episode in range(10)] * 20
    ages = np.concatenate([np.arange(1, length + 1) for length in lengths])
    fell = (ages == 500) & np.repeat(np.array(lengths) == 500, lengths)
    violations = []
    for start in range(0, len(ages), 500):  # a rollout of one environment
        part = slice(start, start + 500)
        steps: Any = SimpleNamespace(basic=np.ones((500, 1)), ages=ages[part, None], terminated=fell[part, None])
        held.metrics(held.local_sums(steps, steps), residual(0.2, 0.1))
        held.steer({}, residual(0.2, 0.1))
        violations.append(held.kept.violation)
    assert np.mean(violations[len(violations) // 2 :]) == pytest.approx(0.0, abs=0.3)


def test_what_limits_cost_is_taken_from_the_reward() -> None:
    task = torch.tensor([[2.0, 3.0]])
    rollout: Any = SimpleNamespace(log_probs=torch.zeros(1, 2), next_observations=None, ages=None, terminated=None)
    worker: Any = SimpleNamespace(
        objective=greedy(0.0), familiarity_of=lambda *_: None, multipliers=SimpleNamespace(price=lambda _: 5.0 * task)
    )
    reward = Worker.reward(worker, rollout, TaskRewards(task, {}, task, [task]), None)
    assert (reward.task.tolist(), reward.total.tolist()) == ([[2.0, 3.0]], [[-8.0, -12.0]])


def test_the_log_has_a_steps_mean_of_each_part_of_the_reward() -> None:
    one = torch.ones(1, 2, dtype=torch.float64)
    rollout: Any = SimpleNamespace(log_probs=-3.0 * one, episodes=SimpleNamespace(returns=[5.0, 7.0], lengths=[10, 20]))
    worker: Any = SimpleNamespace(
        objective=residual(0.2, 0.1, states=0.2), settings=Settings(envs=2, n_steps=1), team=SingleRank(),
        multipliers=SimpleNamespace(limits=[1], local_sums=lambda *_: {}, metrics=lambda *_: {}),
        deployed_rollout=None, below_prior=lambda *_: {},
    )  # fmt: skip
    reward, log_prior = Reward(8 * one, 4 * one, 2 * one, -one, 6 * one), torch.tensor([[0.0, -10.0]])
    found = Worker.reduce_metrics(worker, rollout, reward, log_prior, stop=False)
    parts = [found[f"reward_{name}"] for name in ("task", "prior", "entropy", "states", "limits", "total")]
    assert parts == [8.0, 4.0, 2.0, -1.0, -7.0, 6.0]
    assert (found["basic_return"], found["episode_length"], found["episodes"]) == (6.0, 15.0, 2.0)
    assert (found["log_prior"], found["log_prior_low"], found["prior_kl"]) == pytest.approx((-5.0, -9.0, 2.0))


def test_a_limit_is_an_add_on_an_entry_of_info_or_a_function() -> None:
    metric, entry, own = parse_limits(["hind_leg<=0.25", "x_velocity >= 7.5", f"{EFFORT}<=1e-1"], "HalfCheetah-v4")
    assert [str(each) for each in (metric, entry, own)] == ["hind_leg<=0.25", "x_velocity>=7.5", "effort<=0.1"]
    steps: Any = SimpleNamespace(
        transitions=Transitions(
            np.zeros((2, 3, 17)), np.full((2, 3, 6), 2.0), np.full((2, 3, 17), -3.0), {"x_velocity": np.ones((2, 3))}
        ),
        per_decision=lambda values, mean: values,  # each step is a decision
    )
    assert [each.values(steps, 17).tolist()[0][0] for each in (metric, entry, own)] == [3.0, 1.0, 4.0]
    assert [each.excess(1.0) for each in (metric, entry)] == [0.75, 6.5]
    [weighed] = parse_limits(f"{EFFORT}=10<=3")
    assert weighed.values(steps, 17).tolist()[0][0] == 40.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"limits": "effort"}, "limit 'effort' is not of the form NAME<=NUMBER or NAME>=NUMBER"),
        ({"limits": [np.mean]}, "limit <function mean .*> is not of the form NAME<=NUMBER or NAME>=NUMBER"),
        ({"limits": np.mean}, "limit <function mean .*> is not of the form NAME<=NUMBER or NAME>=NUMBER"),
        ({"limits": "power<=1"}, "'power', .* in the environment's info; there is distance"),
        ({"limits": "action_rate=10<=1"}, "is on the add-on's mean squared change, in which no weight counts"),
        ({"limits": ["distance<=1", "distance>=2"]}, "limits distance<=1 and distance>=2 contradict each other"),
        ({"limits": ["distance<=1", "distance<=2"]}, "limits distance<=1 and distance<=2 name the same side twice"),
        ({"limits": ["a.py:f<=1", "b.py:f<=1"]}, "limits on a.py:f and b.py:f would both be called f<=1: rename"),
        ({"keep": 0.9, "env": "WithoutReward"}, "--keep needs the environment's own reward, and .* does not tell it"),
        ({"keep": 0.9, "objective": greedy(0.1)}, "keep moves omega, from a value above 0 on"),
        ({"keep": 1.2}, "keep is 1.2; it must lie between 0.01 and 1"),
        ({"keep": 0.9, "kl_budget": 1.0}, "kl_budget and keep are two ways to find omega: choose one"),
        ({"limits": "distance<=1", "objective": residual((0.1, 1.0), 0.1)}, "a budget or limit moves one"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_is_refused_in_one_sentence(
    prior: Path, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    given = {"env": "LinearQuadratic", "objective": residual(0.2, 0.1), "limits": ()} | change
    env, objective, held = tiny(given.pop("env")), given.pop("objective"), given.pop("limits")
    with pytest.raises(UsageError, match=sentence):
        customize(prior, WISH, objective, tmp_path / "run", FEW.as_dict() | given, env=env, limits=held)
    assert not (tmp_path / "run").exists()


def test_a_limit_and_a_share_that_are_broken_at_the_end_are_told() -> None:
    held = Multipliers(Request("CartPole-v1", residual(0.2, 0.1), Settings(), limits=("power<=0.3",)))
    held.limits["power<=0.3"].unit = 0.03
    [said] = held.warnings({"limit_power<=0.3": [0.1] * 20 + [0.6] * 20})
    assert said.startswith("limit power<=0.3 is broken: the last 20 iterations have 0.6, the best 20 0.1; more --steps")
    assert not held.warnings({"limit_power<=0.3": [0.2, 0.42] * 10})  # broken by 0.01 ± 0.025
    kept = multipliers(keep=0.9)
    [said] = kept.warnings({"kept": [0.95] * 20 + [0.8, 0.82] * 10})
    assert said.startswith("keep 0.9 is broken: the last 20 iterations have 0.81, the best 20 0.95; more --steps")
    assert not kept.warnings({"kept": [0.87, 0.9] * 10})  # off by less than a quarter of what may be lost


def test_a_limit_whose_weight_stood_still_for_want_of_a_critic_is_told_with_the_reason() -> None:
    """A reward that is nearly the same in every step hides from the critic what differs."""
    held = Multipliers(Request("CartPole-v1", residual(0.2, 0.1), Settings(), limits=("power<=0.3",)))
    held.limits["power<=0.3"].unit = 0.03
    broken = {"limit_power<=0.3": [0.6] * 40}
    for stood, count in ((10, 1), (11, 2)):
        said = held.warnings(broken | {"explained_variance": [-0.5] * stood + [-0.4] * (39 - stood) + [None]})
        assert len(said) == count
    assert said[1].startswith("in 11 of 40 iterations no weight moved, since the critic could not follow the reward")
    assert not held.warnings({"limit_power<=0.3": [0.2] * 40, "explained_variance": [-9.0] * 40})
