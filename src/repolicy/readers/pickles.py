"""Read pickles, and the files that PyTorch writes with them, without running them.

A pickle is a program that may call any function that it names. Here nothing is imported or called. A name becomes a
`GlobalName`, and an object an `ObjectStub` that stores its arguments and its state. Only plain containers, NumPy arrays
and PyTorch tensors (as arrays) are built, from the bytes in the file. Their total memory is limited by the file's size.
"""

import io
import pickle
import pickletools
import reprlib
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from repolicy.errors import FileError, first_line
from repolicy.readers.zips import open_zip, read_zip_entry, unpacked_size

LoadStorage = Callable[[Any], np.ndarray]  # returns the numbers of a tensor's storage, by its key in the pickle
PYTHON_2_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
REAL_KINDS = "biuf"  # kinds of NumPy dtypes: booleans, integers and real numbers
DAMAGE_ERRORS = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError),
    *(EOFError, struct.error, pickle.UnpicklingError, zlib.error),
)
MAX_OPCODES = 500_000  # a policy's pickle has a few thousand; the costliest opcode allocates some hundred bytes
BASE_MEMORY, MEMORY_FACTOR = 2**24, 8  # calls may allocate this many bytes, plus this many times the file's size
ZIP_MAGIC, PICKLE_MAGIC = b"PK\x03\x04", b"\x80"  # first bytes of a zip, and of a pickle since protocol 2
TOO_LARGE = "it would unpack to far more than it holds"
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_MAGIC_BYTES = bytes.fromhex("6cfc9c46f9206aa85019")  # LEGACY_MAGIC as a file holds it
STORAGE_DTYPES = {  # BFloat16 is the upper half of a float
    "Double": "f8", "Float": "f4", "Half": "f2", "BFloat16": "u2", "Long": "i8", "Int": "i4", "Short": "i2",
    "Char": "i1", "Byte": "u1", "Bool": "b1",
}  # fmt: skip


@dataclass(frozen=True)
class GlobalName:
    """The name of a class or a function in a pickle. It is not imported."""

    text: str  # with its module: "torch.nn.Linear"

    @property
    def last(self) -> str:
        return self.text.rpartition(".")[2]


@dataclass(eq=False)
class ObjectStub:
    """Stands for an object of a class that is not imported."""

    name: Any  # GlobalName of the class or function that would have built it
    args: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)  # its attributes

    @property
    def last(self) -> str:
        """The last part of its class's name."""
        return self.name.last if isinstance(self.name, GlobalName) else "?"

    def __repr__(self) -> str:
        return f"<{self.last}>"

    def extend(self, *entries: Any) -> None:
        """Drop entries of a subclass of list, set or dict; no reader needs them."""

    append = add = __setitem__ = extend


def read_pickle(content: bytes, where: str) -> Any:
    """Load a pickle; raise a FileError that names `where` if it is damaged."""
    return _unpickle(io.BytesIO(content), where, len(content))


def load(content: bytes, where: str) -> Any:
    """Load what `torch.save` or pickle wrote, with arrays for tensors and stubs for other objects."""
    if content[:4] == ZIP_MAGIC:
        return read_torch_pickle(open_zip(content, where), "data")
    return _load_legacy(content, where) if LEGACY_MAGIC_BYTES in content[:32] else read_pickle(content, where)


def short_repr(found: Any) -> str:
    """Return a short text of a loaded value for a message. (A small pickle can have a `repr` of any length.)"""
    return reprlib.repr(found)[:80]


def real_array(found: Any) -> np.ndarray:
    """Return a loaded value as an array of real numbers. Refuse sequences: nested ones can grow without limit."""
    if not isinstance(found, np.ndarray | np.generic | int | float):
        raise TypeError(f"{short_repr(found)} stands where an array is expected")
    values = np.asarray(found)
    if values.dtype.kind not in REAL_KINDS:
        raise TypeError(f"it holds {values.dtype} where real numbers are expected")
    return values


# Files of torch.save --------------------------------------------------------------------------------------------------


def find_root(archive: zipfile.ZipFile) -> str:
    """Return the folder of PyTorch's `data.pkl` in a zip."""
    roots = [name.removesuffix("data.pkl") for name in archive.namelist() if name.endswith("data.pkl")]
    if not roots:
        names = ", ".join(archive.namelist()[:6])
        raise FileError(f"{archive.filename} is a zip, but none that PyTorch wrote: it holds {names}")
    return min(roots, key=len)


def read_torch_pickle(archive: zipfile.ZipFile, name: str) -> Any:
    """Load `name`.pkl from PyTorch's zip; the bytes of its tensors are in the folder `name`."""
    root = find_root(archive)
    is_big_endian = f"{root}byteorder" in archive.namelist() and read_zip_entry(archive, f"{root}byteorder") == b"big"
    storages: dict[str, np.ndarray] = {}

    def load_storage(key: Any) -> np.ndarray:
        _, kind, number, *_ = key
        _check_storage_name(number)
        if number not in storages:
            storages[number] = _decode(read_zip_entry(archive, f"{root}{name}/{number}"), kind, is_big_endian)
        return storages[number]

    content = io.BytesIO(read_zip_entry(archive, f"{root}{name}.pkl"))
    return _unpickle(content, str(archive.filename), unpacked_size(archive), load_storage)


def _load_legacy(content: bytes, where: str) -> Any:
    """Load a file of PyTorch before 1.6: five pickles, then the bytes of the storages.

    The fourth pickle is the object and the fifth the storages' names. Tensors are views of storages that are zero at
    first and filled at the end.
    """
    stream, kinds, storages = io.BytesIO(content), dict[str, Any](), dict[str, np.ndarray]()

    def load_storage(key: Any) -> np.ndarray:
        _, kind, name, _, count, *_ = key
        _check_storage_name(name)
        if name not in storages:
            kinds[name], storages[name] = kind, np.zeros(count, _decode(b"", kind).dtype)
            total = sum(storage.nbytes for storage in storages.values())
            if total > 2 * len(content):  # twice: a BFloat16 of two bytes becomes a float of four
                raise ValueError("its tensors are cut short")
        return storages[name]

    if _unpickle(stream, where, len(content)) != LEGACY_MAGIC:
        raise FileError(f"{where} is no file that PyTorch wrote")
    _, _, saved, names = (_unpickle(stream, where, len(content), load_storage) for _ in range(4))
    try:
        for name in names:
            (count,) = struct.unpack("<q", stream.read(8))
            storages[name][:] = _decode(stream.read(count * _dtype_of(kinds[name]).itemsize), kinds[name])
    except DAMAGE_ERRORS as error:
        raise FileError(f"{where} is damaged: its tensors are cut short ({first_line(error)})") from None
    return saved


def _check_storage_name(name: Any) -> None:
    if not isinstance(name, str):
        raise ValueError("a storage in it has no name")


def _dtype_of(kind: Any) -> np.dtype:
    """Return the dtype of a storage class, such as `torch.FloatStorage`."""
    last = kind.last if isinstance(kind, GlobalName) else short_repr(kind)
    if last.removesuffix("Storage") not in STORAGE_DTYPES:
        raise ValueError(f"its tensors have numbers of an unknown kind, {last}")
    return np.dtype(STORAGE_DTYPES[last.removesuffix("Storage")])


def _decode(content: bytes, kind: Any, is_big_endian: bool = False) -> np.ndarray:
    """Return the numbers of a storage from its bytes."""
    numbers = np.frombuffer(content, _dtype_of(kind).newbyteorder(">" if is_big_endian else "<"))
    if kind.last == "BFloat16Storage":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(numbers.dtype.newbyteorder("="))


# The unpickler --------------------------------------------------------------------------------------------------------


def _unpickle(stream: io.BytesIO, where: str, size: int, load_storage: LoadStorage | None = None) -> Any:
    """Load the next pickle of a stream; `size` is the number of bytes of the whole file, unpacked."""
    start = stream.tell()
    try:
        if sum(1 for _ in pickletools.genops(stream)) > MAX_OPCODES:
            raise ValueError(TOO_LARGE)
        stream.seek(start)
        return _Unpickler(stream, size, load_storage).load()
    except DAMAGE_ERRORS as error:
        raise FileError(f"{where} is damaged, or no pickle of a policy: {first_line(error)}") from None


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler with safe opcodes. The version written in Python is used, as its opcodes can be replaced.

    Every call of the pickle goes through `_instantiate`, and every state of an object through `load_build`.
    """

    dispatch: ClassVar[dict[int, Any]] = pickle._Unpickler.dispatch.copy()
    stack: list[Any]  # the operands since the last MARK opcode
    append: Callable[[Any], None]

    def __init__(self, stream: io.BytesIO, size: int, load_storage: LoadStorage | None) -> None:
        super().__init__(stream, encoding="latin1")
        self.load_storage = load_storage
        self.memory_left = BASE_MEMORY + MEMORY_FACTOR * size

    def find_class(self, module: str, name: str) -> GlobalName:
        self.charge(len(module) + len(name))
        return GlobalName(f"{PYTHON_2_MODULES.get(module, module)}.{name}")

    def persistent_load(self, key: Any) -> np.ndarray:
        if self.load_storage is None:
            raise ValueError("it points to something outside of itself")
        return self.load_storage(key)

    def charge(self, size: int) -> None:
        """Count allocated bytes against the limit: a short pickle could build the same large object again and again."""
        self.memory_left -= size
        if self.memory_left < 0:
            raise ValueError(TOO_LARGE)

    def _instantiate(self, function: Any, args: Any) -> None:
        built = build_object(function, tuple(args))
        self.charge(_size_of(built) + _size_of(args))
        self.append(built)

    def load_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        self._instantiate(function, args)

    def load_newobj_ex(self) -> None:
        keywords, args, function = (self.stack.pop() for _ in range(3))
        self._instantiate(function, (*args, *keywords.values()))

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, ObjectStub):
            for part in state if isinstance(state, tuple) else (state,):
                if isinstance(part, dict):
                    self.charge(_size_of(part))
                    target.state.update(part)
        elif isinstance(target, np.dtype):
            if state[1] not in "<>|=":
                raise ValueError("an array's type is damaged")
            target.__setstate__((3, state[1], None, None, None, -1, -1, 0))  # type: ignore[attr-defined]
        elif isinstance(target, np.ndarray):
            self.charge(_size_of(_fill_array(target, state)))


def _size_of(value: Any) -> int:
    """Return the bytes of a built value, without the values in it."""
    return max(sys.getsizeof(value), getattr(value, "nbytes", 0))


def _with_checked_keys(opcode: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """Wrap an opcode that builds a dict or a set: check its keys first, which are that slice of the stack."""

    def checked(unpickler: _Unpickler) -> None:
        _checked_keys(unpickler.stack[keys])
        opcode(unpickler)

    return checked


_Unpickler.dispatch |= {
    pickle.REDUCE[0]: _Unpickler.load_reduce,
    pickle.NEWOBJ[0]: _Unpickler.load_reduce,
    pickle.NEWOBJ_EX[0]: _Unpickler.load_newobj_ex,
    pickle.BUILD[0]: _Unpickler.load_build,
} | {
    code[0]: _with_checked_keys(_Unpickler.dispatch[code[0]], keys)
    for code, keys in (
        (pickle.SETITEM, slice(-2, -1)),
        (pickle.SETITEMS, slice(None, None, 2)),
        (pickle.DICT, slice(None, None, 2)),
        (pickle.ADDITEMS, slice(None)),
        (pickle.FROZENSET, slice(None)),
    )
}


# Objects that are built -----------------------------------------------------------------------------------------------


def build_object(function: Any, args: tuple[Any, ...]) -> Any:
    """Build an array or a plain container if the function is in BUILDERS and accepts the arguments; else a stub."""
    builder = BUILDERS.get(function.text) if isinstance(function, GlobalName) else None
    built = NotImplemented if builder is None else builder(*args)
    return ObjectStub(function, args) if built is NotImplemented else built


def _checked_keys(keys: Iterable[Any]) -> list[Any]:
    """Return the keys of a dict or a set; refuse nested tuples, whose hashing time can grow without limit."""
    keys = list(keys)
    if any(isinstance(key, tuple | frozenset) for key in keys):
        raise ValueError("a key in it is neither text nor a number")
    return keys


def _dict(entries: Any = (), *_: Any) -> dict[Any, Any]:
    entries = [*entries.items()] if isinstance(entries, dict) else list(entries)
    _checked_keys(key for key, _ in entries)
    return dict(entries)


def _dtype(name: Any = None, *_: Any) -> Any:
    if not isinstance(name, str) or len(name) > 3:
        return NotImplemented
    dtype = np.dtype(name, False, True)  # type: ignore[call-overload]  # a copy, as BUILD may set its byte order
    return dtype if dtype.kind in REAL_KINDS else NotImplemented


def _bytes(text: Any, encoding: str = "latin1", *_: Any) -> Any:
    return text.encode("latin1") if isinstance(text, str) and encoding in ("latin1", "latin-1") else NotImplemented


def _fill_array(array: np.ndarray, state: Any) -> np.ndarray:
    """Set the shape, dtype and bytes of the empty array that `_reconstruct` built, and return it."""
    _, shape, dtype, fortran, content = state
    if not isinstance(dtype, np.dtype):
        return array  # an array of objects stays empty
    content = content.encode("latin1") if isinstance(content, str) else content
    if int(np.prod([int(size) for size in shape], dtype=object)) * dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
    array.__setstate__((1, tuple(shape), dtype, bool(fortran), bytes(content)))  # type: ignore[arg-type]
    return array


def _from_buffer(content: Any, dtype: Any, shape: Any = -1, order: Any = "C") -> Any:
    if not isinstance(dtype, np.dtype) or not isinstance(content, bytes | bytearray):
        return NotImplemented
    return np.frombuffer(content, dtype).reshape(shape, order=order)


def _scalar(dtype: Any, content: Any = b"") -> Any:
    array = _from_buffer(content.encode("latin1") if isinstance(content, str) else content, dtype)
    return array if array is NotImplemented else array[0]


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Any:
    """Return a tensor as a strided view of its storage, with no more elements than the storage has."""
    if not isinstance(storage, np.ndarray):
        return NotImplemented
    size, stride = [int(number) for number in size], [int(number) for number in stride]
    count = int(np.prod(size, dtype=object))
    last = offset + sum((number - 1) * step for number, step in zip(size, stride, strict=True)) if count else offset
    if min([offset, *size, *stride]) < 0 or count > len(storage) or (count and last >= len(storage)):
        raise ValueError(f"a tensor of shape {tuple(size)} does not fit into the {len(storage)} numbers of its storage")
    steps = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)


BUILDERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "flax.core.frozen_dict.FrozenDict": _dict,
    "builtins.set": lambda entries=(): set(_checked_keys(entries)),
    "builtins.frozenset": lambda entries=(): frozenset(_checked_keys(entries)),
    "builtins.list": lambda entries=(): list(entries) if isinstance(entries, list | tuple) else NotImplemented,
    "builtins.bytes": lambda content=b"", *_: content if isinstance(content, bytes) else NotImplemented,
    "builtins.bytearray": lambda content=b"", *_: bytes(content) if isinstance(content, bytes) else NotImplemented,
    "_codecs.encode": _bytes,
    "copyreg._reconstructor": lambda kind, *_: ObjectStub(kind),
    "torch.Size": lambda size=(): tuple(size),
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
    "torch._tensor._rebuild_from_type_v2": lambda function, _, args, *__: build_object(function, tuple(args)),
    "numpy.dtype": _dtype,
    "jax._src.array._reconstruct_array": lambda _, __, state, *___: _fill_array(np.empty(0), state),
    "jax._src.device_array.reconstruct_device_array": lambda _, __, state, *___: _fill_array(np.empty(0), state),
}
for _core in ("numpy.core", "numpy._core"):
    BUILDERS[f"{_core}.multiarray._reconstruct"] = lambda *_: np.empty(0)
    BUILDERS[f"{_core}.multiarray.scalar"] = _scalar
    BUILDERS[f"{_core}.numeric._frombuffer"] = _from_buffer
