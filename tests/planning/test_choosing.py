"""What the prior weighs in a plan, found by trial: what the judge is paid, and whom it chooses."""

from dataclasses import replace

import pytest
from typed_commands import with_few_states

from repolicy.envs.addons import combined
from repolicy.envs.evaluation import evaluate
from repolicy.planning import asking
from repolicy.planning.asking import CANDIDATES, SEED, candidates, chosen, paid, planned
from repolicy.planning.planner import Search
from repolicy.planning.scoring import Score
from repolicy.planning.value import rollouts_in
from repolicy.policies.policy import frozen
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy

CHEETAH = "HalfCheetah-v4"
JUDGE = Score(combined(["hind_leg=10"]), 0.5, 0.0, 0.97, None, None)


@pytest.fixture(scope="module")
def prior():
    return read_policy(find_policy("halfcheetah")).policy


def test_the_judge_pays_the_wish_less_the_nats_of_strange_actions(prior, monkeypatch):
    """One std beside the mode in each of six numbers costs half a nat each."""
    monkeypatch.setattr(asking, "STEPS", 10)
    monkeypatch.setattr(asking, "SKIPPED", 0)
    stray = frozen(prior)
    stray.network.biases[-1].data[:6] += prior.std
    wish = evaluate(stray, CHEETAH, 4, addon="hind_leg=10", longest=10, seed=SEED).addon.mean() / 10
    assert paid(stray, prior, CHEETAH, JUDGE) == pytest.approx(wish - 0.5 * 6 * 0.5, rel=1e-4)


@pytest.mark.parametrize("best", range(len(CANDIDATES)))
def test_the_best_paid_candidate_is_taken(best, prior, monkeypatch):
    wanted = CANDIDATES[best]
    seen = []

    def payment(planner, _, __, judge):
        assert (judge.omega, judge.states) == (0.25, 0.1)
        seen.append(planner.score)
        assert planner.search.horizon == (4 if planner.score.value else 8)
        return float(len(seen) == best + 1)

    monkeypatch.setattr(asking, "paid", payment)
    monkeypatch.setattr(asking, "fitted_value", lambda *_, of_ends: lambda observations: observations[:, 0])
    score, told = chosen(prior, CHEETAH, None, replace(JUDGE, states=0.2), Search(samples=64), [])
    assert (score.omega, score.states) == pytest.approx((0.5 * wanted.omega, 0.2 * wanted.states))
    assert (score.value is not None) == wanted.value
    assert f"omega is {score.omega:.3g}" in told


def test_a_value_is_tried_where_episodes_of_the_prior_end_early(prior, monkeypatch):
    """A cheetah never falls, a hopper whose actions are sampled does."""
    monkeypatch.setattr("repolicy.planning.value.regression", lambda *_: lambda inputs: inputs)
    monkeypatch.setattr("repolicy.planning.value.BLOCKS", 4)
    hopper = read_policy(find_policy("hopper")).policy
    for policy, env, count in ((prior, CHEETAH, 2), (hopper, "Hopper-v4", 3)):
        judge = replace(JUDGE, addon=combined(["action_rate"]))
        assert len(list(candidates(policy, rollouts_in(policy, env, 0), judge, 0))) == count


@pytest.mark.parametrize("named", [{"omega": 0.2}, {"states": 0.2}, {"value": True}])
def test_nothing_is_tried_where_a_weight_is_named(named, monkeypatch):
    monkeypatch.setattr("repolicy.planning.asking.chosen", lambda *_: pytest.fail("it was tried"))
    with_few_states(monkeypatch)
    monkeypatch.setattr("repolicy.planning.asking.fitted_value", lambda *_: len)
    asked = {"omega": None, "states": None, "value": False} | named
    made = planned("halfcheetah", "hind_leg=10", None, **asked, search=Search(samples=4))
    assert made.planner.score.omega == pytest.approx(named.get("omega", 0.348), abs=1e-3)
    assert made.planner.search.horizon == (4 if "value" in named else 8)
