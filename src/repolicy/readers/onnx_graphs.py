"""ONNX graphs that are a perceptron: their weights are copied, and nothing of them is run.

A normalizer in front, a tanh behind and weights in a file beside the graph are understood. Where the graph drops the
second half of its last layer before a tanh, that half is the scale of Brax's distribution, and it is used.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError, first_line
from repolicy.loading import read_bytes
from repolicy.readers.chain import Chain, Recognized, Step, joined, recognize
from repolicy.readers.described import Array, CannotCopyError, Described, Std
from repolicy.readers.given_by_user import given_std, statistics, without_std
from repolicy.readers.perceptrons import some
from repolicy.readers.reading import Options

ACTION_NAMES = ("actions", "action", "continuous_actions", "mean", "mu", "mean_actions", "output")
MEAN = "deterministic_"  # in front of one of these
BRAX_MIN_STD = 1e-3
OTHER_WORDS = ("value", "std", "sigma", "log_prob", "logp", "entropy")  # in the names of other outputs
PASSED = ("Identity", "Dropout")  # the same numbers come out
PRECISE = (1, 11)  # types that keep what a cast gets: single and double precision


def read(path: Path, model: Any, options: Options) -> Described:
    """Return the perceptron in a graph; CannotCopyError where the graph is something else."""
    where = str(path)
    graph = model.graph
    width, source = _input_of(graph, where)
    reader = _Graph(graph, where, source, width)
    name, chain = reader.result()
    recognized = recognize(chain, width, where)
    if recognized.argmax:
        std, notes = None, ["the largest of the graph's outputs is chosen: they are taken as logits"]
    else:
        std, notes = _std(recognized, len(graph.output) == 1, options)
        notes += left_out((output.name for output in graph.output), name)
    normalizer = statistics(recognized.normalizer, recognized.network.width, options, where)
    notes += ["the graph does not normalize observations"] * (normalizer is None)
    producer = f"{model.producer_name} {model.producer_version}".strip()
    return recognized.described("ONNX", producer, std, normalizer, tuple(notes))


def _std(recognized: Recognized, alone: bool, options: Options) -> tuple[Std | None, list[str]]:
    """Return the user's; or, of a graph with this output `alone`, the half of the last layer that it drops."""
    if options.std is None and recognized.unused is not None and recognized.squashed and alone:
        return Std("head", recognized.unused, "softplus", floor=BRAX_MIN_STD), [
            "the unused half of the last layer is taken as Brax's scale: std = softplus(raw) + 0.001, before tanh"
        ]
    notes = list(without_std(options))
    if recognized.unused is not None:
        notes.append("half of the last layer is dropped by the graph, which does not tell what it is for")
    return given_std(options, len(recognized.network.output.bias)), notes


# The graph ------------------------------------------------------------------------------------------------------------


class _Graph:
    """The graph's tensors by name: constants as arrays, and what is computed from the observations as chains."""

    def __init__(self, graph: Any, where: str, source: str, width: int) -> None:
        self.graph, self.where, self.width = graph, where, width
        tensors = {tensor.name: _array(tensor, where) for tensor in graph.initializer}
        self.constants: dict[str, Array] = {name: array for name, array in tensors.items() if array.dtype != object}
        self.chains: dict[str, Chain] = {source: ()}
        self.refused: dict[str, str] = {}  # what depends on the observations and was not understood, and why
        for node in graph.node:
            try:
                self.visit(node)
            except (ValueError, TypeError, IndexError, KeyError) as error:
                raise FileError(f"{self.where} is damaged: a node {node.op_type} is not whole ({error})") from None

    def result(self) -> tuple[str, Chain]:
        """Return the output that is the action: by its name, or the first that depends on the observations."""
        outputs = [output.name for output in self.graph.output]
        outputs.sort(key=unlike_an_action)
        for name in outputs:
            if name in self.chains:
                return name, self.chains[name]
            if name in self.refused:
                raise CannotCopyError(f"{self.where} cannot be copied: {self.refused[name]}")
        raise CannotCopyError(
            f"{self.where} cannot be copied: its outputs ({some(outputs)}) do not depend on its input"
        )

    def visit(self, node: Any) -> None:
        """Note what the node's outputs are, or, for an error that comes later, why it was not understood."""
        attributes = {attribute.name: _attribute(attribute, self.where) for attribute in node.attribute}
        inputs = [name for name in node.input if name]
        own = node.domain in ("", "ai.onnx")
        if node.op_type == "Constant":
            if isinstance(attributes.get("value"), np.ndarray):
                self.constants[node.output[0]] = attributes["value"]
            elif "value_float" in attributes or "value_int" in attributes:
                self.constants[node.output[0]] = np.asarray(attributes.get("value_float", attributes.get("value_int")))
            return
        if own and all(name in self.constants for name in inputs):
            folded = _fold(node.op_type, [self.constants[name] for name in inputs], attributes)
            if folded is not None:
                self.constants[node.output[0]] = folded
            return
        reason = next((self.refused[name] for name in inputs if name in self.refused), "")
        if not reason and any(name in self.chains for name in inputs):
            if own and node.op_type == "Split" and self.split(node, attributes):
                return
            chain = self.chain(node, inputs, attributes) if own else None
            if chain is not None:
                self.chains[node.output[0]] = chain
                return
            reason = f"it holds {node.op_type} in a form that no perceptron of ours has"
        if reason:
            self.refused |= dict.fromkeys(node.output, reason)

    def chain(self, node: Any, inputs: list[str], attributes: Mapping[str, Any]) -> Chain | None:
        """Return the chain behind a node, None where the node is none that a perceptron has."""
        operator, chains = node.op_type, [self.chains.get(name) for name in inputs]
        moving = [chain for chain in chains if chain is not None]
        if len(moving) > 1:
            return joined(*moving) if operator == "Mul" and len(inputs) == 2 else None
        (stem,) = moving
        place = chains.index(stem)
        if any(chain is None and name not in self.constants for chain, name in zip(chains, inputs, strict=True)):
            return None
        constants = [self.constants[name] for name in inputs if name in self.constants]
        if operator in PASSED or self.keeps(operator, stem, constants, attributes):
            return stem
        if operator == "Clip" and place == 0:
            bounds = [self.constants[name] if name else None for name in node.input[1:]]
            return (*stem, _clip([*bounds, None, None], attributes))
        if operator in ELEMENTWISE and place == 0 and not constants:
            return (*stem, ELEMENTWISE[operator](attributes))
        step = _step(operator, place, constants, attributes)
        return None if step is None else (*stem, step)

    def keeps(self, operator: str, stem: Chain, constants: list[Array], attributes: Mapping[str, Any]) -> bool:
        """Whether a node leaves the numbers of all rows as they are, such as a shape with rows of the same width."""
        chosen = stem[-1:] and stem[-1].name == "argmax"
        if operator == "Cast":
            return bool(chosen) or attributes.get("to") in PRECISE
        if operator == "Reshape":
            shape = constants[0].reshape(-1).tolist()
            return bool(len(shape) == 2 and (shape[1] == _width(stem, self.width) or shape in ([0, -1], [1, -1])))
        if operator == "Flatten":
            return attributes.get("axis", 1) in (1, -1)
        return bool(chosen) and operator in ("Squeeze", "Unsqueeze")

    def split(self, node: Any, attributes: Mapping[str, Any]) -> bool:
        """Slices of a layer, of one size where the graph does not say which; False where it splits something else."""
        sizes = self.constants.get(node.input[1]) if len(node.input) > 1 else attributes.get("split")
        stem, count = self.chains[node.input[0]], len(node.output)
        last = next((step for step in reversed(stem) if step.name == "linear"), None)
        if attributes.get("axis", 0) not in (-1, 1) or last is None:
            return False
        rows = len(np.asarray(last.scale))
        equal = np.minimum(-(-rows // count) * np.arange(1, count + 1), rows)  # the last is smaller where it must be
        ends = equal if sizes is None else np.cumsum(np.asarray(sizes).reshape(-1))
        for name, start, end in zip(node.output, [0, *ends[:-1]], ends, strict=True):
            self.chains[name] = (*stem, Step("slice", low=float(start), high=float(end)))
        return True


def unlike_an_action(name: str) -> tuple[bool, bool, bool]:
    """Return by which outputs are sorted: what is called an action is first, and what is called something else last.

    ML-Agents' `continuous_actions` are drawn, and `deterministic_continuous_actions` beside them are their mean.
    """
    plain = name.removeprefix(MEAN)
    return plain not in ACTION_NAMES, plain == name, any(word in name.lower() for word in OTHER_WORDS)


def left_out(names: Iterable[str], taken: str) -> tuple[str, ...]:
    """Return a sentence about the outputs that are not the action, where there are some."""
    others = [name for name in names if name != taken]
    return (f"of the graph's outputs {taken} is taken, and not {some(others)}",) if others else ()


def _width(chain: Chain, width: int) -> int:
    """Return how many numbers a row has behind a chain."""
    for step in chain:
        if step.name == "linear":
            width = len(np.asarray(step.scale))
        elif step.name == "slice":
            width = int(min(step.high, width) - step.low)
    return width


def _step(operator: str, place: int, constants: list[Array], attributes: Mapping[str, Any]) -> Step | None:
    """Return a node with one moving input, at `place`, and constants beside it."""
    if operator == "Gemm" and place == 0 and constants[0].ndim == 2 and not attributes.get("transA", 0):
        weight = constants[0].astype(np.float64) * attributes.get("alpha", 1.0)
        weight = weight if attributes.get("transB", 0) else weight.T
        bias = constants[1].reshape(-1) * attributes.get("beta", 1.0) if constants[1:] else np.zeros(1)
        if bias.size not in (1, len(weight)):
            return None
        return Step("linear", weight, np.broadcast_to(bias, len(weight)))
    if operator == "MatMul" and place == 0 and constants[0].ndim == 2:
        return Step("linear", constants[0].T.astype(np.float64), np.zeros(constants[0].shape[1]))
    if operator == "LayerNormalization" and place == 0 and attributes.get("axis", -1) in (-1, 1):
        shift = constants[1].reshape(-1) if constants[1:] else np.zeros(constants[0].size)
        return Step("norm", constants[0].reshape(-1), shift, high=attributes.get("epsilon", 1e-5))
    if operator == "Slice" and place == 0:
        return _slice(constants)
    if operator in AFFINE and len(constants) == 1 and constants[0].size in (1, *constants[0].shape[-1:]):
        return AFFINE[operator](place, constants[0].astype(np.float64).reshape(-1))
    return None


def _clip(bounds: list[Array | None], attributes: Mapping[str, Any]) -> Step:
    """Return its bounds are inputs, either of which may be left out, or attributes in older graphs."""
    low, high = (
        attributes.get(name, default) if bound is None else float(bound.reshape(-1)[0])
        for bound, name, default in zip(bounds, ("min", "max"), (-math.inf, math.inf), strict=False)
    )
    return Step("clip", low=low, high=high)


def _slice(constants: list[Array]) -> Step | None:
    """Return a slice of the last axis, by steps of 1."""
    values = [int(constant.reshape(-1)[0]) for constant in constants if constant.size == 1]
    if len(values) != len(constants) or len(values) < 3 or values[2] not in (-1, 1) or values[3:] not in ([], [1]):
        return None
    return Step("slice", low=float(values[0]), high=float(values[1])) if 0 <= values[0] < values[1] else None


ELEMENTWISE: dict[str, Callable[[Mapping[str, Any]], Step]] = {  # by a node's attributes
    "Tanh": lambda _: Step("tanh"),
    "Relu": lambda _: Step("relu"),
    "Elu": lambda of: Step("elu" if abs(of.get("alpha", 1.0) - 1.0) < 1e-6 else "Elu with another alpha"),
    "Gelu": lambda of: Step("gelu_tanh" if of.get("approximate") == b"tanh" else "gelu"),
    "LeakyRelu": lambda of: Step("leaky_relu", high=float(of.get("alpha", 0.01))),
    "Swish": lambda of: Step("swish" if of.get("alpha", 1.0) == 1.0 else "Swish with an alpha"),
    "Sigmoid": lambda _: Step("sigmoid"),
    "Erf": lambda _: Step("erf"),
    "Neg": lambda _: Step("affine", -1.0),
    "ArgMax": lambda of: Step("argmax" if of.get("axis", 0) in (-1, 1) else "ArgMax of columns"),
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
}


def _fold(operator: str, constants: list[Array], attributes: Mapping[str, Any]) -> Array | None:
    """Return a node of constants as a constant, where that is no larger than they are."""
    if operator == "Transpose" and len(constants) == 1 and list(attributes.get("perm", [1, 0])) == [1, 0]:
        return constants[0].T
    if operator == "Cast" and attributes.get("to") in TYPES:
        return constants[0].astype(TYPES[attributes["to"]])
    if operator in ("Squeeze", "Unsqueeze") and constants:
        return _reshaped(operator, constants, attributes)
    if operator not in FOLDS or not constants or (operator == "Div" and constants[0].dtype.kind not in "f"):
        return None  # whole numbers divide to whole numbers
    try:
        shape = np.broadcast_shapes(*(constant.shape for constant in constants))
        if math.prod(shape) > max(constant.size for constant in constants):
            return None
        with np.errstate(all="ignore"):
            return np.asarray(FOLDS[operator](*constants))
    except (ValueError, TypeError):
        return None


def _reshaped(operator: str, constants: list[Array], attributes: Mapping[str, Any]) -> Array | None:
    """With axes of one entry less or more; they are an input, or an attribute in older graphs."""
    given = constants[1].reshape(-1).tolist() if constants[1:] else attributes.get("axes")
    axes = None if given is None else tuple(int(axis) for axis in given)
    try:
        if operator == "Squeeze":
            return np.squeeze(constants[0], axes)
        return None if axes is None else np.expand_dims(constants[0], axes)
    except ValueError:
        return None


# The file -------------------------------------------------------------------------------------------------------------

TYPES = {1: "f4", 10: "f2", 11: "f8", 6: "i4", 7: "i8", 9: "b1"}  # of ONNX's tensors, those that are read


def recognized(content: bytes) -> bool:
    """Return whether bytes may be an ONNX model: its first part is the version, which begins so."""
    return content[:1] == b"\x08"


def load_model(content: bytes, where: str) -> Any:
    """Read a model, with whatever lies in files beside it, so that nobody else opens a file that it names."""
    try:
        import onnx
        from google.protobuf.message import Message
    except ImportError:
        raise UsageError(
            f"{where} is an ONNX graph, which needs the package onnx: pip install 'repolicy[onnx]'"
        ) from None
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


def _input_of(graph: Any, where: str) -> tuple[int, str]:
    """Return how many numbers the graph takes, and its input's name."""
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


def _attribute(attribute: Any, where: str) -> Any:
    from onnx.helper import get_attribute_value

    value = get_attribute_value(attribute)
    return _array(value, where) if attribute.type == attribute.TENSOR else value


def _array(tensor: Any, where: str) -> Array:
    """Return a constant of the graph; one of a type that is not read is an array of objects."""
    from onnx.numpy_helper import to_array

    if tensor.data_type not in TYPES:
        return np.empty(0, object)
    try:
        return to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise FileError(f"{where} is damaged: {tensor.name} cannot be read: {first_line(error)}") from None
