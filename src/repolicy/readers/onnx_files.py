"""What an ONNX file holds: the graph, its input, its constants, of which some may lie in a file beside it."""

import math
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError, first_line
from repolicy.loading import read_bytes
from repolicy.readers.described import Array, CannotCopyError
from repolicy.readers.perceptrons import some

TYPES = {1: "f4", 10: "f2", 11: "f8", 6: "i4", 7: "i8", 9: "b1"}  # of ONNX's tensors


def recognized(content: bytes) -> bool:
    """Whether bytes are an ONNX model: a message whose parts fit to the end, with a version (1) and a graph (7)."""
    position, seen = 0, set()
    while position < len(content):
        key, position = _varint(content, position)
        number, wire = key >> 3, key & 7
        seen.add(number)
        if wire == 0:
            _, position = _varint(content, position)
        elif wire == 2:
            length, position = _varint(content, position)
            position += length
        else:
            return False
        if not 0 < number < 30 or position < 0:
            return False
    return position == len(content) and {1, 7} <= seen


def load_model(path: Path) -> Any:
    """The model, with whatever lies in files beside it read in, so that nobody else opens a file that it names."""
    try:
        import onnx
        from google.protobuf.message import Message
    except ImportError:
        raise UsageError(
            f"{path} is an ONNX graph, which needs the package onnx: pip install 'repolicy[onnx]'"
        ) from None
    try:
        model = onnx.load_model_from_string(read_bytes(path))
    except FileError:
        raise
    except Exception as error:  # protobuf's own, of several classes
        raise FileError(f"{path} is damaged, or no ONNX graph: {first_line(error)}") from None
    waiting: list[Any] = [model]
    while waiting:  # a tensor may be anywhere: in a sub-graph, in an attribute, in a function
        message = waiting.pop()
        if message.DESCRIPTOR.name == "TensorProto" and (message.data_location == 1 or message.external_data):
            message.raw_data = _external(message, path)
            message.ClearField("data_location")
            message.ClearField("external_data")
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += [value] if isinstance(value, Message) else value
    return model


def input_of(graph: Any, where: str) -> tuple[int, str]:
    """How many numbers the graph takes, and its input's name."""
    known = {tensor.name for tensor in graph.initializer}
    inputs = [entry for entry in graph.input if entry.name not in known]
    if len(inputs) != 1:
        raise CannotCopyError(
            f"{where} cannot be copied: it takes {len(inputs)} inputs ({some(entry.name for entry in inputs)}), not one"
        )
    sizes = [dimension.dim_value for dimension in inputs[0].type.tensor_type.shape.dim]
    if len(sizes) not in (1, 2) or sizes[-1] < 1:
        raise CannotCopyError(
            f"{where} cannot be copied: its input {inputs[0].name} has the shape {sizes}, no row of numbers"
        )
    return int(sizes[-1]), str(inputs[0].name)


def attribute_of(attribute: Any, path: Path) -> Any:
    kinds = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints"}
    if attribute.type == 4:
        return array_of(attribute.t, path)
    value = getattr(attribute, kinds[attribute.type]) if attribute.type in kinds else None
    return list(value) if attribute.type in (6, 7) and value is not None else value


def array_of(tensor: Any, path: Path) -> Array:
    """A constant of the graph."""
    if tensor.data_type not in TYPES:
        return np.empty(0, object)
    dtype, shape = np.dtype(TYPES[tensor.data_type]).newbyteorder("<"), tuple(tensor.dims)
    content = tensor.raw_data or _inside(tensor, path).astype(dtype).tobytes()
    if math.prod(shape) * dtype.itemsize != len(content):
        raise FileError(f"{path} is damaged: {tensor.name} has the shape {list(shape)} and {len(content):,} bytes")
    return np.frombuffer(content, dtype).reshape(shape)


def _inside(tensor: Any, path: Path) -> Array:
    """A constant's values in the graph itself, which each type keeps in its own way."""
    from onnx.numpy_helper import to_array

    try:
        return to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise FileError(f"{path} is damaged: {tensor.name} cannot be read: {first_line(error)}") from None


def _external(tensor: Any, path: Path) -> bytes:
    """A constant's bytes in another file, which must be in the graph's own folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(entries.get("location", ""))
    file = path.parent / location
    if location.is_absolute() or ".." in location.parts or not file.resolve().is_relative_to(path.parent.resolve()):
        raise FileError(f"{path} is refused: its weights are to come from {location}, outside of its folder")
    if not file.is_file():
        raise FileError(f"{path} keeps its weights in {location}, which is not beside it: put that file there")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", file.stat().st_size))
        if min(offset, length) < 0 or offset + length > file.stat().st_size:
            raise FileError(f"{path} does not fit {location}: {tensor.name} is past that file's end")
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read(length)
    except ValueError:
        raise FileError(f"{path} is damaged: it does not say where in {location} {tensor.name} is") from None


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(content) and shift < 70:
        byte = content[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    return 0, len(content) + 1
