"""The sentences on top of a report: what they claim follows from the episodes, and is no more than these show."""

import dataclasses
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_envs import tiny

from experiments.verdicts import KINDS, STARTS, measure_error_rates
from repolicy.differences import Column, difference, student_t_p_value
from repolicy.evaluation import Evaluation, evaluate
from repolicy.many.tradeoff import Point, SweepResult
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.report.sweep_page import point_verdicts
from repolicy.report.verdict import advice, basis
from repolicy.report.verdict import verdict as judged
from repolicy.runs.settings import Settings

Returns = tuple[np.ndarray, np.ndarray | None]  # basic reward and add-on of each episode
HALF = np.array([-1.0, 1.0] * 25)  # 50 episodes with a mean of 0 and a variance of 50 / 49

SEEDS = count()  # so that two sets of episodes are drawn apart


def evaluated(
    basic: np.ndarray, addon: np.ndarray | None, ended: tuple[int, ...] = (), seed: int | None = None
) -> Evaluation:
    lengths = np.full(len(basic), 1000.0)
    lengths[: len(ended)] = ended
    seed = next(SEEDS) if seed is None else seed
    return Evaluation(
        "env", "gymnasium", True, seed, basic, addon, None, lengths, lengths, None, terminated=lengths < 1000
    )


def verdict(prior: Evaluation, customized: Evaluation) -> str:
    """The only sentence of a verdict on episodes without falls, limits and a share to keep."""
    [sentence] = judged([(prior, customized)])
    return sentence


def test_the_error_is_that_of_two_sets_of_episodes() -> None:
    found = difference(Column("", np.array([1.0, 3.0])), Column("", np.array([10.0, 14.0, 18.0])))
    assert found.value == 12.0
    assert found.error == pytest.approx(np.sqrt(2 / 2 + 16 / 3))


def test_episodes_that_began_alike_are_compared_one_by_one() -> None:
    """Starts are worth ±100 to either policy, and the new one gains 10 ± 1 at each of them."""
    before, after = (100 * HALF, 100 * HALF + 10 + np.roll(HALF, 1) / 7), 0 * HALF
    prior = evaluated(before[0], after, seed=5)
    assert verdict(prior, evaluated(before[1], after, seed=5)).endswith(
        "better than its prior in total: by 10.000 ± 0.020"
    )
    assert verdict(prior, evaluated(before[1], after, seed=6)).startswith(
        "cannot tell it from its prior in total: a difference"
    )
    fewer = evaluated(before[1][:40], after[:40], seed=5)
    assert verdict(prior, fewer).startswith("cannot tell it from its prior")


def test_better_at_a_price() -> None:
    """7² / 49 makes a standard error of one a set, so that of the difference is √2."""
    prior, after = evaluated(7 * HALF + 7600, 0 * HALF - 3900), evaluated(7 * HALF + 6742, 0 * HALF - 2391, (212,))
    assert judged([(prior, after)]) == [
        "it has 88.7 % of the old return and gained 1,509.0 of the wish; "
        "better than its prior in total: by 651.0 ± 1.4 (18 %)",
        "1 of 50 episodes ended early (of the prior's: none), at step 212",
    ]
    assert basis([after]).startswith("50 episodes each with the mean action")


def test_worse() -> None:
    prior, after = evaluated(HALF + 100, HALF, (7,)), evaluated(HALF + 90, HALF - 10, (30, 20))
    assert judged([(prior, after)]) == [
        "it has 90.0 % of the old return and lost 10.00 of the wish; "
        "worse than its prior in total: by 20.00 ± 0.40 (20 %)",
        "2 of 50 episodes ended early (of the prior's: 1), the first at step 20",
    ]


def test_a_difference_within_its_error_is_none() -> None:
    prior = evaluated(100 * HALF, 0 * HALF)
    found = [verdict(prior, evaluated(100 * HALF + shift, 0 * HALF)) for shift in (40.0, 41.0)]
    assert found[0].startswith("cannot tell it from its prior in total: a difference of 40 ± 20 may be chance; ")
    assert "it shows no certain change of the old return (40 ± 20)" in found[0]
    assert "; better than its prior in total: by 41 ± 20" in found[1]  # twice √(2 · 100² / 49) is 40.4


def test_positions_on_one_page_share_the_chance_to_be_wrong() -> None:
    """A gain of 2.35 errors is told of one policy, and not of one of ten."""
    prior, after = evaluated(100 * HALF, 0 * HALF), evaluated(100 * HALF + 47, 0 * HALF)
    assert "better than its prior" in judged([(prior, after)])[0]
    assert "cannot tell it from its prior" in judged([(prior, after)], among=10)[0]
    sampled = [dataclasses.replace(each, deterministic=False, log_prior=HALF) for each in (prior, after)]
    first, point = (Point(0.1, Path("nowhere"), *each) for each in zip((prior, after), sampled, strict=True))
    for number, word in ((1, "better than"), (10, "cannot tell")):
        shown = point_verdicts(SweepResult({}, Path("nowhere"), first, [point] * number, {}))
        assert all(word in each for each in shown)
        assert ["no certain difference (47" in each for each in shown] == [number == 10] * number


def test_chance_is_students() -> None:
    """Table values of the two-sided 5 %."""
    for freedom, quantile in {1: 12.7062047, 2: 4.3026527, 3: 3.1824463, 10: 2.2281389, 49: 2.0095752}.items():
        assert student_t_p_value(quantile, freedom) == pytest.approx(0.05, abs=1e-7)
    assert (student_t_p_value(0.0, 4), student_t_p_value(float("inf"), 5)) == (1.0, 0.0)


def test_a_run_that_changed_nothing_is_seldom_told_to_be_better_or_worse() -> None:
    """Of 200 runs of each kind, 5 % and two standard errors of that share; and no hint contradicts its verdict."""
    noise, ways = np.random.default_rng(0), zip((10, 50, 10, 50), STARTS * 2, strict=True)
    shares = [measure_error_rates(kind, *way, 200, noise) for kind, way in zip(KINDS, ways, strict=True)]
    assert max(share["false"] for share in shares) <= 0.08
    assert np.mean([share["false"] for share in shares]) <= 0.05
    assert not any(share["contradicted"] for share in shares)


ONE, NONE, UNKNOWN = np.ones(1), 0 * HALF, np.full(50, np.nan)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((HALF + 100, HALF), (HALF - 10, HALF), "it has −10.0 % of the old return"),
        ((HALF + 10_000, None), (HALF + 10_020, None), "in the basic reward: by 20.00 ± 0.20 (under 1 %)"),
        ((NONE + 3, NONE), (NONE + 3, NONE), "cannot tell it from its prior"),
        ((ONE, ONE), (1000 * ONE, ONE), "cannot tell it from its prior in total: one episode each, +999.0"),
        ((UNKNOWN, HALF + 10), (UNKNOWN, HALF + 20), "in the wish: by 10.00 ± 0.20 (100 %); the environment tells no"),
    ],
    ids=["more than all is lost", "no add-on", "the same", "one episode", "no basic reward"],
)
def test_what_is_told_of_other_episodes(before: Returns, after: Returns, said: str) -> None:
    assert said in verdict(evaluated(*before), evaluated(*after))


@pytest.mark.parametrize("before", [-100, 4])
def test_of_a_reward_that_is_negative_or_next_to_nothing_no_share_is_gained(before: float) -> None:
    said = verdict(evaluated(HALF + before, NONE), evaluated(HALF + before + 50, NONE))
    assert said.endswith("better than its prior in total: by 50.00 ± 0.20")
    assert "%" not in said


def test_an_evaluation_knows_which_episodes_the_environment_ended() -> None:
    torch.manual_seed(1)
    agent = frozen(Policy(PolicySpec(2, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), initial_std=0.5)))
    found = evaluate(agent, tiny("Counter"), 3)
    assert found.as_dict()["ended_early"] == found.terminated.sum()
    assert not evaluate(agent, tiny("Counter"), 3, longest=1).terminated.any()


def test_a_step_weighs_the_same_in_an_episode_of_any_length() -> None:
    """What is "a step" is the mean over steps, as training logs it: (−10 − 90) / 100, not (−1 − 1.8) / 2."""
    lengths = np.array([10.0, 90.0])
    found = dataclasses.replace(
        evaluated(np.zeros(2), None), lengths=lengths, log_prior=np.array([-20.0, -90.0]), log_policy=np.zeros(2)
    )
    assert found.columns["log_prior_a_step"].mean == -1.1
    assert found.columns["log_prior_a_step"].std == pytest.approx(0.3)


def both(by_mean: float, by_samples: float) -> list[tuple[Evaluation, Evaluation]]:
    """Pairs whose totals change by so much, with the mean action and sampled ones."""

    def now(change: float, deterministic: bool) -> Evaluation:
        return dataclasses.replace(evaluated(100.0 + change + HALF, 1e-9 * HALF), deterministic=deterministic)

    return [(now(0.0, kind), now(change, kind)) for change, kind in ((by_mean, True), (by_samples, False))]


def test_one_sentence_covers_both_kinds_of_action() -> None:
    [said] = judged(both(20.0, 40.0))
    assert said.startswith("with the mean action it has 120.0 % of the old return and shows no certain change of the")
    assert said.endswith(
        "better than its prior in total: by 20.00 ± 0.20 (20 %) with the mean action, "
        "by 40.00 ± 0.20 (40 %) with sampled actions"
    )
    [said] = judged(both(0.1, 40.0))
    assert said.startswith("with sampled actions it has 140.0 % of the old return")
    assert said.endswith(
        "in total, beside its prior: cannot tell with the mean action (a difference of 0.10 ± 0.20 may be chance), "
        "better with sampled actions (by 40.00 ± 0.20 (40 %))"
    )


@pytest.mark.parametrize(("mean", "told"), [(0.28, "0.28 instead of 0.39"), (0.387, "0.3870 instead of 0.3900")])
def test_what_is_won_is_told_in_its_own_units(mean: float, told: str) -> None:
    prior, after = (
        dataclasses.replace(evaluated(HALF + 100, HALF), metric=each + HALF / 1000, metric_name="mean |θ|")
        for each in (0.39, mean)
    )
    said = verdict(prior, dataclasses.replace(after, basic=after.basic - 5))
    assert said.startswith(f"it has 95.0 % of the old return and has a mean |θ| of {told}; worse than its")


@pytest.mark.parametrize(
    ("by_mean", "by_samples", "drift", "told"),
    [
        (20.0, 40.0, 0.01, ""),
        (0.1, 40.0, 0.01, ""),  # a clear success by sampled actions is no doubtful one
        (-20.0, 40.0, 2.0, "to hold it more: a larger --omega"),
        (-20.0, 40.0, 2.0, "or a smaller budget (--kl-budget, --log-prior-budget); to see"),
        (0.1, 0.1, 0.01, "hardly moved: more --steps, or less --omega"),
        (0.1, 0.1, 2.0, "moved 2 nats a step away for no certain gain"),
    ],
)
def test_hints_follow_the_verdict(by_mean: float, by_samples: float, drift: float, told: str) -> None:
    found = advice(both(by_mean, by_samples), Settings(), drift, "--omega")
    assert told in found
    assert bool(found) == bool(told)
    assert not ("hold it more" in found and "less --omega" in found)


def test_a_run_of_few_steps_is_told_to_take_more() -> None:
    assert advice(both(0.1, 0.1), Settings(steps=2000), 0.01, "--omega").startswith("more --steps: 2,000")


def test_a_run_with_a_share_to_keep_is_told_of_no_budget() -> None:
    """The command refuses one beside it."""
    found = advice(both(-20.0, -40.0), Settings(keep=0.9), 2.0, "")
    assert "more --steps, as --keep" in found
    assert "budget" not in found


def test_a_limit_holds_within_its_bound_cannot_be_told_within_its_error_and_else_is_broken() -> None:
    prior = evaluated(HALF, HALF)
    for mean, said in (
        (0.240, "with the mean action limit power<=0.25 holds (0.240 ± 0.001)"),
        (0.249, "with the mean action limit power<=0.25 holds in these episodes (0.249 ± 0.001)"),
        (0.251, "with the mean action limit power<=0.25: cannot tell, 0.0010 beyond it may be chance (0.251 ± 0.001)"),
        (0.26, "with the mean action limit power<=0.25 is broken by 0.010 (0.260 ± 0.001)"),
    ):
        after = dataclasses.replace(evaluated(HALF, HALF), limits={"power<=0.25": mean + 0.007 * HALF})
        assert judged([(prior, after)])[1:] == [said]


@pytest.mark.parametrize(
    ("before", "lost", "said"),
    [
        (100.0, 4.0, "96.0% ± 0.2% of the old return, and 95% was asked for: that holds"),
        (-100.0, 4.0, "96.0% ± 0.2% of the old return, and 95% was asked for: that holds"),
        (100.0, 4.8, "95.2% ± 0.2% of the old return, and 95% was asked for: that holds in these episodes"),
        (100.0, 5.2, "94.8% ± 0.2% of the old return, and 95% was asked for: cannot tell, what is lacking may be"),
        (100.0, 9.0, "91.0% ± 0.2% of the old return, and 95% was asked for: too little"),
    ],
)
def test_a_share_of_the_old_return_holds_cannot_be_told_or_is_broken(before: float, lost: float, said: str) -> None:
    prior, after = evaluated(before + HALF, None), evaluated(before - lost + HALF, None)  # each has an error of 1 / 7
    _, asked = judged([(prior, after)], keep=0.95)
    assert asked.startswith(f"with the mean action it keeps {said}")


@pytest.mark.parametrize("mean", [100.0, -100.0])
def test_a_share_that_is_the_same_in_each_episode_has_no_error(mean: float) -> None:
    """Although the loss differs from episode to episode: so does what the prior earns."""
    prior, after = (evaluated(size * (mean + 50 * HALF), None, seed=5) for size in (1.0, 0.75 if mean > 0 else 1.25))
    _, asked = judged([(prior, after)], keep=0.8)
    assert asked.endswith("of the old return, and 80% was asked for: too little")


def test_the_rounding_of_a_sum_makes_no_policy_better() -> None:
    """In a world without chance each episode earns the same, so the smallest difference has an error of 0."""
    earned = [np.full(8, sum(rewards)) for rewards in ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1))]
    assert earned[0][0] != earned[1][0]
    for prior, after in (earned, reversed(earned)):
        assert verdict(evaluated(prior, None, seed=5), evaluated(after, None, seed=5)).startswith("cannot tell it from")
    real = evaluated(earned[0], None, seed=5), evaluated(earned[0] + 1e-6, None, seed=5)
    assert verdict(*real).startswith("better than its prior")


def test_a_share_of_one_episode_has_an_unknown_error() -> None:
    prior, after = evaluated(np.array([100.0]), None), evaluated(np.array([99.0]), None)
    assert judged([(prior, after)], keep=0.95)[1].startswith("with the mean action it keeps 99.0% ± unknown of the old")


def test_falls_and_what_was_asked_for_are_sentences_of_their_own() -> None:
    prior, after = evaluated(HALF + 100, HALF), evaluated(HALF + 99, HALF, (20,))
    after = dataclasses.replace(after, limits={f"{name}<=0.25": 0.2 + 0.007 * HALF for name in ("power", "heat")})
    sampled = dataclasses.replace(after, deterministic=False)
    _, asked, ended = judged([(prior, after), (prior, sampled)], keep=0.9)
    assert asked == (
        "with the mean action limit power<=0.25 holds (0.200 ± 0.001); limit heat<=0.25 holds (0.200 ± 0.001); "
        "it keeps 99.0% ± 0.2% of the old return, and 90% was asked for: that holds"
    )
    assert ended == (
        "with the mean action 1 of 50 episodes ended early (of the prior's: none), at step 20; "
        "with sampled actions 1 of 50 episodes ended early (of the prior's: none), at step 20"
    )
