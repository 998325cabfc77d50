"""Repolicy's file format, which is written atomically and is safe to read.

Every file is safetensors: numbers as tensors, everything else as JSON in the header, with a checksum of both. A file
is written under a temporary name and then renamed, so at any time the old file or the new one is complete.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from repolicy.errors import FileError
from repolicy.loading import read_bytes

FORMAT = 1
SAFETENSORS = b"\0\0\0{"  # content[5:9] of a safetensors file: the end of the header's size, the start of the header
HEAD_SIZE = 64  # number of bytes at a file's start in which "repolicy" stands
MAX_DEPTH = 50  # nested layers that a header may have; those that Repolicy writes have a handful


def write(path: Path, kind: str, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a JSON header into one file, atomically."""
    write_bytes(path, serialize(kind, tensors, header))


def serialize(kind: str, tensors: dict[str, Tensor], header: dict[str, Any]) -> bytes:
    """Return the bytes of the file that `write` writes."""
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "kind": kind} | header
    header["sha256"] = checksum(tensors, header)
    return safetensors.torch.save(tensors, {"repolicy": json.dumps(header)})


def read(path: Path, kind: str = "", content: bytes | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and header of a file of this kind, or of any kind; raise FileError if it is damaged or another file.

    `content` is the bytes of the file, if the caller has read them already.
    """
    if content is None:
        content = read_bytes(path)
    if not content:
        raise FileError(f"{path} is damaged: it is empty")
    try:
        tensors = safetensors.torch.load(content)
        end = 8 + int.from_bytes(content[:8], "little")  # where the JSON header of safetensors ends
        header = json.loads(json.loads(content[8:end])["__metadata__"]["repolicy"])
    except KeyError:
        raise FileError(f"{path} is a safetensors file, but not one of Repolicy's") from None
    except (safetensors.SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise FileError(f"{path} is damaged, or no Repolicy file: {error}") from None
    if not isinstance(header, dict) or _is_deeper(header, MAX_DEPTH):
        raise FileError(f"{path} is damaged, or no Repolicy file: its header is no object, or is nested too deeply")
    if isinstance(header.get("format"), int) and header["format"] > FORMAT:
        raise FileError(f"{path} has format {header['format']}; this version reads up to {FORMAT}: upgrade repolicy")
    if header.pop("sha256", None) != checksum(tensors, header):
        raise FileError(f"{path} is damaged: its checksum does not match its contents")
    check_shape(header, {"format": int, "kind": str}, f"{path} is no Repolicy file: its header")
    if kind and header["kind"] != kind:
        raise FileError(f"{path} is a {header['kind']}, not a {kind}")
    return tensors, header


def is_repolicy_file(path: Path, content: bytes | None = None) -> bool:
    """Return whether a file is in Repolicy's format, perhaps damaged. Judge by its first bytes, or else by its name."""
    if content is None:
        content = b""
        with contextlib.suppress(OSError):
            if path.is_file():  # reading from a pipe could block forever
                with open(path, "rb") as file:
                    content = file.read(HEAD_SIZE)
    if content[5:9] == SAFETENSORS:
        return b'"repolicy"' in content[:HEAD_SIZE]  # others' safetensors have another header
    return not content or path.suffix == ".safetensors"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it."""
    with _temporary_path(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def check_writable(path: Path) -> None:
    """Raise FileError if `write_bytes` could not write here. Call it before long work; it leaves no new folder."""
    new_folders = [folder for folder in path.parents if not folder.exists()]
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
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}; what was there before is untouched") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_json(path: Path, values: Any) -> None:
    write_bytes(path, (json.dumps(replace_nonfinite(values), indent=2) + "\n").encode())


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
    if isinstance(value, int) and not -1e300 < value < 1e300:  # integers in JSON may have thousands of digits
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


def _is_deeper(value: Any, depth: int) -> bool:
    """Return whether JSON is nested more deeply than `depth`. (A thousand layers would cause a RecursionError.)"""
    if isinstance(value, dict):
        value = list(value.values())
    return depth < 0 or (isinstance(value, list) and any(_is_deeper(entry, depth - 1) for entry in value))


_TYPE_NAMES = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "an object",
}  # fmt: skip


def replace_nonfinite(value: Any) -> Any:
    """Return JSON with null instead of numbers that are not finite, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def checksum(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Return the sha256 of tensors and a header. It does not depend on their order."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
