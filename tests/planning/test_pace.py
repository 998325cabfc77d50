"""What fits between two decisions, by a clock that goes on with each simulated step."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from linear_world import LinearModel, planner

from repolicy.cli.main import main
from repolicy.errors import UsageError
from repolicy.planning import pace
from repolicy.planning.pace import MOST, within

STEP = 1e-4  # seconds that the clock counts for a simulated step


@dataclass
class SlowModel(LinearModel):
    now: float = 0.0
    edge: float = field(default=np.inf)
    broken: float = field(default=np.inf)

    def step(self, states, actions):
        self.now += STEP * len(states)
        return super().step(states, actions)


@pytest.mark.parametrize(
    ("steps", "samples", "horizon"),
    [(800, 100, 8), (64, 8, 8), (63, 15, 4), (8, 8, 1), (100_000, MOST, 8)],
)
def test_what_fits_is_taken_and_the_horizon_is_halved_where_nothing_does(steps, samples, horizon, monkeypatch):
    model = SlowModel()
    monkeypatch.setattr(pace, "perf_counter", lambda: model.now)
    made = planner(horizon=8, model=model)
    found = within(made, np.ones((1, 1), np.float32), (steps + 0.5) * STEP).search
    assert (found.samples, found.horizon) == (samples, horizon)


def test_a_pace_that_cannot_be_is_one_sentence(tmp_path, capsys, monkeypatch):
    model = SlowModel()
    monkeypatch.setattr(pace, "perf_counter", lambda: model.now)
    with pytest.raises(UsageError, match="8 samples of one step"):
        within(planner(horizon=8, model=model), np.ones((1, 1), np.float32), 7.5 * STEP)
    words = ["plan", "halfcheetah", "--addon", "hind_leg=10", "--omega", "0.1", "--states", "0", "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        main([*words, "--hz", "-1"])
    assert "it must be above 0" in capsys.readouterr().err
