"""What a file does not hold and its reader adds: the user's std, temperature and statistics, a run's own settings."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from repolicy.errors import UsageError
from repolicy.policies.formats import vecnormalize
from repolicy.policies.formats.described import Linear, Normalizer, Perceptron, Std
from repolicy.policies.formats.layers import check_width
from repolicy.policies.options import Options


class NoTemperatureError(UsageError):
    """A file of values needs one, from the user."""


def tempered(network: Perceptron, options: Options, where: str) -> Perceptron:
    """Values of actions as logits: a Boltzmann policy at the user's temperature."""
    if options.temperature is None:
        raise NoTemperatureError(
            f"{where} holds values of actions and no probabilities: give the temperature of its Boltzmann policy with "
            "--temperature, in units of the return"
        )
    if not (0.0 < options.temperature < math.inf):
        raise UsageError(f"--temperature is {options.temperature}; it must be above 0")
    factor = np.float32(1.0 / options.temperature)
    output = Linear(network.output.weight * factor, network.output.bias * factor)
    return Perceptron(network.hidden, output, network.activation)


def given_std(options: Options, width: int) -> Std | None:
    if options.std is None or options.std == "fit":
        return None
    if not (0.0 < options.std < math.inf):
        raise UsageError(f"--std is {options.std}; it must be above 0")
    return Std("vector", np.full(width, options.std, np.float32), "identity")


def without_std(options: Options) -> tuple[str, ...]:
    if options.std == "fit":
        return ()
    if options.std is None:
        return ("the policy has no std: give one with --std",)
    return (f"the std {options.std} is yours; the file has none",)


def statistics(inside: Normalizer | None, width: int, options: Options, where: str) -> Normalizer | None:
    """The normalizer that a graph holds, or, where it holds none, the one that the user names."""
    if inside is not None:
        check_no_other(options, where)
        return inside
    if options.vecnormalize is None or options.vecnormalize == "none":
        return None
    given = vecnormalize.read(Path(options.vecnormalize))
    check_width(width, given, where)
    return given


def check_no_other(options: Options, where: str) -> None:
    """Refuse statistics, or none, for a network that normalizes observations inside."""
    if options.vecnormalize is not None:
        raise UsageError(
            f"{where} normalizes observations itself, by a normalizer that is part of the network; leave "
            "--vecnormalize out"
        )


def chosen_statistics(options: Options, inside: Callable[[], Normalizer | None]) -> tuple[Normalizer | None, list[str]]:
    """The normalizer `inside` a checkpoint, unless the user names another file or none; and what is to be said."""
    if options.vecnormalize == "none":
        return None, ["observations are not normalized, as you asked for"]
    if options.vecnormalize:
        return vecnormalize.read(Path(options.vecnormalize)), []
    normalizer = inside()
    return normalizer, [] if normalizer else ["observations are not normalized (the file has no statistics)"]


def agent_settings(path: Path) -> dict[str, str]:
    """The plain settings of the policy in `params/agent.yaml`, the first of each name: a line `name: word`.

    Beside them `class_names`, of all its classes. Without such a file there is nothing.
    """
    for folder in Path(os.path.abspath(path)).parents[:2]:
        file = folder / "params" / "agent.yaml"
        if file.is_file() and file.stat().st_size < 1_000_000:
            lines = re.findall(r"^\s+(\w+): *['\"]?([\w.:]+)['\"]?\s*$", file.read_text(errors="replace"), re.M)
            names = " ".join(word for name, word in lines if name == "class_name")
            settings = {name: word for name, word in reversed(lines) if word not in ("null", "None")}
            return settings | {"class_names": names}
    return {}
