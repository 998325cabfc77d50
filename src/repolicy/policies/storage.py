"""Any file of Repolicy's: atomic to write, safe to read.

Every file is safetensors: numbers as tensors, everything else as JSON in the header, with a checksum over both. It is
written beside its place and renamed into it, so at any instant there is either the old file or the new one.
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
SAFETENSORS = b"\0\0\0{"  # the fifth byte of such a file, and those behind it
OF_HEADER = 64  # bytes in which a header of ours shows
DEPTH = 50  # layers that a header may have; the deepest that is written has a handful


def write(path: Path, kind: str, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a JSON header into one file, atomically."""
    write_bytes(path, serialize(kind, tensors, header))


def serialize(kind: str, tensors: dict[str, Tensor], header: dict[str, Any]) -> bytes:
    """Return what `write` writes."""
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "kind": kind} | header
    header["sha256"] = checksum(tensors, header)
    return safetensors.torch.save(tensors, {"repolicy": json.dumps(header)})


def read(path: Path, kind: str = "", content: bytes | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `write` wrote, of that kind or of any; FileError says in one sentence what is wrong with the file.

    `content` is what the file holds, where somebody has read it already.
    """
    if not (content := read_bytes(path) if content is None else content):
        raise FileError(f"{path} is damaged: it is empty")
    try:
        tensors = safetensors.torch.load(content)
        end = 8 + int.from_bytes(content[:8], "little")  # where the file's own header ends, which is JSON
        header = json.loads(json.loads(content[8:end])["__metadata__"]["repolicy"])
    except KeyError:
        raise FileError(f"{path} is a safetensors file, but not one of Repolicy's") from None
    except (safetensors.SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise FileError(f"{path} is damaged, or no Repolicy file: {error}") from None
    if not isinstance(header, dict) or _is_deeper(header, DEPTH):
        raise FileError(f"{path} is damaged, or no Repolicy file: its header is no object, or one of too many layers")
    if isinstance(header.get("format"), int) and header["format"] > FORMAT:
        raise FileError(f"{path} has format {header['format']}; this version reads up to {FORMAT}: upgrade repolicy")
    if header.pop("sha256", None) != checksum(tensors, header):
        raise FileError(f"{path} is damaged: its checksum does not match its contents")
    check_shape(header, {"format": int, "kind": str}, f"{path} is no Repolicy file: its header")
    if kind and header["kind"] != kind:
        raise FileError(f"{path} is a {header['kind']}, not a {kind}")
    return tensors, header


def is_repolicy_file(path: Path, content: bytes | None = None) -> bool:
    """Return whether a file is one of these, perhaps a damaged one: by its first bytes, or else by its name.

    Somebody else's safetensors have another header.
    """
    head = content
    if head is None:
        try:
            with open(path if path.is_file() else os.devnull, "rb") as file:  # a pipe could be waited for without end
                head = file.read(OF_HEADER)
        except OSError:
            head = b""
    if head[5:9] == SAFETENSORS:
        return b'"repolicy"' in head[:OF_HEADER]
    return not head or path.suffix == ".safetensors"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place, flush it to the disk, and rename it into its place."""
    with _beside(path) as beside:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)


def check_writable(path: Path) -> None:
    """Raise where `write_bytes` could not write, for whoever has long work to do first. No new folder stays."""
    new = [folder for folder in path.parents if not folder.exists()]
    with _beside(path) as beside:
        beside.touch()
    for folder in new:
        folder.rmdir()


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Give the name under which a file is written beside its place. What has that name in the end is removed."""
    beside = path.parent / f".{path.name}.{os.getpid()}"
    try:
        if path.exists() and not path.is_file():  # a rename would put a file in the place of /dev/null
            raise FileError(f"{path} is no file that could be written; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}; what was there before is untouched") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def write_json(path: Path, values: Any) -> None:
    write_bytes(path, (json.dumps(replace_nonfinite(values), indent=2) + "\n").encode())


Shape = Any  # a type; [shape] for a list; {name: shape} for an object, {str: shape} for one with any names


def check_shape(value: Any, shape: Shape, where: str) -> None:
    """Raise unless JSON out of a file has the shape that its readers rely on.

    A name with a `?` may be missing. Of a tuple the first shape counts, for a list the second; a text may stand in it.
    """
    if isinstance(shape, tuple):
        if isinstance(value, str) and value in shape:
            return
        shape = shape[isinstance(value, list)]
    wanted: Any = type(shape) if isinstance(shape, list | dict) else shape
    kinds: Any = (int, float) if wanted is float else wanted
    if not isinstance(value, kinds) or isinstance(value, bool) != (wanted is bool):
        found = _WORDS[type(value)] if isinstance(value, list | dict) else repr(value)[:60]
        raise FileError(f"{where} is {found}, not {_WORDS[wanted]}")
    if isinstance(value, int) and not -1e300 < value < 1e300:  # in JSON it may have thousands of digits
        raise FileError(f"{where} is too large")
    if wanted is list:
        for index, entry in enumerate(value):
            check_shape(entry, shape[0], f"{where}[{index}]")
    if wanted is dict and str in shape:
        for name, entry in value.items():
            check_shape(entry, shape[str], f"{where}, {name!r}")
    elif wanted is dict:
        for name, inner in shape.items():
            if name.removesuffix("?") in value:
                check_shape(value[name.removesuffix("?")], inner, f"{where}, {name.removesuffix('?')!r}")
            elif not name.endswith("?"):
                raise FileError(f"{where} has no {name!r}")


def _is_deeper(value: Any, layers: int) -> bool:
    """Say whether JSON has more layers than these. (A thousand would end in a RecursionError.)"""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return layers < 0 or any(_is_deeper(each, layers - 1) for each in inner)


_WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "an object",
}  # fmt: skip


def replace_nonfinite(value: Any) -> Any:
    """Return the same with null for numbers that are not finite, which JSON does not know."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def checksum(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Return a sum over tensors and a header, in whatever order they are."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
