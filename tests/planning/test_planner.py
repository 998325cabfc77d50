"""A planner as an agent, in a linear world and on MuJoCo, and what fits between two of its decisions."""

import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from known_optimum import WISH_CONTROL_COST, WISH_STATE_COST, as_policy, wish
from linear_world import OMEGA, PRIOR, LinearModel, planner
from tiny_envs import CONTROL, DYNAMICS, constant, tiny
from typed_commands import failed

import repolicy
from repolicy.addons.addon import Addon, AddonTerm
from repolicy.envs import Collector, make_envs, make_one_env
from repolicy.errors import UsageError
from repolicy.evaluation import evaluate
from repolicy.planning import asking
from repolicy.planning.asking import MOST, fit_to_time
from repolicy.planning.planner import Search
from repolicy.planning.scoring import Score
from repolicy.planning.simulators import CannotBatchError, MujocoModel
from repolicy.planning.value import AHEAD, discounted_sums, fitted_value, may_end, rollouts_in
from repolicy.policies.policy import Policy, RecurrentActor

ROBOTS = Path(__file__).with_name("changed_robots.py")
SMALL = Search(samples=4, horizon=3)


@pytest.fixture(scope="module")
def cheetah():
    return repolicy.plan("halfcheetah", "hind_leg=10", omega=0.1, states=0.0, search=SMALL)


@pytest.mark.parametrize("env", ["HalfCheetah-v4", "Hopper-v4", "Ant-v4", "Walker2d-v5", "Swimmer-v4"])
def test_the_model_goes_where_its_environment_goes(env):
    with warnings.catch_warnings(action="ignore"):
        model, made = MujocoModel(env), gymnasium.make(env)
    made.action_space.seed(1)
    observation, _ = made.reset(seed=1)
    for _ in range(10):
        action = made.action_space.sample()
        found = model.step(model.states(observation[None].astype(np.float32)), action[None])
        observation, _, terminated, _, info = made.step(action)
        inside = np.abs(observation) < 9.9  # what is cut to ±10 cannot be known
        assert found.observations[0][inside] == pytest.approx(observation[inside], abs=0.02)
        assert bool(found.ended[0]) == terminated
        for key in model.info_keys:
            assert found.info[key][0] == pytest.approx(info[key], abs=0.1)
        if terminated or not inside.all():
            break


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("CartPole-v1", "none of Gymnasium's MuJoCo"),
        ("Reacher-v4", "neither coordinates nor velocities"),
        ("InvertedPendulum-v4", "does not say when its episodes end"),
        ("changed_robots.py:wrapped", "wrapped in Weak, which"),
        ("changed_robots.py:WeakHopper", "goes elsewhere"),
        ("changed_robots.py:DeadHopper", "goes elsewhere"),
        ("changed_robots.py:StoppingHopper", "ends elsewhere"),
    ],
)
def test_what_cannot_be_simulated_is_refused(env, why):
    with pytest.raises(CannotBatchError, match=why):
        MujocoModel(env.replace("changed_robots.py", str(ROBOTS)))


@pytest.mark.parametrize("env", ["Hopper-v5?terminate_when_unhealthy=false", f"{ROBOTS}:paid"])
def test_what_changes_no_physics_is_simulated_in_batches(env):
    MujocoModel(env)


def test_a_weak_robot_is_planned_for_in_copies_that_are_weak():
    made = repolicy.plan("halfcheetah", "hind_leg=10", env=f"{ROBOTS}:wrapped", omega=0.1, states=0.0, search=SMALL)
    assert "wrapped in Weak" in made.notes[-1]
    env = make_one_env(made.env)
    seen, _ = env.reset(seed=0)
    made.watch(env)
    action = np.ones((1, 6), np.float32)
    after = made.model.step(made.model.states(seen[None]), action)
    assert np.array_equal(after.observations[0], env.step(action[0])[0].astype(np.float32))


def test_evaluate_takes_it_and_the_same_seed_gives_the_same_episode(cheetah):
    first, second = (evaluate(cheetah, "HalfCheetah-v4", 2, addon="hind_leg=10", longest=25) for _ in range(2))
    assert np.array_equal(first.total, second.total)


@pytest.mark.parametrize("family", ["gaussian", "squashed"])
def test_a_wish_of_nothing_leaves_the_prior_s_actions(family):
    """The best candidate is the prior's own plan, and the coldest plan is the best candidate."""
    made = repolicy.plan(
        "halfcheetah", constant, omega=0.1, states=0.0, search=replace(SMALL, temperature=1e-9, warm=False)
    )
    prior = Policy(replace(made.prior.spec, family=family, clips=family == "gaussian"))
    prior.load_state_dict(made.prior.state_dict())
    prior.log_std.data.zero_()  # so wide that samples saturate a tanh
    made = replace(made, prior=prior)
    observations = np.random.default_rng(0).normal(0, 0.1, (3, 17)).astype(np.float32)
    assert np.allclose(made.act(observations), made.prior.predict(observations)[0])
    assert made.tally.kept == made.tally.decisions == 3


@pytest.mark.parametrize(
    "read",
    [
        lambda info: info["reward_ctrl"],
        lambda info: info.get("reward_ctrl", np.zeros(12)),
        lambda info: info["reward_ctrl"] if "reward_ctrl" in info else np.zeros(12),
    ],
)
def test_a_wish_of_info_that_the_model_does_not_rebuild_is_one_sentence(read):
    def cheap(observations, actions, next_observations, info):
        return read(info)

    planner = repolicy.plan("halfcheetah", cheap, omega=0.1, states=0.0, search=SMALL)
    with pytest.raises(UsageError, match="'reward_ctrl'.*x_velocity.*a planner's model rebuilds no other entries"):
        planner.act(np.zeros(17, np.float32))


def test_it_is_scored_as_it_acts():
    made = planner(samples=50)
    observations = np.array([[0.5], [-1.0]], np.float32)
    acting = made.actor(1, 2, torch.Generator().manual_seed(0))
    taken = torch.from_numpy(acting(observations))
    mean = torch.from_numpy(made.actor(1, 2)(observations))
    normal = torch.distributions.Normal(mean, float(PRIOR.covariance) ** 0.5)
    assert torch.allclose(acting.log_probs(taken[None])[0], normal.log_prob(taken)[:, 0], atol=1e-5)


def test_a_squashed_prior_s_plan_has_a_density_of_squashed_actions():
    """So the KL from a prior is 0 where the plan is the prior's."""
    plain = planner(samples=2)
    prior = Policy(replace(plain.prior.spec, family="squashed"))
    prior.load_state_dict(plain.prior.state_dict())
    made = replace(plain, prior=prior, search=replace(plain.search, noise=1e-6))
    observations = np.array([[0.5], [-1.0]], np.float32)
    acting = made.actor(1, 2, torch.Generator().manual_seed(0))
    taken = torch.from_numpy(acting(observations))
    own = prior.log_prob(torch.from_numpy(observations), taken)
    assert torch.allclose(acting.log_probs(taken[None])[0], own, atol=1e-3)


def test_an_episode_begins_with_a_fresh_plan_and_others_go_on():
    acting = planner(samples=20).actor(1, 2)
    acting(np.ones((2, 1), np.float32))
    kept = acting.plans[1].copy()
    acting.reset_memory(np.array([True, False]))
    assert not acting.plans[0].any()
    assert np.array_equal(acting.plans[1], kept)
    assert kept.any()


def test_the_plan_goes_on_where_it_was():
    """A warm plan is the plan of the step before, one step later."""
    made = planner(samples=20)
    acting = made.actor(1, 1)
    acting(np.ones((1, 1), np.float32))
    draws = np.random.default_rng(made.search.seed).standard_normal((1, 20, 3, 1))
    plans = made.candidates(np.ones((1, 1), np.float32), np.zeros((1, 3, 1)), draws).plans
    assert acting.plans == pytest.approx(np.concatenate([plans[:, 1:], np.zeros((1, 1, 1))], 1))


def test_act_keeps_its_plan_until_an_episode_begins():
    """To the bit as an actor does that is kept by hand."""
    made = planner(samples=20)
    by_hand, alone, states = made.actor(1, 2), made.actor(1, 1), np.array([[[1.0], [2.0]], [[0.5], [-1.0]]], np.float32)
    for seen in states:
        assert np.array_equal(made.act(seen), made.to_environment(by_hand(seen)))
        assert np.array_equal(made.act(seen[1]), made.to_environment(alone(seen[1:]))[0])
    for begins in (np.array([True, False]), True, False):
        by_hand.reset_memory(np.full(2, begins))
        assert np.array_equal(made.act(states[0], begins), made.to_environment(by_hand(states[0])))
    made.watch(None)
    assert np.array_equal(made.act(states[0]), made.to_environment(made.actor(1, 2)(states[0])))


def test_a_plan_outlasts_a_rollout_and_ends_with_its_episode(cheetah):
    """A collector's rollouts are short, and it carries on only the memory of actors that it knows to have one."""
    assert isinstance(cheetah.actor(1, 1), RecurrentActor)
    by_block = []
    for steps in (4, 12):
        with closing(make_envs("HalfCheetah-v4", 1, 0)) as envs:
            collector = Collector(envs, steps, torch.Generator().manual_seed(0))
            taken = [collector.collect(cheetah, deterministic=True).actions for _ in range(12 // steps)]
        by_block.append(torch.cat(taken))
    torch.testing.assert_close(*by_block, rtol=0, atol=0)


def test_a_decision_is_its_own_whatever_the_other_robots_do():
    draws = np.random.default_rng(0).standard_normal((1, 200, 3, 1)).repeat(2, 0)
    made = planner(samples=200, model=LinearModel(edge=0.45))
    near, plans = np.array([[1.0], [1.0]], np.float32), np.zeros((2, 3, 1))
    beside_a_far_one = np.array([[1.0], [40.0]], np.float32)
    alone, together = (made.candidates(seen, plans, draws).scores[0] for seen in (near, beside_a_far_one))
    assert together == pytest.approx(alone)


def test_where_the_priors_episodes_all_end_by_themselves_an_end_may_be_the_goal():
    terminated, truncated = np.zeros((2, 6, 4), bool)
    terminated[2, 0] = terminated[3, 1] = truncated[4, 2] = True
    assert not may_end([SimpleNamespace(terminated=terminated, truncated=truncated)]), "the last one goes on"
    terminated[4, :] = True
    assert may_end([SimpleNamespace(terminated=terminated, truncated=~terminated & False)])
    draws, x = np.random.default_rng(0).standard_normal((1, 200, 3, 1)), np.array([[1.0]], np.float32)
    made = planner(samples=200, model=LinearModel(edge=0.45))
    goal = replace(made, score=replace(made.score, may_end=True, value=lambda seen: np.full(len(seen), -1e3)))
    scores = goal.candidates(x, np.zeros((1, 3, 1)), draws).scores[0]
    free = planner(samples=200).candidates(x, np.zeros((1, 3, 1)), draws).scores[0]
    ends = ~np.isclose(made.candidates(x, np.zeros((1, 3, 1)), draws).scores[0], free)
    assert scores[ends].min() > -10.0 > scores[~ends].max()


def test_an_end_is_no_way_out_and_what_breaks_is_left_out():
    """Every candidate that leaves the world scores less than every one that stays."""
    draws = np.random.default_rng(0).standard_normal((1, 200, 3, 1))
    x, plans = np.array([[1.0]], np.float32), np.zeros((1, 3, 1))
    free = planner(samples=200).candidates(x, plans, draws)
    edge = planner(samples=200, model=LinearModel(edge=0.45)).candidates(x, plans, draws)
    stays = np.isclose(free.scores, edge.scores)[0]
    assert 0 < stays.sum() < 200
    assert edge.scores[0, ~stays].max() < edge.scores[0, stays].min()
    bleak = planner(samples=200, model=LinearModel(edge=0.45))  # where going on is worth less than nothing
    bleak = replace(bleak, score=replace(bleak.score, value=lambda seen: np.full(len(seen), -1e3)))
    scores = bleak.candidates(x, plans, draws).scores[0]
    assert scores[~stays].max() < scores[stays].min()
    dear = AddonTerm("dear", lambda observations, *_: np.full(len(observations), -100.0))  # and so is each step
    bleak = replace(bleak, score=replace(bleak.score, addon=Addon((dear,)), value=None))
    scores = bleak.candidates(x, plans, draws).scores[0]
    assert scores[~stays].max() < scores[stays].min()
    broken = planner(samples=200, model=LinearModel(edge=0.45, broken=0.45)).candidates(x, plans, draws)
    assert np.array_equal(np.isneginf(broken.scores[0]), ~stays)
    assert not broken.weights[0, ~stays].any()


def test_an_episode_of_one_step_is_planned_by_what_this_step_earns():
    draws = np.random.default_rng(0).standard_normal((1, 50, 1, 1))
    x, plans = np.array([[1.0]], np.float32), np.zeros((1, 1, 1))
    made = [planner(samples=50, horizon=1, model=LinearModel(edge=edge)) for edge in (np.inf, -1.0)]
    free, ended = (replace(each, score=replace(each.score, value=None)).candidates(x, plans, draws) for each in made)
    assert ended.weights == pytest.approx(free.weights)
    assert ended.scores == pytest.approx(free.scores - made[1].score.end_cost)
    assert made[1].score.end_cost > free.scores.std() > 0.1


def test_what_is_to_come_is_known_as_far_from_a_cut_as_may_be():
    rewards, none = np.ones((AHEAD + 4, 2)), np.zeros((AHEAD + 4, 2), bool)
    ages = np.arange(AHEAD + 4)[:, None] + [1, 1]
    terminated, truncated = none.copy(), none.copy()
    terminated[3, 1], ages[4:, 1] = True, ages[:-4, 1]
    sums, known = discounted_sums(rewards, terminated, none, ages, 0.5)
    assert sums[:5, 1] == pytest.approx([1.875, 1.75, 1.5, 1.0, 2.0])
    assert known[:5].all()  # of both, by the end of the steps
    assert not known[5:].any()
    truncated[AHEAD + 1, 0] = True
    _, known = discounted_sums(rewards, terminated, truncated, ages, 0.5)
    assert np.argwhere(known).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [4, 1]]
    rewards, none = np.ones((400, 2)), np.zeros((400, 2), bool)
    sums, known = discounted_sums(rewards, none, none, np.arange(400)[:, None] + [1, 1], 0.99)
    assert sums[known].min() == pytest.approx(100.0, rel=0.05), "however far ahead a discount looks"


def test_a_value_of_episodes_that_are_cut_too_soon_is_refused(monkeypatch):
    monkeypatch.setattr("repolicy.planning.value.BLOCKS", 2)
    prior, score = as_policy(PRIOR), Score(Addon((AddonTerm("wish", wish),)), OMEGA, 0.0, 0.9, None, None)
    rollouts = rollouts_in(prior, tiny("LinearQuadratic"), 0)
    for discount, why in ((0.9, "cut before 100 steps"), (0.99, "before 299 steps"), (1.0, "name a smaller one")):
        with pytest.raises(UsageError, match=why):  # after 8
            fitted_value(prior, rollouts, replace(score, discount=discount))


@pytest.mark.parametrize(
    ("search", "why"),
    [
        ({"samples": 1}, "2 or more"),
        ({"horizon": -1}, "1 or more"),
        ({"discount": 0.0}, "above 0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"noise": float("nan")}, "noise is nan; it must be above 0"),
        ({"share": 5.0}, "share is 5.0; it must be above 0 and at most 1"),
        ({"knots": -1}, "knots is -1; it must be 0 or more"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_search_that_cannot_be_is_refused(search, why):
    with pytest.raises(UsageError, match=why):
        Search(**search)


def test_a_fitted_value_is_what_the_prior_s_own_actions_bring(monkeypatch):
    """The wish of linear–quadratic control is a quadratic of the state; log prior beside its mode is a number alone."""
    monkeypatch.setattr("repolicy.planning.value.AHEAD", 4)  # of eight steps
    monkeypatch.setattr("repolicy.planning.value.BLOCKS", 4)
    monkeypatch.setattr("repolicy.planning.value.NETWORKS", 2)

    discount, gain = 0.2, float(PRIOR.gain)
    score = Score(Addon((AddonTerm("wish", wish),)), OMEGA, 0.0, discount, None, None)
    prior = as_policy(PRIOR)
    found = fitted_value(prior, rollouts_in(prior, tiny("LinearQuadratic"), 0), score)
    curve = (WISH_STATE_COST + WISH_CONTROL_COST * gain**2) / (1.0 - discount * (DYNAMICS - CONTROL * gain) ** 2)
    low, middle, high = found(np.array([[-1.0], [0.0], [1.0]], np.float32))
    assert middle - low == pytest.approx(curve, rel=0.1)
    assert middle - high == pytest.approx(curve, rel=0.1)


STEP = 1e-4  # seconds that the clock counts for a simulated step


class SlowModel(LinearModel):
    now = 0.0

    def step(self, states, actions):
        self.now += STEP * len(states)
        return super().step(states, actions)


@pytest.mark.parametrize(
    ("steps", "samples", "horizon"), [(800, 100, 8), (64, 8, 8), (63, 15, 4), (8, 8, 1), (100_000, MOST, 8)]
)
def test_what_fits_is_taken_and_the_horizon_is_halved_where_nothing_does(steps, samples, horizon, monkeypatch):
    model = SlowModel()
    monkeypatch.setattr(asking, "perf_counter", lambda: model.now)
    found = fit_to_time(planner(horizon=8, model=model), np.ones((1, 1), np.float32), (steps + 0.5) * STEP)
    assert (found.search.samples, found.search.horizon) == (samples, horizon)
    assert found.tally.decisions == 0  # those that only were timed are none of its own


def test_a_pace_that_cannot_be_is_one_sentence(tmp_path, capsys, monkeypatch):
    model = SlowModel()
    monkeypatch.setattr(asking, "perf_counter", lambda: model.now)
    with pytest.raises(UsageError, match="8 samples of one step"):
        fit_to_time(planner(horizon=8, model=model), np.ones((1, 1), np.float32), 7.5 * STEP)
    words = ["plan", "halfcheetah", "--addon", "hind_leg=10", "--omega", "0.1", "--states", "0", "--out", str(tmp_path)]
    assert "it must be above 0" in failed(capsys, *words, "--hz", "-1")
