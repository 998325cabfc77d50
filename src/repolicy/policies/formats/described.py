"""What a reader of somebody else's file hands back: a policy in plain arrays, with nothing of its library left.

    observations ─ normalizer ─ hidden layers ─ mean ──────────── distribution ─ (tanh, to the bounds) ─ environment
                                      └──────── std (from a vector, a layer, or the features themselves)

A squashed policy's actions are those before tanh, as everywhere in Repolicy. `distribution` evaluates a description as
it stands; it is what a copy of the policy in another form is measured against.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError
from repolicy.policies.distributions import Categorical, Distribution, Gaussian, SquashedGaussian
from repolicy.policies.spaces import ActionSpace

Array = np.ndarray
Source = Literal["vector", "head", "features"]
Place = Literal["before", "after"]


class CannotCopyError(FileError):
    """The file is whole and its format is known, but its network is none of ours. It may still be run as it is."""


@dataclass(frozen=True)
class Options:
    """What a file may not say, and its user can."""

    std: float | None = None  # of a policy that has none
    temperature: float | None = None  # of a Boltzmann policy, from the values of a Q-network
    normalizer: str | None = None  # a file with the observations' statistics, or "none" to go without
    activation: str | None = None  # where the file holds only weights
    trust: bool = False  # may code that the file holds be run?


@dataclass(frozen=True)
class Linear:
    """`weight [outputs, inputs]` and `bias [outputs]`."""

    weight: Array
    bias: Array


@dataclass(frozen=True)
class LayerNorm:
    """Applied before or after the layer's activation: `weight [units]`, `bias [units]`."""

    weight: Array
    bias: Array
    epsilon: float
    place: Place


@dataclass(frozen=True)
class Hidden:
    """A hidden layer."""

    linear: Linear
    norm: LayerNorm | None = None


@dataclass(frozen=True)
class Perceptron:
    """Hidden layers with one activation, and a last layer without."""

    hidden: tuple[Hidden, ...]
    output: Linear
    activation: str
    slope: float = 0.01  # of leaky_relu


@dataclass(frozen=True)
class Normalizer:
    """`clip((observations − shift) · scale, ±clip)`, of `[observations]` each; count is how many were seen, or 0."""

    shift: Array
    scale: Array
    clip: float | None = None
    count: float = 0.0

    @property
    def var(self) -> Array:
        """The variance that gives this scale, whatever epsilon its library added."""
        variance: Array = self.scale**-2.0
        return variance


@dataclass(frozen=True)
class Std:
    """Where a Gaussian's standard deviation comes from: `link(raw, low, high) + floor`.

    `raw` is a vector (one for all states), a layer on the last hidden layer's values (head), or a matrix whose product
    with the squares of those values is the variance (features, known as gSDE): there `floor` is added in quadrature.
    """

    source: Source
    raw: Array | Linear
    link: str = "exp"
    low: float = -float("inf")
    high: float = float("inf")
    floor: float = 0.0


@dataclass(frozen=True)
class Described:
    """A policy as a file holds it."""

    library: str  # Stable-Baselines3, rsl_rl, ...
    version: str  # of the library or of the layout, where the file tells
    kind: str  # PPO, SAC, "ONNX graph", ...
    actor: Perceptron  # its last layer gives the mean, or the logits of all choices side by side
    actions: ActionSpace  # bounds are empty where the file does not tell them
    squashed: bool = False
    std: Std | None = None
    normalizer: Normalizer | None = None
    mean_clip: float | None = None  # the mean stays within ± this, before any tanh
    critic: Perceptron | None = None  # V of normalized observations
    groups: tuple[tuple[str, int], ...] = ()  # of an observation that is a Dict: its keys in order, and their sizes
    notes: tuple[str, ...] = ()

    @property
    def observation_size(self) -> int:
        layers = [hidden.linear for hidden in self.actor.hidden] + [self.actor.output]
        return int(layers[0].weight.shape[1])

    @property
    def family(self) -> str:
        """Which of Repolicy's families it belongs to. Without a std it counts as having one for all states."""
        if self.actions.kind == "discrete":
            return "categorical"
        if self.std is None or self.std.source == "vector":
            return "squashed" if self.squashed else "gaussian"
        return "state_squashed" if self.squashed else "state_gaussian"


# Evaluating a description ---------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "tanh": lambda x, _: torch.tanh(x),
    "relu": lambda x, _: torch.relu(x),
    "elu": lambda x, _: torch.nn.functional.elu(x),
    "swish": lambda x, _: torch.nn.functional.silu(x),
    "gelu": lambda x, _: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda x, _: torch.nn.functional.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x, slope: torch.nn.functional.leaky_relu(x, slope),
}


def _expln(raw: Tensor) -> Tensor:
    """exp below 0 and log(1 + x) + 1 above, with Stable-Baselines3's small number in it."""
    return torch.where(raw <= 0.0, raw.exp(), torch.log1p(raw.clamp_min(0.0) + 1e-6) + 1.0)


LINKS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "exp": lambda raw, low, high: raw.clamp(low, high).exp(),
    "expln": lambda raw, low, high: _expln(raw.clamp(low, high)),
    "identity": lambda raw, low, high: raw.clamp(low, high),
    "softplus": lambda raw, low, high: torch.nn.functional.softplus(raw.clamp(low, high)),
    "exp_tanh": lambda raw, low, high: (low + 0.5 * (high - low) * (raw.tanh() + 1.0)).exp(),
}


def distribution(described: Described, observations: Tensor) -> Distribution:
    """The distribution over actions at raw observations `[..., O]`, in their precision."""
    features = _features(described, observations)
    mean = _linear(described.actor.output, features)
    if described.actions.kind == "discrete":
        return Categorical(mean, described.actions.sizes)
    if described.std is None:
        raise FileError(f"this {described.kind} of {described.library} has no std: give one with --std")
    if described.mean_clip is not None:
        mean = mean.clamp(-described.mean_clip, described.mean_clip)
    log_std = _std(described.std, features).log()
    return (SquashedGaussian if described.squashed else Gaussian)(mean, log_std)


def mean_action(described: Described, observations: Tensor) -> Tensor:
    """The mean as the environment takes it `[..., A]`: squashed and scaled where the policy does so."""
    mean = _linear(described.actor.output, _features(described, observations))
    if described.mean_clip is not None:
        mean = mean.clamp(-described.mean_clip, described.mean_clip)
    if not described.squashed:
        return mean
    low, high = (torch.tensor(bound, dtype=mean.dtype) for bound in (described.actions.low, described.actions.high))
    return low + (torch.tanh(mean) + 1.0) * 0.5 * (high - low)


def value(described: Described, observations: Tensor) -> Tensor:
    """The critic's V at raw observations `[..., O]`."""
    if described.critic is None:
        raise FileError(f"this {described.kind} of {described.library} has no critic that can be copied")
    critic = described.critic
    return _linear(critic.output, _hidden(critic, _normalized(described, observations))).squeeze(-1)


def _features(described: Described, observations: Tensor) -> Tensor:
    return _hidden(described.actor, _normalized(described, observations))


def _normalized(described: Described, observations: Tensor) -> Tensor:
    if described.normalizer is None:
        return observations
    normalizer = described.normalizer
    shift, scale = (
        torch.as_tensor(values, dtype=observations.dtype) for values in (normalizer.shift, normalizer.scale)
    )
    inputs = (observations - shift) * scale
    return inputs if normalizer.clip is None else inputs.clamp(-normalizer.clip, normalizer.clip)


def _hidden(perceptron: Perceptron, inputs: Tensor) -> Tensor:
    for layer in perceptron.hidden:
        inputs = _linear(layer.linear, inputs)
        if layer.norm is not None and layer.norm.place == "before":
            inputs = _norm(layer.norm, inputs)
        inputs = ACTIVATIONS[perceptron.activation](inputs, perceptron.slope)
        if layer.norm is not None and layer.norm.place == "after":
            inputs = _norm(layer.norm, inputs)
    return inputs


def _linear(linear: Linear, inputs: Tensor) -> Tensor:
    weight, bias = (torch.as_tensor(values, dtype=inputs.dtype) for values in (linear.weight, linear.bias))
    return torch.nn.functional.linear(inputs, weight, bias)


def _norm(norm: LayerNorm, inputs: Tensor) -> Tensor:
    weight, bias = (torch.as_tensor(values, dtype=inputs.dtype) for values in (norm.weight, norm.bias))
    return torch.nn.functional.layer_norm(inputs, weight.shape, weight, bias, norm.epsilon)


def _std(std: Std, features: Tensor) -> Tensor:
    link = LINKS[std.link]
    if isinstance(std.raw, Linear):
        return link(_linear(std.raw, features), std.low, std.high) + std.floor
    raw = link(torch.as_tensor(std.raw, dtype=features.dtype), std.low, std.high)
    if std.source == "vector":
        return raw + std.floor
    return (features.square() @ raw.square() + std.floor**2).sqrt()
