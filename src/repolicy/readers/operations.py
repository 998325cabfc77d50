"""What PyTorch's operations do to a chain: the few of them that perceptrons are made of, a row of data each.

TorchScript names them, and an ONNX graph's nodes are translated into them. An operation gets its arguments, each a
`Moving` or a constant, and returns None where no perceptron does such a thing.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from repolicy.readers.chain import Chain, Step, fuse_product
from repolicy.readers.description import Array


@dataclass(eq=False)
class TracedValue:
    """A value that depends on the observations. What works in place changes its chain."""

    chain: Chain
    cast: bool = False  # to a type that it may have had before: then the code's two values are one, and else two


def is_part(value: TracedValue) -> bool:
    return any(step.name in ("slice", "unflatten") for step in value.chain[-1:])


Args = list[Any]
Named = dict[str, Any]
Operation = Callable[[Args, Named], Any]


def _with(value: Any, *steps: Step) -> TracedValue | None:
    return TracedValue((*value.chain, *steps)) if isinstance(value, TracedValue) else None


def _elementwise(name: str) -> Operation:
    return lambda args, _: _with(args[0], Step(name))


def _gelu(args: Args, named: Named) -> TracedValue | None:
    form = named.get("approximate", args[1] if args[1:] else "none")
    return _with(args[0], Step("gelu_tanh" if form == "tanh" else "gelu"))


def _linear(args: Args, _: Named) -> TracedValue | None:
    weight, bias = _array(args[1]), args[2] if args[2:] else None
    bias = np.zeros(len(weight)) if bias is None else _array(bias)
    return _with(args[0], Step("linear", weight, bias))


def _layer_norm(args: Args, _: Named) -> TracedValue | None:
    moving, shape, weight, bias, *rest = args
    if not isinstance(weight, np.ndarray) or not isinstance(bias, np.ndarray) or list(weight.shape) != list(shape):
        return None
    return _with(moving, Step("norm", weight, bias, high=float(rest[0]) if rest else 1e-5))


def _clamp(args: Args, _: Named) -> TracedValue | None:
    low, high = [*args[1:3], None, None][:2]
    bounds = {"low": -math.inf if low is None else float(low), "high": math.inf if high is None else float(high)}
    return _with(args[0], Step("clip", **bounds))


def _slice(args: Args, _: Named) -> Any:
    """Do `slice(x, dim, start, end, step)` of columns; of the first axis, all."""
    moving, dim, start, end, step = (args + [0, None, None, 1][len(args) - 1 :])[:5]
    if start in (None, 0) and (end is None or end > 2**60) and step == 1:
        return moving  # all of it
    if dim not in (-1, 1) or step != 1 or (start or 0) < 0 or (end is not None and end < 0):
        return None
    return _with(moving, Step("slice", low=float(start or 0), high=float("inf") if end is None else float(end)))


def _unflatten(args: Args, _: Named) -> TracedValue | None:
    """Return the last axis as two rows, of which `select` takes one."""
    moving, dim, sizes = args
    if dim != -1 or len(sizes) != 2 or min(sizes) < 1:
        return None
    return _with(moving, Step("unflatten", low=sizes[0], high=sizes[1]))


def _select(args: Args, _: Named) -> TracedValue | None:
    moving, dim, index = args
    if not isinstance(moving, TracedValue) or dim != -2 or not moving.chain or moving.chain[-1].name != "unflatten":
        return None
    rows, size = moving.chain[-1].low, moving.chain[-1].high
    if not 0 <= index < rows:
        return None
    return TracedValue((*moving.chain[:-1], Step("slice", low=index * size, high=(index + 1) * size)))


def _chunk(args: Args, _: Named) -> list[TracedValue] | None:
    moving, count, dim = ([*args, 0])[:3]
    rows = rows_of(moving)
    if dim not in (-1, 1) or not rows or rows % count:
        return None
    return split(moving, [rows // count] * count)


def rows_of(moving: TracedValue) -> int:
    """Return how many outputs the last layer has, 0 where there is none."""
    last = next((step for step in reversed(moving.chain) if step.name == "linear"), None)
    return 0 if last is None else len(last.scale)


def split(moving: TracedValue, sizes: Iterable[int]) -> list[TracedValue]:
    """Return slices of these sizes, one after the other."""
    parts, start = list[TracedValue](), 0
    for size in sizes:
        parts.append(TracedValue((*moving.chain, Step("slice", low=float(start), high=float(start + size)))))
        start += size
    return parts


def _arithmetic(operator: str, fold: Callable[[Any, Any], Any]) -> Operation:
    """Return an operation on a moving value and a constant, on two constants, or a product that is swish or gelu."""

    def operation(args: Args, named: Named) -> Any:
        first, second = args[0], args[1]
        if args[2:] not in ([], [1]) or any(value not in (1, None) for value in named.values()):
            return None  # PyTorch's alpha, or a rounding
        if isinstance(first, TracedValue) and isinstance(second, TracedValue):
            chain = fuse_product(first.chain, second.chain) if operator == "mul" else None
            return None if chain is None else TracedValue(chain)
        if not isinstance(first, TracedValue) and not isinstance(second, TracedValue):
            return _folded(fold, _array(first), _array(second))
        ahead = isinstance(first, TracedValue)
        moving, constant = (first, _array(second)) if ahead else (second, _array(first))
        if constant.size not in (1, *constant.shape[-1:]):
            return None  # a column, or a table
        row = constant.reshape(-1)
        match operator:
            case "add":
                return _with(moving, Step("affine", shift=row))
            case "sub":
                return _with(moving, Step("affine", shift=-row) if ahead else Step("affine", -1.0, row))
            case "mul":
                return _with(moving, Step("affine", row))
        return _with(moving, Step("affine", 1.0 / row)) if ahead and np.all(row) else None

    return operation


def _folded(fold: Callable[[Any, Any], Any], first: Array, second: Array) -> Array | None:
    """Return one constant of two, where it is no larger than they are."""
    if math.prod(np.broadcast_shapes(first.shape, second.shape)) > max(first.size, second.size):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(fold(first, second))


def _array(value: Any) -> Array:
    """Return an array in double precision. (Nested lists can be as many numbers as a few lines of code wish.)"""
    if isinstance(value, list | tuple) and not all(isinstance(number, int | float) for number in value):
        raise ValueError("a list of no numbers stands where an array is expected")
    return np.asarray(value, np.float64)


SINGLE, DOUBLE = 6, 7  # as TorchScript numbers its types of numbers


def _cast(args: Args, named: Named) -> Any:
    """Cast to single or double precision, or to a device; a coarser type of numbers would change them."""
    kinds = [
        value for value in (*args[1:], named.get("dtype")) if isinstance(value, int) and not isinstance(value, bool)
    ]
    if isinstance(args[0], TracedValue) and kinds:
        args[0].cast = True
    return args[0] if all(kind in (SINGLE, DOUBLE) for kind in kinds) else None


def _transposed(args: Args, _: Named) -> Any:
    return args[0].T if isinstance(args[0], np.ndarray) and args[0].ndim == 2 else None


def _addmm(args: Args, named: Named) -> TracedValue | None:
    if not isinstance(args[1], TracedValue) or any(factor != 1 for factor in [*args[3:], *named.values()]):
        return None
    return _linear([args[1], _array(args[2]).T, args[0]], {})


def _matmul(args: Args, _: Named) -> TracedValue | None:
    weight = None if isinstance(args[1], TracedValue) else _array(args[1])
    return None if weight is None or weight.ndim != 2 else _linear([args[0], weight.T], {})


def _of_constants(fold: Callable[[Array], Array]) -> Operation:
    return lambda args, _: None if isinstance(args[0], TracedValue) else fold(_array(args[0]))


OPERATIONS: dict[str, Operation] = {
    "linear": _linear,
    "addmm": _addmm,
    "matmul": _matmul,
    "mm": _matmul,
    "t": _transposed,
    "numpy_T": _transposed,
    **{name: _elementwise(name) for name in ("tanh", "relu", "sigmoid", "erf")},
    "silu": _elementwise("swish"),
    "elu": lambda args, _: _with(args[0], Step("elu")) if args[1:] in ([], [1], [1, 1, 1]) else None,
    "gelu": _gelu,
    "leaky_relu": lambda args, _: _with(args[0], Step("leaky_relu", high=float(args[1]) if args[1:] else 0.01)),
    "layer_norm": _layer_norm,
    "clamp": _clamp,
    "clip": _clamp,
    "hardtanh": _clamp,
    "slice": _slice,
    "chunk": _chunk,
    "unflatten": _unflatten,
    "select": _select,
    "argmax": lambda args, _: _with(args[0], Step("argmax")) if args[1:2] in ([-1], [1]) else None,
    "add": _arithmetic("add", np.add),
    "sub": _arithmetic("sub", np.subtract),
    "mul": _arithmetic("mul", np.multiply),
    "div": _arithmetic("div", np.divide),
    "neg": lambda args, _: OPERATIONS["mul"]([args[0], -1.0], {}),
    "reciprocal": _of_constants(np.reciprocal),
    "sqrt": _of_constants(np.sqrt),
    "to": _cast,
    "contiguous": lambda args, _: args[0],
    "detach": lambda args, _: args[0],
    "dropout": lambda args, _: args[0] if args[2:3] == [False] else None,
}
