"""Copies of an environment as a planner's model, beside MuJoCo's batches."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from linear_world import nothing

import repolicy
from repolicy.envs.gymnasium import GymnasiumEnvs, twin
from repolicy.envs.names import env_name
from repolicy.planning.copies import CopyModel
from repolicy.planning.mujoco_model import MujocoModel
from repolicy.planning.planner import Search
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec

SEARCH = Search(samples=6, horizon=4)


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize(("prior", "wish"), [("halfcheetah", "hind_leg=10"), ("hopper", "height")])
def test_copies_plan_what_mujocos_batches_plan(prior, wish):
    """From the state that an observation shows: single numbers of it are rounded there."""
    made = repolicy.plan(prior, wish, omega=0.1, states=0.0, search=SEARCH)
    envs = GymnasiumEnvs(made.model.name, 2, 0)
    seen = envs.reset()
    for env, row in zip(envs.each, MujocoModel(made.model.name).states(seen), strict=True):
        data = env.unwrapped.data
        env.unwrapped.set_state(
            row[1 : 1 + data.qpos.size], row[1 + data.qpos.size : 1 + data.qpos.size + data.qvel.size]
        )
    copying = replace(made, model=CopyModel(made.model.name))
    copying.watch(envs)
    before = [env.unwrapped.data.qpos.copy() for env in envs.each]
    draws = np.random.default_rng(0).standard_normal((2, 6, 4, made.actions.width))
    plans = np.zeros((2, 4, made.actions.width))
    batch, copied = (each.look(seen, plans, draws) for each in (made, copying))
    assert copied.scores == pytest.approx(batch.scores, abs=1e-9)
    assert copied.plans == pytest.approx(batch.plans, abs=1e-9)
    assert all(
        np.array_equal(*pair) for pair in zip(before, [env.unwrapped.data.qpos for env in envs.each], strict=True)
    )


def test_what_is_no_robot_is_planned_in_copies():
    made = repolicy.plan(
        Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-2.0,), (2.0,)))),
        nothing, env="Pendulum-v1", omega=0.1, states=0.0, search=SEARCH,
    )  # fmt: skip
    assert made.backend == "gymnasium"
    found = repolicy.evaluate(made, "Pendulum-v1", episodes=2, addon=nothing, longest=3)
    assert found.lengths.tolist() == [3, 3]


def test_a_twin_stands_where_the_environment_stands():
    """Even where its class would begin anew when it is pickled, as Gymnasium's robots do."""
    env = gymnasium.make("Ant-v5")
    env.reset(seed=1)
    for _ in range(3):
        env.step(env.action_space.sample())
    other, action = twin(env, {}), env.action_space.sample()
    one, same = (each.step(action) for each in (env, other))
    assert np.array_equal(one[0], same[0])
    assert one[1] == same[1]
    assert other.unwrapped.data is not env.unwrapped.data


class Untimed(gymnasium.Wrapper):
    """A pole whose class does not say how long a step lasts."""

    metadata = {}  # noqa: RUF012

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))


def test_how_long_a_step_lasts_is_not_made_up():
    assert CopyModel("CartPole-v1").seconds == pytest.approx(0.02)
    assert CopyModel(env_name(Untimed)).seconds == 0.0
