"""The add-on rewards that ship, a function each."""

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from repolicy.addons.gaits import ActionRate, Jerk, Symmetry
from repolicy.envs import Info, StatefulAddon, Transitions
from repolicy.errors import UsageError
from repolicy.text import parse_number

Function = Callable[[np.ndarray, np.ndarray, np.ndarray, Info], np.ndarray]


# Index of each joint's angle in HalfCheetah's observation.
CHEETAH_JOINTS = {"bthigh": 2, "bshin": 3, "bfoot": 4, "fthigh": 5, "fshin": 6, "ffoot": 7}

# Options of environments that change the layout of observations, with the values that leave it unchanged.
DEFAULT_LAYOUT = {"exclude_current_positions_from_observation": True, "frame_stack": 1}

# EnvPool's tasks of MuJoCo Playground in which a robot follows a joystick.
PLAYGROUND = (
    "Go1JoystickFlatTerrain", "Go1JoystickRoughTerrain", "BerkeleyHumanoidJoystickFlatTerrain",
    "BerkeleyHumanoidJoystickRoughTerrain", "G1JoystickFlatTerrain", "G1JoystickRoughTerrain",
    "T1JoystickFlatTerrain", "T1JoystickRoughTerrain", "ApolloJoystickFlatTerrain", "SpotFlatTerrainJoystick",
    "SpotJoystickGaitTracking", "Op3Joystick", "BarkourJoystick", "H1JoystickGaitTracking",
)  # fmt: skip


@dataclass(frozen=True)
class Registered:
    """An add-on that ships. The docstring of `make` describes it to users."""

    make: Callable[..., Function | StatefulAddon]  # its parameters are the add-on's options
    envs: tuple[str, ...]  # without versions; empty: all environments with continuous actions
    metric: str  # name of the metric
    measure: Callable[[np.ndarray], np.ndarray] = operator.neg  # maps rewards to the metric
    reads: Literal["observation", "info"] = "observation"
    option: str = ""  # of the environment: set it if the task weighs this term with 0, as `info` then lacks it


def hind_leg(joint: str = "bthigh") -> Function:
    """−|angle| of one of HalfCheetah's joints: spare a broken motor (the paper's add-on for HalfCheetah)."""
    if joint not in CHEETAH_JOINTS:
        raise UsageError(f"HalfCheetah has no joint {joint!r}; choose from {', '.join(CHEETAH_JOINTS)}")
    return lambda observations, actions, next_observations, info: -np.abs(next_observations[:, CHEETAH_JOINTS[joint]])


def on_command() -> Function:
    """−|commanded velocity − velocity|², ahead, aside and in turning, as the robot itself observes it: do as told."""

    def reward(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
        velocity, command = next_observations[:, [0, 1, 5]], observations[:, 45:48]
        return -np.square(velocity - command).sum(axis=1)  # type: ignore[no-any-return]

    return reward


def _from_next_observation(description: str, reward: Callable[[np.ndarray], np.ndarray]) -> Callable[[], Function]:
    """Return the `make` of an add-on that is a function of the next observations `[B, O]` alone."""

    def make() -> Function:
        return lambda observations, actions, next_observations, info: reward(next_observations)

    make.__doc__ = description
    return make


HEIGHT = _from_next_observation(
    "The height z of the torso: jump higher (the paper's add-on for Hopper).", lambda after: after[:, 0]
)
# The tasks of Residual-MPPI.
FRONT_FOOT = _from_next_observation(
    "−10·|angle of HalfCheetah's front foot|: the task of Residual-MPPI.",
    lambda after: -10.0 * np.abs(after[:, CHEETAH_JOINTS["ffoot"]]),
)
HIGHER = _from_next_observation(
    "10·(z − 1) of Hopper's torso: the task of Residual-MPPI.", lambda after: 10.0 * (after[:, 0] - 1.0)
)
ASIDE = _from_next_observation(
    "Ant's velocity toward −y, from its observation: the task of Residual-MPPI.", lambda after: -after[:, 14]
)
JOINT = _from_next_observation(
    "−|angle of Swimmer's first joint|: the task of Residual-MPPI.", lambda after: -np.abs(after[:, 1])
)


def _from_info(description: str, key: str) -> Callable[[], Function]:
    """Return the `make` of an add-on that is an entry of `info`."""
    why = f"this add-on needs {key!r}"

    def make() -> Function:
        return lambda observations, actions, next_observations, info: info_entry(info, key, why)

    make.__doc__ = description
    return make


def _playground_cost(term: str, quantity: str, cost: str, scale: str = "") -> Registered:
    """Return an add-on that is one of Playground's reward terms, c · quantity.

    c is the environment's own weight of the term, below 0 for a quantity that costs; `scale` is a value of c to
    suggest for tasks in which c is 0.
    """
    make = _from_info(f"c·{quantity} (Playground's own, with its weight c)", f"reward_{term}")
    option = f"{term}_scale={scale}" if scale else ""
    return Registered(make, PLAYGROUND, f"{cost} cost", reads="info", option=option)


SIDEWAYS = _from_info(
    "The velocity along y, Δy/Δt: walk to the left as well (the paper's add-on for Ant).", "y_velocity"
)


def action_rate() -> StatefulAddon:
    """−Σ (action − the one before)²: change actions less."""
    return StatefulAddon(ActionRate, _continuous_actions)


def jerk() -> StatefulAddon:
    """−Σ (action − 2 · the one before + the one before that)²: change the change of actions less."""
    return StatefulAddon(Jerk, _continuous_actions)


def symmetry(steps: str = "50") -> StatefulAddon:
    """−Σ (left − right)² of Walker2d's joints, as means of about so many steps: use both legs alike."""
    window = parse_number(steps)
    if not window >= 1.0:
        raise UsageError(f"symmetry: {steps!r} steps are no number of 1 or more")

    def both_legs(steps: Transitions) -> Any:
        return steps.next_observations[:, 5:8], steps.next_observations[:, 2:5]

    return StatefulAddon(partial(Symmetry, window), both_legs)


def _continuous_actions(steps: Transitions) -> Any:
    """Return the actions as the only argument of a stateful add-on; raise if they are discrete."""
    if steps.actions.dtype.kind != "f":
        raise UsageError("this add-on compares actions that are numbers, and the environment takes choices")
    return (steps.actions,)


REGISTERED = {
    "action_rate": Registered(action_rate, (), "mean squared change"),
    "jerk": Registered(jerk, (), "mean squared jerk"),
    "symmetry": Registered(symmetry, ("Walker2d",), "mean squared gap"),
    "hind_leg": Registered(hind_leg, ("HalfCheetah",), "mean |θ|"),
    "height": Registered(HEIGHT, ("Hopper", "Walker2d"), "mean z", lambda reward: reward),
    "sideways": Registered(SIDEWAYS, ("Ant", "Humanoid"), "mean v_y", lambda reward: reward, reads="info"),
    "mppi_front_foot": Registered(FRONT_FOOT, ("HalfCheetah",), "mean |θ|", lambda reward: -reward / 10.0),
    "mppi_height": Registered(HIGHER, ("Hopper",), "mean z", lambda reward: reward / 10.0 + 1.0),
    "mppi_sideways": Registered(ASIDE, ("Ant",), "mean v_y"),
    "mppi_joint": Registered(JOINT, ("Swimmer",), "mean |θ|"),
    "on_command": Registered(on_command, ("Go1JoystickFlatTerrain", "Go1JoystickRoughTerrain"), "missed velocity²"),
    "energy": _playground_cost("energy", "Σ |torque · joint velocity|: use less power", "energy", "-0.001"),
    "smooth": _playground_cost("action_rate", "Σ (change of action)²: change actions less", "action-rate"),
    "clearance": _playground_cost(
        "feet_clearance", "Σ |foot's height − the wished one|·speed: lift feet as told", "clearance", "-2"
    ),
    "torques": _playground_cost("torques", "(√Σ torque² + Σ |torque|): push less", "torque", "-0.0002"),
    "still": _playground_cost(
        "stand_still",
        "Σ |joint angle − its usual one| while the command is 0: stand where told to",
        "stand-still",
        "-1",
    ),
    "joint_limits": _playground_cost(
        "dof_pos_limits", "Σ |angle beyond its soft limit|: keep clear of the stops", "joint-limit", "-1"
    ),
    "air_time": _playground_cost(
        "feet_air_time",
        "Σ over feet that touch down of (seconds in the air − 0.1): take longer steps",
        "air-time",
        "0.1",
    ),
    "slip": _playground_cost("feet_slip", "Σ speed² of feet on the ground: slip less", "slip", "-0.1"),
}


def info_entry(info: Mapping[str, Any], key: str, why: str, where: str = "info") -> Any:
    """Return an entry of an environment's info; if it is missing, raise an error that begins with `why`."""
    if key not in info:
        there = ", ".join(sorted(info)) or "nothing"
        raise UsageError(f"{why} in the environment's {where}; there is {there}") from KeyError(key)
    return info[key]


def describe_registered() -> list[dict[str, Any]]:
    """Return a row for each registered add-on."""
    return [
        {
            "name": name,
            "options": [*inspect.signature(entry.make).parameters],
            "env": ", ".join(entry.envs) or "any with numeric actions",
            "short_env": _short_envs(entry.envs),
            "what": inspect.getdoc(entry.make) or "",
            "metric": entry.metric,
        }
        for name, entry in REGISTERED.items()
    ]


def _short_envs(envs: tuple[str, ...]) -> str:
    return f"{envs[0]} and {len(envs) - 1} more" if len(envs) > 2 else ", ".join(envs) or "any with numeric actions"
