"""Batches of environments: the same contract for EnvPool's and Gymnasium's, how episodes end, and what is refused."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tiny_envs import Counter, Groups, tiny

from repolicy.cli.environment_info import environment_info
from repolicy.envs import names
from repolicy.envs.batches import GymnasiumEnvs, merge_infos
from repolicy.envs.making import make_envs
from repolicy.envs.step import numeric_entries, stack_infos, to_env_numbers
from repolicy.errors import RepolicyError, UsageError
from repolicy.policies.distributions import ActionSpace

pytest.importorskip("envpool")


@pytest.mark.parametrize(("name", "unseen"), [("HalfCheetah-v4", 1), ("Hopper-v4", 1), ("Ant-v4", 2)])
def test_envpool_steps_as_gymnasium_does(name: str, unseen: int) -> None:
    """From the same start the same actions, also those beyond the bounds, lead to the same steps."""
    pool, referee = make_envs(name, 1, 0, "envpool"), make_envs(name, 1, 0, "gymnasium")
    start, robot = pool.reset()[0].astype(np.float64), referee.each[0].unwrapped
    referee.reset()
    seen = robot.model.nq - unseen  # an observation leaves out where the robot stands along x, and an ant along y
    robot.set_state(np.concatenate([np.zeros(unseen), start[:seen]]), start[seen:])
    generator = np.random.default_rng(0)
    for _ in range(25):  # contacts are chaotic: later, rounding is seen
        actions = generator.normal(0.0, 1.5, (1, pool.actions.width)).astype(np.float32)
        found, wanted = pool.step(actions), referee.step(actions)
        assert found.terminated == wanted.terminated
        for key in ("final", "rewards"):
            np.testing.assert_allclose(getattr(found, key), getattr(wanted, key), rtol=1e-4, atol=1e-4, err_msg=key)
        np.testing.assert_allclose(found.info["x_velocity"], wanted.info["x_velocity"], rtol=1e-4, atol=1e-4)
        if found.terminated[0]:
            break
    pool.close()
    referee.close()


class WithMode(Groups):
    """The same, beside a part that is a choice."""

    observation_space = gymnasium.spaces.Dict({**Groups.observation_space, "mode": gymnasium.spaces.Discrete(3)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, info = super().reset(seed=seed)
        return seen | {"mode": 1}, info


def test_a_part_that_no_policy_can_see_is_refused_only_where_it_is_chosen() -> None:
    name = f"{__file__}:WithMode"
    envs = make_envs(f"{name}?observe=state", 2, 0)
    assert envs.groups == {"privileged": 3, "state": 2}
    assert envs.reset().tolist() == [[1.0, 1.0]] * 2
    envs.close()
    assert environment_info(f"{name}?observe=state")["observations"] == {"names": ["state[0]", "state[1]"]}
    for refused in (name, f"{name}?observe=state,mode"):
        with pytest.raises(UsageError, match="has observations of kind Discrete"):
            make_envs(refused, 2, 0)


def test_the_same_seed_and_actions_are_the_same_bits() -> None:
    def run(seed: int) -> Any:
        batch = make_envs("Hopper-v4", 3, seed)
        generator = np.random.default_rng(0)
        seen = [batch.reset()]
        for _ in range(60):
            seen.append(batch.step(generator.normal(size=(3, 3)).astype(np.float32)).observations)
        batch.close()
        return np.array(seen)

    assert np.array_equal(run(5), run(5))
    assert not np.array_equal(run(5)[:, 0], run(6)[:, 0])
    assert np.array_equal(run(5)[0, 1:], run(6)[0, :-1])  # the i-th environment is seeded with seed + i


# How episodes end -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_no_step_is_spent_on_resetting(backend: Any) -> None:
    """Hopper with wild actions: every step moves the body, from the first of an episode to the last."""
    batch = make_envs("Hopper-v4", 4, 0, backend)
    generator = np.random.default_rng(0)
    current, ends = batch.reset(), 0
    for _ in range(150):
        step = batch.step(generator.normal(size=(4, 3)).astype(np.float32))
        assert not step.truncated.any()
        for n in range(4):
            assert not np.array_equal(step.final[n], current[n])
            healthy = step.final[n, 0] > 0.7 and abs(step.final[n, 1]) < 0.2
            assert bool(step.terminated[n]) is not healthy
            if step.terminated[n]:
                ends += 1
                np.testing.assert_allclose(step.observations[n, :6], [1.25, 0, 0, 0, 0, 0], atol=0.006)
                np.testing.assert_allclose(step.observations[n, 6:], 0.0, atol=0.006)
            else:
                assert np.array_equal(step.observations[n], step.final[n])
        current = step.observations
    assert ends > 10
    batch.close()


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_a_time_limit_is_no_termination(backend: Any) -> None:
    batch = make_envs("Pendulum-v1", 2, 0, backend)
    batch.reset()
    for age in range(1, 402):
        step = batch.step(np.zeros((2, 1), np.float32))
        assert not step.terminated.any()
        assert step.truncated.tolist() == [age % 200 == 0] * 2
    batch.close()


class Forever(Counter):
    """Somebody's way to say that there is no time limit."""

    _max_episode_steps = float("inf")


def test_a_time_limit_that_never_comes_is_none() -> None:
    assert make_envs(f"{__file__}:Forever", 1, 0).limit is None
    assert make_envs("Backgammon-v1", 1, 0, "envpool").limit is None
    for backend in ("envpool", "gymnasium"):
        assert make_envs("Pendulum-v1", 1, 0, backend).limit == 200


@pytest.mark.parametrize("longer", [10, 1_000])
def test_of_two_time_limits_the_shorter_counts(longer: int) -> None:
    envs = GymnasiumEnvs("limited", 1, 0, lambda: gymnasium.wrappers.TimeLimit(gymnasium.make("Pendulum-v1"), longer))
    assert envs.limit == min(longer, 200)


class ByHand(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action four times."""

    def step(self, action: Any) -> Any:
        for _ in range(4):
            answer = self.env.step(action)
        return answer


class AfterIdling(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins each episode with ten steps in which nothing is done."""

    def reset(self, **options: Any) -> Any:
        answer = self.env.reset(**options)
        for _ in range(10):
            self.env.step(np.zeros(1, np.float32))
        return answer


@pytest.mark.parametrize("repeat", [lambda env: gymnasium.wrappers.MaxAndSkipObservation(env, skip=4), ByHand])
@pytest.mark.parametrize(("outer", "limit"), [(None, 50), (20, 20), (70, 50)])
def test_a_time_limit_is_told_in_steps_of_what_repeats_actions(repeat: Any, outer: int | None, limit: int) -> None:
    def make() -> Any:
        env = repeat(AfterIdling(gymnasium.make("Pendulum-v1")))
        return env if outer is None else gymnasium.wrappers.TimeLimit(env, outer)

    assert GymnasiumEnvs("repeated", 2, 0, make).limit == limit


def test_a_step_lasts_as_long_as_mujocos_clock_says() -> None:
    for wrap, seconds in ((lambda env: env, 0.008), (ByHand, 0.032)):
        envs = GymnasiumEnvs("hopper", 1, 0, lambda wrap=wrap: wrap(gymnasium.make("Hopper-v5")))
        assert (envs.period, envs.steps_a_second) == (seconds, 1.0 / seconds)
    pendulum = GymnasiumEnvs("Pendulum-v1", 1, 0)  # it has no such clock: a film has the speed that it names
    assert (pendulum.period, pendulum.steps_a_second) == (0.05, 30.0)


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: gymnasium.wrappers.TimeLimit(env, 5)])
def test_one_environment_is_not_taken_for_several(wrap: Any) -> None:
    env = Counter()
    make_envs(names.env_name(lambda: wrap(env)), 1, 0).close()
    with pytest.raises(UsageError, match="returns the same environment again; it must make a new one at each call"):
        make_envs(names.env_name(lambda: wrap(env)), 2, 0)


def test_terminated_goes_before_truncated() -> None:
    batch = make_envs(tiny("Both"), 1, 0)
    batch.reset()
    for _ in range(3):
        step = batch.step(np.zeros((1, 1), np.float32))
    assert step.terminated.tolist() == [True]
    assert step.truncated.tolist() == [False]


def test_gymnasium_resets_only_what_ended() -> None:
    """Two environments, of which one is an episode ahead of the other."""
    batch: Any = make_envs(tiny("Counter"), 2, 0)
    batch.reset()
    batch._ones[1].env._t = 1
    seen = [batch.step(np.zeros((2, 1), np.float32)) for _ in range(3)]
    assert [step.observations.tolist() for step in seen] == [[[1, 1], [1, 2]], [[1, 2], [2, 0]], [[2, 0], [2, 1]]]
    assert [step.final.tolist() for step in seen] == [[[1, 1], [1, 2]], [[1, 2], [1, 3]], [[1, 3], [2, 1]]]
    assert [step.terminated.tolist() for step in seen] == [[False, False], [False, True], [True, False]]


# Spaces ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_actions_are_not_clipped(backend: Any) -> None:
    """HalfCheetah's control cost is 0.1·Σu² of the action that it was handed."""
    batch = make_envs("HalfCheetah-v4", 1, 0, backend)
    batch.reset()
    step = batch.step(np.full((1, 6), 10.0, np.float32))
    assert float(step.info["reward_ctrl"][0]) == pytest.approx(-0.1 * 6 * 100.0, rel=1e-5)
    batch.close()


def test_dicts_to_see_and_choices_to_make() -> None:
    batch = make_envs(tiny("Manifold"), 2, 0)
    assert batch.observation_size == 7
    assert batch.actions == ActionSpace("discrete", (2, 3))
    expected = np.float32([0.5, 0.6, 0.7, 0.1, 0.2, 0.3, 0.4])  # in the order of the keys
    np.testing.assert_array_equal(batch.reset(), [expected, expected])
    step = batch.step(np.array([[1, 2], [0, 1]]))
    assert step.rewards.tolist() == [21.0, 10.0]
    np.testing.assert_array_equal(step.final, [expected, expected])


@pytest.mark.parametrize(
    ("actions", "stored", "sent"),
    [
        ("matrix", [-9.0, 1.0, 2.0, 3.0, 4.0, 9.0], 10.0),  # and not clipped
        ("number", [2.5], 2.5),
        ("double", [2.5, -1.0], 1.5),
        ("choice", [2], 9.0),
        ("choices", [1, 2], 6.0 - 2.0),
        ("table", [0, 1, 2, 3], 10.0 + 6.0),
        ("switches", [0, 1, 1, 1], 3.0),
    ],
)
def test_actions_have_the_numbers_and_the_shape_that_the_environment_asks_for(
    actions: str, stored: list[float], sent: float
) -> None:
    batch = make_envs(tiny(f"Told?actions={actions}"), 2, 0)
    batch.reset()
    assert batch.actions.width == len(stored)
    assert batch.step(np.array([stored, stored])).info["sum"].tolist() == [sent, sent]
    assert to_env_numbers(np.array([[stored]]), batch.actions).sum() == sent


def test_bounds_are_known() -> None:
    for backend in ("envpool", "gymnasium"):
        batch = make_envs("Pendulum-v1", 1, 0, backend)
        assert batch.actions == ActionSpace("continuous", (1,), (-2.0,), (2.0,))
        batch.close()
    assert make_envs(tiny("Unbounded"), 1, 0).actions.high == (np.inf,)


def test_what_is_told_of_whatever_kind_and_by_whomever_is_numbers() -> None:
    told = merge_infos([{"hit": 1, "name": "a", "deep": {}}, {"hit": 2.5, "far": np.array(3)}, {"way": [[1], [1, 2]]}])
    told |= merge_infos([{"won": np.bool_(True), "on": False}, {"won": False, "on": True}, {"on": np.array(True)}])
    numbers = {key: each.tolist() for key, each in told.items()}
    assert numbers == {"hit": [1.0, 2.5, 0.0], "far": [0.0, 3.0, 0.0], "won": [1.0, 0.0, 0.0], "on": [0.0, 1.0, 1.0]}
    told = merge_infos([{"cost": None, "far": np.ones(3)}, {"cost": 2, "far": 0.5}, {"cost": "none"}])
    assert {key: each.tolist() for key, each in told.items()} == {"cost": [0.0, 2.0, 0.0], "far": [0.0, 0.5, 0.0]}
    assert numeric_entries({"won": np.array([True, False])}, 2)["won"].tolist() == [1.0, 0.0]
    assert {each.dtype for each in told.values()} == {np.dtype(float)}
    steps = stack_infos([merge_infos([{0: 1.0, "hit": 2.0}]), merge_infos([{0: 3.0}])])  # names of any kind
    assert {key: values.tolist() for key, values in steps.items()} == {0: [[1.0], [3.0]], "hit": [[2.0], [0.0]]}


# Names ----------------------------------------------------------------------------------------------------------------
def test_envpool_is_not_looked_at_for_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """To import it takes a second."""
    monkeypatch.setattr(names, "envpool_names", lambda: pytest.fail("it is looked at"))
    make_envs(tiny("Endless"), 1, 0).close()


@pytest.fixture
def _asked_anew() -> Iterator[None]:
    """Forget whether EnvPool is here, before the test and after it."""
    caches = (names.why_no_envpool, names.envpool_names)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("_asked_anew")
def test_without_envpool_gymnasium_steps_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    batch = make_envs("CartPole-v1", 1, 0)
    assert batch.backend == "gymnasium"
    batch.close()
    with pytest.raises(UsageError, match="EnvPool is not installed; leave out --backend envpool"):
        make_envs("CartPole-v1", 1, 0, "envpool")
    with pytest.raises(UsageError, match="no environment 'Nowhere-v0'.*; EnvPool, which has more of them, is not inst"):
        make_envs("Nowhere-v0", 1, 0)


def _settled(env: Any) -> Any:
    """Return the environment, with observations that are normalized by statistics which stay."""
    fixed = gymnasium.wrappers.NormalizeObservation(env)
    fixed.update_running_mean = False
    return fixed


class Agents:
    """Several agents, as in PettingZoo."""


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: gymnasium.vector.SyncVectorEnv([Counter]), "SyncVectorEnv, which is no gymnasium.Env: it must be one"),
        (Agents, "Agents, which is no gymnasium.Env: it must be one environment of one agent"),
        (lambda: gymnasium.wrappers.NormalizeObservation(Counter()), "statistics that are in no policy's file"),
        (lambda: gymnasium.wrappers.TimeLimit(gymnasium.wrappers.NormalizeReward(Counter()), 5), "statistics that are"),
        (lambda: _settled(gymnasium.wrappers.NormalizeReward(Counter())), "statistics that are"),
    ],
)
def test_batches_several_agents_and_statistics_that_move_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        make_envs(names.env_name(make), 1, 0)
    assert GymnasiumEnvs("mine", 1, 0, lambda: _settled(Counter())).reset().shape == (1, 2), "those that stay are taken"


@pytest.mark.usefixtures("_asked_anew")
def test_an_envpool_that_cannot_be_imported_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "envpool.py").write_text("raise ImportError('libOpenGL.so.0: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "envpool")
    with pytest.warns(UserWarning, match="EnvPool cannot be imported: .*libOpenGL.*; Gymnasium's environments"):
        make_envs("CartPole-v1", 1, 0).close()
    with pytest.raises(UsageError, match="EnvPool cannot be imported: .*libOpenGL.*; leave out --backend envpool"):
        make_envs("CartPole-v1", 1, 0, "envpool")


# Broken ones ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WrongShape", r"returns observations of shape \(1,\) from reset, but its observation space says \(3,\)"),
        ("WrongShapeLater", r"returns observations of shape \(2,\) from step, but its observation space says \(1,\)"),
        ("NoInfo", r"returns \(ndarray, NoneType\) from reset, not \(observation, info\)"),
        ("OldReset", r"returns \(ndarray\) from reset, not \(observation, info\)"),
        ("OldStep", r"returns \(ndarray, float, bool, dict\) from step, not \(observation, reward, terminated, "),
    ],
)
def test_wrong_shapes_are_named(name: str, message: str) -> None:
    with pytest.raises(RepolicyError, match=f"environment .*{name}' {message}"):
        make_envs(tiny(name), 2, 0)


@pytest.mark.parametrize(
    ("name", "steps", "said"),
    [
        ("Raises", 10, "Raises' failed: ValueError: the motor is on fire"),
        ("Quits", 2, r"Quits' failed: it called sys.exit\(0\)"),
        *(
            (f"OddReward?reward={kind}", 1, "the reward .*, which is no real number")
            for kind in ("string", "complex", "none", "many")
        ),
        ("EndsInInfinity", 0, "environment 0 of .*EndsInInfinity' ended an episode in an observation"),
    ],
)
def test_a_step_that_fails_is_one_sentence(name: str, steps: int, said: str) -> None:
    batch = make_envs(tiny(name), 2, 0)
    batch.reset()
    for _ in range(steps):
        batch.step(np.zeros((2, 1), np.float32))
    with pytest.raises(RepolicyError, match=said):
        batch.step(np.zeros((2, 1), np.float32))


def test_an_array_of_no_dimension_is_a_reward() -> None:
    batch = make_envs(tiny("OddReward?reward=array"), 1, 0)
    batch.reset()
    assert [float(batch.step(np.zeros((1, 1), np.float32)).rewards[0]) for _ in range(2)] == [1.0, 2.0]
