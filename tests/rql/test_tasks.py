"""The four tasks: their rewards, in numbers worked out by hand."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from highway_env.envs.highway_env import HighwayEnv
from highway_env.envs.parking_env import ParkingEnv

from repolicy.addons.addon import combine_addons
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Transitions
from repolicy.errors import UsageError
from repolicy.loading import load_object
from repolicy.rql import tasks


class Scripted(gymnasium.Env[Any, Any]):
    """Shows what it is told to."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, observation: list[float]) -> None:
        self.observation = np.array(observation, np.float32)

    def step(self, action: Any) -> Any:
        return self.observation, 1.0, False, False, {}


@pytest.mark.parametrize("angle", [0.02095, -0.02095])
def test_cartpole_pays_for_an_upright_pole_and_for_the_middle(angle: float) -> None:
    task = tasks.CartPole()
    task.env = Scripted([-1.2, 0.0, angle, 0.0])
    _, basic, *_, info = task.step(0)
    assert basic == pytest.approx(0.0, abs=1e-6)
    assert info["addon_reward"] == pytest.approx(-0.5)


@pytest.mark.parametrize(("action", "paid"), [(-0.01, -0.1), (0.0, 0.0), (1.0, 0.0)])
def test_mountain_car_pays_for_pushes_to_the_left(action: float, paid: float) -> None:
    task = tasks.MountainCar()
    task.reset(seed=0)
    _, basic, *_, info = task.step(np.array([action], np.float32))
    assert info["addon_reward"] == paid
    assert basic == pytest.approx(-0.1 * action**2)


def test_highway_counts_speed_crashes_and_the_lane() -> None:
    task = tasks.Highway()
    rewards = {"on_road_reward": 1.0, "high_speed_reward": 0.5, "collision_reward": 1.0}
    assert task.basic(np.zeros(25), 0.0, {"rewards": rewards}) == pytest.approx(0.7)
    assert task.basic(np.zeros(25), 0.0, {"rewards": rewards | {"on_road_reward": 0.0}}) == 0.0
    task.reset(seed=0)
    vehicle: Any = task.unwrapped
    for lane, paid in ((0, 0.0), (1, 0.25), (2, 0.5)):
        vehicle.vehicle.target_lane_index = ("0", "1", lane)
        assert task.addon(np.zeros(25), 0) == paid


def ends_alike(theirs: Any, ours: Any, seed: int, actions: Any) -> bool:
    """Whether an episode of both, the same to the bit, ends within these actions."""
    assert (theirs.reset(seed=seed)[0] == ours.reset(seed=seed)[0]).all()
    for action in actions:
        (seen, *rest, info), (our_seen, *our_rest, our_info) = theirs.step(action), ours.step(action)
        assert (seen == our_seen).all()
        assert rest == our_rest
        assert info == our_info
        if rest[1] or rest[2]:
            return True
    return False


def test_the_faster_parking_is_highway_envs_own_to_the_bit() -> None:
    envs = ParkingEnv(tasks.PARKING), tasks.QuickParking(tasks.PARKING)
    theirs, ours = map(gymnasium.wrappers.FlattenObservation, envs)
    assert theirs.observation_space == ours.observation_space
    drives = {seed: np.random.default_rng(seed).uniform(-1.0, 1.0, (40, 2)) for seed in (0, 4)}
    ends = [ends_alike(theirs, ours, seed, actions) for seed, actions in drives.items()]
    assert any(ends)


def test_the_faster_highway_is_highway_envs_own_to_the_bit() -> None:
    theirs, ours = HighwayEnv(tasks.HIGHWAY), tasks.QuickHighway(tasks.HIGHWAY)
    to_either_side = (3, 0, 3, 2, 3, 3, 3, 3)  # and faster
    crashes = [ends_alike(theirs, ours, seed, to_either_side) for seed in (2, 7)]
    assert any(crashes)


# A car of 5 by 2 metres beside one line from (0, 10) to (0, 18).
@pytest.mark.parametrize(
    ("x", "y", "heading", "touching"),
    [
        (2.4, 14.0, 0.0, True),  # its length reaches 2.5 to each side
        (0.9, 14.0, np.pi / 2, True),  # upright, its width reaches 1
        (0.0, 7.6, np.pi / 2, True),  # from below, its length reaches 2.5
        (0.0, 7.4, np.pi / 2, False),
        (0.0, 14.0, np.pi / 2, True),  # the line is all inside
        (2.4, 14.0, np.pi / 4, True),  # turned: the corner is at 1.77 + 0.71
        (2.5, 14.0, np.pi / 4, False),
    ],
)
def test_a_car_touches_a_line(x: float, y: float, heading: float, touching: bool) -> None:
    line = np.array([[[0.0, 10.0], [0.0, 18.0]]])
    for either in (line, line[:, ::-1]):
        assert tasks.touches(np.array([x, y]), heading, np.array([5.0, 2.0]), either) == touching


def test_the_lines_are_those_of_the_parking_lot() -> None:
    task = tasks.Parking()
    task.reset(seed=0)
    parking: Any = task.unwrapped
    lanes = parking.road.network.lanes_list()
    wanted = {
        (round(float(lane.start[0]) + side * lane.width / 2, 6), float(np.sign(lane.start[1])))
        for lane in lanes
        for side in (-1, 1)
    }
    found = {(float(x), float(np.sign(y))) for (x, y), _ in tasks.SLOT_LINES}
    assert found == wanted
    assert {abs(float(lane.start[1])) for lane in lanes} == {10.0}
    parking.vehicle.position, parking.vehicle.heading = np.array(lanes[0].position(4.0, 0.0)), np.pi / 2
    assert task.addon(np.zeros(18), 0) == 0.0  # in the middle of a slot
    parking.vehicle.position[0] += 1.5
    assert task.addon(np.zeros(18), 0) == -1.0


@pytest.mark.parametrize("name", ["CartPole", "MountainCar"])
def test_the_engine_takes_them_with_their_addon(name: str) -> None:
    batch = make_envs(f"repolicy.rql.tasks:{name}", 3, seed=0)
    seen = batch.reset()
    actions = np.full((3, 1), 0 if name == "CartPole" else -0.5, np.float32)
    step = batch.step(actions)
    paid = combine_addons(["repolicy.rql.tasks:addon"]).reward(Transitions(seen, actions, step.final, step.info))
    assert paid.shape == (3,)
    assert (paid < 0).all()


@pytest.mark.parametrize("name", ["CartPole", "MountainCar", "Highway", "Parking"])
def test_they_can_be_filmed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    task = getattr(tasks, name)(render_mode="rgb_array")
    task.reset(seed=0)
    picture = task.render()
    task.close()
    assert picture.ndim == 3
    assert picture.min() < picture.max()


def test_without_highway_env_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highway_env.envs.common.observation", None)
    monkeypatch.delitem(sys.modules, "repolicy.rql.tasks")
    with pytest.raises(UsageError, match=r"need highway-env, which is not installed: pip install 'repolicy\[sb3\]'"):
        load_object("repolicy.rql.tasks:CartPole", "environment")
