"""Repolicy's file format, which is safe to read.

Every file is safetensors: numbers as tensors, everything else as JSON in the header, with a checksum of both.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from repolicy.errors import FileError
from repolicy.files import check_shape, read_bytes, write_bytes

FORMAT = 1
SAFETENSORS = b"\0\0\0{"  # content[5:9] of a safetensors file: the end of the header's size, the start of the header
MAX_DEPTH = 50  # nested layers that a header may have; those that Repolicy writes have a handful
HEAD_SIZE = 64  # number of bytes at a file's start in which "repolicy" stands


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


def _is_deeper(value: Any, depth: int) -> bool:
    """Return whether JSON is nested more deeply than `depth`. (A thousand layers would cause a RecursionError.)"""
    if isinstance(value, dict):
        value = list(value.values())
    return depth < 0 or (isinstance(value, list) and any(_is_deeper(entry, depth - 1) for entry in value))


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


def checksum(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Return the sha256 of tensors and a header. It does not depend on their order."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
