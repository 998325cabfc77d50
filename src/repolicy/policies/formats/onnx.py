"""ONNX graphs that are a perceptron: their weights are copied, and nothing of them is run.

A normalizer in front, a tanh behind and weights in a file beside the graph are understood. Where the graph drops the
second half of its last layer before a tanh, that half is the scale of Brax's distribution, and it is used.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError
from repolicy.policies.formats.chain import Chain, Recognized, Step, joined, recognize
from repolicy.policies.formats.described import Array, CannotCopyError, Described, Std
from repolicy.policies.formats.given import given_std, statistics, without_std
from repolicy.policies.formats.layers import some
from repolicy.policies.formats.torch_files import read_bytes
from repolicy.policies.options import Options
from repolicy.policies.spaces import ActionSpace

ACTION_NAMES = ("actions", "action", "continuous_actions", "mean", "mu", "mean_actions", "output")
TYPES = {1: "f4", 10: "f2", 11: "f8", 6: "i4", 7: "i8", 9: "b1"}  # of ONNX's tensors
BRAX_MIN_STD = 1e-3
PASSED = ("Identity", "Dropout", "Cast", "Flatten")  # the same numbers come out


def recognized(content: bytes) -> bool:
    """Whether bytes are an ONNX model: a message whose parts fit to the end, with a version (1) and a graph (7)."""
    position, seen = 0, set()
    while position < len(content):
        key, position = _varint(content, position)
        number, wire = key >> 3, key & 7
        seen.add(number)
        if wire == 0:
            _, position = _varint(content, position)
        elif wire == 2:
            length, position = _varint(content, position)
            position += length
        else:
            return False
        if not 0 < number < 30 or position < 0:
            return False
    return position == len(content) and {1, 7} <= seen


def read(path: Path, options: Options) -> Described:
    """The perceptron in a graph; CannotCopyError where the graph is something else."""
    where = str(path)
    model = _model(path)
    graph = model.graph
    width, source = _input(graph, where)
    reader = _Graph(graph, path, source)
    name, chain = reader.result()
    recognized = recognize(chain, width, where)
    if recognized.argmax:
        size = len(recognized.network.output.bias)
        note = ("the largest of the graph's outputs is chosen: they are taken as logits",)
        return _described(model, recognized, ActionSpace("discrete", (size,)), None, options, where, note)
    size = len(recognized.network.output.bias)
    std, notes = _std(recognized, len(graph.output) == 1, options)
    others = [output.name for output in graph.output if output.name != name]
    if others:
        notes = (*notes, f"of the graph's outputs {name} is taken, and not {some(others)}")
    return _described(
        model,
        recognized,
        ActionSpace("continuous", (size,), recognized.low, recognized.high),
        std,
        options,
        where,
        notes,
    )


def _described(
    model: Any,
    recognized: Recognized,
    actions: ActionSpace,
    std: Std | None,
    options: Options,
    where: str,
    notes: tuple[str, ...],
) -> Described:
    normalizer = statistics(recognized.normalizer, recognized.width, options, where)
    more = () if normalizer else ("the graph does not normalize observations",)
    producer = f"{model.producer_name} {model.producer_version}".strip()
    return Described(
        "ONNX",
        producer,
        "perceptron",
        recognized.network,
        actions,
        recognized.squashed,
        std,
        normalizer,
        recognized.mean_clip,
        notes=(*notes, *more),
    )


def _std(recognized: Recognized, alone: bool, options: Options) -> tuple[Std | None, tuple[str, ...]]:
    if options.std is None and recognized.unused is not None and recognized.squashed and alone:
        return Std("head", recognized.unused, "softplus", floor=BRAX_MIN_STD), (
            "the unused half of the last layer is taken as Brax's scale: std = softplus(raw) + 0.001, before tanh",
        )
    notes = without_std(options)
    if recognized.unused is not None:
        notes = (*notes, "half of the last layer is dropped by the graph, which does not tell what it is for")
    return given_std(options, len(recognized.network.output.bias)), notes


# The graph ------------------------------------------------------------------------------------------------------------


class _Graph:
    """The graph's tensors by name: constants as arrays, and what is computed from the observations as chains."""

    def __init__(self, graph: Any, path: Path, source: str) -> None:
        self.graph, self.path, self.where = graph, path, str(path)
        self.constants: dict[str, Array] = {tensor.name: _tensor(tensor, path) for tensor in graph.initializer}
        self.chains: dict[str, Chain] = {source: ()}
        self.refused = ""
        for node in graph.node:
            self.visit(node)

    def result(self) -> tuple[str, Chain]:
        """The output that is the action: by its name, or the first that can be followed back."""
        outputs = [output.name for output in self.graph.output]
        outputs.sort(key=lambda name: name not in ACTION_NAMES)
        for name in outputs:
            if self.chains.get(name):
                return name, self.chains[name]
        reason = self.refused or f"its outputs ({some(outputs)}) do not depend on its input"
        raise CannotCopyError(f"{self.where} cannot be copied: {reason}")

    def visit(self, node: Any) -> None:
        """Note what the node's outputs are, or, for an error that comes later, why it was not understood."""
        attributes = {attribute.name: _attribute(attribute, self.path) for attribute in node.attribute}
        inputs = [name for name in node.input if name]
        if node.op_type == "Constant":
            if isinstance(attributes.get("value"), np.ndarray):
                self.constants[node.output[0]] = attributes["value"]
            elif "value_float" in attributes or "value_int" in attributes:
                self.constants[node.output[0]] = np.asarray(attributes.get("value_float", attributes.get("value_int")))
            return
        if all(name in self.constants for name in inputs):
            folded = _fold(node.op_type, [self.constants[name] for name in inputs], attributes)
            if folded is not None:
                self.constants[node.output[0]] = folded
            return
        if not any(name in self.chains for name in inputs):
            return
        if node.op_type == "Split":
            self.split(node, attributes)
            return
        chain = self.chain(node.op_type, inputs, attributes)
        if chain is None:
            self.refused = self.refused or f"it holds {node.op_type}, which no perceptron of ours has"
        else:
            self.chains[node.output[0]] = chain

    def chain(self, operator: str, inputs: list[str], attributes: Mapping[str, Any]) -> Chain | None:
        """The chain behind a node, None where the node is none that a perceptron has."""
        chains = [self.chains.get(name) for name in inputs]
        if len(inputs) == 2 and chains[0] is not None and chains[1] is not None:
            return joined(chains[0], chains[1]) if operator == "Mul" else None
        place = next(index for index, chain in enumerate(chains) if chain is not None)
        if any(chain is None and name not in self.constants for chain, name in zip(chains, inputs, strict=True)):
            return None
        stem = chains[place]
        assert stem is not None
        constants = [self.constants[name] for name in inputs if name in self.constants]
        if operator in PASSED or (operator in ("Squeeze", "Unsqueeze") and stem[-1:] and stem[-1].name == "argmax"):
            return stem
        if operator == "Reshape" and constants[0].reshape(-1).shape == (2,):
            return stem
        if operator in ELEMENTWISE and place == 0 and not constants:
            return (*stem, *ELEMENTWISE[operator](attributes))
        step = _step(operator, place, constants, attributes)
        return None if step is None else (*stem, step)

    def split(self, node: Any, attributes: Mapping[str, Any]) -> None:
        """Slices of a layer; halves where the graph does not say which."""
        sizes = self.constants.get(node.input[1]) if len(node.input) > 1 else attributes.get("split")
        stem, count = self.chains[node.input[0]], len(node.output)
        last = next((step for step in reversed(stem) if step.name == "linear"), None)
        if attributes.get("axis", 0) not in (-1, 1) or last is None:
            self.refused = self.refused or "it splits something else than a layer's outputs"
            return
        rows = len(np.asarray(last.scale))
        ends = np.cumsum([rows // count] * count if sizes is None else np.asarray(sizes).reshape(-1))
        for name, start, end in zip(node.output, [0, *ends[:-1]], ends, strict=True):
            self.chains[name] = (*stem, Step("slice", low=float(start), high=float(end)))


def _step(operator: str, place: int, constants: list[Array], attributes: Mapping[str, Any]) -> Step | None:
    """A node with one moving input, at `place`, and constants beside it."""
    if operator == "Gemm" and place == 0 and not attributes.get("transA", 0):
        weight = constants[0].astype(np.float64) * attributes.get("alpha", 1.0)
        weight = weight if attributes.get("transB", 0) else weight.T
        bias = constants[1].reshape(-1) * attributes.get("beta", 1.0) if constants[1:] else np.zeros(1)
        return Step("linear", weight, np.broadcast_to(bias, len(weight)))
    if operator == "MatMul" and place == 0 and constants[0].ndim == 2:
        return Step("linear", constants[0].T.astype(np.float64), np.zeros(constants[0].shape[1]))
    if operator == "LayerNormalization" and place == 0 and attributes.get("axis", -1) in (-1, 1):
        shift = constants[1].reshape(-1) if constants[1:] else np.zeros(constants[0].size)
        return Step("norm", constants[0].reshape(-1), shift, high=attributes.get("epsilon", 1e-5))
    if operator in ("Clip", "Min", "Max") and all(constant.size == 1 for constant in constants):
        return _clip(operator, [float(constant.reshape(-1)[0]) for constant in constants], attributes)
    if operator == "Slice" and place == 0:
        return _slice(constants)
    if operator in AFFINE and len(constants) == 1 and constants[0].size in (1, *constants[0].shape[-1:]):
        return AFFINE[operator](place, constants[0].astype(np.float64).reshape(-1))
    if operator == "ArgMax" and attributes.get("axis", 0) in (-1, 1):
        return Step("argmax")
    return None


def _clip(operator: str, bounds: list[float], attributes: Mapping[str, Any]) -> Step | None:
    if operator == "Clip":
        low, high = (*bounds, attributes.get("min", -math.inf), attributes.get("max", math.inf))[:2]
        return Step("clip", low=low, high=high)
    return None  # a Min after a Max would be one; no exporter is known that writes it


def _slice(constants: list[Array]) -> Step | None:
    """A slice of the last axis, by steps of 1."""
    values = [int(constant.reshape(-1)[0]) for constant in constants if constant.size == 1]
    if len(values) != len(constants) or len(values) < 3 or values[2] not in (-1, 1) or values[3:] not in ([], [1]):
        return None
    return Step("slice", low=float(values[0]), high=float(values[1])) if 0 <= values[0] < values[1] else None


def _elu(attributes: Mapping[str, Any]) -> tuple[Step, ...]:
    return (Step("elu" if abs(attributes.get("alpha", 1.0) - 1.0) < 1e-6 else "Elu with another alpha"),)


def _gelu(attributes: Mapping[str, Any]) -> tuple[Step, ...]:
    return (Step("gelu_tanh" if attributes.get("approximate") == b"tanh" else "gelu"),)


ELEMENTWISE: dict[str, Callable[[Mapping[str, Any]], tuple[Step, ...]]] = {
    "Tanh": lambda _: (Step("tanh"),),
    "Relu": lambda _: (Step("relu"),),
    "Elu": _elu,
    "Gelu": _gelu,
    "LeakyRelu": lambda attributes: (Step("leaky_relu", high=float(attributes.get("alpha", 0.01))),),
    "Swish": lambda attributes: (Step("swish" if attributes.get("alpha", 1.0) == 1.0 else "Swish with an alpha"),),
    "Sigmoid": lambda _: (Step("sigmoid"),),
    "Erf": lambda _: (Step("erf"),),
    "Neg": lambda _: (Step("affine", -1.0),),
    "Clip": lambda attributes: (
        Step("clip", low=attributes.get("min", -math.inf), high=attributes.get("max", math.inf)),
    ),
    "ArgMax": lambda attributes: (Step("argmax" if attributes.get("axis", 0) in (-1, 1) else "ArgMax of columns"),),
}

AFFINE: dict[str, Callable[[int, Array], Step | None]] = {  # by the moving input's place
    "Add": lambda _, c: Step("affine", 1.0, c),
    "Sub": lambda place, c: Step("affine", 1.0, -c) if place == 0 else Step("affine", -1.0, c),
    "Mul": lambda _, c: Step("affine", c),
    "Div": lambda place, c: Step("affine", 1.0 / c) if place == 0 and np.all(c) else None,
}

FOLDS: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Identity": np.asarray,
    "Cast": np.asarray,
    "Unsqueeze": lambda array, *_: array,
    "Squeeze": lambda array, *_: array,
}


def _fold(operator: str, constants: list[Array], attributes: Mapping[str, Any]) -> Array | None:
    """A node of constants as a constant, where that is no larger than they are."""
    if operator == "Transpose" and len(constants) == 1 and list(attributes.get("perm", [1, 0])) == [1, 0]:
        return constants[0].T
    if operator not in FOLDS or not constants:
        return None
    try:
        shape = np.broadcast_shapes(*(constant.shape for constant in constants))
        if math.prod(shape) > max(constant.size for constant in constants):
            return None
        with np.errstate(all="ignore"):
            return np.asarray(FOLDS[operator](*constants))
    except (ValueError, TypeError):
        return None


# The file -------------------------------------------------------------------------------------------------------------


def _model(path: Path) -> Any:
    try:
        import onnx
    except ImportError:
        raise UsageError(
            f"{path} is an ONNX graph, which needs the package onnx: pip install 'repolicy[onnx]'"
        ) from None
    try:
        return onnx.load_model_from_string(read_bytes(path))
    except FileError:
        raise
    except Exception as error:  # protobuf's own, of several classes
        raise FileError(f"{path} is damaged, or no ONNX graph: {str(error).splitlines()[0]}") from None


def _input(graph: Any, where: str) -> tuple[int, str]:
    """How many numbers the graph takes, and its input's name."""
    known = {tensor.name for tensor in graph.initializer}
    inputs = [entry for entry in graph.input if entry.name not in known]
    if len(inputs) != 1:
        raise CannotCopyError(
            f"{where} cannot be copied: it takes {len(inputs)} inputs ({some(entry.name for entry in inputs)}), not one"
        )
    sizes = [dimension.dim_value for dimension in inputs[0].type.tensor_type.shape.dim]
    if len(sizes) not in (1, 2) or sizes[-1] < 1:
        raise CannotCopyError(
            f"{where} cannot be copied: its input {inputs[0].name} has the shape {sizes}, no row of numbers"
        )
    return int(sizes[-1]), str(inputs[0].name)


def _attribute(attribute: Any, path: Path) -> Any:
    kinds = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints"}
    if attribute.type == 4:
        return _tensor(attribute.t, path)
    value = getattr(attribute, kinds[attribute.type]) if attribute.type in kinds else None
    return list(value) if attribute.type in (6, 7) and value is not None else value


def _tensor(tensor: Any, path: Path) -> Array:
    """A constant, from the graph or from the file beside it."""
    if tensor.data_type not in TYPES:
        return np.empty(0, object)
    dtype, shape = np.dtype(TYPES[tensor.data_type]).newbyteorder("<"), tuple(tensor.dims)
    if tensor.data_location == 1:
        content = _external(tensor, path)
    elif tensor.raw_data:
        content = tensor.raw_data
    else:
        fields = {1: tensor.float_data, 11: tensor.double_data, 7: tensor.int64_data}
        values = fields.get(tensor.data_type, tensor.int32_data)
        content = np.asarray(values).astype(dtype).tobytes()
    if math.prod(shape) * dtype.itemsize != len(content):
        raise FileError(f"{path} is damaged: {tensor.name} has the shape {list(shape)} and {len(content):,} bytes")
    return np.frombuffer(content, dtype).reshape(shape)


def _external(tensor: Any, path: Path) -> bytes:
    """A constant's bytes in another file, which must be in the graph's own folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(entries.get("location", ""))
    file = path.parent / location
    if location.is_absolute() or ".." in location.parts or not file.resolve().is_relative_to(path.parent.resolve()):
        raise FileError(f"{path} is refused: its weights are to come from {location}, outside of its folder")
    if not file.is_file():
        raise FileError(f"{path} keeps its weights in {location}, which is not beside it: put that file there")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", file.stat().st_size))
        if min(offset, length) < 0 or offset + length > file.stat().st_size:
            raise FileError(f"{path} does not fit {location}: {tensor.name} is past that file's end")
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read(length)
    except ValueError:
        raise FileError(f"{path} is damaged: it does not say where in {location} {tensor.name} is") from None


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(content) and shift < 70:
        byte = content[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    return 0, len(content) + 1
