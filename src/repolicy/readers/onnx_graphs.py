"""ONNX graphs that are a perceptron: their weights are copied, and nothing of them is run.

A normalizer before and a tanh after the layers are recognized, and weights may be in a file beside the graph. If the
graph, unless PyTorch wrote it, drops the second half of its last layer before a tanh, that half is taken as the std of
Brax's distribution.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError, first_line
from repolicy.readers.brax import BRAX_MIN_STD
from repolicy.readers.chain import Chain, complete, recognize
from repolicy.readers.context import ReadContext
from repolicy.readers.description import Array, CannotCopyError, PolicyDescription, Std
from repolicy.readers.operations import OPERATIONS, TracedValue, split, width_after
from repolicy.readers.perceptrons import first_names

ACTION_NAMES = (
    *("actions", "action", "continuous_actions", "mean_actions", "mean", "mu"),
    *("output", "pi", "policy", "actor"),
)
MEAN_PREFIX = "deterministic_"  # before one of these names
# In names of outputs that are no action, and such names.
OTHER_WORDS = ("value", "critic", "baseline", "std", "sigma", "log_prob", "logp", "entropy")
OTHER_NAMES = ("v", "vf", "q", "qf")
FLOAT_TYPES = (1, 11)  # ONNX's codes of float32 and float64


def read(model: Any, context: ReadContext) -> PolicyDescription:
    """Read the perceptron in a graph; raise CannotCopyError where the graph is something else."""
    graph = model.graph
    width, input_name = _find_input(graph)
    output_name, chain = _Graph(graph, input_name, width).find_action()
    policy, unused = recognize(chain, width, context, "ONNX", f"{model.producer_name} {model.producer_version}".strip())
    std = None
    context.notes += unused_outputs_note((output.name for output in graph.output), output_name)
    is_braxs = policy.squashed and len(graph.output) == 1 and "pytorch" not in model.producer_name
    if unused is not None and context.options.std is None and is_braxs:
        std = Std("head", unused, "softplus", floor=BRAX_MIN_STD)
        context.notes.append(
            "the unused half of the last layer is taken as Brax's scale: std = softplus(raw) + 0.001, before tanh "
            "(--std says otherwise)"
        )
    return complete(policy, context, unused, std)


# The graph ------------------------------------------------------------------------------------------------------------


class _Graph:
    """Traces a graph. Of each name it stores the value: an array for a constant, or a `TracedValue`."""

    def __init__(self, graph: Any, input_name: str, width: int) -> None:
        self.outputs = sorted((output.name for output in graph.output), key=action_sort_key)
        self.width = width
        self.last_axis = next((shape_of(each)[-1:] for each in graph.output if each.name == self.outputs[0]), [])
        tensors = {tensor.name: _array(tensor) for tensor in graph.initializer}
        self.values: dict[str, Any] = {name: array for name, array in tensors.items() if array is not None}
        self.values[input_name] = TracedValue(())
        self.shapes = set[str]()  # names of the shapes of other values
        self.problems: dict[str, str] = {}  # why a name that depends on the observations has no value
        for node in graph.node:
            self.visit(node)

    def find_action(self) -> tuple[str, Chain]:
        """Return the name and the chain of the output that is the action, by `action_sort_key`."""
        for name in self.outputs:
            value = self.values.get(name)
            if isinstance(value, TracedValue):
                return name, value.chain
            if name in self.problems:
                raise CannotCopyError(self.problems[name])
        raise CannotCopyError(f"its outputs ({first_names(self.outputs)}) do not depend on its input")

    def visit(self, node: Any) -> None:
        """Store the values of a node's outputs, or the problem for a later error: the node may not matter."""
        inputs = [name for name in node.input if name]
        if node.op_type == "Shape":
            self.shapes |= {*node.output}
        if node.op_type == "Expand":
            del inputs[1:]  # `evaluate` asks where its shape comes from
        problem = next((self.problems[name] for name in inputs if name in self.problems), "")
        result = None
        if not problem and node.domain in ("", "ai.onnx") and all(name in self.values for name in inputs):
            try:
                result = self.evaluate(node, [self.values.get(name) for name in node.input])
            except CannotCopyError as error:
                problem = str(error)
        if result is not None:
            self.values |= zip(node.output, result if isinstance(result, list) else [result], strict=False)
        elif problem or any(isinstance(self.values.get(name), TracedValue) for name in inputs):
            problem = problem or f"it holds {node.op_type} in a form that no perceptron of ours has"
            self.problems |= dict.fromkeys(node.output, problem)

    def evaluate(self, node: Any, inputs: list[Any]) -> Any:
        """Return the value of a node, or None where no perceptron has such a node. An omitted input is None."""
        kind = node.op_type
        attributes = {attribute.name: _attribute(attribute) for attribute in node.attribute}
        if kind not in ARITHMETIC and any(isinstance(value, TracedValue) for value in inputs[1:]):
            return None
        if kind == "Expand" and isinstance(inputs[0], TracedValue):  # torch.distributions gives mean and std one shape
            keeps_width = width_after(inputs[0].chain, self.width) > 1 or self.last_axis == [1]
            return inputs[0] if node.input[-1] in self.shapes and keeps_width else None
        if kind not in MAY_OMIT and any(value is None for value in inputs):
            return None
        if kind == "Reshape" and isinstance(inputs[0], TracedValue):
            return _reshape(inputs[0], inputs[1].reshape(-1).tolist(), self.width)
        if kind == "Split":
            return _split(inputs, attributes, len(node.output))
        return NODES[kind](inputs, attributes) if kind in NODES else None


def action_sort_key(name: str) -> tuple[bool, bool, bool]:
    """Return the key that sorts outputs: names of actions come first, and names of other quantities last.

    ML-Agents' `continuous_actions` are samples, and `deterministic_continuous_actions` are their mean.
    """
    plain = name.removeprefix(MEAN_PREFIX)
    is_other = name.lower() in OTHER_NAMES or any(word in name.lower() for word in OTHER_WORDS)
    return plain not in ACTION_NAMES, plain == name, is_other


def unused_outputs_note(names: Iterable[str], taken: str) -> tuple[str, ...]:
    """Return a note about the outputs that are not the action, if there are any."""
    others = [name for name in names if name != taken]
    return (f"of the graph's outputs {taken} is taken, and not {first_names(others)}",) if others else ()


# The nodes, as operations of PyTorch ----------------------------------------------------------------------------------

Attributes = Mapping[str, Any]


def _apply(operation: str, *args: Any) -> Any:
    """Apply an operation of PyTorch."""
    return OPERATIONS[operation](list(args), {})


def _split(inputs: list[Any], attributes: Attributes, count: int) -> list[TracedValue] | None:
    """Split a layer's outputs into `count` slices: of the graph's sizes, or of one size but for the last."""
    on_columns = attributes.get("axis", 0) in (-1, 1)
    width = width_after(inputs[0].chain) if isinstance(inputs[0], TracedValue) and on_columns else 0
    if not width:
        return None
    sizes = inputs[1] if inputs[1:] else attributes.get("split")
    if sizes is not None:
        return split(inputs[0], np.asarray(sizes).reshape(-1))
    size = -(-width // count)
    return split(inputs[0], [min(size, width - n * size) for n in range(count)])


def _reshape(value: TracedValue, shape: list[int], inputs: int) -> TracedValue | None:
    """Return the same rows, or rows in parts, of which Gather takes one."""
    width = width_after(value.chain, inputs)
    if _is_choice(value):
        return value if shape in ([-1], [-1, 1]) else None
    if len(shape) == 3 and shape[0] in (-1, 0, 1) and shape[1] * shape[2] == width:
        return _apply("unflatten", value, -1, shape[1:])
    keeps_rows = len(shape) == 2 and (shape[1] == width or shape in ([0, -1], [1, -1]))
    return value if keeps_rows else None


def _gather(inputs: list[Any], attributes: Attributes) -> TracedValue | None:
    """Take one of the parts that Reshape made of a row."""
    is_part = inputs[1].ndim == 0 and attributes.get("axis", 0) in (-2, 1)
    return _apply("select", inputs[0], -2, int(inputs[1])) if is_part else None


def _log_sum_exp(inputs: list[Any], attributes: Attributes) -> TracedValue | None:
    """Take the logarithm of the sum of the exponentials of a row, which a log-softmax subtracts."""
    axes = np.asarray(inputs[1] if inputs[1:] else attributes.get("axes", [])).reshape(-1).tolist()
    return _apply("logsumexp", inputs[0], axes, bool(attributes.get("keepdims", 1)))


def _gemm(inputs: list[Any], attributes: Attributes) -> TracedValue | None:
    value, weight, bias = [*inputs, None][:3]
    if weight.ndim != 2 or attributes.get("transA", 0):
        return None
    weight = _apply("mul", weight if attributes.get("transB", 0) else weight.T, attributes.get("alpha", 1.0))
    bias = np.zeros(1) if bias is None else bias.reshape(-1) * attributes.get("beta", 1.0)
    if bias.size not in (1, len(weight)):
        return None
    return _apply("linear", value, weight, np.broadcast_to(bias, len(weight)))


def _layer_norm(inputs: list[Any], attributes: Attributes) -> TracedValue | None:
    value, scale, shift = [*inputs, None][:3]
    scale = scale.reshape(-1)
    shift = np.zeros(scale.size) if shift is None else shift.reshape(-1)
    on_rows = attributes.get("axis", -1) in (-1, 1)
    return _apply("layer_norm", value, scale.shape, scale, shift, attributes.get("epsilon", 1e-5)) if on_rows else None


def _clip(inputs: list[Any], attributes: Attributes) -> TracedValue | None:
    """Clip to bounds, which are inputs, or attributes in older graphs."""
    low, high = [*(None if bound is None else bound.item() for bound in inputs[1:]), None, None][:2]
    return _apply("clamp", inputs[0], attributes.get("min", low), attributes.get("max", high))


def _slice(inputs: list[Any], _: Attributes) -> TracedValue | None:
    """Slice one axis that the graph names."""
    if len(inputs) < 4 or any(number.size != 1 for number in inputs[1:]):
        return None
    start, end, axis, *step = (int(number.item()) for number in inputs[1:])
    return _apply("slice", inputs[0], axis, start, end, *step)


def _cast(inputs: list[Any], attributes: Attributes) -> Any:
    if isinstance(inputs[0], TracedValue):
        return inputs[0] if _is_choice(inputs[0]) or attributes["to"] in FLOAT_TYPES else None
    return inputs[0].astype(TYPES[attributes["to"]]) if attributes["to"] in TYPES else None


def _with_axes(change: Callable[[Array, Any], Array]) -> Callable[[list[Any], Attributes], Any]:
    """Return the node Squeeze or Unsqueeze of constants; it leaves a chosen action as it is."""

    def evaluate(inputs: list[Any], attributes: Attributes) -> Any:
        if isinstance(inputs[0], TracedValue):
            return inputs[0] if _is_choice(inputs[0]) else None
        axes = inputs[1].reshape(-1).tolist() if inputs[1:] else attributes.get("axes")
        return change(inputs[0], None if axes is None else tuple(map(int, axes)))

    return evaluate


def _is_choice(value: TracedValue) -> bool:
    return bool(value.chain) and value.chain[-1].name == "argmax"


def _div(inputs: list[Any], _: Attributes) -> Any:
    are_integers = all(isinstance(value, np.ndarray) and value.dtype.kind != "f" for value in inputs)
    return None if are_integers else _apply("div", *inputs)  # ONNX divides integers to integers


def _named(name: str) -> Callable[[list[Any], Attributes], Any]:
    return lambda inputs, _: _apply(name, *inputs)


CONSTANT_ATTRIBUTES = ("value", "value_float", "value_int")
MAY_OMIT = ("Clip", "Gemm", "LayerNormalization", "Dropout", "Split")  # these are read with inputs left out
ARITHMETIC = ("Add", "Sub", "Mul", "Div")  # either input may depend on the observations
SAME_AS_PYTORCH = ("Add", "Sub", "Mul", "Neg", "Pow", "Sqrt", "Reciprocal", "Tanh", "Relu", "Sigmoid", "Erf", "MatMul")
NODES: dict[str, Callable[[list[Any], Attributes], Any]] = {
    **{name: _named(name.lower()) for name in SAME_AS_PYTORCH},
    "Div": _div,
    "Elu": lambda inputs, attributes: _apply("elu", inputs[0], attributes.get("alpha", 1.0)),
    "Gelu": lambda inputs, attributes: _apply("gelu", inputs[0], attributes.get("approximate", b"none").decode()),
    "LeakyRelu": lambda inputs, attributes: _apply("leaky_relu", inputs[0], attributes.get("alpha", 0.01)),
    "Swish": lambda inputs, attributes: _apply("silu", inputs[0]) if attributes.get("alpha", 1.0) == 1.0 else None,
    "ArgMax": lambda inputs, attributes: _apply("argmax", inputs[0], attributes.get("axis", 0)),
    "Softmax": lambda inputs, attributes: _apply("softmax", inputs[0], attributes.get("axis", -1)),
    "LogSoftmax": lambda inputs, attributes: _apply("softmax", inputs[0], attributes.get("axis", -1)),
    "ReduceLogSumExp": _log_sum_exp,
    "Gather": _gather,
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "Clip": _clip,
    "Slice": _slice,
    "Cast": _cast,
    "Squeeze": _with_axes(np.squeeze),
    "Unsqueeze": _with_axes(np.expand_dims),
    "Transpose": lambda inputs, attributes: (
        _apply("t", inputs[0]) if [*attributes.get("perm", [1, 0])] == [1, 0] else None
    ),
    "Flatten": lambda inputs, attributes: inputs[0] if attributes.get("axis", 1) in (1, -1) else None,
    "Identity": lambda inputs, _: inputs[0],
    "Dropout": lambda inputs, _: inputs[0],
    "Constant": lambda _, attributes: next(
        (np.asarray(attributes[name]) for name in CONSTANT_ATTRIBUTES if attributes.get(name) is not None), None
    ),
}


# The file -------------------------------------------------------------------------------------------------------------

TYPES = {1: "f4", 10: "f2", 11: "f8", 6: "i4", 7: "i8", 9: "b1"}  # dtypes of the tensors that are read, by ONNX's code


def matches(content: bytes) -> bool:
    """Return whether bytes may be an ONNX model, which begins with the field of its version."""
    return content[:1] == b"\x08"


def load_model(content: bytes, where: str) -> Any:
    """Parse a model and load its external data here, which onnx allows from the model's own folder alone."""
    try:
        import onnx
    except ImportError:
        raise UsageError(f"{where} is an ONNX graph, which needs onnx: pip install 'repolicy[onnx]'") from None
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own, of several classes
        raise FileError(f"{where} is damaged, or no ONNX graph: {first_line(error)}") from None
    try:
        onnx.load_external_data_for_model(model, str(Path(where).parent))
    except Exception as error:  # onnx's own, of several classes
        problem = f"{where} keeps weights in another file, which must lie beside it and be whole"
        raise FileError(f"{problem}: {first_line(error)}") from None
    if _has_sparse_weights(model.graph):  # onnx does not load them, and onnxruntime would from any folder
        raise FileError(f"{where} has sparse weights, which are not read: export it with dense ones")
    return model


def _has_sparse_weights(graph: Any) -> bool:
    """Return whether a graph, or one inside of it, has sparse tensors."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    return bool(graph.sparse_initializer) or any(
        each.HasField("sparse_tensor") or each.sparse_tensors or any(map(_has_sparse_weights, [each.g, *each.graphs]))
        for each in attributes
    )


def _find_input(graph: Any) -> tuple[int, str]:
    """Return the number of observations and the name of the graph's only input."""
    inputs = input_shapes(graph)
    if len(inputs) != 1:
        raise CannotCopyError(f"it takes {len(inputs)} inputs ({first_names(inputs)}), not one")
    [(name, shape)] = inputs.items()
    if len(shape) not in (1, 2) or not isinstance(shape[-1], int) or shape[-1] < 1:
        raise CannotCopyError(f"its input {name} has the shape {shape}, no row of numbers")
    return shape[-1], name


def input_shapes(graph: Any) -> dict[str, list[Any]]:
    """Return the shape of each input: a number for each axis, or a name where its size is not fixed."""
    constants = {tensor.name for tensor in graph.initializer}
    return {each.name: shape_of(each) for each in graph.input if each.name not in constants}


def shape_of(value: Any) -> list[Any]:
    """Return the shape of an input or an output, as `input_shapes` does."""
    axes = value.type.tensor_type.shape.dim
    return [axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in axes]


def _attribute(attribute: Any) -> Any:
    from onnx.helper import get_attribute_value

    value = get_attribute_value(attribute)
    return _array(value) if attribute.type == attribute.TENSOR else value


def _array(tensor: Any) -> Array | None:
    """Return a constant of the graph, or None for a type that is not in TYPES."""
    from onnx.numpy_helper import to_array

    return to_array(tensor) if tensor.data_type in TYPES else None
