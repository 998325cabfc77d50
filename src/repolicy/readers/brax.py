"""Brax's parameters: a pickle of the normalizer's statistics, the policy's layers and, in newer ones, the critic's.

The activation is not in the file: swish is the default of Brax's PPO, and relu that of its SAC. Only PPO writes a
critic, since Brax 0.12. The std, where the last layer is twice as wide as the action, is `softplus(raw) + 0.001`,
before tanh.
"""

from typing import Any

import numpy as np

from repolicy.policies import ActionSpace
from repolicy.readers.described import (
    CannotCopyError,
    Described,
    Hidden,
    LayerNorm,
    Linear,
    Normalizer,
    Perceptron,
    Std,
)
from repolicy.readers.given_by_user import Given
from repolicy.readers.perceptrons import normalizer, numbers, perceptron, some
from repolicy.readers.pickles import Shell, array

LIBRARY = "Brax"
MIN_STD = 1e-3
OR_SAC = "a file of SAC looks the same, and SAC's default is relu: if it is one, add --file-activation relu"
OR_RAW = "its statistics are applied; if it was trained with normalize_observations=False, add --vecnormalize none"


def recognized(parts: Any) -> bool:
    """Return whether a pickle holds a normalizer's statistics and then layers."""
    return isinstance(parts, tuple | list) and len(parts) >= 2 and _module(parts[1]) is not None


def read(parts: Any, given: Given) -> Described:
    module = _module(parts[1])
    assert module is not None
    kind = "PPO" if len(parts) > 2 else "PPO or SAC"
    activation = given.activation("swish", f"{LIBRARY} PPO")
    activation = "gelu_tanh" if activation == "gelu" else activation  # what Flax calls gelu
    if given.notes and kind != "PPO":
        given.notes.append(OR_SAC)
    actor, std, squashed = _policy(module, activation)
    inside, groups = _normalizer(parts[0], actor.width)
    statistics = given.statistics(actor.width, inside)
    if statistics is not None and statistics is inside:
        given.notes.append(OR_RAW)
    size = len(actor.output.bias)
    bounds = ((-1.0,) * size, (1.0,) * size) if squashed else ((), ())
    return Described(
        LIBRARY, "", kind, actor, ActionSpace("continuous", (size,), *bounds), squashed, std, statistics, groups=groups
    )  # fmt: skip


def _module(parameters: Any) -> dict[str, Any] | None:
    """Return the layers of a module: under `params`, and under `MLP_0` where the std has parameters of its own."""
    parameters = parameters.get("params") if isinstance(parameters, dict) else None
    if not isinstance(parameters, dict):
        return None
    return parameters if "hidden_0" in parameters or "MLP_0" in parameters else None


def _policy(module: dict[str, Any], activation: str) -> tuple[Perceptron, Std, bool]:
    if "MLP_0" in module:
        return *_plain_gaussian(module, activation), False
    *hidden, last = _hidden(module)
    output, size = last.linear, len(last.linear.bias) // 2
    std = Std("head", output.outputs(size), "softplus", floor=MIN_STD)
    return perceptron(hidden, output.outputs(0, size), activation), std, True


def _plain_gaussian(module: dict[str, Any], activation: str) -> tuple[Perceptron, Std]:
    """Read Brax's newer `normal` distribution, which has neither tanh nor softplus."""
    hidden = _hidden(module["MLP_0"])
    output = "Dense_0" if "Dense_0" in module else "Dense_1"
    actor = perceptron(hidden, _dense(module[output], output), activation)
    for name, link in (("std_logparam", "exp"), ("std_param", "identity")):
        if name in module:
            (raw,) = module[name].values() if isinstance(module[name], dict) else (module[name],)
            return actor, Std("vector", numbers(raw.reshape(-1), name), link)
    raise CannotCopyError("its std depends on the state in a way that the file does not tell")


def _hidden(module: dict[str, Any]) -> list[Hidden]:
    """Return dense layers in their order; a LayerNorm comes after the activation."""
    count = sum(name.startswith("hidden_") for name in module)
    layers = []
    for index in range(count):
        layer = _dense(module[f"hidden_{index}"], f"hidden_{index}")
        norm = module.get(f"LayerNorm_{index}")
        if norm is not None:
            weight, bias = (numbers(norm[part], "LayerNorm") for part in ("scale", "bias"))
            norm = LayerNorm(weight, bias, 1e-6, "after")
        layers.append(Hidden(layer, norm))
    if not all(name.startswith(("hidden_", "LayerNorm_")) for name in module):
        raise CannotCopyError(f"its network holds {some(module)}")
    return layers


def _dense(layer: dict[str, Any], name: str) -> Linear:
    kernel = numbers(layer["kernel"], name)
    return Linear(kernel.T, numbers(layer.get("bias", np.zeros(kernel.shape[1])), name))


def _normalizer(statistics: Any, width: int) -> tuple[Normalizer | None, tuple[tuple[str, int], ...]]:
    """Return the statistics of one array, or of the Dict's array that has the size that the policy takes."""
    if not isinstance(statistics, Shell) or "mean" not in statistics.state or "std" not in statistics.state:
        return None, ()
    mean, std = statistics.state["mean"], statistics.state["std"]
    groups: tuple[tuple[str, int], ...] = ()
    if isinstance(mean, dict):
        keys = sorted((key for key in mean if array(mean[key]).size == width), key=lambda key: (key != "state", key))
        if not keys:
            raise ValueError(f"the policy takes {width} numbers, and none of {some(mean)} has so many")
        mean, std, groups = mean[keys[0]], std[keys[0]], ((str(keys[0]), width),)
    return normalizer(mean, std, None, _count(statistics.state.get("count"))), groups


def _count(count: Any) -> float:
    """Return how many observations were seen: a number, or two halves of one."""
    if isinstance(count, Shell) and {"hi", "lo"} <= count.state.keys():
        return float(count.state["hi"]) * 2.0**32 + float(count.state["lo"])
    return float(count) if isinstance(count, int | float | np.number | np.ndarray) and np.size(count) == 1 else 0.0
