"""Brax's parameters: a pickle of the normalizer's statistics, the policy's layers and, since PPO of 0.12, a critic.

The activation is not in the file: swish is the default of Brax's PPO, and relu that of its SAC. If the last layer has
two outputs per action, the std before tanh is `softplus(raw) + 0.001`.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from repolicy.policies import ActionSpace
from repolicy.readers.context import ReadContext
from repolicy.readers.description import (
    CannotCopyError,
    HiddenLayer,
    LayerNorm,
    Linear,
    Normalizer,
    PolicyDescription,
    Std,
)
from repolicy.readers.perceptrons import finite_float32, first_names, make_normalizer, make_perceptron
from repolicy.readers.pickles import ObjectStub, real_array

LIBRARY = "Brax"
BRAX_MIN_STD = 1e-3
PLAIN_MODULES = {"MLP_0", "Dense_0", "Dense_1", "std_param", "std_logparam"}
SAC_NOTE = "a file of SAC looks the same, and SAC's default is relu: if it is one, add --file-activation relu"
RAW_NOTE = "its statistics are applied; if it was trained with normalize_observations=False, add --vecnormalize none"
MEAN_SCALE_NOTE = "the file does not tell mean_clip_scale, by which Brax may squeeze the mean: none is assumed"


def matches(parts: Any) -> bool:
    """Return whether a pickle is a sequence of a normalizer's statistics and layers."""
    return isinstance(parts, tuple | list) and len(parts) >= 2 and bool(_module(parts[1]))


def read(parts: Any, context: ReadContext) -> PolicyDescription:
    kind = "PPO" if len(parts) > 2 else "PPO or SAC"
    activation = context.activation("swish", f"{LIBRARY} PPO")
    if activation == "gelu":
        activation = "gelu_tanh"  # Flax uses this approximation of gelu
    if context.notes and kind != "PPO":
        context.notes.append(SAC_NOTE)
    module = _module(parts[1])
    if "MLP_0" in module:
        policy = _plain_gaussian(module, activation)
        context.notes.append(MEAN_SCALE_NOTE)
    else:
        policy = _squashed_gaussian(module, activation)
    inside, groups = _normalizer(parts[0], policy.actor.width)
    statistics = context.statistics(policy.actor.width, inside)
    if statistics is not None and statistics is inside:
        context.notes.append(RAW_NOTE)
    return replace(policy, kind=kind, normalizer=statistics, groups=groups)


def _module(parameters: Any) -> dict[str, Any]:
    """Return the layers of a policy; empty where the parameters are not Brax's."""
    layers = parameters.get("params") if isinstance(parameters, dict) else None
    if isinstance(layers, dict) and ("hidden_0" in layers or "MLP_0" in layers):
        return layers
    return {}


def _squashed_gaussian(module: dict[str, Any], activation: str) -> PolicyDescription:
    """Read `tanh_normal`: the last layer outputs means and the raw stds of a softplus."""
    actor, raw = make_perceptron(_hidden(module), None, activation).split_output()
    std = Std("head", raw, "softplus", floor=BRAX_MIN_STD)
    size = len(raw.bias)
    actions = ActionSpace("continuous", (size,), (-1.0,) * size, (1.0,) * size)
    return PolicyDescription(LIBRARY, "", "", actor, actions, squashed=True, std=std)


def _plain_gaussian(module: dict[str, Any], activation: str) -> PolicyDescription:
    """Read `normal`, since Brax 0.12: hidden layers, a layer of means, and one std for all states."""
    if any(name.startswith("CNN_") for name in module):
        raise CannotCopyError("the policy looks at images")
    if not {"MLP_0", "Dense_0"} <= module.keys() <= PLAIN_MODULES:
        raise CannotCopyError(f"its network holds {first_names(module)}")
    hidden, means = _hidden(module["MLP_0"]), _dense(module["Dense_0"], "Dense_0")
    if hidden and means.weight.shape[1] != len(hidden[-1].linear.bias):  # as MLPHead's, which takes latent vectors
        raise CannotCopyError("its Dense_0 does not follow its MLP_0")
    actor = make_perceptron(hidden, means, activation)
    if "std_logparam" in module:
        std = Std("vector", finite_float32(module["std_logparam"]["log_value"].reshape(-1), "std_logparam"))
    elif "std_param" in module:
        std = Std("vector", finite_float32(module["std_param"]["value"].reshape(-1), "std_param"), "identity")
    else:
        raise CannotCopyError("its std depends on the state in a way that the file does not tell")
    return PolicyDescription(LIBRARY, "", "", actor, ActionSpace("continuous", (len(actor.output.bias),)), std=std)


def _hidden(module: dict[str, Any]) -> list[HiddenLayer]:
    """Return the dense layers in order. A LayerNorm follows the activation."""
    count = sum(name.startswith("hidden_") for name in module)
    layers = []
    for index in range(count):
        layer = _dense(module[f"hidden_{index}"], f"hidden_{index}")
        norm = module.get(f"LayerNorm_{index}")
        if norm is not None:
            weight, bias = (finite_float32(norm[part], "LayerNorm") for part in ("scale", "bias"))
            norm = LayerNorm(weight, bias, 1e-6, "after")
        layers.append(HiddenLayer(layer, norm))
    if not all(name.startswith(("hidden_", "LayerNorm_")) for name in module):
        raise CannotCopyError(f"its network holds {first_names(module)}")
    return layers


def _dense(layer: dict[str, Any], name: str) -> Linear:
    kernel = finite_float32(layer["kernel"], name)
    return Linear(kernel.T, finite_float32(layer.get("bias", np.zeros(kernel.shape[1])), name))


def _normalizer(statistics: Any, width: int) -> tuple[Normalizer | None, tuple[tuple[str, int], ...]]:
    """Return the normalizer, and (key, size) of the part of a Dict observation that has the policy's input size."""
    if not isinstance(statistics, ObjectStub) or "mean" not in statistics.state or "std" not in statistics.state:
        return None, ()
    mean, std = statistics.state["mean"], statistics.state["std"]
    groups: tuple[tuple[str, int], ...] = ()
    if isinstance(mean, dict):
        keys = [key for key in mean if real_array(mean[key]).size == width]
        keys.sort(key=lambda key: (key != "state", key))
        if not keys:
            raise ValueError(f"the policy takes {width} numbers, and none of {first_names(mean)} has so many")
        mean, std, groups = mean[keys[0]], std[keys[0]], ((str(keys[0]), width),)
    return make_normalizer(mean, std, None, _count(statistics.state.get("count"))), groups


def _count(count: Any) -> float:
    """Return the number of observations in the statistics, which may be stored as two 32-bit halves."""
    if isinstance(count, ObjectStub) and {"hi", "lo"} <= count.state.keys():
        return float(count.state["hi"]) * 2.0**32 + float(count.state["lo"])
    is_number = isinstance(count, int | float | np.number | np.ndarray) and np.size(count) == 1
    return float(np.asarray(count).item()) if is_number else 0.0
