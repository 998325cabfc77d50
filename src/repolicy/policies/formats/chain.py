"""From a row of elementary steps to a description: what graphs (ONNX, TorchScript) are reduced to.

A graph's reader notes what happens to the observations, step by step; here the row of steps is recognized as a
perceptron with a normalizer in front and a tanh behind, or refused with the step that does not belong there.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from repolicy.errors import FileError
from repolicy.policies.formats.described import (
    Array,
    CannotCopyError,
    Hidden,
    LayerNorm,
    Linear,
    Normalizer,
    Perceptron,
)
from repolicy.policies.network import ACTIVATIONS

Kind = Literal["affine", "linear", "clip", "norm", "slice", "argmax"]


@dataclass(frozen=True, eq=False)
class Step:
    """One thing that happens to all numbers of a row. Its name is a kind below, or an activation's.

    affine: `scale · x + shift`; linear: `weight x + bias`; clip: to [low, high]; norm: a LayerNorm; slice: [low:high].
    """

    name: str
    scale: Array | float = 1.0  # or a weight
    shift: Array | float = 0.0  # or a bias
    low: float = -math.inf
    high: float = math.inf  # or epsilon, or a slope


Chain = tuple[Step, ...]


@dataclass(frozen=True)
class Recognized:
    """A chain as a policy's parts. `unused` is the half of the last layer that the chain drops."""

    network: Perceptron
    normalizer: Normalizer | None
    unused: Linear | None
    mean_clip: float | None
    squashed: bool
    low: tuple[float, ...]
    high: tuple[float, ...]
    argmax: bool

    @property
    def width(self) -> int:
        """How many observations it takes."""
        first = self.network.hidden[0].linear if self.network.hidden else self.network.output
        return int(first.weight.shape[1])


def joined(first: Chain, second: Chain) -> Chain | None:
    """The chain whose value is the product of two chains' values, where that is swish or gelu; else None."""
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] is second[shared]:
        shared += 1
    rests = sorted((_merged(first[shared:]), _merged(second[shared:])), key=len)
    stem, (short, long) = first[:shared], rests
    if not short and [step.name for step in long] == ["sigmoid"]:
        return (*stem, Step("swish"))
    if [step.name for step in long] == ["affine", "erf", "affine"] and [step.name for step in short] in (
        [],
        ["affine"],
    ):
        inner, _, outer = long
        factor = _number(short[0].scale) if short else 1.0
        plain = not short or _number(short[0].shift) == 0.0
        if (
            plain
            and _close(inner.scale, math.sqrt(0.5))
            and _close(inner.shift, 0.0)
            and _same(outer.scale, outer.shift)
        ):
            return (*stem, Step("gelu"), Step("affine", 2.0 * factor * _number(outer.scale)))
    return None


def recognize(chain: Chain, width: int, where: str) -> Recognized:
    """The chain as a policy of `width` observations."""
    if not all(np.all(np.isfinite(np.asarray(numbers, np.float64))) for s in chain for numbers in (s.scale, s.shift)):
        raise FileError(f"{where} cannot be used: its weights are not finite")
    try:
        return _perceptron(chain, width, where)
    except ValueError as error:
        raise FileError(f"{where} is damaged: the sizes of its layers do not fit each other ({error})") from None


def _perceptron(chain: Chain, width: int, where: str) -> Recognized:
    steps = [step for step in _merged(chain) if not _is_identity(step)]
    shift, scale, clip = _front(steps, width)
    hidden: list[Hidden] = []
    activation: Step | None = None
    output = _take_linear(steps, where)
    while steps and (steps[0].name == "norm" or steps[0].name in ACTIVATIONS) and _has_linear(steps):
        before = _take_norm(steps, "before")
        if not steps or steps[0].name not in ACTIVATIONS:
            raise CannotCopyError(f"{where} cannot be copied: {_told(steps)} stands where an activation belongs")
        step = steps.pop(0)
        if activation is not None and (step.name, step.high) != (activation.name, activation.high):
            raise CannotCopyError(f"{where} cannot be copied: its layers have different activations")
        activation = step
        norm = before or _take_norm(steps, "after")
        hidden.append(Hidden(output, norm))
        output = _take_linear(steps, where)
    _check_sizes(width, hidden, output)
    normalizer = Normalizer(shift, scale, clip) if clip is not None or np.any(shift) or np.any(scale != 1.0) else None
    slope = activation.high if activation is not None and math.isfinite(activation.high) else 0.01
    return _behind(steps, hidden, output, activation.name if activation else "tanh", slope, normalizer, where)


def _check_sizes(width: int, hidden: list[Hidden], output: Linear) -> None:
    for layer in (*(each.linear for each in hidden), output):
        if layer.weight.shape[1] != width:
            raise ValueError(f"{width} numbers go into a layer that takes {layer.weight.shape[1]}")
        width = layer.weight.shape[0]


def _behind(
    steps: list[Step],
    hidden: list[Hidden],
    output: Linear,
    activation: str,
    slope: float,
    normalizer: Normalizer | None,
    where: str,
) -> Recognized:
    """What follows the last layer: a slice of it, a clip, a tanh and its scaling, or the choice of the largest."""
    unused, mean_clip, squashed, argmax = None, None, False, False
    if steps and steps[0].name == "slice":
        output, unused = _sliced(output, steps.pop(0))
    if steps and steps[0].name == "clip" and steps[0].low == -steps[0].high:
        mean_clip = steps.pop(0).high
    rows = len(output.bias)
    low, high = np.full(rows, -1.0), np.full(rows, 1.0)
    if steps and steps[0].name == "tanh":
        squashed = True
        steps.pop(0)
        if steps and steps[0].name == "affine":
            step = steps.pop(0)
            scale, shift = (
                np.broadcast_to(np.asarray(values, np.float64), rows) for values in (step.scale, step.shift)
            )
            low, high = shift - scale, shift + scale
    elif steps and steps[0].name == "argmax":
        argmax = True
        steps.pop(0)
    if steps or np.any(low >= high):
        raise CannotCopyError(f"{where} cannot be copied: {_told(steps) or 'a negative scale'} follows its last layer")
    bounds = [tuple(float(number) for number in bound) if squashed else () for bound in (low, high)]
    network = Perceptron(tuple(hidden), output, activation, slope)
    return Recognized(network, normalizer, unused, mean_clip, squashed, bounds[0], bounds[1], argmax)


def _front(steps: list[Step], width: int) -> tuple[Array, Array, float | None]:
    """The normalizer in front, as shift and scale, and where it clips."""
    scale, offset, clip = np.ones(width), np.zeros(width), None
    if steps and steps[0].name == "affine":
        step = steps.pop(0)
        scale, offset = (np.broadcast_to(np.asarray(v, np.float64), width).copy() for v in (step.scale, step.shift))
        if not np.all(scale):
            steps.insert(0, step)  # a number that is dropped: the first layer takes it in
            return np.ones(width), np.zeros(width), None
    if steps and steps[0].name == "clip" and steps[0].low == -steps[0].high:
        clip = steps.pop(0).high
    return -offset / scale, scale, clip


def _take_linear(steps: list[Step], where: str) -> Linear:
    """The next layer, with the elementwise factors and shifts on both of its sides taken into it."""
    before = steps.pop(0) if steps and steps[0].name == "affine" else Step("affine")
    if not steps or steps[0].name != "linear":
        raise CannotCopyError(
            f"{where} cannot be copied: {_told(steps) or 'nothing'} stands where a linear layer belongs"
        )
    step = steps.pop(0)
    weight, bias = np.asarray(step.scale, np.float64), np.asarray(step.shift, np.float64)
    if not _is_identity(before):
        bias = bias + weight @ np.broadcast_to(np.asarray(before.shift, np.float64), weight.shape[1])
        weight = weight * before.scale
    if steps and steps[0].name == "affine":
        after = steps.pop(0)
        factor = np.broadcast_to(np.asarray(after.scale, np.float64), len(bias))
        weight, bias = weight * factor[:, None], bias * factor + after.shift
    return Linear(np.array(weight, np.float32, order="C"), np.array(bias, np.float32))


def _take_norm(steps: list[Step], place: Literal["before", "after"]) -> LayerNorm | None:
    if not steps or steps[0].name != "norm":
        return None
    step = steps.pop(0)
    weight, bias = (np.array(values, np.float32) for values in (step.scale, step.shift))
    return LayerNorm(weight, bias, step.high, place)


def _sliced(output: Linear, step: Step) -> tuple[Linear, Linear | None]:
    start, end = int(step.low), int(min(step.high, len(output.bias)))
    rest = Linear(output.weight[end:], output.bias[end:]) if start == 0 and 2 * end == len(output.bias) else None
    return Linear(output.weight[start:end], output.bias[start:end]), rest


def _merged(chain: Chain) -> list[Step]:
    """The same with neighboring elementwise factors and shifts as one."""
    steps: list[Step] = []
    for step in chain:
        if step.name == "affine" and steps and steps[-1].name == "affine":
            first = steps.pop()
            scale = np.asarray(first.scale, np.float64) * step.scale
            step = Step("affine", scale, np.asarray(first.shift, np.float64) * step.scale + step.shift)
        steps.append(step)
    return steps


def _has_linear(steps: list[Step]) -> bool:
    return any(step.name == "linear" for step in steps)


def _is_identity(step: Step) -> bool:
    return step.name == "affine" and _close(step.scale, 1.0, 0.0) and _close(step.shift, 0.0, 0.0)


def _close(values: Array | float, number: float, tolerance: float = 1e-6) -> bool:
    return bool(np.all(np.abs(np.asarray(values) - number) <= tolerance))


def _same(first: Array | float, second: Array | float) -> bool:
    return np.size(first) == 1 and np.size(second) == 1 and _number(first) == _number(second)


def _number(values: Array | float) -> float:
    return float(np.asarray(values).reshape(-1)[0]) if np.size(values) == 1 else math.nan


def _told(steps: list[Step]) -> str:
    return steps[0].name if steps else ""
