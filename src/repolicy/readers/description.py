"""The result of every reader: a policy of another library, described by plain NumPy arrays.

    observations ─ normalizer ─ hidden layers ─ mean ──────────── distribution ─ (tanh, to the bounds) ─ environment
                                      └──────── std (from a vector, a layer, or the features themselves)

As everywhere in Repolicy, the actions of a squashed policy are those before tanh. `copying.py` builds a `Policy` from a
description.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from repolicy.errors import FileError
from repolicy.policies import ActionSpace

FIRST_OUTPUT_NOTE = "of the module's several outputs the first is taken"
Array = np.ndarray
Source = Literal["vector", "head", "features"]
Place = Literal["before", "after"]


class CannotCopyError(FileError):
    """The file is intact and its format is known, but Repolicy has no such network. The file may still be run as it is.

    Readers raise it with the reason alone; `PolicyFile` adds the file's name. For damaged files they raise ValueError.
    """


class UnknownSettingError(CannotCopyError):
    """The policy has activations, a std or a distribution that Repolicy does not know, nor does a --layout open it."""


@dataclass(frozen=True)
class Linear:
    """A linear layer: `weight [outputs, inputs]` and `bias [outputs]`."""

    weight: Array
    bias: Array

    def slice_outputs(self, start: int, end: int | None = None) -> "Linear":
        """Return a layer of the outputs `[start:end]` only."""
        return Linear(self.weight[start:end], self.bias[start:end])


@dataclass(frozen=True)
class LayerNorm:
    """A LayerNorm before or after the activation of its layer: `weight [units]`, `bias [units]`."""

    weight: Array
    bias: Array
    epsilon: float
    place: Place


@dataclass(frozen=True)
class HiddenLayer:
    """A hidden layer; its activation is that of the whole `Perceptron`."""

    linear: Linear
    norm: LayerNorm | None = None


@dataclass(frozen=True)
class Perceptron:
    """Hidden layers that share one activation, and an output layer without activation."""

    hidden: tuple[HiddenLayer, ...]
    output: Linear
    activation: str
    slope: float = 0.01  # negative slope of leaky_relu

    @property
    def layers(self) -> list[Linear]:
        return [*(hidden.linear for hidden in self.hidden), self.output]

    @property
    def width(self) -> int:
        """Number of inputs."""
        return int(self.layers[0].weight.shape[1])

    def split_output(self) -> tuple["Perceptron", Linear]:
        """Split an output layer of means and stds; return the network of the means and the layer of the stds."""
        size, odd = divmod(len(self.output.bias), 2)
        if odd:
            raise CannotCopyError(f"its last layer has {len(self.output.bias)} outputs, not means and stds")
        return replace(self, output=self.output.slice_outputs(0, size)), self.output.slice_outputs(size)


@dataclass(frozen=True)
class Normalizer:
    """Normalizes observations: `clip((observations − shift) · scale, ±clip)`."""

    shift: Array  # [observations]
    scale: Array  # [observations]
    clip: float | None = None
    count: float = 0.0  # number of observations in the statistics; 0 where the file does not hold it


@dataclass(frozen=True)
class Std:
    """The standard deviation of a Gaussian policy: `link(raw, low, high) + floor`.

    The source of `raw` is one of these:
    - "vector": an array, the same for all states;
    - "head": the output of a linear layer on the last hidden features;
    - "features" (gSDE): a matrix that multiplies the squares of these features and gives the variance. There `floor`
      is added in quadrature.
    """

    source: Source
    raw: Array | Linear
    link: str = "exp"
    low: float = -float("inf")
    high: float = float("inf")
    floor: float = 0.0


@dataclass(frozen=True)
class PolicyDescription:
    """A policy of another library, and what its file says about it."""

    library: str  # Stable-Baselines3, rsl_rl, ...
    version: str  # version of the library or of the layout; empty where the file does not hold it
    kind: str  # PPO, SAC, "ONNX graph", ...
    actor: Perceptron  # outputs the mean, or the concatenated logits of all discrete choices
    actions: ActionSpace  # without bounds where the file does not hold them
    squashed: bool = False  # whether tanh follows the noise
    std: Std | None = None
    normalizer: Normalizer | None = None
    mean_clip: float | None = None  # the mean is clipped to ± this before any tanh
    clips: bool = False  # whether its library clips actions to their bounds before the environment sees them
    groups: tuple[tuple[str, int], ...] = ()  # (key, size) of each part of a Dict observation; 0 is an unknown size
    notes: tuple[str, ...] = ()  # sentences for the user: assumptions of the reader

    @property
    def family(self) -> str:
        """Key of Repolicy's policy family for it; a missing std counts as one vector for all states."""
        if self.actions.kind == "discrete":
            return "categorical"
        source = "vector" if self.std is None else self.std.source
        prefix = {"vector": "", "head": "state_", "features": "features_"}[source]
        return prefix + ("squashed" if self.squashed else "gaussian")
