"""What a reader of somebody else's file hands back: a policy in plain arrays, with nothing of its library left.

    observations ─ normalizer ─ hidden layers ─ mean ──────────── distribution ─ (tanh, to the bounds) ─ environment
                                      └──────── std (from a vector, a layer, or the features themselves)

A squashed policy's actions are those before tanh, as everywhere in Repolicy. `copying.py` makes a policy of it.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from repolicy.errors import FileError
from repolicy.policies import ActionSpace

Array = np.ndarray
Source = Literal["vector", "head", "features"]
Place = Literal["before", "after"]


class CannotCopyError(FileError):
    """The file is whole and its format is known, but its network is none of ours. It may still be run as it is.

    Readers say the reason alone, and `PolicyFile` of which file. What is damaged is a ValueError of theirs.
    """


@dataclass(frozen=True)
class Linear:
    """`weight [outputs, inputs]` and `bias [outputs]`."""

    weight: Array
    bias: Array

    def outputs(self, start: int, end: int | None = None) -> "Linear":
        """Return the layer with these of its outputs."""
        return Linear(self.weight[start:end], self.bias[start:end])


@dataclass(frozen=True)
class LayerNorm:
    """Applied before or after the layer's activation: `weight [units]`, `bias [units]`."""

    weight: Array
    bias: Array
    epsilon: float
    place: Place


@dataclass(frozen=True)
class HiddenLayer:
    """A hidden layer."""

    linear: Linear
    norm: LayerNorm | None = None


@dataclass(frozen=True)
class Perceptron:
    """Hidden layers with one activation, and a last layer without."""

    hidden: tuple[HiddenLayer, ...]
    output: Linear
    activation: str
    slope: float = 0.01  # of leaky_relu

    @property
    def layers(self) -> list[Linear]:
        return [*(hidden.linear for hidden in self.hidden), self.output]

    @property
    def width(self) -> int:
        """How many numbers it takes."""
        return int(self.layers[0].weight.shape[1])

    def split_output(self) -> tuple["Perceptron", Linear]:
        """Return the network of the means, and the other half of its last layer, of which stds are made."""
        size, odd = divmod(len(self.output.bias), 2)
        if odd:
            raise CannotCopyError(f"its last layer has {len(self.output.bias)} outputs, not means and stds")
        return replace(self, output=self.output.outputs(0, size)), self.output.outputs(size)


@dataclass(frozen=True)
class Normalizer:
    """`clip((observations − shift) · scale, ±clip)`, of `[observations]` each; count is how many were seen, or 0."""

    shift: Array
    scale: Array
    clip: float | None = None
    count: float = 0.0


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
class PolicyDescription:
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
    clips: bool = False  # whether its library cuts actions to their bounds on the way to the environment
    groups: tuple[tuple[str, int], ...] = ()  # of an observation that is a Dict: its keys in order, and their sizes
    notes: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """Which of Repolicy's families it belongs to. Without a std it counts as having one for all states."""
        if self.actions.kind == "discrete":
            return "categorical"
        source = "vector" if self.std is None else self.std.source
        return {"vector": "", "head": "state_", "features": "features_"}[source] + (
            "squashed" if self.squashed else "gaussian"
        )
