"""The four tasks of Residual Q-Learning, as Gymnasium environments.

The environment's reward is the basic reward, and `info["addon_reward"]` the add-on's. All commands of Repolicy accept
the names of these environments and of the add-on:

    repolicy train repolicy.rql.tasks:CartPole --objective full --alpha 0.1 --addon repolicy.rql.tasks:addon

| task | basic | add-on |
|---|---|---|
| CartPole, 500 steps | 1 − 10·abs(angle)/0.2095 | −abs(position)/2.4: stay in the middle |
| MountainCar, 999 steps, continuous | 100 at the top, −0.1·action² | −0.1 where action < 0: push to the right |
| Highway, 3 lanes, 30 cars, 40 s | 1 + 0.4·speed − 0.5·crash, 0 off the road | 0.5·lane/2: keep to the right |
| Parking, 20 s | −√distance to the goal, −5 for a crash; ends when parked | −1 on a line between slots |

Parking's distance is 0.01·abs(Δx) + 0.003·abs(Δy), and 0.02 times the differences of the heading's cosine and sine.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from repolicy.errors import UsageError

try:
    from highway_env.envs.common.abstract import AbstractEnv
    from highway_env.envs.common.graphics import EnvViewer
    from highway_env.envs.common.observation import KinematicsGoalObservation
    from highway_env.envs.highway_env import HighwayEnv
    from highway_env.envs.parking_env import ParkingEnv
    from highway_env.road.lane import StraightLane
except ImportError:
    raise UsageError("these tasks need highway-env, which is not installed: pip install 'repolicy[sb3]'") from None


def addon(observations: Any, actions: Any, next_observations: Any, info: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the add-on reward that the environment of a task reports in its info."""
    if "addon_reward" not in info:
        problem = "the environment has no add-on of its own, info['addon_reward']"
        raise UsageError(f"{problem}: name your own with --addon (in Python, addon=...)")
    return info["addon_reward"]


class Task(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment with the reward `basic` and with `addon` in its info, both computed after each step."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        info["addon_reward"] = float(self.addon(observation, action))
        return observation, float(self.basic(observation, float(reward), info)), terminated, truncated, info

    def basic(self, observation: np.ndarray, reward: float, info: dict[str, Any]) -> float:
        return reward

    def addon(self, observation: np.ndarray, action: Any) -> float:
        raise NotImplementedError


class CartPole(Task):
    """Keep the pole upright; add-on: keep the cart in the middle."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode))

    def basic(self, observation: np.ndarray, reward: float, info: dict[str, Any]) -> float:
        return 1.0 - 10.0 * abs(observation[2]) / 0.2095

    def addon(self, observation: np.ndarray, action: Any) -> float:
        return -abs(observation[0]) / 2.4


class MountainCar(Task):
    """Reach the top with little effort; add-on: do not push to the left."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gymnasium.make("MountainCarContinuous-v0", render_mode=render_mode))

    def addon(self, observation: np.ndarray, action: Any) -> float:
        return -0.1 if np.ravel(action)[0] < 0 else 0.0


HIGHWAY = {"lanes_count": 3, "vehicles_count": 30, "duration": 40, "simulation_frequency": 5}


class Highway(Task):
    """Drive fast without a crash; add-on: keep to the right."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(_flat(QuickHighway(HIGHWAY, render_mode)))

    def basic(self, observation: np.ndarray, reward: float, info: dict[str, Any]) -> float:
        terms = info["rewards"]
        return float(terms["on_road_reward"] * (1 + 0.4 * terms["high_speed_reward"] - 0.5 * terms["collision_reward"]))

    def addon(self, observation: np.ndarray, action: Any) -> float:
        vehicle: Any = self.unwrapped.vehicle  # type: ignore[attr-defined]
        return 0.5 * vehicle.target_lane_index[2] / 2


PARKING = {"duration": 20}


class Parking(Task):
    """Park in the slot that is marked; add-on: do not touch the lines between slots."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(_flat(QuickParking(PARKING, render_mode)))

    def addon(self, observation: np.ndarray, action: Any) -> float:
        vehicle: Any = self.unwrapped.vehicle  # type: ignore[attr-defined]
        size = np.array([vehicle.LENGTH, vehicle.WIDTH])
        return -float(touches(np.asarray(vehicle.position), float(vehicle.heading), size, SLOT_LINES))


def _flat(env: AbstractEnv) -> gymnasium.Env[Any, Any]:
    """Return an environment of highway-env with observations as vectors. It can be filmed without a screen."""
    if env.render_mode is not None:
        env.viewer = EnvViewer(env)
        env.viewer.enabled = True  # which it is not under SDL's driver "dummy", although it draws on no screen
    return gymnasium.wrappers.FlattenObservation(env)


# The lines at both sides of 14 slots, above and below the drive: (x, y) of both ends, [30, 2, 2].
SLOT_LINES = np.array([[[x, sign * 10.0], [x, sign * 18.0]] for sign in (1, -1) for x in np.arange(-28.0, 29.0, 4.0)])


def touches(position: np.ndarray, heading: float, size: np.ndarray, lines: np.ndarray) -> bool:
    """Return whether a rectangle `size = [length, width]` at `position`, turned by `heading`, meets any of `lines`.

    This is the slab method: in the rectangle's frame, a line meets it if one of its stretches lies in both slabs.
    """
    rotation = np.array([[np.cos(heading), -np.sin(heading)], [np.sin(heading), np.cos(heading)]])
    ends = (lines - position) @ rotation
    start, direction = ends[:, 0], ends[:, 1] - ends[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        lower, upper = (-size / 2 - start) / direction, (size / 2 - start) / direction
    enter, leave = np.minimum(lower, upper), np.maximum(lower, upper)
    parallel, inside = np.abs(direction) < 1e-9, np.abs(start) <= size / 2
    enter = np.where(parallel, np.where(inside, -np.inf, np.inf), enter)
    leave = np.where(parallel, np.where(inside, np.inf, -np.inf), leave)
    return bool((np.maximum(enter.max(-1), 0) <= np.minimum(leave.min(-1), 1)).any())


# Faster versions of highway-env's environments, with bit-identical results -------------------------------------


class LaneAlongX(StraightLane):
    """A lane along the x-axis, whose local coordinates are differences."""

    def __init__(self, lane: StraightLane) -> None:
        super().__init__(lane.start, lane.end, lane.width, lane.line_types, speed_limit=lane.speed_limit)
        self.x, self.y = (float(number) for number in lane.start)

    def local_coordinates(self, position: np.ndarray) -> tuple[float, float]:
        return float(position[0]) - self.x, float(position[1]) - self.y


class QuickHighway(HighwayEnv):
    """highway-v0 on lanes along the x-axis."""

    def _create_road(self) -> None:
        super()._create_road()
        lanes = self.road.network.graph["0"]["1"]
        lanes[:] = map(LaneAlongX, lanes)


class GoalObservation(KinematicsGoalObservation):
    """Features of the car and of its goal, computed without a data frame."""

    def observe(self) -> dict[str, np.ndarray]:
        if not self.observer_vehicle:
            return super().observe()
        own, goal = (
            np.array([values[feature] for feature in self.features]) / self.scales
            for values in (self.observer_vehicle.to_dict(), self.observer_vehicle.goal.to_dict())
        )
        return {"observation": own, "achieved_goal": own.copy(), "desired_goal": goal}


class QuickParking(ParkingEnv):
    """parking-v0 with `GoalObservation`."""

    def define_spaces(self) -> None:
        super().define_spaces()
        self.observation_type = self.observation_type_parking = GoalObservation(self, **self.config["observation"])
