"""What the programs for found settings and for a real robot say of numbers that are known."""

import numpy as np
import pytest
import torch
from tiny_envs import tiny
from worth_known import optimum

from experiments import found, real_robot, robot_film
from experiments.episodes import played
from repolicy.envs.addons import combined
from repolicy.objective import kl
from repolicy.policies.density import MOST, fitted
from repolicy.policies.normalizer import Normalizer
from repolicy.prepare import states


def test_the_objective_of_a_policy_that_is_its_prior_is_the_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under kl, log prior and log policy cancel."""
    monkeypatch.setattr(found, "EPISODES", 8)
    seen = found.measured(optimum(), optimum(), tiny("LinearQuadratic"), combined([tiny("stay_near")]), kl(0.7))
    assert seen["objective"] == pytest.approx(seen["sampled"]["addon"], abs=1e-4)
    assert seen["objective"][0] < seen["mean"]["addon"][0] < 0.0  # noise costs
    wish = found.measured(optimum(), optimum(), tiny("LinearQuadratic"), combined([tiny("stay_near")]), None)
    assert wish["objective"] == seen["sampled"]["addon"]


def test_new_states_are_priced_from_the_step_on_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes have 8 steps."""
    monkeypatch.setattr(states, "SKIPPED", 3)
    noise = torch.randn(10_000, 1, generator=torch.Generator().manual_seed(0))
    elsewhere = fitted(5.0 + 3e-5 * noise, Normalizer(1))
    seen = played(optimum(), tiny("LinearQuadratic"), 4, sampled=True, prior=optimum(), density=elsewhere)
    assert seen.familiarity is not None
    assert seen.familiarity.tolist() == [-MOST * 5.0] * 4


def test_the_error_of_a_velocity_comes_back() -> None:
    errors = np.array([0.0, 0.1, 0.7])
    np.testing.assert_allclose(real_robot.error(np.exp(-np.square(errors) / 0.25)), errors, atol=1e-12)


def test_a_robots_row_stands_beside_its_priors() -> None:
    part = {"energy": [-0.10, 0.01], "clearance": [-0.2, 0.01], "speed_error": [0.1, 0.0], "turning_error": [0.2, 0.0]}
    prior = {"key": "prior/mean", "basic": [30.0, 1.0], "falls": 0, "episodes": 100} | part
    ours = prior | {"key": "energy/mean", "basic": [29.4, 1.0], "energy": [-0.08, 0.01], "falls": 2}
    line = real_robot.table([prior, ours]).splitlines()[-1]
    assert "29.40 ± 1.00 (98%)" in line
    assert "0.0800 (-20%)" in line
    assert line.endswith("2 of 100 |")


def test_two_films_stand_side_by_side_and_say_how_much_power_each_takes() -> None:
    """A bar is as long as the power now, and the average is a line across it."""
    left, right = (
        robot_film.Side("", [np.full((4, 416, 3), value, np.uint8)] * 5, np.array(watts), 50.0, 1.0, (255, 0, 0))
        for value, watts in ((0, [100.0] * 5), (255, [0.0, 0.0, 20.0, 0.0, 0.0]))
    )
    pictures = robot_film.beside(left, right)
    assert [picture.size for picture in pictures] == [(832, 4 + robot_film.BAND)] * 3
    seen = np.asarray(pictures[1].convert("RGB")).astype(int)
    assert (seen[:4, :416].max(), seen[:4, 416:].min()) == (0, 255)
    bars = (seen[55, :, 0] > 200) & (seen[55, :, 1] < 60)
    assert [int(bars[:416].sum()), int(bars[416:].sum())] == [201 - 3, 41]  # 2 pixels a watt; the line hides 3
    assert (seen[55, [8 + 100, 416 + 8 + 100]] < 60).all()
