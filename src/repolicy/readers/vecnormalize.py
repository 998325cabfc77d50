"""Statistics of observations that are kept beside a policy: Stable-Baselines3's VecNormalize, or plain arrays."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError, first_line
from repolicy.loading import read_bytes
from repolicy.readers.demonstrations import read_npz
from repolicy.readers.described import Normalizer
from repolicy.readers.perceptrons import normalizer, some
from repolicy.readers.pickles import DAMAGE, ZIP, Shell, array, read_pickle, shortened


def read(path: Path, keys: tuple[str, ...] = ()) -> Normalizer | None:
    """Return the normalizer in a VecNormalize's pickle, or in an .npz with `mean` and `var`; None if there is none.

    The `keys` are those of a Dict whose numbers the policy takes side by side.
    """
    content = read_bytes(path)
    try:
        if content[:4] == ZIP:
            arrays = read_npz(path, ("mean", "var"))
            return normalizer(arrays["mean"], _deviation(array(arrays["var"]), 1e-8), 10.0)
        return _read_pickle(content, keys, path)
    except DAMAGE as error:  # caught here, as whoever reads a policy would blame the policy's file
        raise FileError(f"{path} is damaged, or no VecNormalize: {first_line(error)}") from None


def _read_pickle(content: bytes, keys: tuple[str, ...], path: Path) -> Normalizer | None:
    shell = read_pickle(content, str(path))
    if not isinstance(shell, Shell) or ("obs_rms" not in shell.state and "norm_obs" not in shell.state):
        raise FileError(f"{path} holds no VecNormalize and no arrays mean and var: {shortened(shell)}")
    if not shell.state.get("norm_obs", True):
        return None
    clip, epsilon = float(shell.state["clip_obs"]), float(shell.state.get("epsilon", 1e-8))
    statistics = shell.state["obs_rms"]
    if not isinstance(statistics, dict):
        mean, var, count = _moments(statistics)
        return normalizer(mean, _deviation(var, epsilon), clip, count)
    return _of_keys(statistics, shell.state.get("norm_obs_keys"), keys, clip, epsilon, path)


def beside(policy: Path) -> Path | None:
    """Return a VecNormalize's file where Stable-Baselines3, its zoo and its hub put it."""
    policy = Path(os.path.abspath(policy))  # whose folders have names
    steps = re.fullmatch(r"(.+)_(\d+_steps)", policy.stem)
    places = [
        policy.with_name(f"{policy.stem}.vecnormalize.pkl"),
        policy.with_name(f"{policy.stem}_vecnormalize.pkl"),
        policy.parent / policy.stem / "vecnormalize.pkl",
        policy.with_name("vecnormalize.pkl"),
        policy.with_name("vec_normalize.pkl"),
        policy.parent / re.sub(r"_\d+$", "", policy.parent.name) / "vecnormalize.pkl",
    ]
    if steps:
        places.insert(0, policy.with_name(f"{steps[1]}_vecnormalize_{steps[2]}.pkl"))
    return next((place for place in places if place.is_file()), None)


def _moments(statistics: Any) -> tuple[np.ndarray, np.ndarray, float]:
    mean, var = (array(statistics.state[name]).astype(np.float64).reshape(-1) for name in ("mean", "var"))
    return mean, var, float(statistics.state.get("count", 0.0))


def _deviation(var: np.ndarray, epsilon: float) -> np.ndarray:
    """Return NaN where a variance is negative, which `normalizer` refuses."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(var + epsilon))


def _of_keys(
    statistics: dict[str, Any], normalized: Any, keys: tuple[str, ...], clip: float, epsilon: float, path: Path
) -> Normalizer:
    """Return the statistics of a Dict's keys side by side; a key without them would have to stay unclipped."""
    if not keys:
        raise UsageError(f"{path} normalizes a Dict ({some(statistics)}), and the policy takes one row of numbers")
    missing = [key for key in keys if key not in statistics or (normalized is not None and key not in normalized)]
    if missing:
        raise UsageError(f"{path} does not normalize all of the policy's observations: {', '.join(missing)}")
    means, variances, counts = zip(*[_moments(statistics[key]) for key in keys], strict=True)
    deviation = _deviation(np.concatenate(variances), epsilon)
    return normalizer(np.concatenate(means), deviation, clip, counts[0])
