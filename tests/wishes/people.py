"""Programs that take over, in the place of people."""

from collections.abc import Callable
from typing import Any

import numpy as np

PENDULUM = "Pendulum-v1"
SMALL = {"steps": 256, "envs": 4, "n_steps": 32, "minibatch": 64, "ranks": 1, "evaluation_episodes": 1}


def push(observation: np.ndarray, proposed: np.ndarray) -> np.ndarray:
    return np.array([1.5], np.float32)


def person(wants: Callable[..., bool], act: Callable[..., Any] = push) -> Callable[..., Any]:
    """Return a person who takes over by themselves."""

    def one(observation: np.ndarray, proposed: np.ndarray) -> Any:
        return act(observation, proposed)

    one.wants = wants  # type: ignore[attr-defined]
    return one


def below_zero(observation: np.ndarray, proposed: np.ndarray, acts: bool) -> bool:
    return bool(proposed[0] < 0)


def always(observation: np.ndarray, proposed: np.ndarray, acts: bool) -> bool:
    return True


def never(observation: np.ndarray, proposed: np.ndarray, acts: bool) -> bool:
    return False
