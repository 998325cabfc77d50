"""ONNX graphs that are a perceptron: their weights are copied, and nothing of them is run.

A normalizer in front, a tanh behind and weights in a file beside the graph are understood. Where the graph drops the
second half of its last layer before a tanh, that half is the scale of Brax's distribution, and it is used.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError, first_line
from repolicy.loading import read_bytes
from repolicy.readers.chain import Chain, complete, recognize
from repolicy.readers.context import ReadContext
from repolicy.readers.description import Array, CannotCopyError, PolicyDescription, Std
from repolicy.readers.operations import OPERATIONS, TracedValue, last_layer_width, split
from repolicy.readers.perceptrons import first_names

ACTION_NAMES = (
    *("actions", "action", "continuous_actions", "mean_actions", "mean", "mu"),
    *("output", "pi", "policy", "actor"),
)
MEAN = "deterministic_"  # in front of one of these
BRAX_MIN_STD = 1e-3
OTHER_WORDS = (  # in the names of other outputs
    *("value", "critic", "baseline"),
    *("std", "sigma", "log_prob", "logp", "entropy"),
)
OTHER_NAMES = ("v", "vf", "q", "qf")
PRECISE = (1, 11)  # types that keep what a cast gets: single and double precision


def read(model: Any, context: ReadContext) -> PolicyDescription:
    """Return the perceptron in a graph; CannotCopyError where the graph is something else."""
    graph = model.graph
    width, source = _input_of(graph)
    name, chain = _Graph(graph, source, width).result()
    found, unused = recognize(chain, width)
    std = None
    context.notes += unused_outputs_note((output.name for output in graph.output), name)
    if unused is not None and context.options.std is None and found.squashed and len(graph.output) == 1:
        std = Std("head", unused, "softplus", floor=BRAX_MIN_STD)
        context.notes.append(
            "the unused half of the last layer is taken as Brax's scale: std = softplus(raw) + 0.001, before tanh "
            "(--std says otherwise)"
        )
    elif unused is not None:
        context.notes.append("half of the last layer is dropped by the graph, which does not tell what it is for")
    return complete(found, "ONNX", f"{model.producer_name} {model.producer_version}".strip(), context, std)


# The graph ------------------------------------------------------------------------------------------------------------


class _Graph:
    """What a graph computes, by name: constants are arrays, and what comes of the observations is `Moving`."""

    def __init__(self, graph: Any, source: str, width: int) -> None:
        self.outputs = sorted((output.name for output in graph.output), key=action_sort_key)
        self.width = width
        tensors = {tensor.name: _array(tensor) for tensor in graph.initializer}
        self.values: dict[str, Any] = {name: array for name, array in tensors.items() if array is not None}
        self.values[source] = TracedValue(())
        self.refused: dict[str, str] = {}  # what depends on the observations and was not understood, and why
        for node in graph.node:
            self.visit(node)

    def result(self) -> tuple[str, Chain]:
        """Return the output that is the action: by its name, or the first that depends on the observations."""
        for name in self.outputs:
            if isinstance(found := self.values.get(name), TracedValue):
                return name, found.chain
            if name in self.refused:
                raise CannotCopyError(self.refused[name])
        raise CannotCopyError(f"its outputs ({first_names(self.outputs)}) do not depend on its input")

    def visit(self, node: Any) -> None:
        """Note what the node's outputs are, or, for an error that comes later, why it was not understood."""
        names = [name for name in node.input if name]
        reason = next((self.refused[name] for name in names if name in self.refused), "")
        made = None
        if not reason and node.domain in ("", "ai.onnx") and all(name in self.values for name in names):
            made = self.made(node, [self.values.get(name) for name in node.input])
        if made is not None:
            self.values |= zip(node.output, made if isinstance(made, list) else [made], strict=False)
        elif reason or any(isinstance(self.values.get(name), TracedValue) for name in names):
            reason = reason or f"it holds {node.op_type} in a form that no perceptron of ours has"
            self.refused |= dict.fromkeys(node.output, reason)

    def made(self, node: Any, inputs: list[Any]) -> Any:
        """Return what comes of a node's inputs (None: one that is left out); None where no perceptron does so."""
        kind = node.op_type
        attributes = {each.name: _attribute(each) for each in node.attribute}
        if kind not in ARITHMETIC and any(isinstance(value, TracedValue) for value in inputs[1:]):
            return None
        if kind == "Reshape" and isinstance(inputs[0], TracedValue):
            width, shape = _width(inputs[0].chain, self.width), inputs[1].reshape(-1).tolist()
            rows = len(shape) == 2 and (shape[1] == width or shape in ([0, -1], [1, -1]))
            return inputs[0] if rows else None
        if kind == "Split":
            return _split(inputs, attributes, len(node.output))
        return NODES[kind](inputs, attributes) if kind in NODES else None


def action_sort_key(name: str) -> tuple[bool, bool, bool]:
    """Return by which outputs are sorted: what is called an action is first, and what is called something else last.

    ML-Agents' `continuous_actions` are drawn, and `deterministic_continuous_actions` beside them are their mean.
    """
    plain = name.removeprefix(MEAN)
    is_other = name.lower() in OTHER_NAMES or any(word in name.lower() for word in OTHER_WORDS)
    return plain not in ACTION_NAMES, plain == name, is_other


def unused_outputs_note(names: Iterable[str], taken: str) -> tuple[str, ...]:
    """Return a sentence about the outputs that are not the action, where there are some."""
    others = [name for name in names if name != taken]
    return (f"of the graph's outputs {taken} is taken, and not {first_names(others)}",) if others else ()


def _width(chain: Chain, width: int) -> int:
    """Return how many numbers a row has behind a chain."""
    for step in chain:
        if step.name == "linear":
            width = len(step.scale)
        elif step.name == "slice":
            width = int(min(step.high, width) - step.low)
    return width


# The nodes, as operations of PyTorch ----------------------------------------------------------------------------------

Attributes = Mapping[str, Any]


def _as(name: str, *args: Any, **named: Any) -> Any:
    return OPERATIONS[name](list(args), named)


def _split(inputs: list[Any], of: Attributes, count: int) -> list[TracedValue] | None:
    """Return slices of a layer, of one size where the graph does not say which; the last one may be smaller."""
    rows = last_layer_width(inputs[0]) if isinstance(inputs[0], TracedValue) and of.get("axis", 0) in (-1, 1) else 0
    if not rows:
        return None
    sizes = inputs[1] if inputs[1:] else of.get("split")
    if sizes is not None:
        return split(inputs[0], np.asarray(sizes).reshape(-1))
    each = -(-rows // count)
    return split(inputs[0], [min(each, rows - n * each) for n in range(count)])


def _gemm(inputs: list[Any], of: Attributes) -> TracedValue | None:
    moving, weight, bias = [*inputs, None][:3]
    if weight.ndim != 2 or of.get("transA", 0):
        return None
    weight = (weight if of.get("transB", 0) else weight.T) * np.float64(of.get("alpha", 1.0))
    bias = np.zeros(1) if bias is None else bias.reshape(-1) * of.get("beta", 1.0)
    return _as("linear", moving, weight, np.broadcast_to(bias, len(weight))) if bias.size in (1, len(weight)) else None


def _layer_norm(inputs: list[Any], of: Attributes) -> TracedValue | None:
    moving, scale, shift = [*inputs, None][:3]
    scale = scale.reshape(-1)
    shift = np.zeros(scale.size) if shift is None else shift.reshape(-1)
    on_rows = of.get("axis", -1) in (-1, 1)
    return _as("layer_norm", moving, scale.shape, scale, shift, of.get("epsilon", 1e-5)) if on_rows else None


def _clip(inputs: list[Any], of: Attributes) -> TracedValue | None:
    """Clip to bounds that are inputs, or attributes in older graphs."""
    low, high = [*(None if bound is None else bound.item() for bound in inputs[1:]), None, None][:2]
    return _as("clamp", inputs[0], of.get("min", low), of.get("max", high))


def _slice(inputs: list[Any], _: Attributes) -> TracedValue | None:
    """Return a slice of one axis, where the graph says which."""
    if len(inputs) < 4 or any(number.size != 1 for number in inputs[1:]):
        return None
    start, end, axis, *step = (int(number.item()) for number in inputs[1:])
    return _as("slice", inputs[0], axis, start, end, *step)


def _cast(inputs: list[Any], of: Attributes) -> Any:
    if isinstance(inputs[0], TracedValue):
        return inputs[0] if _is_choice(inputs[0]) or of["to"] in PRECISE else None
    return inputs[0].astype(TYPES[of["to"]]) if of["to"] in TYPES else None


def _with_axes(change: Callable[[Array, Any], Array]) -> Callable[[list[Any], Attributes], Any]:
    """Return a node that gives a constant axes of one entry, or takes them away; those of a choice do not matter."""

    def made(inputs: list[Any], of: Attributes) -> Any:
        if isinstance(inputs[0], TracedValue):
            return inputs[0] if _is_choice(inputs[0]) else None
        axes = inputs[1].reshape(-1).tolist() if inputs[1:] else of.get("axes")
        return change(inputs[0], None if axes is None else tuple(map(int, axes)))

    return made


def _is_choice(moving: TracedValue) -> bool:
    return bool(moving.chain) and moving.chain[-1].name == "argmax"


def _div(inputs: list[Any], _: Attributes) -> Any:
    whole = all(isinstance(value, np.ndarray) and value.dtype.kind != "f" for value in inputs)
    return None if whole else _as("div", *inputs)  # whole numbers divide to whole numbers


def _named(name: str) -> Callable[[list[Any], Attributes], Any]:
    return lambda inputs, _: _as(name, *inputs)


VALUES = ("value", "value_float", "value_int")  # of a constant
ARITHMETIC = ("Add", "Sub", "Mul", "Div")  # either input of which may depend on the observations
ALIKE = ("Add", "Sub", "Mul", "Neg", "Sqrt", "Reciprocal", "Tanh", "Relu", "Sigmoid", "Erf", "MatMul")  # in PyTorch
NODES: dict[str, Callable[[list[Any], Attributes], Any]] = {
    **{name: _named(name.lower()) for name in ALIKE},
    "Div": _div,
    "Elu": lambda inputs, of: _as("elu", inputs[0], of.get("alpha", 1.0)),
    "Gelu": lambda inputs, of: _as("gelu", inputs[0], of.get("approximate", b"none").decode()),
    "LeakyRelu": lambda inputs, of: _as("leaky_relu", inputs[0], of.get("alpha", 0.01)),
    "Swish": lambda inputs, of: _as("silu", inputs[0]) if of.get("alpha", 1.0) == 1.0 else None,
    "ArgMax": lambda inputs, of: _as("argmax", inputs[0], of.get("axis", 0)),
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "Clip": _clip,
    "Slice": _slice,
    "Cast": _cast,
    "Squeeze": _with_axes(np.squeeze),
    "Unsqueeze": _with_axes(np.expand_dims),
    "Transpose": lambda inputs, of: _as("t", inputs[0]) if [*of.get("perm", [1, 0])] == [1, 0] else None,
    "Flatten": lambda inputs, of: inputs[0] if of.get("axis", 1) in (1, -1) else None,
    "Identity": lambda inputs, _: inputs[0],
    "Dropout": lambda inputs, _: inputs[0],
    "Constant": lambda _, of: next((np.asarray(of[name]) for name in VALUES if of.get(name) is not None), None),
}


# The file -------------------------------------------------------------------------------------------------------------

TYPES = {1: "f4", 10: "f2", 11: "f8", 6: "i4", 7: "i8", 9: "b1"}  # of ONNX's tensors, those that are read


def matches(content: bytes) -> bool:
    """Return whether bytes may be an ONNX model: its first part is the version, which begins so."""
    return content[:1] == b"\x08"


def load_model(content: bytes, where: str) -> Any:
    """Read a model, with whatever lies in files beside it, so that nobody else opens a file that it names."""
    try:
        import onnx
        from google.protobuf.message import Message
    except ImportError:
        raise UsageError(f"{where} is an ONNX graph, which needs onnx: pip install 'repolicy[onnx]'") from None
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own, of several classes
        raise FileError(f"{where} is damaged, or no ONNX graph: {first_line(error)}") from None
    waiting, beside = list[Any]([model]), dict[PurePosixPath, bytes]()
    while waiting:  # a tensor may be anywhere: in a sub-graph, in an attribute, in a function
        message = waiting.pop()
        if message.DESCRIPTOR.name == "TensorProto" and (message.data_location == 1 or message.external_data):
            message.raw_data = _external(message, Path(where), beside)
            message.ClearField("data_location")
            message.ClearField("external_data")
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += [value] if isinstance(value, Message) else value
    return model


def _external(tensor: Any, path: Path, beside: dict[PurePosixPath, bytes]) -> bytes:
    """Return a constant's bytes in another file, which must be in the graph's own folder; each is opened once."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(entries.get("location", ""))
    file = path.parent / location
    if ".." in location.parts or not file.resolve().is_relative_to(path.parent.resolve()):
        raise FileError(f"{path} is refused: its weights are to come from {location}, outside of its folder")
    if not file.is_file():
        raise FileError(f"{path} keeps its weights in {location}, which is not beside it: put that file there")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", file.stat().st_size))
    except ValueError:
        offset = length = -1
    if min(offset, length) < 0 or offset + length > file.stat().st_size:
        raise FileError(f"{path} does not fit {location}: {tensor.name} is past that file's end")
    if location not in beside:
        beside[location] = read_bytes(file)
    return beside[location][offset : offset + length]


def _input_of(graph: Any) -> tuple[int, str]:
    """Return how many numbers the graph takes, and its input's name."""
    inputs = input_shapes(graph)
    if len(inputs) != 1:
        raise CannotCopyError(f"it takes {len(inputs)} inputs ({first_names(inputs)}), not one")
    [(name, shape)] = inputs.items()
    if len(shape) not in (1, 2) or not isinstance(shape[-1], int) or shape[-1] < 1:
        raise CannotCopyError(f"its input {name} has the shape {shape}, no row of numbers")
    return shape[-1], name


def input_shapes(graph: Any) -> dict[str, list[Any]]:
    """Return the shape of each input of a graph: a number for each axis, or a name where it is not fixed."""
    known = {tensor.name for tensor in graph.initializer}
    axes = {each.name: each.type.tensor_type.shape.dim for each in graph.input if each.name not in known}
    return {
        name: [axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in shape]
        for name, shape in axes.items()
    }


def _attribute(attribute: Any) -> Any:
    from onnx.helper import get_attribute_value

    value = get_attribute_value(attribute)
    return _array(value) if attribute.type == attribute.TENSOR else value


def _array(tensor: Any) -> Array | None:
    """Return a constant of the graph; None where it is of a type that is not read."""
    from onnx.numpy_helper import to_array

    return to_array(tensor) if tensor.data_type in TYPES else None
