"""What a file does not hold and its reader adds: the user's std, temperature and statistics, a run's own settings."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError, first_line
from repolicy.loading import read_bytes
from repolicy.policies import ACTIVATIONS
from repolicy.readers.demonstrations import read_npz
from repolicy.readers.description import CannotCopyError, Linear, Normalizer, Perceptron, Std
from repolicy.readers.perceptrons import canonical_activation, check_width, first_names, make_normalizer
from repolicy.readers.pickles import DAMAGE_ERRORS, ZIP_MAGIC, ObjectStub, read_pickle, real_array, short_repr
from repolicy.readers.reading import Options
from repolicy.text import printable

TIMED = "it was trained with TimeFeatureWrapper: --env file.py:function, which makes the environment with that wrapper"
NEAR = 0.1  # of a std: by less the statistics of a training move after its last step


class NoTemperatureError(UsageError):
    """A file of values needs one, from the user."""


class ReadContext:
    """What the user gave beside a file, in `notes` what is to be known of the policy, and which options were of use."""

    def __init__(self, path: Path, options: Options) -> None:
        self.path, self.options, self.notes, self.used_options = path, options, list[str](), set[str]()

    def activation(self, default: str, library: str, recorded: str | None = None) -> str:
        """Return a network's activation: the user's, or the recorded one, or its library's default."""
        named = self.options.file_activation
        self.used_options.add("file_activation")
        if named is not None:
            try:
                return canonical_activation(named)
            except CannotCopyError:
                raise UsageError(f"there is no activation {named!r}; choose from {', '.join(ACTIVATIONS)}") from None
        if recorded:
            return canonical_activation(recorded)
        assumed = f"{library}'s default, {default}, is assumed (--file-activation says otherwise)"
        self.notes.append(f"the file does not say which activation its network has: {assumed}")
        return default

    def std(self, width: int) -> Std | None:
        """Return the user's std for a policy that has none."""
        std = self.options.std
        self.used_options.add("std")
        if std == "fit":
            return None
        if std is None:
            self.notes.append("the policy has no std: give one with --std")
            return None
        self.notes.append(f"the std {std} is yours; the file has none")
        return Std("vector", np.full(width, std, np.float32), "identity")

    def with_temperature(self, network: Perceptron) -> Perceptron:
        """Return values of actions as logits: a Boltzmann policy at the user's temperature."""
        self.used_options.add("temperature")
        if self.options.temperature is None:
            raise NoTemperatureError("the policy has values of actions and no probabilities: give a --temperature")
        factor = np.float32(1.0 / self.options.temperature)
        return replace(network, output=Linear(network.output.weight * factor, network.output.bias * factor))

    def statistics(self, width: int, inside: Normalizer | None) -> Normalizer | None:
        """Return the normalizer `inside` a file, unless the user names another file or none."""
        named = self.options.vecnormalize
        if named == "none":
            self.notes.append("observations are not normalized, as you asked for")
            return None
        if named:
            chosen = read_statistics(Path(named))
            check_width(width, chosen, Path(named))
            return chosen
        if inside is None:
            self.notes.append("observations are not normalized (the file has no statistics)")
        elif len(inside.shift) != width:
            raise ValueError(f"its statistics are of {len(inside.shift)} numbers, the policy takes {width}")
        return inside

    def check_no_statistics(self) -> None:
        """Refuse statistics, or none, for a network that normalizes observations inside."""
        if self.options.vecnormalize is not None:
            raise UsageError("the policy's network normalizes observations itself: leave --vecnormalize out")


# Statistics of observations: Stable-Baselines3's VecNormalize, or plain arrays ----------------------------------------


def read_statistics(path: Path, keys: tuple[str, ...] = ()) -> Normalizer | None:
    """Return the normalizer in a VecNormalize's pickle, or in an .npz with `mean` and `var`; None if there is none.

    The `keys` are those of a Dict whose numbers the policy takes side by side.
    """
    content = read_bytes(path)
    try:
        if content[:4] == ZIP_MAGIC:
            arrays = read_npz(path, ("mean", "var"))
            return make_normalizer(arrays["mean"], _deviation(real_array(arrays["var"]), 1e-8), 10.0)
        return _of_vecnormalize(read_pickle(content, str(path)), keys, path)
    except DAMAGE_ERRORS as error:  # caught here, as whoever reads a policy would blame the policy's file
        raise FileError(f"{path} is damaged, or no VecNormalize: {first_line(error)}") from None


def _of_vecnormalize(shell: Any, keys: tuple[str, ...], path: Path) -> Normalizer | None:
    """Return its statistics, those of a Dict's keys side by side; a key without them would have to stay unclipped."""
    if not isinstance(shell, ObjectStub) or ("obs_rms" not in shell.state and "norm_obs" not in shell.state):
        raise FileError(f"{path} holds no VecNormalize and no arrays mean and var: {short_repr(shell)}")
    if not shell.state.get("norm_obs", True):
        return None
    clip, epsilon = float(shell.state["clip_obs"]), float(shell.state.get("epsilon", 1e-8))
    statistics, normalized = shell.state["obs_rms"], shell.state.get("norm_obs_keys")
    if not isinstance(statistics, dict):
        statistics, keys, normalized = {"": statistics}, ("",), None
    if not keys:
        raise UsageError(
            f"{path} normalizes a Dict ({first_names(statistics)}), and the policy takes one row of numbers"
        )
    missing = [key for key in keys if key not in statistics or (normalized is not None and key not in normalized)]
    if missing:
        raise UsageError(f"{path} does not normalize all of the policy's observations: {', '.join(missing)}")
    states = [statistics[key].state for key in keys]
    mean, var = (
        np.concatenate([real_array(state[part]).astype(np.float64).reshape(-1) for state in states])
        for part in ("mean", "var")
    )
    return make_normalizer(mean, _deviation(var, epsilon), clip, float(states[0].get("count", 0.0)))


def agree(found: Normalizer, keys: tuple[str, ...], raw: Any, seen: Any) -> bool:
    """Return whether statistics make of raw observations what a policy saw; True where either is not kept as arrays."""
    before, after = (_rows(part, keys) for part in (raw, seen))
    if before.shape[1:] != found.shift.shape or before.shape != after.shape:
        return True
    made, bound = (before - found.shift) * found.scale, found.clip or np.inf
    return bool(np.abs(np.clip(made, -bound, bound) - after).max() < NEAR)


def _rows(observations: Any, keys: tuple[str, ...]) -> np.ndarray:
    """Return the rows of one array, or of those of a Dict's keys side by side."""
    parts: list[Any] = [observations.get(key) for key in keys] if isinstance(observations, dict) else [observations]
    if not parts or not all(isinstance(part, np.ndarray) and part.ndim > 1 for part in parts):
        return np.empty(0)
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _deviation(var: np.ndarray, epsilon: float) -> np.ndarray:
    """Return NaN where a variance is negative, which `normalizer` refuses."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(var + epsilon))


def find_statistics(policy: Path) -> Path | None:
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


# What a run's own settings say ----------------------------------------------------------------------------------------


def agent_settings(path: Path) -> dict[str, str]:
    """Return the settings of the policy in `params/agent.yaml`, the first of each name, as they stand on their lines.

    A list stands on one line, `[a, b]`. Beside them `class_names`, of all its classes. Without such a file there is
    nothing.
    """
    for folder in Path(os.path.abspath(path)).parents[:2]:
        if text := _text_in(folder / "params" / "agent.yaml"):
            lines = [(name, value.strip("'\"")) for name, value in re.findall(LINE, re.sub(LIST, _on_one_line, text))]
            names = " ".join(value for name, value in lines if name in ("class_name", "class"))
            settings = {name: value for name, value in reversed(lines) if value not in ("null", "None")}
            return settings | {"class_names": names}
    return {}


def _text_in(file: Path) -> str:
    """Return what a file of settings holds; nothing where there is none."""
    return file.read_text("utf-8", "replace") if file.is_file() and file.stat().st_size < 1_000_000 else ""


def _on_one_line(block: re.Match[str]) -> str:
    return f": [{', '.join(block[1].split()[1::2])}]"  # every other word is a dash


LIST = re.compile(r":(?: !\S+)?[ \t]*((?:\n[ \t]*- \S+[ \t]*)+)$", re.M)  # each entry, one word, on a line of its own
LINE = re.compile(r"^[ \t]+(\w+):[ \t]+(\S.*?)[ \t]*(?:[ \t]#.*)?$", re.M)


def parse_list(setting: str) -> list[str]:
    """Return the entries of a setting that is a list, or the one that it is."""
    return [entry.strip(" '\"") for entry in setting.strip("[]()").split(",")]


def parse_numbers(agent: dict[str, str], name: str, default: str) -> list[float]:
    """Return the numbers of a setting, as many as its default has."""
    entries, wanted = parse_list(agent.get(name, default)), parse_list(default)
    try:
        numbers = [float(entry.replace(".inf", "inf")) for entry in entries]
    except ValueError:
        numbers = []
    if len(numbers) != len(wanted):
        raise FileError(f"params/agent.yaml cannot be used: its {name} is {printable(agent[name])}")
    return numbers


def time_is_seen(path: Path) -> list[str]:
    """Return a sentence where the settings that RL Zoo writes beside a policy name the wrapper that shows the time."""
    folder = Path(os.path.abspath(path)).parent
    places = (folder / path.stem, folder, folder / re.sub(r"_\d+$", "", folder.name))
    return [TIMED] if any("TimeFeatureWrapper" in _text_in(place / "config.yml") for place in places) else []
