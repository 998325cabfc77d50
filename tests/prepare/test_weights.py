"""The weights that are usual where nobody names them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from noise_worlds import HERE as WORLDS
from tiny_envs import LinearQuadratic, tiny
from worth_known import ALPHA, CALM, LONG, RARELY, optimum

from repolicy.envs.rollout import Episodes
from repolicy.errors import NumericError, UsageError
from repolicy.learning.multipliers import MAX_VIOLATION
from repolicy.objective import Objective, end_entropy, full, greedy, kl, no_entropy, residual, soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import SavedPolicy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare import weights
from repolicy.prepare.decision import decide
from repolicy.prepare.generative import noise_prior
from repolicy.prepare.weights import (
    ALPHA_PER_REWARD,
    ALPHA_WITHOUT_REWARD,
    ALPHAS,
    DEFAULT_KL_BUDGET,
    FIRST_OF_BUDGET,
    NoiseWeightFinder,
    default_kl_budget,
)
from repolicy.ranges import Range
from repolicy.runs.settings import Settings

FEW = Settings(envs=4, n_steps=4, minibatch=8, ranks=1, hidden=(4,))
ENV = tiny("LinearQuadratic")
HERE = f"{Path(__file__)}:"


def either_way(observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Any) -> np.ndarray:
    """A reward of 1 or −1, so that its size is 1 whatever happens."""
    return np.where(actions[:, 0] > 0, 1.0, -1.0)


class Indifferent(LinearQuadratic):
    """Whatever is done, it pays the same."""

    def reward(self, reward: float) -> float:
        return 1.0


def prior(**card: Any) -> SavedPolicy:
    return SavedPolicy(Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(4,))), None, card)


WORTH = {"value": 0.25, "error": 0.01, "episodes": 32}


def told(alpha: float) -> dict[str, Any]:
    return {"objective": {"alpha": alpha}}


def test_training_takes_alpha_from_a_row_whatever_the_version_and_options() -> None:
    for name, alpha in ALPHAS.items():
        found = decide(soft(), None, f"{name}-v5?reset_noise_scale=0.3", (), FEW)
        assert found.objective == soft(alpha)
        assert found.notes == [f"alpha is {alpha:g}, the usual one for {name}; --alpha sets another"]


def test_what_is_named_is_taken_without_a_word() -> None:
    assert decide(soft(alpha=0.3), None, "Hopper-v4", (), FEW) == (soft(0.3), FEW, [], 0)
    assert decide(no_entropy(), None, "Hopper-v4", (), FEW) == (no_entropy(), FEW, [], 0)
    assert decide(residual(0.3, 0.2, 0.1), prior(), ENV, (), FEW) == (residual(0.3, 0.2, 0.1), FEW, [], 0)


def test_alpha_is_scaled_from_the_reward() -> None:
    """CartPole pays 1 a step, for one choice; with a wish of 3 or −3 it pays 4 or −2."""
    found = decide(soft(), None, "CartPole-v1", (), FEW)
    assert found.objective == soft(ALPHA_PER_REWARD)
    assert found.notes == ["alpha is 0.01, scaled from the reward in trial steps (1 a step); --alpha sets another"]
    both = decide(full(), None, "CartPole-v1", (f"{HERE}either_way=3",), FEW).objective
    assert both.alpha == pytest.approx(ALPHA_PER_REWARD * np.sqrt(10), rel=0.05)
    assert both == full(both.alpha)
    shared = weights._alpha_for_rewards(np.array([3.0, -3.0]), 6, "reward")  # over the numbers of an action
    assert shared == (pytest.approx(3 * ALPHA_PER_REWARD / 6), "scaled from the reward (3 a step)")
    for env in ("CartPole-v1", tiny("WithoutReward")):  # who learns from a wish alone reads no other reward
        alone = decide(greedy(), None, env, (f"{HERE}either_way=3",), FEW).objective
        assert alone.alpha == pytest.approx(3 * ALPHA_PER_REWARD)


def test_a_bonus_alone_is_beside_standardized_advantages_whatever_the_reward() -> None:
    found = decide(end_entropy(), None, tiny("WithoutReward"), (), FEW)
    assert found.objective == end_entropy(ALPHA_PER_REWARD)
    assert found.notes == ["alpha is 0.01, for a loss with standardized advantages; --alpha sets another"]
    env, plain = tiny("LinearQuadratic"), replace(FEW, normalize_advantages=False)
    usual = decide(soft(), None, env, (), FEW).objective.alpha
    assert decide(end_entropy(), None, env, (), plain).objective == end_entropy(usual)
    assert usual != ALPHA_PER_REWARD


class Unpaid(weights.WeightFinder):
    """Finds weights beside a wish that pays nothing in trial steps."""

    wish = "the wish"

    def measure_worths(self) -> weights.Worths:
        return weights.Worths(None, None, 1.0)

    def addon_rewards(self) -> np.ndarray:
        return np.zeros((4, 2))


@pytest.mark.parametrize(("max_worth", "alpha"), [(3e-5, 3e-5), (40.0, 40.0), (0.0, ALPHA_WITHOUT_REWARD)])
def test_a_wish_without_reward_in_trial_steps_has_the_unit_of_a_nats_worth(max_worth: float, alpha: float) -> None:
    found, _ = Unpaid({}, prior().policy, FEW, print).alpha("auto", max_worth)
    assert found == pytest.approx(alpha)


def test_a_reward_that_trial_steps_do_not_see() -> None:
    wish = decide(greedy(), prior(), ENV, (tiny("constant"),), FEW)
    assert wish.objective == greedy(ALPHA_WITHOUT_REWARD)
    assert "was 0 throughout and so has no unit to go by; --alpha sets another" in wish.notes[0]
    with pytest.raises(NumericError, match="reward in trial steps is not a finite number"):
        decide(soft(), None, tiny("WithoutReward"), (), FEW)


def test_customizing_takes_the_priors_alpha_then_omega_then_the_wish() -> None:
    wish = (f"{HERE}either_way=5",)
    assert decide(kl(), prior(request=told(0.7)), ENV, wish, FEW) == (kl(0.7), FEW, [], 0)
    found = decide(residual(0.4), prior(), ENV, wish, FEW)
    assert found.objective == residual(0.4, 0.13)
    assert "alpha is 0.13, a third of omega" in found.notes[0]
    for omega in (0.0, None):  # an omega of 0 is no measure of anything
        found = decide(residual(0.0) if omega == 0.0 else kl(), prior(), ENV, wish, FEW)
        assert found.objective.alpha == 5 * ALPHA_PER_REWARD
        assert found.notes[-1].startswith("alpha is 0.05, scaled from the add-on's reward under the prior (5 a step)")


def test_customizing_takes_omega_from_the_worth_of_a_nat_or_else_holds_a_budget() -> None:
    found = decide(residual(), prior(request=told(0.7), nat_worth=WORTH), ENV, (), FEW)
    assert found.objective == residual(0.25, 0.7)
    assert "omega is 0.25, what a nat of the prior is worth" in found.notes[0]
    assert "and states 0, the price on states: the prior's episodes are not known to have 100 steps" in found.notes[0]
    known = prior(request=told(0.7), nat_worth=WORTH, evaluation={"evaluation_length": 1000.0})
    for states, expected in ((None, 0.25), (0.1, 0.1), (0.0, 0.0)):
        found = decide(residual(states=states), known, ENV, (), FEW)
        assert found.objective == residual(0.25, 0.7, expected)
    assert decide(residual(0.3), known, ENV, (), FEW).objective == residual(0.3, 0.7)
    for omega in (None, "auto"):  # a share to keep moves omega in either case, and leaves the price on states
        assert decide(residual(omega), known, ENV, (), replace(FEW, keep=0.9)).objective == residual(0.25, 0.7, 0.25)
    unknown = WORTH | {"error": 0.2}
    for asked, card in ((residual(), {"nat_worth": unknown}), (residual("auto"), {"nat_worth": WORTH})):
        held = decide(asked, prior(request=told(0.7), **card), f"{HERE}Indifferent", (), FEW)
        assert (held.objective, held.settings.kl_budget) == (kl(0.7), DEFAULT_KL_BUDGET)
        *why, held_by = held.notes
        assert f"drifts {DEFAULT_KL_BUDGET:g} nats a step" in held_by
        assert len(why) == (asked.omega is None)
        assert all("what a nat of the prior is worth cannot be told from these episodes" in each for each in why)


@pytest.mark.parametrize("asked", [residual(), residual("auto"), kl()])
def test_a_budget_begins_where_a_nat_costs_its_worth_once_that_is_spent(asked: Objective) -> None:
    """A budget's weights grow by e² until it is spent. A prior's own alpha may be far less than that needs."""
    assert math.log(FIRST_OF_BUDGET) == -MAX_VIOLATION
    small, held = prior(request=told(0.001), nat_worth=WORTH), replace(FEW, kl_budget=1.0)
    assert decide(asked, small, ENV, (), held).objective == kl(0.034)
    assert decide(asked, prior(request=told(0.7), nat_worth=WORTH), ENV, (), held).objective == kl(0.7)
    unknown = prior(request=told(0.001), nat_worth=WORTH | {"error": 0.2})
    assert decide(asked, unknown, ENV, (), held).objective == kl(0.001)
    of_log_prior = replace(FEW, log_prior_budget=1.0)
    assert decide(residual(), small, ENV, (), of_log_prior).objective.alpha == 0.001, "where alpha does not move"
    untold = decide(residual(), prior(nat_worth=WORTH), ENV, (f"{HERE}either_way=5",), of_log_prior)
    assert untold.notes[-1].startswith("alpha is ")
    for same in (kl(), residual(alpha="omega")):
        with pytest.raises(UsageError, match="moves omega alone, so --alpha omega and --objective kl do not go with"):
            decide(same, small, ENV, (), of_log_prior)


def test_a_range_of_omega_prices_states_at_what_a_nat_is_worth() -> None:
    """Else its low end stands still, as the paper's omega does with a heavy wish."""
    known = prior(request=told(0.7), nat_worth=WORTH, evaluation={"evaluation_length": 1000.0})
    for states, expected in ((None, 0.25), (0.1, 0.1), (0.0, 0.0)):
        found = decide(residual(Range(0.1, 3.0), states=states), known, ENV, (), FEW)
        assert found.objective == residual(Range(0.1, 3.0), 0.7, expected)
        assert [note.split(",")[0] for note in found.notes] == ["states is 0.25"] * (states is None)
    unknown = prior(request=told(0.7), nat_worth=WORTH | {"error": 0.2})
    found = decide(residual(Range(0.1, 3.0)), unknown, f"{HERE}Indifferent", (), FEW)
    assert found.objective == residual(Range(0.1, 3.0), 0.7, 0.0)
    assert [note.split(",")[1] for note in found.notes] == [" so new states have no price; --states names one"]


@pytest.mark.parametrize("card", [{}, {"nat_worth": {"value": 0.25, "error": 0.2, "episodes": 8}}])
def test_a_prior_that_tells_nothing_or_not_for_certain_is_measured(card: dict[str, Any]) -> None:
    """The optimum of an episode of 200 steps, without a wish: a nat is worth alpha, to two digits."""
    saved, said = SavedPolicy(optimum(), None, card), list[str]()
    found = decide(residual(), saved, LONG, (), FEW, said.append)
    omega = found.objective.omega
    assert omega == pytest.approx(ALPHA, rel=0.05)
    assert found.objective == residual(omega, float(f"{omega / 3:.2g}"), omega)
    assert len(said) == 1
    assert "measuring what a nat of the prior is worth" in said[0]
    assert f"omega is {omega:.3g}, what a nat of the prior is worth" in found.notes[0]
    said.clear()
    for named in (residual(0.3), residual("auto"), kl()):
        decide(named, saved, LONG, (f"{HERE}either_way",), FEW, said.append)
    assert said == []


def near(observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Any) -> np.ndarray:
    """Less than the environment pays, in which a nat is worth less, too."""
    return -0.1 * np.square(after[..., 0])


def far(observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Any) -> np.ndarray:
    return 100.0 * np.square(after[..., 0])


def distant(observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Any) -> np.ndarray:
    return -far(observations, actions, after, info)


def test_a_wish_of_ten_times_the_weight_counts_ten_times() -> None:
    """Omega does not move with it, whether it was measured in the wish or in the old reward."""
    saved = SavedPolicy(optimum(), None, {})
    for wish, sign, reward in (("near", "", "the environment's reward"), ("far", "-", "the wish '{}' at weight -1")):
        found = [
            decide(residual(), saved, LONG, (f"{HERE}{wish}={sign}{weight}",), FEW)
            for weight in ("1", "10" if sign else "0..10")
        ]
        assert len({each.objective.omega for each in found}) == 1
        assert f"what a nat of the prior is worth of {reward.format(wish)}, and states" in found[0].notes[0]
    both = decide(residual(), saved, LONG, (f"{HERE}far=-3", f"{HERE}near=5"), FEW)
    assert "of the wishes 'far' at weight -1 and 'near' at weight 1" in both.notes[0]
    assert both.objective.omega == pytest.approx(found[0].objective.omega, rel=0.05)


def test_half_of_a_wish_is_the_same_as_a_wish_of_half() -> None:
    """A weight below 1 is a change of units: omega is half of what it is at 1, and of a range the upper end counts."""
    saved = SavedPolicy(optimum(), None, {})
    whole, *halves = (
        decide(residual(), saved, LONG, (f"{HERE}distant={weight}",), FEW) for weight in ("1", "0.5", "0..0.5")
    )
    for half in halves:
        assert half.objective.omega == pytest.approx(whole.objective.omega / 2, rel=0.05)
        assert "of the wish 'distant' at weight 0.5, and states" in half.notes[0]


def test_a_card_tells_in_which_reward_it_was_measured() -> None:
    for addons, reward in (([], "the environment's reward"), (["height"], "the reward that it was trained with")):
        saved = prior(request=told(0.7) | {"addons": addons}, nat_worth=WORTH)
        assert f"worth of {reward}, and" in decide(residual(), saved, ENV, (), FEW).notes[0]


def test_a_budget_needs_an_alpha_to_begin_at_and_no_dial_beside_it() -> None:
    for omega, alpha in (("auto", 0.0), (None, 0.0), ("auto", Range(0.1, 0.3))):
        with pytest.raises(UsageError, match=r"alpha is .*; where a budget moves omega and alpha"):
            decide(residual(omega, alpha), prior(), f"{HERE}Indifferent", (tiny("constant"),), FEW)
    still = SavedPolicy(optimum(), None, {})
    with pytest.raises(UsageError, match="cannot be told, and beside a dial no budget can find it"):
        decide(residual(), still, f"{HERE}Indifferent", (f"{tiny('constant')}=0..1",), FEW)


def test_where_few_episodes_of_noise_end_the_limit_tells_how_long_they_are() -> None:
    policy, env = noise_prior(f"{WORLDS}:same", 6, 1, "HalfCheetah-v4", FEW)
    task = NoiseWeightFinder({}, policy, FEW, lambda _: None, env, ("hind_leg",))
    rollout = task.trial_rollout
    assert rollout.episodes.lengths == []
    for ended in ([], [10, 12]):
        task.trial_rollout = replace(rollout, episodes=Episodes([0.0] * len(ended), ended))
        task.trial_rollout.terminated[ended, range(len(ended))] = True
        assert task.default_kl_budget() == 5.0 / 1000
        assert task.return_std() == pytest.approx(float(np.std(task.addon_rewards().sum(0))))


def test_a_budget_of_choices_is_a_quarter_of_the_entropy_of_all_of_them() -> None:
    for sizes, nats in (((2,), 0.17), ((2, 3), 0.45)):  # log 2 / 4, log 6 / 4
        assert default_kl_budget(PolicySpec(1, ActionSpace("discrete", sizes), "categorical")) == nats


def test_where_a_worth_stays_uncertain_alpha_begins_at_the_most_that_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the file tells nothing, what may be chance, or a tiny alpha: who is held too much is let go later."""
    rarely, wish = RARELY, (CALM,)
    short = replace(FEW, steps=64)
    monkeypatch.setattr("repolicy.prepare.weights.MIN_EPISODES", 32)
    unknown = {"nat_worth": {"value": 0.25, "error": 0.2, "episodes": 8}}
    for card in ({}, unknown, {"request": told(1e-4)}, unknown | {"request": told(1e-4)}):
        held = decide(residual(), SavedPolicy(optimum(), None, card), rarely, wish, short)
        assert held.settings.kl_budget == DEFAULT_KL_BUDGET
        assert held.objective.alpha > ALPHA_WITHOUT_REWARD
        assert "the most that a nat of the prior can be worth" in held.notes[-1]
