"""Read and write files, and check the JSON in them.

A file is written under a temporary name and then renamed, so at any time the old file or the new one is complete.
"""

import contextlib
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repolicy.errors import FileError


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file. (Reading a pipe or /dev/zero might never end.)"""
    try:
        if stat.S_ISREG(path.stat().st_mode):
            return path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"there is no file {path}") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    raise FileError(f"{path} cannot be read: it is no file")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise one sentence where it is not JSON, or nested too deep."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError:
        raise FileError(f"{path} cannot be read: it is nested too deep") from None
    except ValueError as error:
        raise FileError(f"{path} cannot be read: it is not JSON: {error}") from None


def file_sum(path: Path) -> str:
    """Return the sha256 checksum of a file."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it."""
    with _temporary_path(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def write_json(path: Path, values: Any) -> None:
    """Write JSON as `write_bytes` does, with null for numbers that are not finite."""
    write_bytes(path, (json.dumps(replace_nonfinite(values), indent=2) + "\n").encode())


def check_writable(path: Path) -> None:
    """Raise FileError if `write_bytes` could not write here. Call it before long work; it leaves no new folder."""
    new_folders = [folder for folder in path.parents if not os.path.exists(folder)]
    with _temporary_path(path) as temporary:
        temporary.touch()
    with contextlib.suppress(OSError):  # another process may have put something there by now
        for folder in new_folders:
            folder.rmdir()


@contextlib.contextmanager
def _temporary_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, which is created; remove a file that is left there."""
    temporary = path.parent / f".{path.name}.{os.getpid()}"
    try:
        if path.exists() and not path.is_file():  # a rename would replace /dev/null by a file
            raise FileError(f"{path} is no file that could be written; choose another name")
        if not path.parent.exists():  # `mkdir` would say of a file "File exists"
            path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}; what was there before is untouched") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def replace_nonfinite(value: Any) -> Any:
    """Return JSON with null instead of numbers that are not finite, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Shape = Any  # a type; [shape] for a list; {name: shape} for an object, {str: shape} for any names; a tuple, see below


def check_shape(value: Any, shape: Shape, where: str) -> None:
    """Raise FileError unless JSON from a file has the shape that its readers rely on; `where` names it in the message.

    A name that ends in `?` may be missing. A tuple holds the shape of a value, the shape of a list, and texts that are
    allowed instead.
    """
    if isinstance(shape, tuple):
        if isinstance(value, str) and value in shape:
            return
        shape = shape[1] if isinstance(value, list) else shape[0]
    expected: Any = type(shape) if isinstance(shape, list | dict) else shape
    types: Any = (int, float) if expected is float else expected
    if not isinstance(value, types) or isinstance(value, bool) != (expected is bool):  # in Python a bool is an int
        found = _TYPE_NAMES[type(value)] if isinstance(value, list | dict) else repr(value)[:60]
        raise FileError(f"{where} is {found}, not {_TYPE_NAMES[expected]}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # no tensor takes a larger one
        raise FileError(f"{where} is too large")
    if expected is list:
        for index, entry in enumerate(value):
            check_shape(entry, shape[0], f"{where}[{index}]")
    elif expected is dict and str in shape:
        for name, entry in value.items():
            check_shape(entry, shape[str], f"{where}, {name!r}")
    elif expected is dict:
        for key, entry_shape in shape.items():
            name = key.removesuffix("?")
            if name in value:
                check_shape(value[name], entry_shape, f"{where}, {name!r}")
            elif name == key:
                raise FileError(f"{where} has no {name!r}")


_TYPE_NAMES = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "an object",
}  # fmt: skip
