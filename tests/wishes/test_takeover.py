"""Who did what: recorded, read back, labelled, inferred from, and the loop to the end. The person is a program."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from people import PENDULUM, SMALL, always, below_zero, never, person, push
from tiny_envs import Endless, tiny
from typed_keys import Typed

from repolicy.addons.wish_file import open_wish
from repolicy.errors import RepolicyError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.opening import open_agent
from repolicy.wishes.learning_loop import Teaching, learn_wish, record
from repolicy.wishes.record import Labels, Record, RecordFile
from repolicy.wishes.takeover import Takeover


def test_space_takes_over_and_hands_back_enter_ends_and_backspace_drops(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl", PENDULUM, "p", (3, 1))
    keys = Typed([], ["space"], [], ["space"], ["enter"], [], ["backspace"], ["space", "space"], ["escape"])
    env = Takeover(gymnasium.make(PENDULUM), push, file, keys)
    env.reset(seed=0)
    told = []
    for _ in range(9):
        *_, cut, info = env.step(np.array([0.25], np.float32))
        told.append((info["person"], cut))
        if cut:
            env.reset()
    file.close()
    assert [person for person, _ in told] == [False, True, True, False, False, False, False, False, False]
    assert [cut for _, cut in told] == [False, False, False, False, True, False, True, False, True]
    assert env.left
    assert keys.shown[1].endswith("YOU act")
    found = Record.read(tmp_path / "r.jsonl")
    assert found.episode.tolist() == [0] * 5 + [2, 2]  # the second episode was dropped
    assert found.action.ravel().tolist() == [0.25, 1.5, 1.5, 0.25, 0.25, 0.25, 0.25]
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [line["proposed"] for line in lines if "proposed" in line] == [[0.25]] * 9  # nor are dropped steps erased
    assert found.rate == pytest.approx(2 / 7)
    assert np.array_equal(found.next[:4], found.observation[1:5])


def test_an_environment_that_changes_its_arrays_is_recorded_as_it_was(tmp_path: Path) -> None:
    class Reusing(gymnasium.Wrapper[Any, Any, Any, Any]):
        place = np.zeros(3, np.float32)

        def reset(self, **options: Any) -> Any:
            self.place[:], info = self.env.reset(**options)
            return self.place, info

        def step(self, action: Any) -> Any:
            self.place[:], *rest = self.env.step(action)
            action[:] = 9.0
            return self.place, *rest

    records = []
    for name, made in (("a", gymnasium.make(PENDULUM)), ("b", Reusing(gymnasium.make(PENDULUM)))):
        file = RecordFile(tmp_path / name, PENDULUM, "p", (3, 1))
        env = Takeover(made, push, file)
        env.reset(seed=0)
        for _ in range(4):
            env.step(np.array([0.25], np.float32))
        file.close()
        records.append(Record.read(tmp_path / name))
    for field in ("observation", "action", "next"):
        assert np.array_equal(*(getattr(each, field) for each in records)), field


def test_a_person_whose_action_is_none_is_one_sentence() -> None:
    for action, why in ((np.ones(3), "takes 1 finite number"), (np.array([np.nan]), "is .nan.")):
        env = Takeover(gymnasium.make(PENDULUM), person(always, lambda o, a, action=action: action))
        env.reset(seed=0)
        with pytest.raises(RepolicyError, match=why):
            env.step(np.zeros(1, np.float32))
    env.person = person(always, lambda o, a: o[9])
    with pytest.raises(RepolicyError, match="the person failed: IndexError"):
        env.step(np.zeros(1, np.float32))


class Taking(Endless):
    """Tells which action it took."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.action_space = space

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"took": np.asarray(action).tolist()}


@pytest.mark.parametrize(
    ("space", "right", "wrong"),
    [
        (gymnasium.spaces.Discrete(4, start=1), [1, 4.0, np.array([2])], [0, 7, 3.7, -1]),
        (gymnasium.spaces.MultiDiscrete([2, 3], start=[5, -4]), [[5, -4], [6.0, -2.0]], [[0, 0], [5.5, -4]]),
        (gymnasium.spaces.MultiBinary(2), [[0, 1], [True, False]], [[0, 2], [256, 0]]),
    ],
)
def test_a_choice_that_the_environment_has_not_is_refused(space: Any, right: list[Any], wrong: list[Any]) -> None:
    env, proposed = Takeover(Taking(space), push), np.asarray(right[0])
    env.reset()
    for action in right:
        env.person = person(always, lambda o, a, action=action: action)
        assert np.array_equal(np.ravel(env.step(proposed)[-1]["took"]), np.ravel(action))
    for action in wrong:
        env.person = person(always, lambda o, a, action=action: action)
        with pytest.raises(RepolicyError, match=r"the person's action is .*; the environment takes (Multi|Disc)"):
            env.step(proposed)


def test_a_choice_can_be_looked_up_in_a_dict_and_what_an_environment_raises_is_one_sentence() -> None:
    class Looking(Taking):
        def step(self, action: Any) -> Any:
            return super().step({1: 10, 2: 20}[action])

        def reset(self, **options: Any) -> Any:
            assert options.get("seed") != 5
            return super().reset(**options)

    env = Takeover(Looking(gymnasium.spaces.Discrete(3, start=1)), push)
    env.reset()
    assert env.step(np.array(2))[-1]["took"] == 20
    with pytest.raises(RepolicyError, match="the environment failed: KeyError: "):
        env.step(np.array(3))
    with pytest.raises(RepolicyError, match="the environment failed: AssertionError"):
        env.reset(seed=5)


def test_a_dict_is_not_recorded() -> None:
    class Dicts(gymnasium.ObservationWrapper):
        observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(-1, 1, (3,))})

    with pytest.raises(RepolicyError, match="FlattenObservation"):
        Takeover(Dicts(gymnasium.make(PENDULUM)), push)


def test_dropped_episodes_do_not_count_and_who_leaves_can_go_on(policy: Path, tmp_path: Path) -> None:
    found = open_agent(policy)
    keys = Typed([], [], ["backspace"], [], [])
    assert len(record(found, PENDULUM, tmp_path / "r.jsonl", 10, push, keys=keys).person) == 10
    said, teaching = list[str](), Teaching(str(policy), PENDULUM, "action[0]", 0.1, 0.1)
    assert learn_wish(teaching, tmp_path, push, keys=Typed([], [], ["escape"]), say=said.append, steps=10) == []
    assert said == ["round 0: 3 of 10 steps are recorded; the same command goes on"]
    again = learn_wish(teaching, str(tmp_path), person(never), steps=10)
    assert [each.rate for each in again] == [0.0]
    assert Record.read(tmp_path / "round-0" / "record.jsonl").episode.tolist() == [0] * 3 + [1] * 7


def test_only_a_window_asks_for_a_picture(policy: Path, tmp_path: Path) -> None:
    """MuJoCo cannot draw without a display, and a terminal is what serves there."""
    pytest.importorskip("pygame")
    found = open_agent(policy)
    for shows in (False, True):
        keys = Typed()
        keys.shows = shows
        record(found, PENDULUM, tmp_path / f"{shows}.jsonl", 2, push, keys=keys)
        assert [picture is not None for picture in keys.pictures] == [shows] * 2


def test_a_window_of_an_environment_that_gives_no_pictures_names_the_terminal(tmp_path: Path) -> None:
    path, keys = tmp_path / "p.safetensors", Typed()
    save_policy(path, Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)))), {})
    keys.shows = True
    with pytest.raises(RepolicyError, match=r"cannot be made: TypeError.*: add --keys terminal"):
        record(open_agent(path), tiny("Endless"), tmp_path / "r.jsonl", 2, push, keys=keys)


def test_choices_can_be_taken_over_and_customized(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    spec = PolicySpec(4, ActionSpace("discrete", (2,)), "categorical")
    save_policy(path, Policy(spec), {"request": {"env": "CartPole-v1"}})
    teaching = Teaching(
        str(path), "CartPole-v1", "action", 0.1, 0.1, 0.0, Labels(0), 1, SMALL, updates=1, alone_steps=320
    )
    right = person(lambda o, a, acts: bool(a == 0), lambda o, a: np.array(1))
    done = learn_wish(teaching, tmp_path, right, steps=200, rounds=2)
    assert len(done) == 2
    theta, covariance = (
        getattr(open_wish(str(tmp_path / "round-0" / "wish-0.safetensors")), name) for name in ("theta", "covariance")
    )
    assert theta[0] > 3 * covariance[0, 0] ** 0.5


def test_choices_are_recorded_as_the_environment_counts_them(tmp_path: Path) -> None:
    """It counts from 7 on, which a policy's file may not tell."""
    path = tmp_path / "p.safetensors"
    save_policy(path, Policy(PolicySpec(1, ActionSpace("discrete", (3,)), "categorical")), {})
    made = record(open_agent(path), tiny("Told") + "?actions=choice", tmp_path / "r.jsonl", 20, person(never))
    assert {*made.action.ravel()} == {7, 8, 9}


def test_what_the_policy_does_is_not_cut_beside_a_person() -> None:
    """Nor is a number that a person leaves to it: they would be taken for one who wants smaller actions."""
    two = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    env = Takeover(Taking(two), person(below_zero, lambda o, a: np.array([7.0, a[1]])))
    env.reset()
    assert [env.step(np.array([first, 2.0]))[-1]["took"] for first in (3.0, -3.0)] == [[3.0, 2.0], [1.0, 2.0]]
