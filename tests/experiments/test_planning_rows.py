"""Seeds of a planner that stand in one row."""

import pytest

from experiments.planning import together


def test_a_row_of_two_seeds_has_the_mean_of_both_and_its_standard_error() -> None:
    one = {"total_reward": [1.0, 0.3], "episodes": 20, "ended_early": 1}
    found = together([one, {"total_reward": [3.0, 0.4], "episodes": 20, "ended_early": 2}])
    assert found["total_reward"] == pytest.approx([2.0, 0.25])
    assert (found["episodes"], found["ended_early"]) == (40, 3)
