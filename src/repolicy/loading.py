"""Objects named by text (`module:name`, `file.py:name`), and the nearest names to one that is unknown."""

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from repolicy.errors import UsageError, in_one_sentence


def load_object(reference: str, what: str) -> Any:
    """Import what `module:name` or `path/to/file.py:name` stands for; `what` says in errors what it was to be."""
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise UsageError(f"{what} {reference!r} is not of the form module:name or file.py:name")
    if source.endswith(".py") and not Path(source).is_file():
        raise UsageError(f"{what} {reference!r}: there is no file {source}")
    with in_one_sentence(f"{what} {reference!r} cannot be imported", UsageError):
        module = _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
    try:
        return getattr(module, name)
    except AttributeError:
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UsageError(f"{what} {reference!r}: {source} has no {name!r}{nearest(name, public)}") from None


def as_file_name(reference: str) -> str:
    """`module:callable?option=1` as a name that file systems and shells take."""
    return re.sub(r"[^\w.=-]+", ".", reference)


def without_version(env: str) -> str:
    """The name of an environment without its version and options."""
    return env.partition("?")[0].rsplit("-v", 1)[0]


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean A, B or C?`, or nothing when no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    if not matches:
        return ""
    return f"; did you mean {' or '.join([', '.join(matches[:-1]), matches[-1]] if matches[1:] else matches)}?"


def _import_module(name: str) -> Any:
    if str(Path.cwd()) not in sys.path:  # a user's own module lies where they stand
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(str(path.resolve()), path)  # a name that is no other module's
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for what they are in
    if str(path.resolve().parent) not in sys.path:  # its neighbours
        sys.path.append(str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module
