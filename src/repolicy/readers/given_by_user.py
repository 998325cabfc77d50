"""What a file does not hold and its reader adds: the user's std, temperature and statistics, a run's own settings."""

import os
import re
from pathlib import Path

import numpy as np

from repolicy.errors import FileError, UsageError
from repolicy.loading import printable
from repolicy.readers import vecnormalize
from repolicy.readers.described import Linear, Normalizer, Perceptron, Std
from repolicy.readers.perceptrons import check_width
from repolicy.readers.reading import Options

TIMED = (
    "it was trained with TimeFeatureWrapper, whose number, the share of the time that is left, must be the last one of "
    "the environment's observation: --env file.py:function, where the function makes the environment with that wrapper"
)


class NoTemperatureError(UsageError):
    """A file of values needs one, from the user."""


def tempered(network: Perceptron, options: Options) -> Perceptron:
    """Return values of actions as logits: a Boltzmann policy at the user's temperature."""
    if options.temperature is None:
        raise NoTemperatureError(
            "the policy has values of actions and no probabilities: give the temperature of its Boltzmann policy with "
            "--temperature, in units of the return"
        )
    factor = np.float32(1.0 / options.temperature)
    output = Linear(network.output.weight * factor, network.output.bias * factor)
    return Perceptron(network.hidden, output, network.activation)


def given_std(options: Options, width: int) -> tuple[Std | None, list[str]]:
    """Return the user's std for a policy that has none, and what is to be said of it."""
    if options.std == "fit":
        return None, []
    if options.std is None:
        return None, ["the policy has no std: give one with --std"]
    std = Std("vector", np.full(width, options.std, np.float32), "identity")
    return std, [f"the std {options.std} is yours; the file has none"]


def check_no_other(options: Options) -> None:
    """Refuse statistics, or none, for a network that normalizes observations inside."""
    if options.vecnormalize is not None:
        raise UsageError(
            "the policy normalizes observations itself, by a part of its network: leave --vecnormalize out"
        )


def chosen_statistics(options: Options, width: int, inside: Normalizer | None) -> tuple[Normalizer | None, list[str]]:
    """Return the normalizer `inside` a file, unless the user names another file or none, and what is to be said."""
    if options.vecnormalize == "none":
        return None, ["observations are not normalized, as you asked for"]
    normalizer = vecnormalize.read(Path(options.vecnormalize)) if options.vecnormalize else inside
    check_width(width, normalizer)
    said = normalizer is None and options.vecnormalize is None
    return normalizer, ["observations are not normalized (the file has no statistics)"] * said


def agent_settings(path: Path) -> dict[str, str]:
    """Return the settings of the policy in `params/agent.yaml`, the first of each name, as they stand on their lines.

    A list stands on one line, `[a, b]`. Beside them `class_names`, of all its classes. Without such a file there is
    nothing.
    """
    for folder in Path(os.path.abspath(path)).parents[:2]:
        file = folder / "params" / "agent.yaml"
        if file.is_file() and file.stat().st_size < 1_000_000:
            text = re.sub(
                LIST, lambda list_: f": [{', '.join(list_[1].split()[1::2])}]", file.read_text("utf-8", "replace")
            )
            lines = [(name, value.strip("'\"")) for name, value in re.findall(LINE, text)]
            names = " ".join(value for name, value in lines if name == "class_name")
            settings = {name: value for name, value in reversed(lines) if value not in ("null", "None")}
            return settings | {"class_names": names}
    return {}


LIST = re.compile(r":(?: !\S+)?[ \t]*((?:\n[ \t]*- \S+[ \t]*)+)$", re.M)  # each entry, one word, on a line of its own
LINE = re.compile(r"^[ \t]+(\w+):[ \t]+(\S.*?)[ \t]*(?:[ \t]#.*)?$", re.M)


def listed(setting: str) -> list[str]:
    """Return the entries of a setting that is a list, or the one that it is."""
    return [entry.strip(" '\"") for entry in setting.strip("[]()").split(",")]


def numbers_in(agent: dict[str, str], name: str, default: str) -> list[float]:
    """Return the numbers of a setting, as many as its default has."""
    entries, wanted = listed(agent.get(name, default)), listed(default)
    try:
        numbers = [float(entry.replace(".inf", "inf")) for entry in entries]
    except ValueError:
        numbers = []
    if len(numbers) != len(wanted):
        raise FileError(f"params/agent.yaml cannot be used: its {name} is {printable(agent[name])}")
    return numbers


def time_is_seen(path: Path) -> tuple[str, ...]:
    """Return a sentence where the settings that RL Zoo writes beside a policy name the wrapper that shows the time."""
    folder = Path(os.path.abspath(path)).parent
    places = (folder / path.stem, folder, folder / re.sub(r"_\d+$", "", folder.name))
    files = [file for place in places if (file := place / "config.yml").is_file() and file.stat().st_size < 1_000_000]
    return (TIMED,) if any("TimeFeatureWrapper" in file.read_text("utf-8", "replace") for file in files) else ()
