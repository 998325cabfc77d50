"""From the named tensors of a state dict to layers."""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.errors import FileError
from repolicy.policies import ACTIVATIONS
from repolicy.readers.description import (
    Array,
    CannotCopyError,
    HiddenLayer,
    LayerNorm,
    Linear,
    Normalizer,
    Perceptron,
    Place,
)
from repolicy.readers.pickles import real_array

Tensors = Mapping[str, Array]
OTHER_NAMES = {"silu": "swish", "lrelu": "leaky_relu", "leakyrelu": "leaky_relu", "leaky-relu": "leaky_relu"}


def tensors_of(state: dict[Any, Any]) -> dict[str, Array]:
    """Return the arrays of a state dict, by name."""
    return {name: values for name, values in state.items() if isinstance(name, str) and isinstance(values, np.ndarray)}


def tensors_under(tensors: Tensors, prefix: str) -> dict[str, Array]:
    """Return the tensors whose names begin with `prefix.`, without it."""
    return {
        name.removeprefix(f"{prefix}."): values for name, values in tensors.items() if name.startswith(f"{prefix}.")
    }


def linear_layer(tensors: Tensors, name: str) -> Linear:
    """Return one layer; a missing bias is zero."""
    weight = tensors.get(f"{name}.weight")
    if weight is None or weight.ndim != 2:
        raise ValueError(f"it has no layer {name}: it holds {first_names(tensors)}")
    bias = tensors.get(f"{name}.bias", np.zeros(len(weight), np.float32))
    return Linear(finite_float32(weight, name), finite_float32(bias, name))


def finite_float32(values: Array, name: str) -> Array:
    """Return them in single precision, checked to be finite."""
    if not np.all(np.isfinite(real_array(values))):
        raise ValueError(f"{name} is not finite")
    return np.array(values, np.float32, order="C")


def sequential_layers(tensors: Tensors, prefix: str) -> list[HiddenLayer]:
    """Return the layers of a `torch.nn.Sequential` under a name, the last one among them.

    Its modules are told apart by their numbers and shapes: between two linear ones there must be room for exactly one
    activation, and a LayerNorm stands before or after it.
    """
    modules = sorted({name.split(".")[0] for name in tensors_under(tensors, prefix)}, key=_number)
    if not modules:
        raise ValueError(f"it has no layers {prefix}.*: it holds {first_names(tensors)}")
    layers, before = list[HiddenLayer](), 0  # before: the number of the last linear one
    for module in modules:
        index, name = _number(module), f"{prefix}.{module}"
        weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
        if index < 0 or weight is None or f"{name}.running_mean" in tensors or weight.ndim > 2:
            raise CannotCopyError(f"{name} is neither a linear layer nor a LayerNorm")
        if weight.ndim == 2:
            if layers and index - before != (2 if layers[-1].norm is None else 3):
                raise CannotCopyError(f"between {prefix}.{before} and {prefix}.{index} there is not one activation")
            layers.append(HiddenLayer(linear_layer(tensors, name)))
            before = index
        elif not layers or layers[-1].norm is not None or index - before > 2 or bias is None:
            raise CannotCopyError(f"{name} normalizes where Repolicy's networks do not")
        else:  # PyTorch's files do not hold a LayerNorm's epsilon, 1e-5 by default
            place: Place = "before" if index - before == 1 else "after"
            norm = LayerNorm(finite_float32(weight, name), finite_float32(bias, name), 1e-5, place)
            layers[-1] = HiddenLayer(layers[-1].linear, norm)
    return layers


def _number(module: str) -> int:
    return int(module) if module.isdigit() else -1


def make_perceptron(layers: Iterable[HiddenLayer], output: Linear | None, activation: str) -> Perceptron:
    """Return hidden layers and a last one (of the hidden ones, where it is not given), with shapes that fit."""
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
    """Return one of our activations, by any of its customary names."""
    plain = OTHER_NAMES.get(name.lower(), name.lower())
    if plain not in ACTIVATIONS:
        raise CannotCopyError(f"its activation is {name}; {', '.join(ACTIVATIONS)} are known")
    return plain


def make_normalizer(mean: Array, deviation: Array, clip: float | None, count: float = 0.0) -> Normalizer:
    """Return `(x − mean) / deviation`, clipped; the deviation is what the library divides by, with its epsilon."""
    mean, deviation = (real_array(values).astype(np.float64).reshape(-1) for values in (mean, deviation))
    if mean.shape != deviation.shape or not np.all(np.isfinite(mean)) or not np.all(deviation > 0.0):
        raise ValueError("its observations' statistics are damaged")
    return Normalizer(mean, 1.0 / deviation, clip, count)


def check_width(width: int, normalizer: Normalizer | None, file: Path) -> None:
    """Raise unless the normalizer of a named file is of as many numbers as the policy takes."""
    if normalizer is not None and (found := len(normalizer.shift)) != width:
        remedy = "name its own file with --vecnormalize, or none"
        raise FileError(f"{file} has statistics of {found} numbers, and the policy takes {width}: {remedy}")


def first_names(tensors: Iterable[str]) -> str:
    names = list(tensors)
    return (", ".join(names[:6]) + (f" and {len(names) - 6} more" if names[6:] else "")) or "nothing"
