"""Describe an environment for the programs that run an exported policy on a robot.

The description has the control period, and the names, units and order of observations and actions. Nothing is guessed:
the numbers of a MuJoCo observation are named only if they equal the positions and velocities of the joints at the first
observation.
"""

import warnings
from contextlib import closing
from typing import Any

import numpy as np
from gymnasium import spaces

from repolicy.envs import GymnasiumEnvs, envpool_names, evaluation_backend, group_sizes, observed_parts, parse_env_name
from repolicy.errors import UsageError, in_one_sentence

PLACE = [(f".{axis}", "m") for axis in "xyz"]
QUATERNION = [(f".q{part}", "") for part in "wxyz"]
LINEAR_VELOCITY = [(f".{axis}", "m/s") for axis in "xyz"]
ANGULAR_VELOCITY = [(f".w{axis}", "rad/s") for axis in "xyz"]
JOINT_TYPES = {  # by mjtJoint: the suffix and the unit of each position, and of each velocity
    0: (PLACE + QUATERNION, LINEAR_VELOCITY + ANGULAR_VELOCITY),
    1: (QUATERNION, ANGULAR_VELOCITY),
    2: ([("", "m")], [("", "m/s")]),
    3: ([("", "rad")], [("", "rad/s")]),
}


def environment_info(name: str) -> dict[str, Any]:
    """Return what is known of an environment: `control_period` in seconds, and names and units in order."""
    with (
        in_one_sentence(f"environment {name!r} does not tell what it is", UsageError),
        warnings.catch_warnings(action="ignore"),  # about deprecated versions and rounded bounds
    ):
        info = _gymnasium_info(name) if evaluation_backend(name) == "gymnasium" else _envpool_info(name)
    if parse_env_name(name).decoder:  # the policy's actions are the decoder's noise, and not the environment's actions
        info.pop("actions", None)
    return {"env": name} | info


def _envpool_info(name: str) -> dict[str, Any]:
    parsed = parse_env_name(name)
    if parsed.plain not in envpool_names():
        return {}
    import envpool

    spec = envpool.make_spec(parsed.plain, **parsed.options)
    info = {"control_period": float(spec.config.ctrl_dt)} if hasattr(spec.config, "ctrl_dt") else {}
    return info | _part_names(spec.observation_space, name) | {"actions": _ranges(spec.action_space)}


def _gymnasium_info(name: str) -> dict[str, Any]:
    with closing(GymnasiumEnvs(name, 1, 0)) as envs:
        env: Any = envs.each[0]
        unwrapped = env.unwrapped
        info = _part_names(env.observation_space, name) | {"actions": _ranges(env.action_space)}
        model: Any = getattr(unwrapped, "model", None)
        if envs.period:
            info["control_period"] = envs.period
        if hasattr(model, "actuator_trnid") and model.nu == np.prod(env.action_space.shape or ()):
            joints = [model.joint(model.actuator_trnid[index, 0]).name for index in range(model.nu)]
            names = [model.actuator(index).name or joint for index, joint in enumerate(joints)]
            info["actions"] |= {"names": names} if all(names) else {}
        if hasattr(model, "jnt_type") and "observations" not in info:
            info |= _joint_names(model, unwrapped.data, np.ravel(env.reset(seed=0)[0]), unwrapped)
    return info


def _ranges(space: Any) -> dict[str, Any]:
    """Return the bounds of actions that are numbers."""
    return {"low": tuple(space.low.ravel()), "high": tuple(space.high.ravel())} if isinstance(space, spaces.Box) else {}


def _part_names(space: Any, name: str) -> dict[str, Any]:
    """Return names for the numbers of a Dict observation, in the order in which the policy gets them."""
    sizes, keys = group_sizes(space, name), observed_parts(space, name, critic=False)[0]
    names = [f"{key}[{index}]" for key in keys or sizes for index in range(sizes[key])]
    return {"observations": {"names": names}} if names else {}


def _joint_names(model: Any, data: Any, observation: np.ndarray, env: Any) -> dict[str, Any]:
    """Return names and units if the observation is qpos and qvel, followed by parts whose sizes the environment states.

    Most locomotion environments leave out the first one or two positions: x, or x and y.
    """
    positions, velocities = [], []
    for index in range(model.njnt):
        position_parts, velocity_parts = JOINT_TYPES[int(model.jnt_type[index])]
        joint = model.joint(index).name
        positions += [(f"position of {joint}{part}", unit) for part, unit in position_parts]
        velocities += [(f"velocity of {joint}{part}", unit) for part, unit in velocity_parts]
    for skipped in range(3):
        entries = positions[skipped:] + velocities
        state = np.concatenate([data.qpos[skipped:], data.qvel])
        if len(state) <= len(observation) and np.allclose(observation[: len(state)], state, rtol=0.0, atol=1e-12):
            sizes = getattr(env, "observation_structure", {})
            others = [key for key in sizes if key not in ("skipped_qpos", "qpos", "qvel")]
            entries += [(f"{key}[{index}]", "") for key in others for index in range(sizes[key])]
            names, units = zip(*entries, strict=True)
            return {"observations": {"names": names, "units": units}} if len(names) == len(observation) else {}
    return {}
