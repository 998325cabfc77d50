"""What an environment tells of itself that a robot's program must know: names, units and order, and the control period.

Nothing is guessed. A MuJoCo environment's numbers have names only where they are found to be its joints' positions and
velocities, those of the first observation.
"""

import warnings
from contextlib import closing
from typing import Any

import numpy as np

from repolicy.envs import decoder, envpool_names, group_sizes, in_gymnasium, maker, parsed, shown
from repolicy.errors import UsageError, in_one_sentence

FREE = tuple(f".{part}" for part in ("x", "y", "z", "qw", "qx", "qy", "qz"))  # what a joint's name is followed by
TURNING = tuple(f".w{axis}" for axis in "xyz")
KINDS = {  # of MuJoCo's joints, by their number: parts and units of position, and of velocity
    0: (FREE, ("m",) * 3 + ("",) * 4, (*FREE[:3], *TURNING), ("m/s",) * 3 + ("rad/s",) * 3),
    1: (FREE[3:], ("",) * 4, TURNING, ("rad/s",) * 3),
    2: (("",), ("m",), ("",), ("m/s",)),
    3: (("",), ("rad",), ("",), ("rad/s",)),
}


def contract(name: str) -> dict[str, Any]:
    """Return what is known of an environment: `control_period` in seconds, names and units in order; or nothing."""
    with (
        in_one_sentence(f"environment {name!r} does not tell what it is", UsageError),
        warnings.catch_warnings(action="ignore"),  # of what is out of date, and of bounds that are rounded
    ):
        found = _of_gymnasium(name) if in_gymnasium(name) else _of_envpool(name)
    return {"env": name} | ({key: found[key] for key in found if key != "actions"} if decoder(name) else found)


def _of_envpool(name: str) -> dict[str, Any]:
    plain, options = parsed(name)
    if plain not in envpool_names():
        return {}
    import envpool

    spec = envpool.make_spec(plain, **options)
    period = getattr(spec.config, "ctrl_dt", None)
    return ({} if period is None else {"control_period": float(period)}) | _parts(spec.observation_space, name)


def _of_gymnasium(name: str) -> dict[str, Any]:
    with closing(maker(name)()) as env:
        own: Any = env.unwrapped
        found, model, period = _parts(env.observation_space, name), getattr(own, "model", None), getattr(own, "dt", 0)
        if isinstance(period, float | int) and period > 0:
            found["control_period"] = float(period)
        if model is not None and hasattr(model, "actuator_trnid") and model.nu == np.prod(env.action_space.shape or ()):
            joints = [model.joint(model.actuator_trnid[index, 0]).name for index in range(model.nu)]
            names = [model.actuator(index).name or joint for index, joint in enumerate(joints)]
            found["actions"] = {"names": names} if all(names) else {}
        if model is not None and hasattr(model, "jnt_type") and "observations" not in found:
            found |= _of_joints(model, own.data, np.ravel(env.reset(seed=0)[0]), own)
    return found


def _parts(space: Any, name: str) -> dict[str, Any]:
    """Return the order of a Dict's parts, as the policy sees them."""
    sizes, keys = group_sizes(space, name), shown(space, name, critic=False)[0]
    names = [f"{key}[{index}]" for key in keys for index in range(sizes[key])]
    return {"observations": {"names": names}} if names else {}


def _of_joints(model: Any, data: Any, seen: np.ndarray, env: Any) -> dict[str, Any]:
    """Return names of an observation that is positions (but the first few), velocities, and parts of a known size."""
    positions, velocities = [], []
    for index in range(model.njnt):
        parts, units, moving, speeds = KINDS[int(model.jnt_type[index])]
        joint = model.joint(index).name
        positions += [(f"position of {joint}{part}", unit) for part, unit in zip(parts, units, strict=True)]
        velocities += [(f"velocity of {joint}{part}", unit) for part, unit in zip(moving, speeds, strict=True)]
    for left_out in range(3):  # a world's x and y
        entries, state = positions[left_out:] + velocities, np.concatenate([data.qpos[left_out:], data.qvel])
        if len(state) <= len(seen) and np.allclose(seen[: len(state)], state, rtol=0.0, atol=1e-12):
            sizes = getattr(env, "observation_structure", {})
            others = [key for key in sizes if key not in ("skipped_qpos", "qpos", "qvel")]
            entries += [(f"{key}[{index}]", "") for key in others for index in range(sizes[key])]
            names, units = zip(*entries, strict=True)
            return {"observations": {"names": names, "units": units}} if len(names) == len(seen) else {}
    return {}
