"""The add-on rewards that ship, a function each."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from repolicy.envs.step import Info
from repolicy.errors import UsageError

Function = Callable[[np.ndarray, np.ndarray, np.ndarray, Info], np.ndarray]


# Where each joint's angle stands in HalfCheetah's observation.
CHEETAH_JOINTS = {"bthigh": 2, "bshin": 3, "bfoot": 4, "fthigh": 5, "fshin": 6, "ffoot": 7}

# Options of environments that move what stands in an observation, unless they have these values.
STANDS = {"exclude_current_positions_from_observation": True, "frame_stack": 1}


# EnvPool's tasks of MuJoCo Playground that walk by a joystick.
PLAYGROUND = (
    *(
        f"{robot}Joystick{ground}Terrain"
        for robot in ("Go1", "BerkeleyHumanoid", "G1", "T1")
        for ground in ("Flat", "Rough")
    ),
    *("ApolloJoystickFlatTerrain", "SpotFlatTerrainJoystick", "SpotJoystickGaitTracking", "Op3Joystick"),
    *("BarkourJoystick", "H1JoystickGaitTracking"),
)


@dataclass(frozen=True)
class Registered:
    """An add-on that ships: what it makes a function from, what it is for, what its metric is."""

    make: Callable[..., Function]
    envs: tuple[str, ...]
    metric: str
    measure: Callable[[np.ndarray], np.ndarray]  # from the reward to the metric
    reads: Literal["observation", "info"] = "observation"
    option: str = ""  # of the environment, which may weigh it with 0


def hind_leg(joint: str = "bthigh") -> Function:
    """−|angle| of one of HalfCheetah's joints: spare a broken motor (the paper's add-on for HalfCheetah)."""
    if joint not in CHEETAH_JOINTS:
        raise UsageError(f"HalfCheetah has no joint {joint!r}; choose from {', '.join(CHEETAH_JOINTS)}")
    return lambda observations, actions, next_observations, info: -np.abs(next_observations[:, CHEETAH_JOINTS[joint]])


def height() -> Function:
    """The height z of the torso: jump higher (the paper's add-on for Hopper)."""
    return lambda observations, actions, next_observations, info: next_observations[:, 0]


def sideways() -> Function:
    """The velocity along y, Δy/Δt: walk to the left as well (the paper's add-on for Ant)."""
    return lambda observations, actions, next_observations, info: _info(info, "y_velocity")


def mppi_front_foot() -> Function:
    """−10·|angle of HalfCheetah's front foot|: the task of Residual-MPPI."""
    return lambda observations, actions, next_observations, info: (
        -10.0 * np.abs(next_observations[:, CHEETAH_JOINTS["ffoot"]])
    )


def mppi_height() -> Function:
    """10·(z − 1) of Hopper's torso: the task of Residual-MPPI."""
    return lambda observations, actions, next_observations, info: 10.0 * (next_observations[:, 0] - 1.0)


def mppi_sideways() -> Function:
    """Ant's velocity toward −y, from its observation: the task of Residual-MPPI."""
    return lambda observations, actions, next_observations, info: -next_observations[:, 14]


def mppi_joint() -> Function:
    """−|angle of Swimmer's first joint|: the task of Residual-MPPI."""
    return lambda observations, actions, next_observations, info: -np.abs(next_observations[:, 1])


def energy() -> Function:
    """−c·Σ |torque · joint velocity|, Playground's own: use less power (c may be 0: ENV?energy_scale=-0.001)."""
    return lambda observations, actions, next_observations, info: _info(info, "reward_energy")


def smooth() -> Function:
    """−c·Σ (change of action)², Playground's own: change actions less."""
    return lambda observations, actions, next_observations, info: _info(info, "reward_action_rate")


def clearance() -> Function:
    """−c·Σ |foot's height − the wished one|·speed, Playground's own (c may be 0: ENV?feet_clearance_scale=-2)."""
    return lambda observations, actions, next_observations, info: _info(info, "reward_feet_clearance")


def on_command() -> Function:
    """−|commanded velocity − velocity|², ahead, aside and in turning, as the robot itself observes it: do as told."""

    def missed(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
        velocity = next_observations[:, [0, 1, 5]]
        return -np.square(velocity - observations[:, 45:48]).sum(axis=1)  # type: ignore[no-any-return]

    return missed


REGISTERED = {
    "hind_leg": Registered(hind_leg, ("HalfCheetah",), "mean |θ|", lambda reward: -reward),
    "height": Registered(height, ("Hopper", "Walker2d"), "mean z", lambda reward: reward),
    "sideways": Registered(sideways, ("Ant", "Humanoid"), "mean v_y", lambda reward: reward, reads="info"),
    "mppi_front_foot": Registered(mppi_front_foot, ("HalfCheetah",), "mean |θ|", lambda reward: -reward / 10.0),
    "mppi_height": Registered(mppi_height, ("Hopper",), "mean z", lambda reward: reward / 10.0 + 1.0),
    "mppi_sideways": Registered(mppi_sideways, ("Ant",), "mean v_y", lambda reward: -reward),
    "mppi_joint": Registered(mppi_joint, ("Swimmer",), "mean |θ|", lambda reward: -reward),
    "energy": Registered(
        energy, PLAYGROUND, "energy cost", lambda reward: -reward, reads="info", option="energy_scale=-0.001"
    ),
    "smooth": Registered(smooth, PLAYGROUND, "action-rate cost", lambda reward: -reward, reads="info"),
    "on_command": Registered(
        on_command, ("Go1JoystickFlatTerrain", "Go1JoystickRoughTerrain"), "missed velocity²", lambda reward: -reward
    ),
    "clearance": Registered(
        clearance, PLAYGROUND, "clearance cost", lambda reward: -reward, reads="info", option="feet_clearance_scale=-2"
    ),
}


def _info(info: Info, key: str) -> np.ndarray:
    if key not in info:
        raise UsageError(
            f"this add-on needs {key!r} in the environment's info, which has {', '.join(sorted(info)) or 'nothing'}"
        )
    return info[key]


def described() -> list[dict[str, str]]:
    """A row for each registered add-on."""
    return [
        {
            "name": name + "".join(f"({option}=…)" for option in inspect.signature(entry.make).parameters),
            "env": ", ".join(entry.envs),
            "what": inspect.getdoc(entry.make) or "",
            "metric": entry.metric,
        }
        for name, entry in REGISTERED.items()
    ]
