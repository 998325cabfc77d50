"""Residual Q-learning tells add-ons the actions that the environment got, as every other way to train does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_envs
from known_problems import Bounded
from tiny_envs import Told, tiny

from repolicy.errors import RepolicyError
from repolicy.objective import greedy
from repolicy.rql import ResidualSAC, Settings
from repolicy.rql.wrapping import WithAddon

SETTINGS = Settings(steps=20, warmup=5, hidden=(4,), minibatch=4, gradient_steps=1)


@pytest.mark.parametrize("actions", ["double", "matrix"])
def test_add_ons_see_the_actions_that_the_environment_got(actions: str) -> None:
    ResidualSAC(WithAddon(Told(actions), tiny("was_told")), greedy(0.1), None, SETTINGS).learn(20)


def test_an_environment_may_change_its_observation_in_place() -> None:
    class OneBuffer(Bounded):
        seen = np.zeros(1, np.float32)

        def reset(self, **options: Any) -> Any:
            self.seen[:] = 0.0
            return self.seen, {}

        def step(self, action: Any) -> Any:
            self.seen += 0.25
            return self.seen, 0.0, False, False, {}

    env = WithAddon(OneBuffer(), f"{Path(__file__)}:gained")
    env.reset()
    assert [env.step(np.zeros(1))[-1]["addon_reward"] for _ in range(3)] == [0.25] * 3


def gained(observations: Any, actions: Any, next_observations: Any, info: Any) -> Any:
    return (next_observations - observations)[:, 0]


def test_an_environment_that_ends_the_program_is_a_failure() -> None:
    env = WithAddon(tiny_envs.Quits(), tiny("first"))
    with pytest.raises(RepolicyError, match=r"^the environment failed: it called sys.exit\(0\)$"):
        ResidualSAC(env, greedy(0.1), None, SETTINGS).learn(20)
