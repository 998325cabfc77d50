"""Residual Q-learning tells add-ons the actions that the environment got, as every other way to train does."""

import pytest
import tiny_envs
from tiny_envs import Told, tiny

from repolicy.errors import RepolicyError
from repolicy.objective import greedy
from repolicy.rql import ResidualSAC, Settings
from repolicy.rql.common import WithAddon

SETTINGS = Settings(steps=20, warmup=5, hidden=(4,), minibatch=4, gradient_steps=1)


@pytest.mark.parametrize("actions", ["double", "matrix"])
def test_add_ons_see_the_actions_that_the_environment_got(actions: str) -> None:
    ResidualSAC(WithAddon(Told(actions), tiny("was_told")), greedy(0.1), None, SETTINGS).learn(20)


def test_an_environment_that_ends_the_program_is_a_failure() -> None:
    env = WithAddon(tiny_envs.Quits(), tiny("first"))
    with pytest.raises(RepolicyError, match=r"^the environment failed: it called sys.exit\(0\)$"):
        ResidualSAC(env, greedy(0.1), None, SETTINGS).learn(20)
