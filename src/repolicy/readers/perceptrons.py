"""Build layers and normalizers from the named tensors of a state dict, and spaces from their stubs."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from repolicy.policies import ACTIVATIONS, ActionSpace
from repolicy.readers.description import (
    Array,
    CannotCopyError,
    HiddenLayer,
    LayerNorm,
    Linear,
    Normalizer,
    Perceptron,
    Place,
    UnknownSettingError,
)
from repolicy.readers.pickles import real_array
from repolicy.text import printable

Tensors = Mapping[str, Array]
ACTIVATION_ALIASES = {"silu": "swish", "lrelu": "leaky_relu", "leakyrelu": "leaky_relu", "leaky-relu": "leaky_relu"}


def tensors_of(state: dict[Any, Any]) -> dict[str, Array]:
    """Return the arrays of a state dict, by name."""
    return {name: values for name, values in state.items() if isinstance(name, str) and isinstance(values, np.ndarray)}


def tensors_under(tensors: Tensors, prefix: str) -> dict[str, Array]:
    """Return the tensors whose names begin with `prefix.`, by the rest of their names."""
    prefix = f"{prefix}."
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


def check_no_memory(names: Iterable[str]) -> None:
    """Raise if a tensor is one of a recurrent layer, which no perceptron has."""
    for name in names:
        if name.rpartition(".")[2].startswith("weight_ih"):
            raise CannotCopyError(f"the policy has a memory ({name})")


def linear_layer(tensors: Tensors, name: str) -> Linear:
    """Return the layer of `name.weight` and `name.bias`; a missing bias is zero."""
    weight = tensors.get(f"{name}.weight")
    if weight is None or weight.ndim != 2:
        raise ValueError(f"it has no layer {name}: it holds {first_names(tensors)}")
    bias = tensors.get(f"{name}.bias", np.zeros(len(weight), np.float32))
    return Linear(finite_float32(weight, name), finite_float32(bias, name))


def finite_float32(values: Array, name: str) -> Array:
    """Return an array in single precision; raise a ValueError that contains `name` unless it is finite."""
    if not np.all(np.isfinite(real_array(values))):
        raise ValueError(f"{name} is not finite")
    return np.array(values, np.float32, order="C")


def sequential_layers(tensors: Tensors, prefix: str, epsilon: float = 1e-5) -> list[HiddenLayer]:
    """Return the layers of a `torch.nn.Sequential`, including the output layer.

    A state dict holds no activations, but its modules are numbered. The numbers between two linear layers must leave
    room for exactly one activation, with at most one LayerNorm before or after it. Its epsilon (by default PyTorch's)
    is not in a state dict either.
    """
    modules = sorted({name.split(".")[0] for name in tensors_under(tensors, prefix)}, key=_number)
    if not modules:
        raise ValueError(f"it has no layers {prefix}.*: it holds {first_names(tensors)}")
    layers, last_linear = list[HiddenLayer](), 0  # last_linear: its number in the Sequential
    for module in modules:
        index, name = _number(module), f"{prefix}.{module}"
        weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
        if index < 0 or weight is None or f"{name}.running_mean" in tensors or weight.ndim > 2:
            raise CannotCopyError(f"{name} is neither a linear layer nor a LayerNorm")
        if weight.ndim == 2:
            if layers and index - last_linear != (2 if layers[-1].norm is None else 3):
                raise CannotCopyError(
                    f"between {prefix}.{last_linear} and {prefix}.{index} there is not one activation"
                )
            layers.append(HiddenLayer(linear_layer(tensors, name)))
            last_linear = index
        elif not layers or layers[-1].norm is not None or index - last_linear > 2 or bias is None:
            raise CannotCopyError(f"{name} normalizes where Repolicy's networks do not")
        else:
            place: Place = "before" if index - last_linear == 1 else "after"
            norm = LayerNorm(finite_float32(weight, name), finite_float32(bias, name), epsilon, place)
            layers[-1] = HiddenLayer(layers[-1].linear, norm)
    return layers


def named_layers(tensors: Tensors, name: str) -> list[HiddenLayer]:
    """Return one linear layer, or the layers of a Sequential."""
    is_one = f"{name}.weight" in tensors
    return [HiddenLayer(linear_layer(tensors, name))] if is_one else sequential_layers(tensors, name)


def _number(module: str) -> int:
    return int(module) if module.isdigit() else -1


def make_perceptron(layers: Iterable[HiddenLayer], output: Linear | None, activation: str) -> Perceptron:
    """Build a network and check its shapes. Without `output`, the last of the layers is the output layer."""
    hidden = list(layers)
    if output is None:
        if hidden[-1].norm is not None:
            raise CannotCopyError("a LayerNorm follows its last layer")
        output = hidden.pop().linear
    network = Perceptron(tuple(hidden), output, activation)
    for layer in network.layers:
        if layer.bias.shape != layer.weight.shape[:1]:
            raise ValueError(f"a layer of {len(layer.weight)} units has biases of shape {[*layer.bias.shape]}")
    for first, second in itertools.pairwise(network.layers):
        if first.weight.shape[0] != second.weight.shape[1]:
            raise ValueError(f"a layer of {len(first.weight)} units goes into one that takes {second.weight.shape[1]}")
    return network


def canonical_activation(name: str) -> str:
    """Return Repolicy's name of an activation, given any of its common names."""
    plain = ACTIVATION_ALIASES.get(name.lower(), name.lower())
    if plain not in ACTIVATIONS:
        raise UnknownSettingError(f"its activation is {name}; {', '.join(ACTIVATIONS)} are known")
    return plain


def make_normalizer(mean: Array, deviation: Array, clip: float | None, count: float = 0.0) -> Normalizer:
    """Build the normalizer `(x − mean) / deviation`, clipped. The deviation includes the library's epsilon."""
    mean, deviation = (real_array(values).astype(np.float64).reshape(-1) for values in (mean, deviation))
    if mean.shape != deviation.shape or not np.all(np.isfinite(mean)) or not np.all(deviation > 0.0):
        raise ValueError("its observations' statistics are damaged")
    return Normalizer(mean, 1.0 / deviation, None if clip is None or math.isinf(clip) else clip, count)


def first_names(tensors: Iterable[str]) -> str:
    """Return the first six names and the number of others, for a message."""
    names = [printable(name, 100) for name in tensors]
    return (", ".join(names[:6]) + (f" and {len(names) - 6} more" if names[6:] else "")) or "nothing"


# Spaces of Gymnasium and gym, which are object stubs ------------------------------------------------------------------


MAX_SWITCHES = 100_000


def observations_of(space: Any) -> tuple[tuple[str, int], ...]:
    """Return (key, size) of each part of a Dict observation; for other spaces one part with an empty key."""
    if space.last != "Dict":
        return (("", _size(space)),)
    return tuple((str(key), _size(part)) for key, part in space.state["spaces"].items())


def _size(space: Any) -> int:
    if space.last != "Box":
        raise CannotCopyError(f"its observations are a {space.last}, and Repolicy takes a Box, or a Dict of such")
    shape = space.state.get("_shape", space.state.get("shape"))
    if len(shape) == 3 and getattr(space.state.get("dtype"), "name", "") == "uint8":
        raise CannotCopyError("its observations are images, which Stable-Baselines3 turns and divides by 255")
    return math.prod(map(int, shape))  # int(): a damaged file may hold texts, which times a number become huge


def actions_of(space: Any) -> ActionSpace:
    """Return a flattened action space, where a switch is a choice of two. Choices must count from 0, as a policy's."""
    if space.last == "Box":
        low, high = (tuple(float(x) for x in space.state[name].reshape(-1)) for name in ("low", "high"))
        return ActionSpace("continuous", (len(low),), low, high)
    if space.last in ("Discrete", "MultiDiscrete") and np.any(first := space.state.get("start", 0)):
        problem = f"the policy's choices begin at {first}, and what trained it may have sent them counted from 0"
        raise CannotCopyError(f"{problem}: train it where they begin at 0")
    if space.last == "Discrete":
        return ActionSpace("discrete", (int(space.state["n"]),))
    if space.last == "MultiDiscrete":
        return ActionSpace("discrete", tuple(int(size) for size in space.state["nvec"].reshape(-1)))
    if space.last == "MultiBinary":
        sizes = space.state["n"]
        count = math.prod(map(int, sizes)) if np.iterable(sizes) else int(sizes)
        if count > MAX_SWITCHES:
            raise ValueError(f"{count:,} switches")
        return ActionSpace("discrete", (2,) * count)
    raise CannotCopyError(f"its actions are a {space.last}")
