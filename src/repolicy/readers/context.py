"""What readers add to a file: the user's options, statistics of observations, and settings in files beside it."""

import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from repolicy.errors import FileError, UsageError, first_line
from repolicy.files import read_bytes
from repolicy.policies import ACTIVATIONS
from repolicy.readers.demonstrations import read_npz
from repolicy.readers.description import CannotCopyError, Linear, Normalizer, Perceptron, Std
from repolicy.readers.perceptrons import canonical_activation, first_names, make_normalizer, observations_of
from repolicy.readers.pickles import DAMAGE_ERRORS, ZIP_MAGIC, ObjectStub, read_pickle, real_array, short_repr
from repolicy.readers.reading import Options


class NoTemperatureError(UsageError):
    """A Q-network needs a temperature, which the user did not give."""


class Limits(NamedTuple):
    """What an .npz of statistics need not say."""

    clip: float = 10.0  # bound of normalized observations
    epsilon: float = 1e-8  # added to the variance


USUAL_LIMITS = Limits()


class ReadContext:
    """Gives a reader the user's options. Collects notes for the user, and the options that were used."""

    def __init__(self, path: Path, options: Options) -> None:
        self.path, self.options = path, options
        self.notes, self.used_options = list[str](), set[str]()

    def activation(self, default: str, library: str, recorded: str | None = None) -> str:
        """Return the network's activation: the user's, or the one that the file records, or the library's default."""
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
        """Return the user's std for a policy of `width` actions that has none; None where it is missing or fitted."""
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
        """Divide a Q-network's outputs by the user's temperature: its logits are those of a Boltzmann policy."""
        self.used_options.add("temperature")
        if self.options.temperature is None:
            raise NoTemperatureError("the policy has values of actions and no probabilities: give a --temperature")
        factor = np.float32(1.0 / self.options.temperature)
        return replace(network, output=Linear(network.output.weight * factor, network.output.bias * factor))

    def statistics(
        self, width: int, from_file: Normalizer | None, keys: tuple[str, ...] = (), limits: Limits = USUAL_LIMITS
    ) -> Normalizer | None:
        """Return the normalizer from the policy's file, unless the user names another file or "none"."""
        named = self.options.vecnormalize
        if named == "none":
            self.notes.append("observations are not normalized (vecnormalize is none)")
            return None
        if named:
            return self.statistics_in(Path(named), width, keys, limits)
        if from_file is None:
            self.notes.append("observations are not normalized (the file has no statistics)")
        elif len(from_file.shift) != width:
            raise ValueError(f"its statistics are of {len(from_file.shift)} numbers, the policy takes {width}")
        return from_file

    def statistics_in(
        self, file: Path, width: int, keys: tuple[str, ...] = (), limits: Limits = USUAL_LIMITS
    ) -> Normalizer | None:
        """Return the normalizer that a file of statistics holds; `keys` and `limits` are as in `read_statistics`.

        Statistics of one frame hold for each of several, which VecFrameStack joins.
        """
        statistics = read_statistics(file, keys, limits)
        if statistics is None:
            self.notes.append(f"observations are not normalized, as it says in {file.name}")
            return None
        found = len(statistics.shift)
        if not found or width % found or (found < width and len(keys) > 1):
            remedy = "name its own file with --vecnormalize, or none"
            raise FileError(f"{file} has statistics of {found} numbers, and the policy takes {width}: {remedy}")
        if found < width:
            shift, scale = (np.tile(row, width // found) for row in (statistics.shift, statistics.scale))
            statistics = replace(statistics, shift=shift, scale=scale)
            self.notes.append(f"{file.name} has statistics of one frame, which are taken for all that the policy takes")
        clips = f", clipped to {statistics.clip:g}" if statistics.clip else ""
        self.notes.append(f"observations are normalized by {file.name}{clips}")
        return statistics

    def check_no_statistics(self) -> None:
        """Refuse --vecnormalize for a network that normalizes observations itself."""
        if self.options.vecnormalize is not None:
            raise UsageError("the policy's network normalizes observations itself: leave --vecnormalize out")


# Statistics of observations: Stable-Baselines3's VecNormalize, or plain arrays ----------------------------------------


def read_statistics(path: Path, keys: tuple[str, ...] = (), limits: Limits = USUAL_LIMITS) -> Normalizer | None:
    """Read a normalizer from a pickle of VecNormalize (None if it is off), or from an .npz with `mean` and `var`.

    `keys` are the parts of a Dict observation that the policy takes, in order. Of an .npz without `clip` or
    `epsilon`, the `limits` hold.
    """
    content = read_bytes(path)
    try:
        if content[:4] == ZIP_MAGIC:
            arrays = read_npz(path, ("mean", "var"), Limits._fields)
            own = {name: float(real_array(arrays[name]).item()) for name in Limits._fields if name in arrays}
            clip, epsilon = limits._replace(**own)
            if not (clip > 0.0 and epsilon >= 0.0):
                raise ValueError(f"its clip is {clip:g} and its epsilon {epsilon:g}")
            return make_normalizer(arrays["mean"], np.sqrt(real_array(arrays["var"]) + epsilon), clip)
        return _parse_vecnormalize(read_pickle(content, str(path)), keys, path)
    except DAMAGE_ERRORS as error:  # here, as the caller would blame the policy's file
        raise FileError(f"{path} is damaged, or no VecNormalize: {first_line(error)}") from None


def _parse_vecnormalize(stub: Any, keys: tuple[str, ...], path: Path) -> Normalizer | None:
    """Return the statistics of the keys, concatenated. A clip needs all keys to have some: others are not clipped."""
    if not isinstance(stub, ObjectStub) or ("obs_rms" not in stub.state and "norm_obs" not in stub.state):
        raise FileError(f"{path} holds no VecNormalize and no arrays mean and var: {short_repr(stub)}")
    if not stub.state.get("norm_obs", True):
        return None
    clip, epsilon = float(stub.state["clip_obs"]), float(stub.state.get("epsilon", 1e-8))
    statistics, normalized_keys = stub.state["obs_rms"], stub.state.get("norm_obs_keys")
    if not isinstance(statistics, dict):
        statistics, keys, normalized_keys = {"": statistics}, ("",), None
    if not keys:
        names = first_names(statistics)
        raise UsageError(f"{path} normalizes a Dict ({names}), and the policy takes one row of numbers")
    available = statistics.keys() if normalized_keys is None else statistics.keys() & {*normalized_keys}
    missing = [key for key in keys if key not in available]
    if missing and not math.isinf(clip):
        problem = f"does not normalize {', '.join(missing)}, and a copy would clip it to {clip:g}, too"
        raise UsageError(f"{path} {problem}: export policy and statistics to ONNX as one")
    states = {key: statistics[key].state for key in keys if key in available}
    sizes = dict(observations_of(stub.state["observation_space"])) if missing else {}
    unchanged = {key: {"mean": np.zeros(sizes[key]), "var": np.full(sizes[key], 1.0 - epsilon)} for key in missing}
    mean, var = (
        np.concatenate([real_array((states | unchanged)[key][part]).astype(np.float64).reshape(-1) for key in keys])
        for part in ("mean", "var")
    )
    count = next((float(state.get("count", 0.0)) for state in states.values()), 0.0)
    return make_normalizer(mean, np.sqrt(var + epsilon), clip, count)


def find_statistics(policy: Path) -> Path | None:
    """Return the file of VecNormalize in the places where Stable-Baselines3, its zoo and its hub write it."""
    policy = Path(os.path.abspath(policy))  # so that parent folders have names
    places = [
        policy.with_name(f"{policy.stem}.vecnormalize.pkl"),
        policy.with_name(f"{policy.stem}_vecnormalize.pkl"),
        policy.parent / policy.stem / "vecnormalize.pkl",
        policy.with_name("vecnormalize.pkl"),
        policy.with_name("vec_normalize.pkl"),
        policy.parent / re.sub(r"_\d+$", "", policy.parent.name) / "vecnormalize.pkl",
    ]
    if checkpoint := re.fullmatch(r"(.+)_(\d+_steps)", policy.stem):
        places.insert(0, policy.with_name(f"{checkpoint[1]}_vecnormalize_{checkpoint[2]}.pkl"))
    return next((place for place in places if place.is_file()), None)


# Settings of a run ----------------------------------------------------------------------------------------------------

BLOCK_LIST = re.compile(r":(?: [!&]\S+)*[ \t]*((?:\n[ \t]*- \S+[ \t]*)+)$", re.M)  # a YAML list of one-word entries
SETTING = re.compile(r"^[ \t]*(?:-[ \t]+)?(\w+):[ \t]+(\S.*?)[ \t]*(?:[ \t]#.*)?$", re.M)

IN_BRACES = re.compile(r"^[ \t]*(?:-[ \t]+)?(\w+):[ \t]+\{(?![ \t]*\})", re.M)
POLICY_SECTIONS = ("actor", "policy", "student")


def agent_settings(path: Path) -> dict[str, str]:
    """Return the settings in `params/agent.yaml` of the policy's run, or nothing without such a file.

    Of settings with the same name the policy's own counts, or else the first. The key "class_names" has the names of
    its classes, or of all.
    """
    everything = setting_pairs(path)
    pairs = [pair for section in POLICY_SECTIONS for pair in setting_pairs(path, section)] or everything
    class_names = " ".join(value for name, value in pairs if name in ("class_name", "class"))
    settings = {name: value for name, value in reversed(pairs + everything) if value not in ("null", "None")}
    return settings | {"class_names": class_names} if pairs else {}


def setting_pairs(path: Path, section: str = "") -> list[tuple[str, str]]:
    """Return name and text of each setting in `params/agent.yaml`, or in the sections of this name; a list is `[a, b]`.

    Raise a UsageError where settings stand in braces.
    """
    files = (folder / "params" / "agent.yaml" for folder in Path(os.path.abspath(path)).parents[:2])
    small = (file for file in files if file.is_file() and file.stat().st_size < 1_000_000)
    text = next((file.read_text("utf-8", "replace") for file in small), "")
    if braces := IN_BRACES.search(text):
        remedy = "write each on a line of its own, indented below it"
        raise UsageError(f"params/agent.yaml has the settings of {braces[1]} in braces, which are not read: {remedy}")
    if section:
        found = re.findall(rf"^([ \t]*){section}:[ \t]*\n((?:\1[ \t]+\S.*\n?)*)", text, re.M)
        text = "".join(f"{settings}\n" for _, settings in found)
    return [(name, value.strip("'\"")) for name, value in SETTING.findall(BLOCK_LIST.sub(_inline_list, text))]


def _inline_list(block: re.Match[str]) -> str:
    return f": [{', '.join(block[1].split()[1::2])}]"  # every other word is a dash


def parse_list(setting: str) -> list[str]:
    """Return the entries of a setting; one entry where it is no list."""
    return [entry.strip(" '\"") for entry in setting.strip("[]()").split(",")]


def observed_groups(agent: dict[str, str]) -> list[str]:
    """Return the names of the observation groups that the agent's policy or, of rsl_rl's distillation, student sees."""
    names = next((agent[name] for name in POLICY_SECTIONS if name in agent), "")
    return parse_list(names) if names else []


def parse_numbers(agent: dict[str, str], name: str, default: str) -> list[float]:
    """Return the numbers of a setting of the agent."""
    return [float(entry.replace(".inf", "inf")) for entry in parse_list(agent.get(name, default))]
