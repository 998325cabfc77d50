"""Add-on rewards: the shipped ones on hand-made batches, sums of them, and a user's own."""

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_envs import tiny

from repolicy.addons.addon import check_env, combine_addons
from repolicy.addons.addon_names import titles_of, wishes_of
from repolicy.addons.registered import CHEETAH_JOINTS, REGISTERED
from repolicy.envs.rollout import Transitions
from repolicy.errors import NumericError, UsageError
from repolicy.planning.scoring import Score, step_rewards

OBSERVATIONS = np.zeros((2, 3, 27), np.float32)
NEXT = np.arange(2 * 3 * 27, dtype=np.float32).reshape(2, 3, 27) - 81.0  # [T, N, O], of both signs
ACTIONS = np.zeros((2, 3, 8), np.float32)
PLAYGROUNDS = {"energy": "energy", "smooth": "action_rate", "clearance": "feet_clearance", "torques": "torques"}
PLAYGROUNDS |= {"still": "stand_still", "joint_limits": "dof_pos_limits", "air_time": "feet_air_time"}
PLAYGROUNDS = {name: f"reward_{theirs}" for name, theirs in (PLAYGROUNDS | {"slip": "feet_slip"}).items()}
INFO = {"y_velocity": np.array([[1.0, 2.0, 3.0], [-1.0, 0.0, 0.5]]), "x_velocity": np.zeros((2, 3))}
INFO |= {name: np.arange(6.0).reshape(2, 3) + first for first, name in enumerate(PLAYGROUNDS.values())}
STEPS = Transitions(OBSERVATIONS, ACTIONS, NEXT, INFO)


def reward(*requests: str) -> np.ndarray:
    return combine_addons(requests).reward(STEPS)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("hind_leg", -np.abs(NEXT[..., 2])),
        ("hind_leg(joint=bfoot)", -np.abs(NEXT[..., 4])),
        ("height", NEXT[..., 0]),
        ("sideways", INFO["y_velocity"]),
        ("mppi_front_foot", -10 * np.abs(NEXT[..., 7])),
        ("mppi_height", 10 * (NEXT[..., 0] - 1)),
        ("mppi_sideways", -NEXT[..., 14]),
        ("mppi_joint", -np.abs(NEXT[..., 1])),
        *((f"{name}=2", 2 * INFO[theirs]) for name, theirs in PLAYGROUNDS.items()),
        ("height=0.5", 0.5 * NEXT[..., 0]),
        ("height=-2", -2 * NEXT[..., 0]),
        ("hind_leg(joint=ffoot)=3", -3 * np.abs(NEXT[..., 7])),
    ],
)
def test_the_shipped_ones(request_: str, expected: np.ndarray) -> None:
    np.testing.assert_allclose(reward(request_), expected, rtol=1e-6)


def test_every_shipped_one_is_tested_and_described() -> None:
    marks = test_the_shipped_ones.pytestmark
    apart = {"on_command"}  # further down, as it reads two observations
    apart |= {"action_rate", "jerk", "symmetry"}  # in test_gaits.py, as they have a past
    assert {re.split(r"[(=]", row[0])[0] for row in marks[0].args[1]} | apart == set(REGISTERED)
    assert all(entry.make.__doc__ for entry in REGISTERED.values())


def test_they_add_up() -> None:
    expected = 0.5 * NEXT[..., 0] - np.abs(NEXT[..., 2]) + 2 * INFO["y_velocity"]
    np.testing.assert_allclose(reward("height=0.5", "hind_leg", "sideways=2"), expected, rtol=1e-6)
    assert not reward().any()


@pytest.mark.parametrize(
    ("request_", "name", "expected"),
    [
        ("hind_leg(joint=bshin)=5", "mean |θ|", np.abs(NEXT[..., 3])),  # weights are for rewards, not for people
        ("mppi_height", "mean z", NEXT[..., 0]),
        ("mppi_front_foot", "mean |θ|", np.abs(NEXT[..., 7])),
        ("sideways", "mean v_y", INFO["y_velocity"]),
        ("mppi_sideways", "mean v_y", NEXT[..., 14]),
    ],
)
def test_metrics(request_: str, name: str, expected: np.ndarray) -> None:
    addon = combine_addons([request_])
    assert addon.metric_name == name
    np.testing.assert_allclose(addon.metric_values(STEPS), expected, rtol=1e-6)


def test_a_users_own_lies_in_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a=1 (old)"
    folder.mkdir()
    (folder / "mine.py").write_text("def first(o, a, after, info): return after[:, 0]\n")
    addon = combine_addons([f"{folder}/mine.py:first=2"])
    np.testing.assert_allclose(addon.reward(STEPS), 2.0 * NEXT[..., 0])
    assert addon.metric is None


def test_what_one_does_in_place_is_not_seen_by_others(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def rude(o, a, after, info):\n    after *= 0\n    return after[:, 0]\n")
    before = NEXT.copy()
    np.testing.assert_allclose(reward(f"{tmp_path}/mine.py:rude", "height"), NEXT[..., 0])
    np.testing.assert_array_equal(NEXT, before)


def test_one_or_several_are_requests() -> None:
    assert wishes_of("height") == wishes_of(["height"]) == ("height",)
    assert wishes_of(()) == ()
    with pytest.raises(UsageError, match=r"^0.5 is no add-on: give names"):
        wishes_of((np.abs, 0.5))  # type: ignore[arg-type]
    assert wishes_of(["height=1.0", "a.py:f=1", "height=10", "hind_leg(joint=bshin)", "a.py:g=0..1"]) == (
        "height", "a.py:f", "height=10", "hind_leg(joint=bshin)", "a.py:g=0..1",
    )  # fmt: skip


def test_functions_that_copied_one_name_are_several() -> None:
    def times(factor: float) -> Any:
        @functools.wraps(np.sum)
        def reward(observations: Any, *_: Any) -> Any:
            return factor * np.ones(len(observations))

        return reward

    found = combine_addons(wishes_of([times(1.0), times(1000.0)]))
    assert found.titles == ("sum", "sum_2")
    assert (found.reward(STEPS) == 1001.0).all()
    assert titles_of(["runs (old)/calm.safetensors", "theirs.py:quiet"]) == ("calm", "quiet")
    assert titles_of(["mine.py:quiet", "theirs.py:quiet"]) == ("mine.py:quiet", "theirs.py:quiet")


@pytest.mark.parametrize(("name", "shown"), [("quiet", "loudness"), ("Past", "loudness"), ("Nameless", "metric")])
def test_a_users_own_metric(tmp_path: Path, name: str, shown: str) -> None:
    (tmp_path / "mine.py").write_text(
        "def quiet(observations, actions, next_observations, info):\n    return -abs(actions).sum(-1)\n"
        "def loudness(observations, actions, next_observations, info):\n    return abs(actions).sum(-1)\n"
        "quiet.metric = loudness\n"
        "class Past:\n    metric = loudness\n"
        "class Nameless:\n    metric = lambda *steps: loudness(*steps)\n"
    )
    addon = combine_addons([f"{tmp_path}/mine.py:{name}"])
    assert addon.metric_name == f"mean {shown}"
    assert addon.metric_values(Transitions(OBSERVATIONS, ACTIONS - 1, NEXT, INFO)).tolist() == [[8.0] * 3] * 2


def test_joints_are_where_gymnasium_says() -> None:
    import gymnasium
    import mujoco

    env: Any = gymnasium.make("HalfCheetah-v5").unwrapped
    observation, _ = env.reset(seed=0)
    for name, place in CHEETAH_JOINTS.items():
        joint = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_JOINT, name)
        assert observation[place] == env.data.qpos[env.model.jnt_qposadr[joint]]
    env.close()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("hindleg", "no add-on 'hindleg'; did you mean hind_leg.; name your own as module:function or file.py"),
        ("hind_leg(joint=knee)", "no joint 'knee'; choose from bthigh, "),
        ("hind_leg(knee=1)", "'hind_leg' has no option 'knee'; it has joint"),
        ("height=much", "'much' is not a weight; write NAME=0.5"),
        ("hind_leg(joint=bshin,joint=bfoot)", "'hind_leg' has the option 'joint' twice"),
        ("hind_leg(bshin)", "'hind_leg' has no option 'bshin'; it has joint"),
        ("hind_leg(joint=bshin", r"write NAME=0.5 or, with an option, NAME\(OPTION=VALUE\)=0.5"),
        ("symmetry(steps=0)", "no number of 1 or more"),
        (tiny("not_callable"), "not_callable' is a int, and no function"),
        (tiny("stay_neer"), "has no 'stay_neer'; did you mean stay_near"),
        (
            f"{__file__}:takes_three",
            r"takes \(observations: Any, .*after: Any\).* called with .*next_observations, info",
        ),
    ],
)
def test_a_bad_request_is_one_clear_sentence_before_anything_runs(request_: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        combine_addons([request_])


def takes_three(observations: Any, actions: Any, after: Any) -> Any: ...


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("wrong_shape_addon", UsageError, r"returned shape \(3,\) for 6 transitions"),
        ("nan_addon", NumericError, "returned nan for"),
        ("quitting_addon", UsageError, r"failed: it called sys.exit\(0\)"),
    ],
)
def test_a_bad_function_is_one_clear_sentence(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"add-on .*{name}' {message}"):
        reward(tiny(name))


def test_an_object_with_a_past_is_told_to_be_its_class() -> None:
    with pytest.raises(UsageError, match=r"began: Any\).*; to be called with began, too, name the class itself, or "):
        combine_addons(wishes_of(Remembering()))


class Remembering:
    def __call__(self, observations: Any, actions: Any, after: Any, info: Any, began: Any) -> Any: ...


def test_a_function_sees_one_row_of_transitions_whatever_the_batch() -> None:
    addon = combine_addons([tiny("one_row")])
    assert addon.reward(STEPS).tolist() == (NEXT[..., 0] + INFO["y_velocity"]).tolist()
    assert addon.reward(Transitions(OBSERVATIONS[0], ACTIONS[0], NEXT[0], {"y_velocity": np.zeros(3)})).shape == (3,)
    assert addon.metric_values(STEPS).tolist() == NEXT[..., 0].tolist()


def test_one_that_ships_is_refused_where_its_numbers_mean_something_else() -> None:
    for env in ("HalfCheetah-v4", "HalfCheetah-v5?reset_noise_scale=0.3", "my_envs:cheetah"):
        check_env(["hind_leg(joint=bshin)=2", "my.py:quiet"], env)
    with pytest.raises(UsageError, match="'hind_leg' reads the numbers of HalfCheetah, .* in Hopper-v4"):
        check_env(["my.py:quiet", "hind_leg=2"], "Hopper-v4")
    with pytest.raises(UsageError, match="height"):
        check_env(["height"], "Hopper-vision")  # no version of Hopper


@pytest.mark.parametrize("option", ["exclude_current_positions_from_observation=false", "frame_stack=2"])
def test_one_that_ships_is_refused_where_an_option_moves_its_numbers(option: str) -> None:
    key = option.partition("=")[0]
    with pytest.raises(UsageError, match=f"'hind_leg' reads a place in the observation that {key} moves"):
        check_env(["hind_leg"], f"HalfCheetah-v4?reset_noise_scale=0.2&{option}")
    check_env(["sideways"], f"Ant-v4?{option}")  # reads the info alone
    check_env(["hind_leg"], "HalfCheetah-v4?exclude_current_positions_from_observation=true&frame_stack=1")


def test_one_that_ships_says_whose_numbers_it_reads_where_there_are_others() -> None:
    with pytest.raises(UsageError, match=r"'hind_leg' \(made for HalfCheetah\) failed: IndexError"):
        combine_addons(["hind_leg=2"]).reward(Transitions(np.zeros((1, 2)), np.zeros((1, 1)), np.zeros((1, 2)), {}))


def test_missing_info_is_named() -> None:
    steps = Transitions(OBSERVATIONS, ACTIONS, NEXT, {"clock": np.zeros((2, 3))})
    with pytest.raises(UsageError, match="needs 'y_velocity' in the environment's info; there is clock"):
        combine_addons(["sideways"]).reward(steps)
    planned = Score(combine_addons(["sideways"]), 1.0, 0.0, 0.9, None, None)
    with pytest.raises(UsageError, match="there is clock; a planner's model rebuilds no other entries"):
        step_rewards(planned, steps, np.zeros((2, 3)), np.zeros((2, 3), bool))


def test_doing_as_told_is_the_error_of_the_velocity() -> None:
    """Of the command before the step and the velocity after it; a new command is no fault of the step's."""
    before, after = np.zeros((2, 48), np.float32), np.zeros((2, 48), np.float32)
    before[0, 45:48] = [1.0, -0.5, 0.2]
    after[0, [0, 1, 5]] = [0.9, -0.5, 0.5]
    after[0, 45:48] = 100.0
    found = combine_addons(["on_command=2"]).reward(Transitions(before, np.zeros((2, 12)), after, {}))
    np.testing.assert_allclose(found, [-2.0 * (0.1**2 + 0.3**2), 0.0], rtol=1e-5)


def asks_for_more(observations: Any, actions: Any, next_observations: Any, info: Any) -> Any:
    return info["distanse"]


def divides(observations: Any, actions: Any, next_observations: Any, info: Any) -> Any:
    return [1 // 0 for _ in observations]


def test_what_fails_in_an_addon_is_told_with_its_place_and_what_there_is() -> None:
    here = Path(__file__)
    said = r"failed: KeyError: 'distanse' \(.*, line \d+\); info has distance; what only some steps tell is read by"
    with pytest.raises(UsageError, match=said):
        combine_addons([f"{here}:asks_for_more"]).reward(
            Transitions(OBSERVATIONS, ACTIONS, NEXT, {"distance": NEXT[..., 0]})
        )
    line = next(n for n, text in enumerate(here.read_text().splitlines(), 1) if "1 // 0 for" in text)
    with pytest.raises(UsageError, match=rf"failed: ZeroDivisionError: .* \({here.name}, line {line}\)$"):
        combine_addons([f"{here}:divides"]).reward(STEPS)
