"""The PyTorch operations that perceptrons consist of, as functions that append steps to a chain.

TorchScript names these operations, and nodes of ONNX graphs are translated into them. An operation takes its arguments,
each a `TracedValue` or a constant. It returns None where it does what no perceptron does.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from repolicy.readers.chain import Chain, Step, fuse_difference, fuse_product
from repolicy.readers.description import Array, CannotCopyError


@dataclass(eq=False)
class TracedValue:
    """A value that depends on the observations, as the chain that computes it. In-place operations change the chain."""

    chain: Chain
    is_cast: bool = False  # a cast may have copied the value or not, so what an in-place operation changes is unknown


Args = list[Any]
Kwargs = dict[str, Any]
Operation = Callable[[Args, Kwargs], Any]


def _append(value: Any, step: Step) -> TracedValue | None:
    """Return the traced value after one more step; None for a constant."""
    return TracedValue((*value.chain, step)) if isinstance(value, TracedValue) else None


def _elementwise(name: str) -> Operation:
    return lambda args, _: _append(args[0], Step(name))


def _gelu(args: Args, kwargs: Kwargs) -> TracedValue | None:
    approximation = kwargs.get("approximate", args[1] if args[1:] else "none")
    return _append(args[0], Step("gelu_tanh" if approximation == "tanh" else "gelu"))


def _linear(args: Args, _: Kwargs) -> TracedValue | None:
    weight, bias = _array(args[1]), args[2] if args[2:] else None
    bias = np.zeros(len(weight)) if bias is None else _array(bias)
    return _append(args[0], Step("linear", weight, bias))


def _softmax(args: Args, _: Kwargs) -> TracedValue | None:
    return _append(args[0], Step("softmax")) if args[1:2] in ([-1], [1]) else None


def _logsumexp(args: Args, _: Kwargs) -> TracedValue | None:
    return _append(args[0], Step("logsumexp")) if args[1:] in ([[-1], True], [[1], True]) else None


def _layer_norm(args: Args, _: Kwargs) -> TracedValue | None:
    value, shape, weight, bias, *rest = args
    if not isinstance(weight, np.ndarray) or not isinstance(bias, np.ndarray) or list(weight.shape) != list(shape):
        return None
    return _append(value, Step("norm", weight, bias, high=float(rest[0]) if rest else 1e-5))


def _clamp(args: Args, _: Kwargs) -> TracedValue | None:
    low, high = [*args[1:3], None, None][:2]
    bounds = {"low": -math.inf if low is None else float(low), "high": math.inf if high is None else float(high)}
    return _append(args[0], Step("clip", **bounds))


def _slice(args: Args, _: Kwargs) -> Any:
    """Do `slice(x, dim, start, end, step)`: part of the columns, or all of any axis."""
    value, dim, start, end, step = (args + [0, None, None, 1][len(args) - 1 :])[:5]
    if start in (None, 0) and (end is None or end > 2**60) and step == 1:
        return value  # all of it
    if dim not in (-1, 1) or step != 1 or (start or 0) < 0 or (end is not None and end < 0):
        return None
    return _append(value, Step("slice", low=float(start or 0), high=math.inf if end is None else float(end)))


def _unflatten(args: Args, _: Kwargs) -> TracedValue | None:
    """Split the last axis into two axes; `select` then takes one row."""
    value, dim, sizes = args
    if dim != -1 or len(sizes) != 2 or min(sizes) < 1:
        return None
    return _append(value, Step("unflatten", low=sizes[0], high=sizes[1]))


def _select(args: Args, _: Kwargs) -> TracedValue | None:
    """Take one row of an unflattened value, which is a slice of the value before."""
    value, dim, index = args
    if not isinstance(value, TracedValue) or dim != -2 or not value.chain or value.chain[-1].name != "unflatten":
        return None
    rows, size = value.chain[-1].low, value.chain[-1].high
    if not 0 <= index < rows:
        return None
    return TracedValue((*value.chain[:-1], Step("slice", low=index * size, high=(index + 1) * size)))


def _chunk(args: Args, _: Kwargs) -> list[TracedValue] | None:
    value, count, dim = ([*args, 0])[:3]
    width = width_after(value.chain)
    if dim not in (-1, 1) or not width or width % count:
        return None
    return split(value, [width // count] * count)


def width_after(chain: Chain, width: int = 0) -> int:
    """Return the width of a row of `width` numbers after a chain; 0 where neither is known."""
    for step in chain:
        if step.name == "linear":
            width = len(step.scale)
        elif step.name == "slice":
            width = int(min(step.high, width) - step.low)
    return width


def split(value: TracedValue, sizes: Iterable[int]) -> list[TracedValue]:
    """Return consecutive slices of these sizes."""
    parts, start = list[TracedValue](), 0
    for size in sizes:
        parts.append(TracedValue((*value.chain, Step("slice", low=float(start), high=float(start + size)))))
        start += size
    return parts


def _arithmetic(operator: str, fold: Callable[[Any, Any], Any]) -> Operation:
    """Return the operation for add, sub, mul or div; `fold` computes it for two constants.

    One traced value and a constant give an affine step. Of two traced values a product may be swish or gelu,
    and a difference a log-softmax.
    """

    def operation(args: Args, kwargs: Kwargs) -> Any:
        first, second = args[0], args[1]
        if args[2:] not in ([], [1]) or any(value not in (1, None) for value in kwargs.values()):
            return None  # PyTorch's alpha, or a rounding mode
        if isinstance(first, TracedValue) and isinstance(second, TracedValue):
            fuse = {"mul": fuse_product, "sub": fuse_difference}.get(operator)
            chain = fuse(first.chain, second.chain) if fuse else None
            return None if chain is None else TracedValue(chain)
        if not isinstance(first, TracedValue) and not isinstance(second, TracedValue):
            return _fold_constants(fold, _array(first), _array(second))
        is_first = isinstance(first, TracedValue)
        value, constant = (first, _array(second)) if is_first else (second, _array(first))
        if constant.size not in (1, *constant.shape[-1:]):
            return None  # a column or a matrix
        row = constant.reshape(-1)
        match operator:
            case "add":
                return _append(value, Step("affine", shift=row))
            case "sub":
                return _append(value, Step("affine", shift=-row) if is_first else Step("affine", -1.0, row))
            case "mul":
                return _append(value, Step("affine", row))
        return _append(value, Step("affine", 1.0 / row)) if is_first and np.all(row) else None

    return operation


def _fold_constants(fold: Callable[[Any, Any], Any], first: Array, second: Array) -> Array | None:
    """Compute an operation of two constants; None where the result would be larger than both of them."""
    if math.prod(np.broadcast_shapes(first.shape, second.shape)) > max(first.size, second.size):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(fold(first, second))


def _array(value: Any) -> Array:
    """Return a constant in double precision. Refuse half precision, and nested lists: these can be of any size."""
    if isinstance(value, np.ndarray) and value.dtype == np.float16:
        raise CannotCopyError("it computes in half precision")
    if isinstance(value, list | tuple) and not all(isinstance(number, int | float) for number in value):
        raise ValueError("a list of no numbers stands where an array is expected")
    return np.asarray(value, np.float64)


SINGLE, DOUBLE = 6, 7  # TorchScript's codes of float32 and float64


def _cast(args: Args, kwargs: Kwargs) -> Any:
    """Cast to single or double precision, or move to a device. Refuse coarser types, which would round the numbers."""
    candidates = (*args[1:], kwargs.get("dtype"))
    dtypes = [value for value in candidates if isinstance(value, int) and not isinstance(value, bool)]
    if isinstance(args[0], TracedValue) and dtypes:
        args[0].is_cast = True
    return args[0] if all(dtype in (SINGLE, DOUBLE) for dtype in dtypes) else None


def _transpose(args: Args, _: Kwargs) -> Any:
    return args[0].T if isinstance(args[0], np.ndarray) and args[0].ndim == 2 else None


def _addmm(args: Args, kwargs: Kwargs) -> TracedValue | None:
    if not isinstance(args[1], TracedValue) or any(factor != 1 for factor in [*args[3:], *kwargs.values()]):
        return None
    return _linear([args[1], _array(args[2]).T, args[0]], {})


def _matmul(args: Args, _: Kwargs) -> TracedValue | None:
    weight = None if isinstance(args[1], TracedValue) else _array(args[1])
    return None if weight is None or weight.ndim != 2 else _linear([args[0], weight.T], {})


def _pow(args: Args, _: Kwargs) -> Array | None:
    is_constant = not any(isinstance(value, TracedValue) for value in args)
    return _fold_constants(np.power, _array(args[0]), _array(args[1])) if is_constant else None


def _on_constant(fold: Callable[[Array], Array]) -> Operation:
    return lambda args, _: None if isinstance(args[0], TracedValue) else fold(_array(args[0]))


OPERATIONS: dict[str, Operation] = {
    "linear": _linear,
    "addmm": _addmm,
    "matmul": _matmul,
    "mm": _matmul,
    "t": _transpose,
    "numpy_T": _transpose,
    **{name: _elementwise(name) for name in ("tanh", "relu", "sigmoid", "erf")},
    "silu": _elementwise("swish"),
    "elu": lambda args, _: _append(args[0], Step("elu")) if args[1:] in ([], [1], [1, 1, 1]) else None,
    "gelu": _gelu,
    "leaky_relu": lambda args, _: _append(args[0], Step("leaky_relu", high=float(args[1]) if args[1:] else 0.01)),
    "layer_norm": _layer_norm,
    "clamp": _clamp,
    "clip": _clamp,
    "hardtanh": lambda args, _: _clamp([args[0], *(args[1:3] or (-1.0, 1.0))], {}),
    "slice": _slice,
    "chunk": _chunk,
    "unflatten": _unflatten,
    "select": _select,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "logsumexp": _logsumexp,
    "argmax": lambda args, _: _append(args[0], Step("argmax")) if args[1:2] in ([-1], [1]) else None,
    "add": _arithmetic("add", np.add),
    "sub": _arithmetic("sub", np.subtract),
    "mul": _arithmetic("mul", np.multiply),
    "div": _arithmetic("div", np.divide),
    "neg": lambda args, _: OPERATIONS["mul"]([args[0], -1.0], {}),
    "reciprocal": _on_constant(np.reciprocal),
    "sqrt": _on_constant(np.sqrt),
    "rsqrt": _on_constant(lambda value: 1.0 / np.sqrt(value)),
    "pow": _pow,
    "to": _cast,
    "contiguous": lambda args, _: args[0],
    "flatten": lambda args, _: args[0] if args[1:] in ([1], [1, -1]) else None,
    "detach": lambda args, _: args[0],
    "dropout": lambda args, _: args[0] if args[2:3] == [False] else None,
}
