"""TorchScript files that are a perceptron: their weights are copied, and nothing of them is run.

The zip holds the modules (a pickle, read through shells) and their code as text. The text is followed with a few
operations only, each of which becomes a step of a chain; whatever else stands there ends the attempt. TorchScript that
is something else is a program, and only PyTorch itself can run it.
"""

import ast
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError
from repolicy.policies.formats import vecnormalize
from repolicy.policies.formats.chain import Chain, Recognized, Step, joined, recognize
from repolicy.policies.formats.described import Array, CannotCopyError, Described, Normalizer, Options
from repolicy.policies.formats.layers import check_width
from repolicy.policies.formats.sb3 import _given, _without_std
from repolicy.policies.formats.shells import Name, Shell, read_pickle
from repolicy.policies.formats.torch_files import entry, find_root, open_zip, read_bytes, zip_storages
from repolicy.policy import ActionSpace

MEMORIES = ("LSTM", "GRU", "RNN")
BUDGET = 20_000  # statements and expressions that are looked at


@dataclass(eq=False)
class Moving:
    """A value that depends on the observations. What works in place changes its chain."""

    chain: Chain


def recognized(names: list[str]) -> bool:
    """Whether a zip with these entries is TorchScript."""
    return any(name.endswith("constants.pkl") for name in names) and any("/code/" in name for name in names)


def read(path: Path, options: Options) -> Described:
    """The perceptron in a TorchScript file; CannotCopyError where it is something else."""
    where = str(path)
    archive = open_zip(read_bytes(path), where)
    root = find_root(archive, where)
    module = read_pickle(entry(archive, f"{root}data.pkl", where), where, zip_storages(archive, f"{root}data/", where))
    memory = _memory(module)
    if memory:
        raise CannotCopyError(f"{where} cannot be copied: the policy has a memory ({memory})")
    constants = entry(archive, f"{root}constants.pkl", where)
    values = read_pickle(constants, where, zip_storages(archive, f"{root}constants/", where))
    result = _followed(_Code(archive, root, where, values), module, where)
    found = recognize(result.chain, _width(result.chain, where), where)
    return _described(found, options, where)


def _followed(code: "_Code", module: Any, where: str) -> Moving:
    try:
        result = code.method(module, "forward", [Moving(())])
    except RecursionError:
        raise CannotCopyError(f"{where} cannot be copied: its code calls itself") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        raise CannotCopyError(f"{where} cannot be copied: its code is none of a perceptron ({error!r:.80})") from None
    if not isinstance(result, Moving):
        raise CannotCopyError(f"{where} cannot be copied: its code does not return one array of actions")
    return result


def _described(found: Recognized, options: Options, where: str) -> Described:
    normalizer, size = found.normalizer, len(found.network.output.bias)
    if options.normalizer not in (None, "none"):
        if normalizer is not None:
            raise UsageError(f"{where} normalizes observations itself; leave --normalizer out")
        normalizer = _given_normalizer(found, options.normalizer, where)
    notes = () if normalizer else ("the file does not normalize observations",)
    if found.argmax:
        space = ActionSpace("discrete", (size,))
        notes = (*notes, "the largest of the outputs is chosen: they are taken as logits")
        return Described("TorchScript", "", "perceptron", found.network, space, normalizer=normalizer, notes=notes)
    return Described(
        "TorchScript",
        "",
        "perceptron",
        found.network,
        ActionSpace("continuous", (size,), found.low, found.high),
        found.squashed,
        _given(options, size),
        normalizer,
        found.mean_clip,
        notes=(*notes, *_without_std(options)),
    )


def _given_normalizer(found: Recognized, file: str, where: str) -> Normalizer | None:
    given = vecnormalize.read(Path(file))
    first = found.network.hidden[0].linear if found.network.hidden else found.network.output
    check_width(first.weight.shape[1], given, where)
    return given


def _memory(module: Any, depth: int = 0) -> str:
    """The class of a recurrent layer among the modules, if there is one."""
    if not isinstance(module, Shell) or depth > 20:
        return ""
    if module.last in MEMORIES:
        return module.last
    return next((found for part in module.state.values() if (found := _memory(part, depth + 1))), "")


def _width(chain: Chain, where: str) -> int:
    first = next((step for step in chain if step.name == "linear"), None)
    if first is None:
        raise CannotCopyError(f"{where} cannot be copied: it has no linear layer")
    return int(np.asarray(first.scale).shape[1])


# Following the code ---------------------------------------------------------------------------------------------------


class _Code:
    """The functions in a TorchScript file, followed as text."""

    def __init__(self, archive: zipfile.ZipFile, root: str, where: str, constants: Any) -> None:
        self.archive, self.root, self.where, self.constants = archive, root, where, constants
        self.files: dict[str, ast.Module] = {}
        self.left = BUDGET

    def refuse(self, what: str) -> CannotCopyError:
        return CannotCopyError(f"{self.where} cannot be copied: its code has {what}, which no perceptron of ours has")

    def tree(self, module: str) -> ast.Module:
        """A file of code; `__torch__.a.b` is in code/__torch__/a/b.py."""
        if module not in self.files:
            text = entry(self.archive, f"{self.root}code/{module.replace('.', '/')}.py", self.where)
            self.files[module] = ast.parse(text.decode("utf-8", "replace"))
        return self.files[module]

    def method(self, shell: Any, name: str, args: list[Any]) -> Any:
        if not isinstance(shell, Shell) or not isinstance(shell.name, Name):
            raise self.refuse("a call of something that is no module")
        module, _, kind = shell.name.text.rpartition(".")
        for node in self.tree(module).body:
            if isinstance(node, ast.ClassDef) and node.name == kind:
                return self.run(_function(node.body, name), [shell, *args])
        raise FileError(f"{self.where} is not whole: the code of {kind} is missing in it")

    def function(self, name: str, args: list[Any]) -> Any:
        module, _, last = name.rpartition(".")
        return self.run(_function(self.tree(module).body, last), args)

    def run(self, function: ast.FunctionDef, args: list[Any]) -> Any:
        names = [argument.arg for argument in function.args.args]
        defaults = [self.value(node, {}) for node in function.args.defaults]
        missing = len(names) - len(args)
        given = [*args, *defaults[len(defaults) - missing :]] if missing else args
        local = dict(zip(names, given, strict=True))
        returned = self.block(function.body, local)
        return returned[0] if returned else None

    def block(self, body: list[ast.stmt], local: dict[str, Any]) -> tuple[Any] | None:
        """The value that is returned, in a tuple; None where nothing is returned."""
        for node in body:
            if isinstance(node, ast.Return):
                return (None if node.value is None else self.value(node.value, local),)
            if isinstance(node, ast.Assign):
                self.assign(node.targets[0], self.value(node.value, local), local)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self.assign(node.target, self.value(node.value, local), local)
            elif isinstance(node, ast.If):
                test = self.value(node.test, local)
                if not isinstance(test, bool):
                    raise self.refuse("a branch that depends on the observations")
                returned = self.block(node.body if test else node.orelse, local)
                if returned:
                    return returned
            elif not isinstance(node, ast.Pass):
                raise self.refuse(f"a statement of the kind {type(node).__name__}")
        return None

    def assign(self, target: ast.expr, value: Any, local: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            local[target.id] = value
        elif isinstance(target, ast.Tuple):
            for part, entry_ in zip(target.elts, value, strict=True):
                self.assign(part, entry_, local)
        else:
            raise self.refuse("an assignment to a part of something")

    def value(self, node: ast.expr, local: dict[str, Any]) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.refuse("more code")
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return local[node.id] if node.id in local else Name(node.id)
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand, local)
            case ast.List() | ast.Tuple():
                return [self.value(part, local) for part in node.elts]
            case ast.Subscript():
                return self.value(node.value, local)[self.value(node.slice, local)]
            case ast.Attribute():
                return self.attribute(self.value(node.value, local), node.attr)
            case ast.Call():
                return self.call(node, local)
        raise self.refuse(f"an expression of the kind {type(node).__name__}")

    def attribute(self, base: Any, name: str) -> Any:
        if isinstance(base, Name):
            return self.constants[int(name[1:])] if base.text == "CONSTANTS" else Name(f"{base.text}.{name}")
        if isinstance(base, Shell):
            return base.state[name]
        raise self.refuse(f"the attribute {name} of a value")

    def call(self, node: ast.Call, local: dict[str, Any]) -> Any:
        args = [self.value(argument, local) for argument in node.args]
        named = {keyword.arg: self.value(keyword.value, local) for keyword in node.keywords if keyword.arg}
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value, local)
            if isinstance(base, Shell):
                return self.method(base, node.func.attr, args)
        name = self.value(node.func, local)
        if not isinstance(name, Name):
            raise self.refuse("a call of a value")
        if name.text == "getattr":
            return self.attribute(args[0], args[1])
        if name.text in ("annotate", "unchecked_cast"):
            return args[1]
        if name.text.startswith("__torch__."):
            return self.function(name.text, args)
        kind = name.text.removeprefix("torch.")
        operation = OPERATIONS.get(kind.removesuffix("_")) if kind != name.text else None
        found = operation(args, named) if operation else None
        if found is None:
            raise self.refuse(name.text)
        return self.in_place(args[0], found, name.text) if kind.endswith("_") else found

    def in_place(self, target: Any, found: Any, name: str) -> Moving:
        """The same value, changed for all who hold it; a part of another value would change that one too."""
        if not isinstance(target, Moving) or not isinstance(found, Moving) or _is_part(target):
            raise self.refuse(f"{name} in place")
        target.chain = found.chain
        return target


def _is_part(value: Moving) -> bool:
    return any(step.name in ("slice", "unflatten") for step in value.chain[-1:])


def _function(body: list[ast.stmt], name: str) -> ast.FunctionDef:
    found = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if found is None:
        raise KeyError(name)
    return found


# The operations -------------------------------------------------------------------------------------------------------

Args = list[Any]
Named = dict[str, Any]
Operation = Callable[[Args, Named], Any]


def _with(value: Any, *steps: Step) -> Moving | None:
    return Moving((*value.chain, *steps)) if isinstance(value, Moving) else None


def _elementwise(name: str) -> Operation:
    return lambda args, _: _with(args[0], Step(name))


def _elu(args: Args, _: Named) -> Moving | None:
    return _with(args[0], Step("elu")) if args[1:] in ([], [1], [1, 1, 1]) else None


def _gelu(args: Args, named: Named) -> Moving | None:
    kind = named.get("approximate", args[1] if args[1:] else "none")
    return _with(args[0], Step("gelu_tanh" if kind == "tanh" else "gelu"))


def _leaky(args: Args, _: Named) -> Moving | None:
    return _with(args[0], Step("leaky_relu", high=float(args[1]) if args[1:] else 0.01))


def _linear(args: Args, _: Named) -> Moving | None:
    weight, bias = np.asarray(args[1], np.float64), args[2] if args[2:] else None
    bias = np.zeros(len(weight)) if bias is None else np.asarray(bias, np.float64)
    return _with(args[0], Step("linear", weight, bias))


def _layer_norm(args: Args, _: Named) -> Moving | None:
    moving, shape, weight, bias, *rest = args
    if not isinstance(weight, np.ndarray) or not isinstance(bias, np.ndarray) or list(weight.shape) != list(shape):
        return None
    return _with(moving, Step("norm", weight, bias, high=float(rest[0]) if rest else 1e-5))


def _clamp(args: Args, _: Named) -> Moving | None:
    low, high = (float("nan") if bound is None else float(bound) for bound in ([*args[1:3], None, None])[:2])
    return _with(args[0], Step("clip", low=low, high=high))


def _slice(args: Args, _: Named) -> Any:
    """`slice(x, dim, start, end, step)`: of columns, from the first axis all."""
    moving, dim, start, end, step = (args + [0, None, None, 1][len(args) - 1 :])[:5]
    if start in (None, 0) and (end is None or end > 2**60) and step == 1:
        return moving  # all of it
    if dim not in (-1, 1) or step != 1 or (start or 0) < 0 or (end is not None and end < 0):
        return None
    return _with(moving, Step("slice", low=float(start or 0), high=float("inf") if end is None else float(end)))


def _unflatten(args: Args, _: Named) -> Moving | None:
    """The last axis as two rows, of which `select` takes one."""
    moving, dim, sizes = args
    return _with(moving, Step("unflatten", low=sizes[0], high=sizes[1])) if dim == -1 and len(sizes) == 2 else None


def _select(args: Args, _: Named) -> Moving | None:
    moving, dim, index = args
    if not isinstance(moving, Moving) or dim != -2 or not moving.chain or moving.chain[-1].name != "unflatten":
        return None
    size = moving.chain[-1].high
    return Moving((*moving.chain[:-1], Step("slice", low=index * size, high=(index + 1) * size)))


def _chunk(args: Args, _: Named) -> list[Moving] | None:
    moving, count, dim = ([*args, 0])[:3]
    last = next((step for step in reversed(moving.chain) if step.name == "linear"), None)
    if dim not in (-1, 1) or last is None or len(np.asarray(last.shift)) % count:
        return None
    size = len(np.asarray(last.shift)) // count
    return [
        Moving((*moving.chain, Step("slice", low=float(i * size), high=float((i + 1) * size)))) for i in range(count)
    ]


def _arithmetic(kind: str, fold: Callable[[Any, Any], Any]) -> Operation:
    """Two values, at least one of which does not move; or a product that is swish or gelu."""

    def operation(args: Args, _: Named) -> Any:
        first, second = args[0], args[1]
        if args[2:] not in ([], [1]):  # PyTorch's alpha
            return None
        if isinstance(first, Moving) and isinstance(second, Moving):
            chain = joined(first.chain, second.chain) if kind == "mul" else None
            return None if chain is None else Moving(chain)
        if not isinstance(first, Moving) and not isinstance(second, Moving):
            return fold(_constant(first), _constant(second))
        moving, constant = (first, _constant(second)) if isinstance(first, Moving) else (second, _constant(first))
        ahead = isinstance(first, Moving)
        match kind:
            case "add":
                return _with(moving, Step("affine", 1.0, constant))
            case "sub":
                return _with(moving, Step("affine", 1.0, -constant) if ahead else Step("affine", -1.0, constant))
            case "mul":
                return _with(moving, Step("affine", constant))
        return _with(moving, Step("affine", 1.0 / constant)) if ahead and np.all(constant) else None

    return operation


def _constant(value: Any) -> Array:
    """A row of numbers, or one."""
    array = np.asarray(value, np.float64)
    if array.size not in (1, *array.shape[-1:]):
        raise ValueError(f"an array of shape {array.shape} stands where a row is expected")
    return array.reshape(-1)


def _same(args: Args, _: Named) -> Any:
    return args[0]


def _transposed(args: Args, _: Named) -> Any:
    return args[0].T if isinstance(args[0], np.ndarray) and args[0].ndim == 2 else None


def _addmm(args: Args, named: Named) -> Moving | None:
    if not isinstance(args[1], Moving) or any(factor != 1 for factor in [*args[3:], *named.values()]):
        return None
    return _linear([args[1], np.asarray(args[2]).T, args[0]], {})


def _matmul(args: Args, _: Named) -> Moving | None:
    return _linear([args[0], np.asarray(args[1]).T], {}) if isinstance(args[0], Moving) else None


def _argmax(args: Args, _: Named) -> Moving | None:
    return _with(args[0], Step("argmax")) if args[1:2] in ([-1], [1]) else None


OPERATIONS: dict[str, Operation] = {
    "linear": _linear,
    "addmm": _addmm,
    "matmul": _matmul,
    "mm": _matmul,
    "t": _transposed,
    "numpy_T": _transposed,
    "tanh": _elementwise("tanh"),
    "relu": _elementwise("relu"),
    "silu": _elementwise("swish"),
    "sigmoid": _elementwise("sigmoid"),
    "elu": _elu,
    "gelu": _gelu,
    "leaky_relu": _leaky,
    "layer_norm": _layer_norm,
    "clamp": _clamp,
    "clip": _clamp,
    "hardtanh": _clamp,
    "slice": _slice,
    "chunk": _chunk,
    "unflatten": _unflatten,
    "select": _select,
    "argmax": _argmax,
    "add": _arithmetic("add", np.add),
    "sub": _arithmetic("sub", np.subtract),
    "mul": _arithmetic("mul", np.multiply),
    "div": _arithmetic("div", np.divide),
    "sqrt": lambda args, _: None if isinstance(args[0], Moving) else np.sqrt(np.asarray(args[0], np.float64)),
    "to": _same,
    "contiguous": _same,
    "detach": _same,
    "dropout": lambda args, _: args[0] if args[2:3] == [False] else None,
}
