"""The bend of a trade-off, its best total, and what is said of both."""

import dataclasses
from pathlib import Path

import noise_worlds
import numpy as np
import pytest

from repolicy.evaluation import Evaluation
from repolicy.many.tradeoff import Point, SweepResult, knee
from repolicy.report.sweep_page import tradeoff_note

XS = np.linspace(0.0, 1.0, 11)


@pytest.mark.parametrize(
    ("gains", "index"),
    [
        (1.0 - (1.0 - XS) ** 2, 5),  # gain − cost = x − x²
        (np.minimum(1.0, 5.0 * XS), 2),  # an elbow
        (XS**0.25, 2),  # x^¼ − x has its top at ¼^(4/3) = 0.157
    ],
)
def test_the_knee_of_a_curve_is_where_it_is_known_to_be(gains: np.ndarray, index: int) -> None:
    assert knee(XS, gains) == index
    assert knee(300.0 * XS - 40.0, 0.01 * gains + 7.0) == index
    assert knee(XS[::-1], gains[::-1]) == 10 - index


def test_a_trade_off_that_only_loses_has_its_knee_at_the_start() -> None:
    assert knee(np.array([0.0, 1.0, 2.0]), np.array([5.0, 4.0, 3.0])) == 0
    assert knee(np.array([1.0, 1.0]), np.array([2.0, 2.0])) == 0


def found(*points: tuple[float, ...], spread: float = 0.0, episodes: int = 2, shared: bool = False) -> SweepResult:
    """A sweep that found (ω′, basic, add-on) of each, in episodes around it; the first is the prior's."""
    waves = spread * np.random.default_rng(0).choice([-1.0, 1.0], (1 if shared else len(points), episodes))
    waves = np.broadcast_to(waves - waves.mean(1, keepdims=True), (len(points), episodes))
    nowhere, made = Path("nowhere"), []
    for (omega, basic, addon), wave in zip(points, waves, strict=True):
        made.append(Point(omega, nowhere, evaluation(basic + wave, addon + wave), None))
    return SweepResult({}, nowhere, made[0], made[1:], {})


def evaluation(basic: np.ndarray, addon: np.ndarray) -> Evaluation:
    one = np.ones(len(basic))
    return Evaluation("env", "gymnasium", True, 0, basic, addon, None, one, one, one)


def test_a_point_is_judged_by_sampled_noise_where_that_is_what_acts() -> None:
    mean, sampled = (evaluation(np.full(2, basic), np.full(2, addon)) for basic, addon in ((1.0, 2.0), (3.0, 4.0)))
    for env, judged in (("env", (1.0, 2.0)), (noise_worlds.named("same"), (3.0, 4.0))):
        point = Point(0.1, Path("nowhere"), *(dataclasses.replace(each, env=env) for each in (mean, sampled)))
        assert (point.basic, point.addon) == judged


# HalfCheetah's hind leg, as docs/results-customizing.md has it
SWEPT = [(np.inf, 7599.0, -3899.0), (0.1, -60.0, -22.0), (0.17, 3846.0, -757.0), (0.3, 6071.0, -1733.0)]
SWEPT += [(0.6, 7162.0, -2855.0), (1.0, 7427.0, -3319.0), (3.0, 7572.0, -3756.0)]


def test_no_point_has_the_best_total_where_that_is_the_priors() -> None:
    better = found((np.inf, 3.0, 0.0), (0.1, 0.0, 2.0), (1.0, 2.0, 2.0))
    assert (better.best, better.first_shown, dataclasses.replace(better, is_addon_dialed=True).best) == (1, 1, None)
    assert found((np.inf, 5.0, 0.0), (0.1, 0.0, 2.0), (1.0, 2.0, 2.0)).best is None
    assert found((np.inf, 5.0, 1.0), (0.1, 4.0, 1.0), (1.0, 1.0, 0.0)).first_shown == 0  # what a page opens at


def test_no_point_has_the_best_total_where_chance_alone_could_lift_it_above_the_prior() -> None:
    random, named, starts = np.random.default_rng(1), 0, np.linspace(0.0, 5.0, 10)
    for noise in random.normal(0.0, 1.0, (200, 11, 10)):  # ten positions of ten episodes, drawn as the prior's
        points = [Point(0.1, Path("nowhere"), evaluation(starts + each, 0.0 * starts), None) for each in noise]
        swept = SweepResult({}, Path("nowhere"), points[0], points[1:], {})
        named += swept.best is not None
    assert named <= 10
    shown = swept.best, swept.tied_points, swept.marks(0), "highest total" in tradeoff_note(swept)
    assert shown == (None, 0, "", False)


def test_a_total_that_is_as_good_in_the_same_episodes_is_counted() -> None:
    """Episodes that differ by 40 among themselves, and by less than 2 from point to point."""
    starts, none = np.array([60.0, 80.0, 100.0, 80.0]), np.zeros(4)
    noise = np.array([1.0, -1.0, 1.0, -1.0])
    totals = {np.inf: starts - 9.0, 0.1: starts + 2.0, 0.3: starts + 1.9 + noise, 1.0: starts + 0.5}
    points = [Point(omega, Path("nowhere"), evaluation(each, none), None) for omega, each in totals.items()]
    swept = SweepResult({}, Path("nowhere"), points[0], points[1:], {})
    assert (swept.best, swept.tied_points, swept.marks(0)) == (0, 1, " (one of 2 best totals)")
    assert "the highest total, ω′ 0.1 (1 other cannot be told from it)" in tradeoff_note(swept)
    alone = SweepResult({}, Path("nowhere"), points[0], [points[1], points[3]], {})
    assert (alone.tied_points, alone.marks(0)) == (0, " (best total)")


def test_the_knee_of_a_sweep_does_not_move_for_a_point_that_lost_everything() -> None:
    assert found(*SWEPT).verdict == "the trade-off bends at ω′ 0.3"
    assert found(*SWEPT, (0.0, -1.9e6, -10.0)).verdict == "the trade-off bends at ω′ 0.3"


def test_a_sweeps_points_are_one_training_run_each_and_a_dials_are_one_network() -> None:
    dial = found(*SWEPT)
    sweep = dataclasses.replace(dial, request={"settings": {}})
    assert sweep.verdict == f"{dial.verdict}, of one training run a point: another --seed may move it"
    assert ["Each point is one training run" in tradeoff_note(each) for each in (sweep, dial)] == [True, False]


def test_a_line_has_no_knee_and_a_loss_is_called_one() -> None:
    assert "has no knee" in found(SWEPT[0], SWEPT[4]).verdict
    assert found((np.inf, 10.0, 5.0), (0.1, 9.0, 4.0)).verdict == "no value of ω′ gains on the prior"


def test_no_knee_is_named_at_the_point_with_the_most_of_the_wish_as_nothing_lies_beyond_it() -> None:
    for points in ([(0.1, 140.0, 10.0), (0.5, 120.0, 5.0)], [(0.1, 140.0, 10.0)]):
        gained = found((np.inf, 100.0, 0.0), *points, spread=1.0, episodes=50)
        assert gained.knee is None
        assert gained.verdict == "the trade-off has no knee: it bends at ω′ 0.1, and nothing has more of the wish"


def test_a_knee_is_named_only_where_it_is_larger_than_its_error() -> None:
    """At ω′ 0.3 and 0.6 the curve bends almost alike; with an error of 5,000 / √50 they cannot be told apart."""
    assert found(*SWEPT, spread=5.0, episodes=50).verdict == "the trade-off bends at ω′ 0.3"
    hidden = found(*SWEPT, spread=5000.0, episodes=50)
    assert hidden.knee is None
    assert hidden.verdict.startswith("no clear knee: the points' errors are too large; try more --episodes")
    # A start that is bad for all points alike tells nothing about the bend.
    assert found(*SWEPT, spread=5000.0, episodes=50, shared=True).verdict == "the trade-off bends at ω′ 0.3"
    assert found(*SWEPT, episodes=1).knee is None  # one episode says nothing of its error


def test_a_sweep_that_knows_no_basic_reward_is_bent_by_the_kl() -> None:
    """KL is a mean over steps: episodes are drawn with their lengths."""
    unknown, lengths = np.full(50, np.nan), np.tile([10.0, 90.0], 25)
    points = []
    for omega, kl, addon in ((np.inf, 0.0, 0.0), (1.0, 0.1, 8.0), (0.1, 1.0, 10.0)):
        mean, sampled = (evaluation(unknown, np.full(50, addon)) for _ in range(2))
        sampled = dataclasses.replace(sampled, deterministic=False, lengths=lengths, log_prior=-kl * lengths)
        points.append(Point(omega, Path("nowhere"), mean, dataclasses.replace(sampled, log_policy=0 * lengths)))
    swept = SweepResult({}, Path("nowhere"), points[0], points[1:], {})
    assert swept.cost_name == "kl_a_step"
    assert swept.knee == 0
    assert swept.table()[0][-2:] == ["log prior a step, nats", "KL a step, nats"]


def test_of_a_generative_policy_the_distance_is_that_of_a_decision() -> None:
    ones = np.ones(2)
    made = dataclasses.replace(evaluation(ones, ones), env="X?decoder=d.pt&noise=8&chunk=4", log_prior=-ones)
    point = Point(np.inf, Path("nowhere"), made, dataclasses.replace(made, deterministic=False, log_policy=ones))
    swept = SweepResult({}, Path("nowhere"), point, [point], {})
    assert swept.table()[0][-2:] == ["log prior a decision, nats", "KL a decision, nats"]


def test_a_table_shows_what_episodes_vary_by() -> None:
    made = dataclasses.replace(evaluation(np.array([1.0, 3.0]), np.zeros(2)), deterministic=False)
    lost = dataclasses.replace(evaluation(np.array([-1.0, 0.0]), np.zeros(2)), deterministic=False)
    first, point = (Point(np.inf, Path("nowhere"), each, each) for each in (made, lost))
    _, rows = SweepResult({}, Path("nowhere"), first, [point], {}).table()
    assert [row[1:3] for row in rows] == [["2.00 ± 1.41", "100%"], ["−0.50 ± 0.71", "−25%"]]
