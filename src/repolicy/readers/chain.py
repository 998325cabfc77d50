"""Recognize a policy in a chain of elementary steps, which is what readers of ONNX and TorchScript graphs produce.

A graph's reader records each step from the observations to the actions. Here the steps become a perceptron, perhaps
with a normalizer before and a tanh after it. A step that does not belong there is named in a CannotCopyError.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from repolicy.policies import ACTIVATIONS, ActionSpace
from repolicy.readers.context import ReadContext
from repolicy.readers.description import (
    Array,
    CannotCopyError,
    HiddenLayer,
    LayerNorm,
    Linear,
    Normalizer,
    Perceptron,
    Place,
    PolicyDescription,
    Std,
)
from repolicy.readers.perceptrons import make_perceptron

TANH_NOTE = (
    "the graph ends in tanh, so its actions lie within -1 and 1: if its library scaled them to the environment's "
    "bounds, export the graph with that scale"
)


@dataclass(frozen=True, eq=False)
class Step:
    """An elementary operation on a row of numbers. Its name is that of an activation, or one of these:

    affine: `scale · x + shift`; linear: `weight x + bias`; clip: to [low, high]; norm: a LayerNorm; slice: [low:high];
    argmax: the index of the largest number; softmax, or its logarithm, before it; logsumexp: what that subtracts.
    """

    name: str
    scale: Any = 1.0  # or the weight; becomes an array in double precision
    shift: Any = 0.0  # or the bias; becomes an array in double precision
    low: float = -math.inf
    high: float = math.inf  # or the epsilon of a norm, or the slope of a leaky_relu

    def __post_init__(self) -> None:
        for name in ("scale", "shift"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))


Chain = tuple[Step, ...]


def fuse_product(first: Chain, second: Chain) -> Chain | None:
    """Return the chain of the product of two chains, if that is swish, `x · sigmoid(x)`, or gelu; else None.

    gelu is `x · (0.5 · erf(x · √0.5) + 0.5)`, where any constant factor may stand on either side.
    """
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] is second[shared]:
        shared += 1
    stem = first[:shared]
    short, long = sorted((_merge_affine(first[shared:]), _merge_affine(second[shared:])), key=len)
    names, short_names = [step.name for step in long], [step.name for step in short]
    if not short and names == ["sigmoid"]:
        return (*stem, Step("swish"))
    if names == ["affine", "erf", "affine"] and short_names in ([], ["affine"]):
        inner, _, outer = long
        factor = short[0] if short else Step("affine")
        is_gelu = np.all(outer.scale == outer.shift) and not np.any(factor.shift)
        is_gelu &= np.allclose(inner.scale, math.sqrt(0.5), 0.0, 1e-6) and np.allclose(inner.shift, 0.0, 0.0, 1e-6)
        if is_gelu:
            return (*stem, Step("gelu"), Step("affine", 2.0 * factor.scale * outer.scale))
    return None


def fuse_difference(first: Chain, second: Chain) -> Chain | None:
    """Return the chain of the difference of two chains, if that is a log-softmax, `x - logsumexp(x)`; else None."""
    is_softmax = bool(second) and second[-1].name == "logsumexp" and second[:-1] == first
    return (*first, Step("softmax")) if is_softmax else None


def recognize(
    chain: Chain, width: int, context: ReadContext, library: str, version: str = ""
) -> tuple[PolicyDescription, Linear | None]:
    """Return the chain as a policy of `width` observations, and the half of its last layer that a slice drops, if any.

    The std of the description is still empty: `complete` adds it. With the user's temperature a last softmax is left
    out, as its outputs are the same logits but for a constant.
    """
    if not all(np.isfinite(numbers).all() for step in chain for numbers in (step.scale, step.shift)):
        raise ValueError("its weights are not finite")
    steps = [step for step in _merge_affine(chain) if not _is_identity(step)]
    normalizer = _take_normalizer(steps, width)
    network = _take_network(steps)
    if network.width != width:
        raise ValueError(f"{width} numbers go into a layer that takes {network.width}")
    if steps and steps[0].name != "linear" and any(step.name == "linear" for step in steps):
        raise CannotCopyError(f"{steps[0].name} stands between its layers")
    unused = None
    if _next_name(steps) == "slice":
        output, unused = _slice_output(network.output, steps.pop(0))
        network = replace(network, output=output)
    is_choice = bool(steps) and steps[-1].name == "argmax"
    has_logits = context.options.temperature is not None
    while (is_choice or has_logits) and _next_name(steps) == "softmax":  # which keeps the order, and the probabilities
        steps.pop(0)
    mean_clip = None if is_choice else _take_clip(steps)
    actions = _take_actions(steps, len(network.output.bias))
    if steps:
        is_softmax = _next_name(steps) == "softmax"
        hint = ": add --temperature 1 if its outputs are probabilities of choices" if is_softmax else ""
        raise CannotCopyError(f"{_next_name(steps)} follows its last layer{hint}")
    policy = PolicyDescription(
        library, version, "perceptron", network, actions,
        squashed=bool(actions.low), normalizer=normalizer, mean_clip=mean_clip,
    )  # fmt: skip
    return policy, unused


def complete(
    policy: PolicyDescription, context: ReadContext, unused: Linear | None, std: Std | None = None
) -> PolicyDescription:
    """Return the policy with this std or the user's, and with the user's normalizer unless its network has one.

    With the user's temperature its outputs are logits. `unused` is the half of its last layer that it drops.
    """
    if policy.normalizer is not None:
        context.check_no_statistics()
    if unused is not None and std is None:
        context.notes.append("half of the last layer is dropped by the graph, which does not tell what it is for")
    if policy.squashed and {*policy.actions.low, *policy.actions.high} == {-1.0, 1.0}:
        context.notes.append(TANH_NOTE)
    if context.options.temperature is not None and not policy.squashed and policy.mean_clip is None:
        actor, choices = context.with_temperature(policy.actor), ActionSpace("discrete", policy.actions.sizes)
        policy = replace(policy, actor=actor, actions=choices)
    if policy.actions.kind == "discrete":
        context.notes.append("the largest of the outputs is chosen: they are taken as logits")
    elif std is None:
        std = context.std(len(policy.actor.output.bias))
    normalizer = context.statistics(policy.actor.width, policy.normalizer)
    return replace(policy, std=std, normalizer=normalizer)


def _take_network(steps: list[Step]) -> Perceptron:
    """Take the layers up to the last linear one from the front of the steps."""
    hidden: list[HiddenLayer] = []
    activation: Step | None = None
    output = _take_linear(steps)
    while _next_name(steps) in ("norm", *ACTIVATIONS) and any(step.name == "linear" for step in steps):
        before = _take_norm(steps, "before")
        if _next_name(steps) not in ACTIVATIONS:
            raise CannotCopyError(f"{_next_name(steps)} stands where an activation belongs")
        step = steps.pop(0)
        if activation is not None and (step.name, step.high) != (activation.name, activation.high):
            raise CannotCopyError("its layers have different activations")
        activation = step
        hidden.append(HiddenLayer(output, before or _take_norm(steps, "after")))
        output = _take_linear(steps)
    if len({layer.norm.epsilon for layer in hidden if layer.norm}) > 1:
        raise CannotCopyError("its LayerNorms have different epsilons")
    network = make_perceptron(hidden, output, activation.name if activation else "tanh")
    return replace(network, slope=activation.high) if activation and math.isfinite(activation.high) else network


def _take_normalizer(steps: list[Step], width: int) -> Normalizer | None:
    """Take a normalizer from the front of the steps: a factor and a shift for each observation, and a clip."""
    scale, offset = np.ones(width), np.zeros(width)
    if _next_name(steps) == "affine":
        scale, offset = _affine_rows(steps[0], width)
        if not np.all(scale):  # an observation times 0: the first layer's weights take the factor instead
            return None
        steps.pop(0)
    clip = _take_clip(steps)
    if clip is None and not np.any(offset) and np.all(scale == 1.0):
        return None
    return Normalizer(-offset / scale, scale, clip)


def _take_actions(steps: list[Step], width: int) -> ActionSpace:
    """Take the last steps: an argmax makes actions discrete, a tanh gives them bounds."""
    if _next_name(steps) == "argmax":
        steps.pop(0)
        return ActionSpace("discrete", (width,))
    if _next_name(steps) != "tanh":
        return ActionSpace("continuous", (width,))
    steps.pop(0)
    scale, shift = _affine_rows(steps.pop(0) if _next_name(steps) == "affine" else Step("affine"), width)
    low, high = shift - scale, shift + scale
    if np.any(low >= high):
        raise CannotCopyError("a negative scale follows its last layer")
    return ActionSpace("continuous", (width,), tuple(map(float, low)), tuple(map(float, high)))


def _take_linear(steps: list[Step]) -> Linear:
    """Take a linear layer, and fold the affine steps on both of its sides into its weight and bias."""
    before = steps.pop(0) if _next_name(steps) == "affine" else Step("affine")
    if _next_name(steps) != "linear":
        raise CannotCopyError(f"{_next_name(steps) or 'nothing'} stands where a linear layer belongs")
    step = steps.pop(0)
    weight, bias = step.scale, step.shift
    if not _is_identity(before):
        bias = bias + weight @ np.broadcast_to(before.shift, weight.shape[1])
        weight = weight * before.scale
    if _next_name(steps) == "affine":
        after = steps.pop(0)
        factor, shift = _affine_rows(after, len(bias))
        weight, bias = weight * factor[:, None], bias * factor + shift
    return Linear(np.array(weight, np.float32, order="C"), np.array(bias, np.float32))


def _take_clip(steps: list[Step]) -> float | None:
    """Take a symmetric clip, if it is next, and return its bound."""
    return steps.pop(0).high if _next_name(steps) == "clip" and -steps[0].low == steps[0].high > 0.0 else None


def _take_norm(steps: list[Step], place: Place) -> LayerNorm | None:
    if _next_name(steps) != "norm":
        return None
    step = steps.pop(0)
    weight, bias = (np.array(values, np.float32) for values in (step.scale, step.shift))
    return LayerNorm(weight, bias, step.high, place)


def _slice_output(output: Linear, step: Step) -> tuple[Linear, Linear | None]:
    """Return the outputs that a slice keeps, and the outputs that it drops if they are the second half; else None."""
    size = len(output.bias)
    start, end = int(step.low), int(min(step.high, size))
    if not 0 <= start < end:
        raise CannotCopyError("a slice leaves nothing of its last layer")
    dropped = output.slice_outputs(end) if start == 0 and 2 * end == size else None
    return output.slice_outputs(start, end), dropped


def _merge_affine(chain: Chain) -> list[Step]:
    """Merge neighboring affine steps into one."""
    steps: list[Step] = []
    for step in chain:
        if step.name == "affine" and steps and steps[-1].name == "affine":
            first = steps.pop()
            step = Step("affine", first.scale * step.scale, first.shift * step.scale + step.shift)
        steps.append(step)
    return steps


def _is_identity(step: Step) -> bool:
    return step.name == "affine" and bool(np.all(step.scale == 1.0)) and not np.any(step.shift)


def _affine_rows(step: Step, width: int) -> tuple[Array, Array]:
    """Return scale and shift of an affine step, each `[width]`."""
    if width == 1 and max(step.scale.size, step.shift.size) > 1:  # which makes more numbers of it
        raise CannotCopyError("a row follows a single number")
    return np.broadcast_to(step.scale, width), np.broadcast_to(step.shift, width)


def _next_name(steps: list[Step]) -> str:
    return steps[0].name if steps else ""
