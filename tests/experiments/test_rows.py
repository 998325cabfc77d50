"""What programs of experiments/ say of numbers that are known, and what their rows in results/ hold."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_envs import tiny
from worth_known import optimum

from experiments import dial, found, handed_out, nat_worth, real_robot, robot_film
from experiments.episodes import play_episodes
from experiments.ledger import Ledger
from repolicy.addons.addon import combine_addons
from repolicy.objective import kl, residual
from repolicy.policies.density import MAX_COST, fit_density
from repolicy.policies.normalizer import Normalizer
from repolicy.prepare import states


def test_the_objective_of_a_policy_that_is_its_prior_is_the_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under kl, log prior and log policy cancel."""
    monkeypatch.setattr(found, "EPISODES", 8)
    asked = optimum(), optimum(), tiny("LinearQuadratic"), combine_addons([tiny("stay_near")])
    seen = found.measure_objective(*asked, kl(0.7))
    assert seen["objective"] == pytest.approx(seen["sampled"]["addon"], abs=1e-4)
    assert seen["objective"][0] < seen["mean"]["addon"][0] < 0.0  # noise costs
    assert found.measure_objective(*asked, None)["objective"] == seen["sampled"]["addon"]


def test_shipped_priors_change_only_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worth = {"value": 0.25, "error": 0.01, "episodes": 8}
    Ledger(tmp_path / "worths.jsonl").add({"key": "hopper"} | worth)
    written: list[object] = []
    monkeypatch.setattr(nat_worth, "add_to_card", lambda path, content: written.append((path.stem, content)))
    for words in ([], ["--ship"]):
        ledger = ["--ledger", str(tmp_path / "worths.jsonl"), "--priors", "hopper"]
        monkeypatch.setattr("sys.argv", ["nat_worth", *ledger, *words])
        nat_worth.main()
        assert written == [("hopper", {"nat_worth": worth})] * len(words)


def test_new_states_are_priced_from_the_step_on_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes have 8 steps."""
    monkeypatch.setattr(states, "SKIPPED_STEPS", 3)
    noise = torch.randn(10_000, 1, generator=torch.Generator().manual_seed(0))
    elsewhere = fit_density(5.0 + 3e-5 * noise, Normalizer(1))
    seen = play_episodes(optimum(), tiny("LinearQuadratic"), 4, sampled=True, prior=optimum(), density=elsewhere)
    assert seen.familiarity.tolist() == [-MAX_COST * 5.0] * 4


def test_the_error_of_a_velocity_comes_back() -> None:
    errors = np.array([0.0, 0.1, 0.7])
    np.testing.assert_allclose(real_robot.velocity_error(np.exp(-np.square(errors) / 0.25)), errors, atol=1e-12)


def test_two_films_stand_side_by_side_and_say_how_much_power_each_takes() -> None:
    """A bar is as long as the power now, and the average is a line across it."""
    left, right = (
        robot_film.Panel("", [np.full((4, 416, 3), value, np.uint8)] * 5, np.array(watts), 50.0, 1.0, (255, 0, 0))
        for value, watts in ((0, [100.0] * 5), (255, [0.0, 0.0, 20.0, 0.0, 0.0]))
    )
    pictures = robot_film.join_pictures(left, right)
    assert [picture.size for picture in pictures] == [(832, 4 + robot_film.TEXT_HEIGHT)] * 3
    seen = np.asarray(pictures[1].convert("RGB")).astype(int)
    assert (seen[:4, :416].max(), seen[:4, 416:].min()) == (0, 255)
    bars = (seen[55, :, 0] > 200) & (seen[55, :, 1] < 60)
    assert [int(bars[:416].sum()), int(bars[416:].sum())] == [201 - 3, 41]  # 2 pixels a watt; the line hides 3
    assert (seen[55, [8 + 100, 416 + 8 + 100]] < 60).all()


def test_what_training_is_after_is_the_sum_of_its_parts() -> None:
    parts = {"addon": -1800.0, "log_prior": -1200.0, "log_policy": 2800.0, "familiarity": -50.0}
    asked = residual(7.0, 0.1, states=2.0).as_dict()
    assert dial.objective({"sampled": parts}, asked, 0.3) == pytest.approx(-1800 - 360 - 280 - 100)


def test_the_area_under_a_trade_off() -> None:
    assert dial.hypervolume([(2.0, 1.0), (1.0, 3.0), (0.5, 0.5)], (0.0, 0.0)) == 4.0


def test_what_is_handed_out_is_never_clearly_worse_than_the_last_policy() -> None:
    root = Path(__file__).parents[2]
    rows, page = Ledger(root / "results" / "handed_out.jsonl").rows(), root / "docs" / "results-customizing.md"
    assert {row["key"].partition("/")[0] for row in rows} == set(handed_out.TASKS)
    costly = [row for row in rows if row["last"]["objective"][0] < 0.0 < row["last"]["ended_early"]]
    assert len({row["key"] for row in costly}) >= 4
    for row in rows:
        for part in handed_out.PARTS:
            mean, error = row["handed_out"][f"{part}_better"]
            assert mean >= -2.0 * error, (row["key"], part)
    told = handed_out.table(rows)
    [left_out] = re.findall(rf"In (\d+) of the {len(rows)} runs", page.read_text())
    assert len(told.splitlines()) == len(rows) - int(left_out) + 2
