"""What a run takes of its environment is what it said before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import Listening
from tiny_envs import tiny

from repolicy.envs.gymnasium import GymnasiumEnvs
from repolicy.learning.training import customize
from repolicy.objective import residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare import states
from repolicy.prepare.spending import spending
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings


@pytest.mark.parametrize(("evaluated", "price"), [(2, 0.5), (2, 0.0), (0, 0.5)])
def test_every_step_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluated: int, price: float) -> None:
    """By how often environments whose episodes have one length were stepped."""
    for name, value in {"EACH": 50, "WANTED": 400, "FEWEST": 400, "LEAST": 100}.items():
        monkeypatch.setattr(states, name, value)
    taken, step = [], GymnasiumEnvs.step

    def counted(self: GymnasiumEnvs, actions: np.ndarray) -> Any:
        taken.append(self.count)
        return step(self, actions)

    monkeypatch.setattr(GymnasiumEnvs, "step", counted)
    monkeypatch.setattr("repolicy.learning.training.LONGEST", 300)
    monkeypatch.setattr("repolicy.envs.evaluation.LONGEST", 300)
    settings = Settings(
        steps=200, ranks=1, envs=4, n_steps=16, minibatch=32, checkpoint_every=2, hidden=(8,),
        evaluation_episodes=evaluated,
    )  # fmt: skip
    space = ActionSpace("continuous", (1,), (-1.0,), (1.0,))
    prior, heard = Policy(PolicySpec(1, space, hidden=(8,), initial_std=0.5)), Listening()
    customize(
        prior, tiny("stay_near"), residual(0.1, 0.1, states=price), tmp_path / "run", settings, env=tiny("Endless"),
        callbacks=[heard],
    )  # fmt: skip
    [sentence] = [each for each in heard.said if "in all" in each]
    assert sentence.startswith(f"{sum(taken):,} steps of the environment in all: ")
    assert "256 to train" in sentence
    assert ("for evaluations" in sentence) == (evaluated > 0)
    assert ("for the prior's states" in sentence) == (price > 0)


def test_an_episode_whose_limit_nobody_tells_is_as_long_as_it_was() -> None:
    """One before the run, one after each of two segments, of two episodes each."""
    settings = Settings(steps=256, ranks=1, envs=4, n_steps=32, minibatch=32, checkpoint_every=1, evaluation_episodes=2)
    found = [
        spending(Request(env, residual(0.1, 0.1), settings), length=79.5).evaluations
        for env in (tiny("Endless"), tiny("endless_with_time_limit"))
    ]
    assert found == [3 * 2 * 80, 3 * 2 * 5]
