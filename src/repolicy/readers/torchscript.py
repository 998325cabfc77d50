"""TorchScript files that are a perceptron: their weights are copied, and nothing of them is run.

The zip holds the modules (a pickle) and their code as text. A small interpreter traces the code: each operation that
it knows becomes a step of a chain, and any other code raises a CannotCopyError. Only PyTorch itself can run such code.
"""

import ast
import zipfile
from typing import Any

from repolicy.readers.chain import Chain, complete, recognize
from repolicy.readers.context import ReadContext
from repolicy.readers.description import FIRST_OUTPUT_NOTE, CannotCopyError, PolicyDescription
from repolicy.readers.operations import OPERATIONS, TracedValue
from repolicy.readers.pickles import GlobalName, ObjectStub, find_root, read_torch_pickle, read_zip_entry

HOOKS = ("__forward_hooks__", "__forward_pre_hooks__")
MAX_EXPRESSIONS = 20_000  # evaluated in one file


def matches(names: list[str]) -> bool:
    """Return whether a zip with these entries is TorchScript."""
    return any(name.endswith("constants.pkl") for name in names) and any("/code/" in name for name in names)


def read(archive: zipfile.ZipFile, context: ReadContext) -> PolicyDescription:
    """Return the perceptron in a TorchScript file; CannotCopyError where it is something else."""
    code = _Code(archive, find_root(archive), read_torch_pickle(archive, "constants"))
    chain = _trace(code, read_torch_pickle(archive, "data"), context).chain
    policy, unused = recognize(chain, _width(chain), context, "TorchScript")
    return complete(policy, context, unused)


def _trace(code: "_Code", module: Any, context: ReadContext) -> TracedValue:
    """Return what `forward` computes of the observations, or the first of several outputs."""
    try:
        code.check_no_hooks(module)
        result = code.method(module, "forward", [TracedValue(())])
    except RecursionError:
        raise CannotCopyError("its code calls itself") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, SyntaxError, ArithmeticError):
        raise CannotCopyError("its code is none of a perceptron") from None
    if isinstance(result, list) and len(result) > 1:
        result = result[0]
        context.notes.append(FIRST_OUTPUT_NOTE)
    if not isinstance(result, TracedValue):
        raise CannotCopyError("its code does not return one array of actions")
    return result


def _width(chain: Chain) -> int:
    """Return the number of observations, which is that of the first linear layer's inputs."""
    first = next((step for step in chain if step.name == "linear"), None)
    if first is None:
        raise CannotCopyError("it has no linear layer")
    return first.scale.shape[1]


# The interpreter ------------------------------------------------------------------------------------------------------


class _Code:
    """Interprets the code in a TorchScript file. Values are constants, stubs of modules, or traced values."""

    def __init__(self, archive: zipfile.ZipFile, root: str, constants: Any) -> None:
        self.archive, self.root, self.constants = archive, root, constants
        self.files: dict[str, ast.Module] = {}
        self.expressions_left = MAX_EXPRESSIONS

    def error(self, construct: str) -> CannotCopyError:
        return CannotCopyError(f"its code has {construct}, which no perceptron of ours has")

    def tree(self, module: str) -> ast.Module:
        """Parse the code file of a module; that of `__torch__.a.b` is code/__torch__/a/b.py."""
        if module not in self.files:
            text = read_zip_entry(self.archive, f"{self.root}code/{module.replace('.', '/')}.py")
            try:
                self.files[module] = ast.parse(text.decode("utf-8", "replace"))
            except (MemoryError, RecursionError):  # of Python's parser
                raise self.error("a line that is nested too deep") from None
        return self.files[module]

    def members(self, stub: Any) -> list[ast.stmt]:
        """Return the statements in the class of a module."""
        module, _, class_name = stub.name.text.rpartition(".")
        classes = {node.name: node.body for node in self.tree(module).body if isinstance(node, ast.ClassDef)}
        return classes[class_name]

    def check_no_hooks(self, stub: Any) -> None:
        """Refuse hooks of the whole module, which PyTorch calls. (The code itself calls the hooks of its parts.)"""
        for node in self.members(stub):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in HOOKS and ast.literal_eval(node.value):
                raise self.error("a hook")

    def method(self, stub: Any, name: str, args: list[Any]) -> Any:
        return self.run(_function(self.members(stub), name), [stub, *args])

    def run(self, function: ast.FunctionDef, args: list[Any]) -> Any:
        """Call a function of the code, with defaults for the last missing arguments."""
        names = [argument.arg for argument in function.args.args]
        defaults = [self.value(node, {}) for node in function.args.defaults]
        missing = len(names) - len(args)
        if missing:
            args = [*args, *defaults[len(defaults) - missing :]]
        returned = self.block(function.body, dict(zip(names, args, strict=True)))
        return returned[0] if returned else None

    def block(self, body: list[ast.stmt], local: dict[str, Any]) -> tuple[Any] | None:
        """Run statements. Return the function's result in a tuple, or None if no `return` was reached."""
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
                    raise self.error("a branch that depends on the observations")
                if returned := self.block(node.body if test else node.orelse, local):
                    return returned
            elif not isinstance(node, ast.Pass):
                raise self.error(f"a statement of the kind {type(node).__name__}")
        return None

    def assign(self, target: ast.expr, value: Any, local: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            local[target.id] = value
        elif isinstance(target, ast.Tuple):
            for name, part in zip(target.elts, value, strict=True):
                self.assign(name, part, local)
        else:
            raise self.error("an assignment to a part of something")

    def value(self, node: ast.expr, local: dict[str, Any]) -> Any:
        """Evaluate an expression."""
        self.expressions_left -= 1
        if self.expressions_left < 0:
            raise self.error("more code")
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return local[node.id] if node.id in local else GlobalName(node.id)
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
        raise self.error(f"an expression of the kind {type(node).__name__}")

    def attribute(self, base: Any, name: str) -> Any:
        if isinstance(base, GlobalName):
            return self.constants[int(name[1:])] if base.text == "CONSTANTS" else GlobalName(f"{base.text}.{name}")
        if isinstance(base, ObjectStub):
            return False if name == "training" else base.state[name]  # as after eval()
        raise self.error(f"the attribute {name} of a value")

    def call(self, node: ast.Call, local: dict[str, Any]) -> Any:
        args = [self.value(argument, local) for argument in node.args]
        kwargs = {keyword.arg: self.value(keyword.value, local) for keyword in node.keywords if keyword.arg}
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value, local)
            if isinstance(base, ObjectStub):
                return self.method(base, node.func.attr, args)
        name = self.value(node.func, local)
        if name.text == "getattr":
            return self.attribute(args[0], args[1])
        if name.text in ("annotate", "unchecked_cast"):
            return args[1]
        if name.text.startswith("__torch__."):
            module, _, last = name.text.rpartition(".")
            return self.run(_function(self.tree(module).body, last), args)
        operator = name.text.removeprefix("torch.")
        operation = OPERATIONS.get(operator.removesuffix("_")) if operator != name.text else None
        result = operation(args, kwargs) if operation else None
        if result is None:
            raise self.error(name.text)
        return self.in_place(args[0], result, name.text) if operator.endswith("_") else result

    def in_place(self, target: Any, result: Any, name: str) -> TracedValue:
        """Change a value for all names that refer to it. Refuse views, which would change the value behind them too."""
        is_view = any(step.name in ("slice", "unflatten") for step in target.chain[-1:])
        if is_view or target.is_cast:
            raise self.error(f"{name} in place")
        target.chain = result.chain
        return target


def _function(body: list[ast.stmt], name: str) -> ast.FunctionDef:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}[name]
