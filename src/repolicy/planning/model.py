"""What a planner simulates with: many states at once, apart from the environment that is acted in."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from repolicy.envs import Backend, Info


class Simulated(NamedTuple):
    """What B states became under B actions."""

    states: np.ndarray  # [B, S]
    observations: np.ndarray  # [B, O] float32
    info: Info  # what an add-on may read, [B] each
    ended: np.ndarray  # [B] whether the episode is over
    failed: np.ndarray  # [B] whether the simulation broke down


class Model(Protocol):
    """A simulator."""

    name: str
    seconds: float  # that a step lasts, or 0 where that is not known
    backend: Backend  # whose environments can be planned in

    def watch(self, envs: Any) -> None:
        """Note the environments that are acted in."""

    def states(self, observations: np.ndarray) -> np.ndarray:
        """Return the states `[N, S]` that are seen as observations `[N, O]`."""

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        """Return what states `[B, S]` become under actions `[B, A]`, as the environment gets them."""

    def trunks(self, states: np.ndarray) -> np.ndarray:
        """Return where the robot's trunk is in states `[B, 3]`: at 0 where no state tells."""
