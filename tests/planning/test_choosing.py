"""What the prior weighs in a plan, found by trial; and a planner that is kept as a policy."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import torch
from known_optimum import as_policy, gain_and_std, optimum
from linear_world import OMEGA, augmented, planner
from tiny_envs import CONTROL, DYNAMICS, Endless, constant, tiny
from typed_commands import refused, with_few_states

import repolicy
from repolicy.addons.addon import Addon, AddonTerm, combine_addons
from repolicy.cli.main import main
from repolicy.envs.making import make_envs
from repolicy.errors import RepolicyError, UsageError
from repolicy.evaluation import evaluate
from repolicy.planning import asking, keeping
from repolicy.planning.asking import CANDIDATES, SEED, best_of_trials, candidates, mean_reward, plan
from repolicy.planning.keeping import Labeler, distill
from repolicy.planning.planner import Planner, Search
from repolicy.planning.scoring import Score
from repolicy.planning.simulators import CopyModel
from repolicy.planning.value import rewards_of, rollouts_in
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy

CHEETAH = "HalfCheetah-v4"
JUDGE = Score(combine_addons(["hind_leg=10"]), 0.5, 0.0, 0.97, None, None)


@pytest.fixture(scope="module")
def prior():
    return read_policy(find_policy("halfcheetah")).policy


class FromFive(gymnasium.Env):
    """Two choices, which the environment counts from 5; it pays the second."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), 0.0, False, False, {"paid": float(action == 6)}


def paid(observations, actions, next_observations, info):
    return info["paid"]


def test_a_choice_is_the_environments_own_and_what_a_copy_raises_is_one_sentence(monkeypatch):
    """A choice is as `predict` returns it, so that a loop of one's own can step with it."""
    policy = Policy(PolicySpec(1, ActionSpace("discrete", (2,), (5.0,)), "categorical", hidden=()))
    score = Score(Addon((AddonTerm("paid", paid),)), 0.0, 0.0, 0.9, None, None)
    search = Search(samples=30, horizon=2, temperature=0.1)
    made, env = Planner(policy, CopyModel(f"{__name__}:FromFive"), score, search), FromFive()
    seen, _ = env.reset(seed=0)
    made.watch(env)
    chosen = made.act(seen)
    assert (chosen, chosen.dtype, np.ndim(chosen)) == (6, np.int64, 0)
    env.step(chosen)
    monkeypatch.setattr(FromFive, "step", lambda self, action: [][0])
    with pytest.raises(RepolicyError, match="environment .*FromFive' failed: IndexError"):
        made.act(seen)


def test_how_long_a_step_lasts_is_not_made_up():
    assert CopyModel("CartPole-v1").seconds == pytest.approx(0.02)
    assert CopyModel(f"{__name__}:FromFive").seconds == 0.0


def test_environments_that_were_closed_are_planned_in_no_more():
    score = Score(Addon((AddonTerm("constant", constant),)), 0.1, 0.0, 0.9, None, None)
    made = Planner(
        Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-2.0,), (2.0,)))),
        CopyModel("Pendulum-v1"), score, Search(samples=4, horizon=2),
    )  # fmt: skip
    evaluate(made, "Pendulum-v1", 1, addon=constant, longest=3)
    with pytest.raises(UsageError, match=r"call its watch\(env\) first"):
        made.act(np.zeros(3))


def test_the_judge_pays_the_wish_less_the_nats_of_strange_actions(prior, monkeypatch):
    """One std beside the mode in each of six numbers costs half a nat each. First steps count where all are first."""
    monkeypatch.setattr(asking, "STEPS", 10)
    stray = frozen(prior)
    stray.network.biases[-1].data[:6] += prior.std
    four, ten = (
        evaluate(stray, CHEETAH, 4, addon="hind_leg=10", longest=steps, seed=SEED).addon.mean() for steps in (4, 10)
    )
    for skipped, wish in ((4, (ten - four) / 6), (10, ten / 10)):
        monkeypatch.setattr(asking, "SKIPPED_STEPS", skipped)
        assert mean_reward(stray, prior, CHEETAH, JUDGE) == pytest.approx(wish - 0.5 * 6 * 0.5, rel=1e-4)


def test_the_judge_asks_for_the_same_nats_of_a_squashed_prior(prior):
    """They are nats before tanh, in which a plan's noise is drawn, too."""
    squashed = Policy(replace(prior.spec, family="squashed", clips=False))
    squashed.load_state_dict(prior.state_dict())
    rollout = rollouts_in(squashed, CHEETAH, 0)[0]
    plain, after_tanh = (rewards_of(each, rollout, JUDGE) for each in (prior, squashed))
    assert after_tanh == pytest.approx(plain, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("best", range(len(CANDIDATES)))
def test_the_best_paid_candidate_is_taken(best, prior, monkeypatch):
    omega, states, has_value = CANDIDATES[best]
    seen = []

    def payment(planner, _, __, judge):
        assert (judge.omega, judge.states) == (0.25, 0.1)
        seen.append(planner.score)
        assert planner.search.horizon == (4 if planner.score.value else 8)
        return float(len(seen) == best + 1)

    monkeypatch.setattr(asking, "mean_reward", payment)
    monkeypatch.setattr(asking, "fitted_value", lambda *_: lambda observations: observations[:, 0])
    falls = [SimpleNamespace(terminated=np.ones(1, bool))]
    score, told = best_of_trials(prior, CHEETAH, None, replace(JUDGE, states=0.2), Search(samples=64), falls, True)
    assert (score.omega, score.states) == pytest.approx((0.5 * omega, 0.2 * states))
    assert (score.value is not None) == has_value
    weights = f"omega is {score.omega:.3g} and states {score.states:.3g}"
    assert told.startswith(f"{weights}: of the weights tried, these earned most a step (omega 0.5, states 0.2: ")


def very_long():
    return gymnasium.wrappers.TimeLimit(Endless(), 4_000)


@pytest.mark.parametrize(("env", "envs", "steps"), [(tiny("Endless"), 64, 200), (f"{__file__}:very_long", 16, 800)])
def test_the_priors_last_states_are_seen_too_where_episodes_are_long(monkeypatch, env, envs, steps):
    """In as many steps in all."""
    monkeypatch.setattr("repolicy.planning.value.BLOCKS", 4)
    policy = Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=()))
    ages = np.concatenate([rollout.ages for rollout in rollouts_in(policy, env, 0)])
    assert ages.shape == (steps, envs)
    assert ages.max() == steps


def test_a_value_is_tried_where_episodes_of_the_prior_end_early_and_it_is_not_ruled_out(prior, monkeypatch):
    stands, falls = ([SimpleNamespace(terminated=np.array([False, ends]))] for ends in (False, True))
    monkeypatch.setattr(asking, "fitted_value", lambda *_: len)
    assert [len(candidates(prior, rollouts, JUDGE, 0)) for rollouts in (stands, falls)] == [2, 3]
    monkeypatch.setattr(asking, "fitted_value", Mock(side_effect=UsageError("they are cut too soon")))
    assert len(candidates(prior, falls, JUDGE, 0)) == 2
    monkeypatch.setattr(asking, "fitted_value", lambda *_: pytest.fail("a value was fitted"))
    monkeypatch.setattr(asking, "mean_reward", lambda *_: 0.0)
    best_of_trials(prior, CHEETAH, None, JUDGE, Search(samples=64), falls, False)


@pytest.mark.parametrize("states", [0.0, 0.2])
def test_an_end_at_a_goal_is_free_with_and_without_a_price_on_states(states, monkeypatch, tmp_path):
    with_few_states(monkeypatch)
    policy = frozen(Policy(PolicySpec(1, ActionSpace("continuous", (1,)))))
    save_policy(tmp_path / "prior.safetensors", policy, {})
    made = plan(tmp_path / "prior.safetensors", tiny("constant"), env=tiny("Mortal"), omega=0.2, states=states)
    assert made.score.end_cost == 0.0
    made = replace(made, score=replace(made.score, states=0.0))  # as the live page's slider
    keeping.save_planner(made, tmp_path / "plan")
    again = keeping.open_planner(tmp_path / "plan", trust=True).agent
    assert again.score.may_end


@pytest.mark.parametrize("named", [{"omega": 0.2}, {"states": 0.2}, {"value": True}])
def test_nothing_is_tried_where_a_weight_is_named(named, monkeypatch):
    monkeypatch.setattr(asking, "best_of_trials", lambda *_: pytest.fail("it was tried"))
    monkeypatch.setattr(asking, "fitted_value", lambda *_: len)
    with_few_states(monkeypatch)

    asked = {"omega": None, "states": None} | named
    made = plan("halfcheetah", "hind_leg=10", **asked, search=Search(samples=4))
    assert made.score.omega == pytest.approx(named.get("omega", 0.348), abs=1e-3)
    assert made.search.horizon == (4 if "value" in named else 8)
    assert ("omega is" in made.notes[0], "states" in made.notes[0]) == ("omega" not in named, "states" not in named)


@pytest.mark.parametrize(("named", "missing"), [({}, "--omega and --states"), ({"states": 0.1}, "--omega")])
def test_only_the_weight_that_is_missing_is_asked_for(named, missing, monkeypatch):
    monkeypatch.setattr(asking.EnvWeightFinder, "weights", lambda _, option: (None, 0.0, option))
    with pytest.raises(UsageError, match=f"from its episodes: name {missing}, or see"):
        plan("halfcheetah", "hind_leg=10", **named)


def test_new_states_have_no_price_where_omega_is_named_and_a_nats_worth_is_unknown(monkeypatch):
    """As where one customizes with an omega."""
    monkeypatch.setattr(asking.EnvWeightFinder, "weights", lambda *_: (None, 0.0, ""))
    with_few_states(monkeypatch)
    made = plan("halfcheetah", "hind_leg=10", omega=0.1, search=Search(samples=4))
    assert (made.score.omega, made.score.states) == (0.1, 0.0)
    assert "new states have no price; --states names one" in made.notes[0]


FEW = ["--omega", "0.1", "--states", "0", "--samples", "4", "--horizon", "2", "--episodes", "1", "--steps", "20"]


def test_the_residual_optimum_is_kept(monkeypatch):
    """The planner's action is the optimum's on average, and the policy is fitted to it in states of its own."""
    monkeypatch.setattr(keeping, "MAX_EPOCHS", 5)
    made = planner(samples=400, horizon=1)
    made = replace(made, score=replace(made.score, omega=OMEGA - 0.1))  # the noise, too, draws to the prior
    before = [parameter.clone() for parameter in made.prior.state_dict().values()]
    kept = distill(made, tiny("LinearQuadratic"), 1000)
    assert gain_and_std(kept)[0] == pytest.approx(float(augmented(0.1).policy.gain), rel=0.03)
    assert kept.std == pytest.approx(made.prior.std)
    assert all(torch.equal(*pair) for pair in zip(before, made.prior.state_dict().values(), strict=True))


def test_who_acts_leads_the_way_and_the_planner_labels_it():
    made, student = planner(samples=50), as_policy(optimum(5.0, 0.1, 0.2))
    with closing(make_envs(tiny("LinearQuadratic"), 2, 0)) as envs:
        labeler = Labeler(made, envs)
        ways = {}
        for who in (student, None):
            labels = labeler.labels(4, who)
            seen, wanted = (each.reshape(4, 2).numpy() for each in (labels.observations, labels.actions))
            did = wanted if who is None else student(labels.observations).mode().detach().numpy().reshape(4, 2)
            assert seen[1:] == pytest.approx(DYNAMICS * seen[:-1] + CONTROL * did[:-1], abs=1e-5)
            ways[who] = np.abs(wanted - did).max()
    assert ways[None] < 0.1 < ways[student]


def test_its_file_is_a_policy_for_every_command(tmp_path, capsys):
    out = tmp_path / "kept.safetensors"
    main(["plan", "halfcheetah", "--addon", "hind_leg=10", *FEW, "--distil", "100", "--out", str(out)])
    assert "fitted to 128 decisions" in capsys.readouterr().err
    other = ["--addon", "hind_leg=5", *FEW, "--distil", "100", "--out", str(out)]
    assert "is there already, for hind_leg=10 in HalfCheetah-v4" in refused(capsys, 2, "plan", "halfcheetah", *other)
    saved = read_policy(out)
    assert saved.card["request"]["addons"] == ["hind_leg=10"]
    assert saved.card["labels"] == 128
    assert saved.prior is not None
    assert np.isfinite(repolicy.evaluate(out, episodes=1, longest=20).total).all()


def test_what_cannot_be_kept_is_refused_before_the_work(tmp_path, capsys):
    prior = tmp_path / "prior.safetensors"
    prior.write_bytes(find_policy("halfcheetah").read_bytes())
    for words, why in (
        (["--distil", "63"], "take 64 or more"),
        (["--distil", "64", "--out", str(prior)], "choose"),
        (["--distil", "64", "--out", "kept"], "does not end in .safetensors"),
    ):
        assert why in refused(capsys, 2, "plan", str(prior), "--addon", "hind_leg=10", *FEW, *words)
    assert read_policy(prior).card["which"] == "best"
