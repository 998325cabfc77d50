"""What a dial's position and a separately trained point are worth is counted alike."""

import pytest

from experiments.dial import hypervolume, objective, summary, table
from repolicy.objective import residual


def test_what_training_is_after_is_the_sum_of_its_parts() -> None:
    parts = {"addon": -1800.0, "log_prior": -1200.0, "log_policy": 2800.0, "familiarity": -50.0}
    asked = residual(7.0, 0.1, states=2.0).as_dict()
    assert objective({"sampled": parts}, asked, 0.3) == pytest.approx(-1800 - 360 - 280 - 100)


def test_the_area_under_a_trade_off() -> None:
    assert hypervolume([(2.0, 1.0), (1.0, 3.0), (0.5, 0.5)], (0.0, 0.0)) == 4.0


def test_points_that_are_those_of_the_dial_have_the_same_area_and_all_of_the_gain() -> None:
    def found(basic: float, addon: float) -> dict[str, dict[str, float]]:
        sampled = {"addon": addon, "log_prior": basic / 10, "log_policy": -1.0}
        return {"mean": {"basic": basic, "addon": addon}, "sampled": sampled}

    positions = [found(100.0, -10.0) | {"at": 1.0}, found(80.0, -5.0) | {"at": 0.1}]
    asked = residual(0.1, 0.1).as_dict()
    points = {
        "task": "hopper",
        "how": "alone",
        "objective": asked,
        "prior": found(110.0, -30.0),
        "positions": positions,
    }
    dial = {"task": "hopper", "how": "trained", "seed": 0, "positions": positions, "many": positions, "ends_apart": 2.0}
    assert "| 100% |" in table([points, dial])
    assert "| trained, seed 0 | 100% | 1.000 | 1.000 | 1.0 × the mean | 2 nats |" in summary([points, dial])
