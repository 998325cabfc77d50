"""Load the objects that a user names: `module:name` or `file.py:name`.

Only `load_object` imports code that a user names. For names found in files, `addons/trust.py` asks for trust first.
"""

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from inspect import isgetsetdescriptor
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from repolicy.errors import UsageError, in_one_sentence
from repolicy.text import suggest

PYTHON = (sys.executable, "-P")  # of child processes; -P: files in the present folder are not importable
SESSION = "session"  # `session:name` is a function that exists only in this process
_session: dict[str, Any] = {}  # these functions, by name


def child_environment() -> dict[str, str]:
    """Return the environment variables of a child process that is to import what this process can."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def check_version(package: str, start: tuple[int, int], stop: tuple[int, int], extra: str) -> None:
    """Raise unless the version of `package` is at least `start` and below `stop`."""
    from importlib.metadata import PackageNotFoundError, version  # a tenth of what `repolicy --help` may take

    try:
        installed = version(package)
    except PackageNotFoundError:
        return  # the import that follows says what is missing
    if not start <= tuple(int(part) for part in installed.split(".")[:2]) < stop:
        wanted = f"{package}>={start[0]}.{start[1]},<{stop[0]}.{stop[1]}"
        raise UsageError(
            f"{package} {installed} is installed, and this version of Repolicy works with {wanted}: pip install "
            f"'repolicy[{extra}]' '{wanted}'"
        )


def load_object(reference: str, what: str) -> Any:
    """Import the object `module:name` or `path/to/file.py:name`; `what` describes it in errors."""
    source, _, name = reference.rpartition(":")
    if source == SESSION:
        if name not in _session:
            raise UsageError(
                f"{what} {reference!r} was a function of another Python session; hand it over again, or write it into "
                f"a file and name it as file.py:{name}"
            )
        return _session[name]
    if not source or not name:
        raise UsageError(f"{what} {reference!r} is not of the form module:name or file.py:name")
    if source.endswith(".py") and not Path(source).is_file():
        raise UsageError(f"{what} {reference!r}: there is no file {Path(source).absolute()}")
    with in_one_sentence(f"{what} {reference!r} cannot be imported", UsageError):
        module = _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
    try:
        return getattr(module, name)
    except AttributeError:
        hint = suggest(name, [known for known, value in vars(module).items() if callable(value)])
        raise UsageError(f"{what} {reference!r}: {source} has no {name!r}{hint}") from None


def load_function(reference: str, what: str) -> Callable[..., Any]:
    """Import the function `module:name` or `path/to/file.py:name`, or anything else that can be called."""
    function = load_object(reference, what)
    if not callable(function):
        raise UsageError(f"{what} {reference!r} is a {type(function).__name__}, and no function")
    return function


def later(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports each name from its module in `homes` on first use."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return find


def imported_for_types(package: str, file: str) -> dict[str, str]:
    """Return the `homes` for `later`: the names, with their modules, that a package imports `if TYPE_CHECKING`."""
    block = next(node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {each.name: str(node.module).removeprefix(f"{package}.") for node in imports for each in node.names}


def import_name(thing: Any) -> str | None:
    """Return `module:name` of a module's function, class or object; None if it cannot be imported by that name."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    name = getattr(thing, "__name__", "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not thing:
        return None
    return f"{module.__name__}:{name}"


def reference_to(function: Any) -> str:
    """Return a name by which `load_object` finds a function: in its module, or else in this session."""
    if (reference := import_name(function)) is not None:
        return reference
    plain = re.sub(r"\W+", "_", getattr(function, "__name__", type(function).__name__)).strip("_")
    name, count = plain, 1
    while name in _session and not _is_same_code(_session[name], function):  # a run may refer to the older one
        count += 1
        name = f"{plain}_{count}"
    _session[name] = function
    return f"{SESSION}:{name}"


def _is_same_code(one: Any, other: Any) -> bool:
    """Return whether two objects were defined by the same code, as when a notebook's cell runs again."""
    try:
        return one is other or bool(one == other) or bool(_definition(one) == _definition(other))
    except Exception:  # such as for arrays, whose == is no bool
        return False


def _definition(thing: Any) -> Any:
    """Return what defines a function without a closure, or a class; for anything else, the object itself."""
    if isinstance(thing, FunctionType) and set(thing.__code__.co_freevars) <= {"__class__"}:
        defaults, names = (thing.__defaults__, thing.__kwdefaults__), vars(thing).items()
        return thing.__code__, defaults, id(thing.__globals__), {name: _definition(value) for name, value in names}
    if isinstance(thing, type):
        own = {name: _definition(value) for name, value in vars(thing).items() if not isgetsetdescriptor(value)}
        return thing.__bases__, own
    return thing


def _import_module(name: str) -> Any:
    own = name.partition(".")[0] == __name__.partition(".")[0]
    if not own and str(Path.cwd()) not in sys.path:  # users keep modules in the present folder
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _import_file(path: Path) -> Any:
    """Run a file anew. Python's own import could take a cached one for an edit of the same size in the same second."""
    path = path.resolve()
    module = ModuleType(str(path))  # the path is a unique module name
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    if str(path.parent) not in sys.path:  # so that it can import its neighbours
        sys.path.append(str(path.parent))
    exec(compile(path.read_bytes(), path, "exec"), vars(module))
    return module
