"""Two of highway-env's environments, the same to the last bit with less work.

On the highway every pair of cars is asked, one after the other, how far they are apart; here that is arithmetic on
arrays, and only those that are near are looked at closely. And what is seen needs no data frames.
"""

from typing import Any

import numpy as np
from highway_env.envs.common.observation import KinematicObservation, KinematicsGoalObservation
from highway_env.envs.highway_env import HighwayEnv
from highway_env.envs.parking_env import ParkingEnv
from highway_env.road.road import Road, RoadNetwork


class StraightRoad(Road):
    """Lanes that run along x, with cars and nothing else on them."""

    def neighbour_vehicles(self, vehicle: Any, lane_index: Any = None) -> tuple[Any, Any]:
        """Return the next car before and behind this one on a lane; of two at one place, the last and the first."""
        lane = self.network.get_lane(lane_index or vehicle.lane_index)
        along, across = (self._positions() - lane.start).T
        others = (np.abs(across) <= lane.width / 2 + 1) & (along >= -lane.VEHICLE_LENGTH)
        others &= along < lane.length + lane.VEHICLE_LENGTH
        others[self.vehicles.index(vehicle)] = False
        here = vehicle.position[0] - lane.start[0]
        before, behind = np.flatnonzero(others & (along >= here))[::-1], np.flatnonzero(others & (along < here))
        return (
            self.vehicles[before[along[before].argmin()]] if before.size else None,
            self.vehicles[behind[along[behind].argmax()]] if behind.size else None,
        )

    def step(self, dt: float) -> None:
        for vehicle in self.vehicles:
            vehicle.step(dt)
        places = self._positions()
        apart = np.linalg.norm(places[:, None] - places, axis=-1)
        size = np.array([vehicle.diagonal for vehicle in self.vehicles])
        speed = np.array([vehicle.speed for vehicle in self.vehicles])
        near = apart <= (size[:, None] + size) / 2 + speed[:, None] * dt + 1e-6
        for one, other in np.argwhere(np.triu(near, 1)):
            self.vehicles[one].handle_collisions(self.vehicles[other], dt)

    def _positions(self) -> np.ndarray:
        return np.array([vehicle.position for vehicle in self.vehicles])


class CarsObservation(KinematicObservation):
    """The nearest cars ahead, seen from one's own, as columns of arrays."""

    def observe(self) -> np.ndarray:
        if not self.env.road:
            return super().observe()
        own, count = self.observer_vehicle, self.vehicles_count
        near = self.env.road.close_objects_to(own, self.env.PERCEPTION_DISTANCE, count - 1, see_behind=False)
        cars = [own.to_dict(), *(car.to_dict(own, observe_intentions=False) for car in near)]
        columns = {feature: np.array([float(car[feature]) for car in cars]) for feature in self.features}
        seen = np.zeros((count, len(columns)), np.float32)
        seen[: len(cars)] = np.stack(list(self.normalize_obs(columns).values()), -1)
        return seen


class StraightHighway(HighwayEnv):
    """highway-v0 on such a road, seen in this way."""

    def define_spaces(self) -> None:
        super().define_spaces()
        self.observation_type = CarsObservation(self, **self.config["observation"])

    def _create_road(self) -> None:
        network = RoadNetwork.straight_road_network(self.config["lanes_count"], speed_limit=30)
        self.road = StraightRoad(network, np_random=self.np_random, record_history=self.config["show_trajectories"])


class GoalObservation(KinematicsGoalObservation):
    """Where the car is and where it should be, without a data frame."""

    def observe(self) -> dict[str, np.ndarray]:
        if not self.observer_vehicle:
            return super().observe()
        own, goal = (
            np.array([what[feature] for feature in self.features]) / self.scales
            for what in (self.observer_vehicle.to_dict(), self.observer_vehicle.goal.to_dict())
        )
        return {"observation": own, "achieved_goal": own.copy(), "desired_goal": goal}


class QuickParking(ParkingEnv):
    """parking-v0, seen in this way."""

    def define_spaces(self) -> None:
        super().define_spaces()
        self.observation_type = self.observation_type_parking = GoalObservation(self, **self.config["observation"])
