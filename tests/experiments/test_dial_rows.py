"""What a dial's position and a separately trained point are worth is counted alike."""

import pytest

from experiments.dial import hypervolume, objective


def test_a_point_of_a_sweep_and_a_position_of_a_dial_with_the_same_numbers_are_worth_the_same() -> None:
    sampled = {"addon_reward": [-1800.0, 9.0], "length": [1000.0, 0.0], "log_prior_a_step": [-1.2, 0.1]}
    position = {"sampled": sampled | {"kl_a_step": [4.0, 0.1]}}
    point = {"sampled": sampled, "kl": 4.0}
    assert objective(position, 0.3, 0.1) == objective(point, 0.3, 0.1) == pytest.approx(-1800 - 360 - 0.1 * 2800)


def test_the_area_under_a_trade_off() -> None:
    assert hypervolume([(2.0, 1.0), (1.0, 3.0), (0.5, 0.5)], (0.0, 0.0)) == 4.0
