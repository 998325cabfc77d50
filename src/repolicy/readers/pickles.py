"""Read pickles, zips, and the files that PyTorch writes with both, without running them.

A pickle is a program that may call any function that it names. Here nothing is imported or called. A name becomes a
`GlobalName`, and an object an `ObjectStub` that stores its arguments and its state. Only plain containers, NumPy arrays
and PyTorch tensors (as arrays) are built, from the bytes in the file. Their total memory is limited by the file's size.
"""

import io
import math
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

LoadStorage = Callable[[Any], np.ndarray]  # returns the numbers of a tensor's storage, by its key in the pickle
PYTHON_2_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
REAL_KINDS = "biuf"  # kinds of NumPy dtypes: booleans, integers and real numbers
DAMAGE_ERRORS = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError),
    *(EOFError, SyntaxError, struct.error, pickle.UnpicklingError, zlib.error),
)
MAX_OPCODES = 500_000  # a policy's pickle has a few thousand; the costliest opcode allocates some hundred bytes
BASE_MEMORY, MEMORY_FACTOR = 2**24, 8  # calls may allocate this many bytes, plus this many times the file's size
MAX_RATIO, FREE_SIZE = 200, 2**20  # a zip may unpack to this many times its size, plus this many bytes
ZIP_MAGIC, PICKLE_MAGIC = b"PK\x03\x04", b"\x80"  # first bytes of a zip, and of a pickle since protocol 2
TOO_LARGE = "it would unpack to far more than it holds"
OLD_TORCH_MAGIC = bytes.fromhex("6cfc9c46f9206aa85019")  # among the first bytes of a file of PyTorch before 1.6
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


def read_pickle(content: bytes, where: str, size: int = 0, load_storage: LoadStorage | None = None) -> Any:
    """Load a pickle; raise a FileError that names `where` if it is damaged.

    `size` is the number of bytes of the file that it is part of, unpacked, and `load_storage` reads the other parts.
    """
    try:
        if sum(1 for _ in pickletools.genops(content)) > MAX_OPCODES:
            raise ValueError(TOO_LARGE)
        return _Unpickler(io.BytesIO(content), size or len(content), load_storage).load()
    except DAMAGE_ERRORS as error:
        raise FileError(f"{where} is damaged, or no pickle of a policy: {first_line(error)}") from None


def load(content: bytes, where: str) -> Any:
    """Load what `torch.save` or pickle wrote, with arrays for tensors and stubs for other objects."""
    if content[:4] == ZIP_MAGIC:
        return read_torch_pickle(open_zip(content, where), "data")
    if OLD_TORCH_MAGIC in content[:32]:
        raise FileError(f"{where} is as PyTorch before 1.6 wrote it: torch.load it, and torch.save it again")
    return read_pickle(content, where)


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


# Zips that nobody vouches for: damaged ones are refused, and those that would unpack to far too many bytes -----------


def open_zip(content: bytes, where: str) -> zipfile.ZipFile:
    """Open a zip; `where` is its name in messages.

    The zip must begin at the first byte: the end of a truncated file may look like another zip that was inside of it.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise FileError(f"{where} is no whole zip: {error}") from None
    if not archive.infolist() or min(info.header_offset for info in archive.infolist()):
        raise FileError(f"{where} is no whole zip: its table of contents does not begin where the file does")
    archive.filename = where
    check_unpacked_size(archive, len(content))
    return archive


def check_unpacked_size(archive: zipfile.ZipFile, size: int) -> None:
    """Raise a FileError if a zip of `size` bytes says that it unpacks to far too many bytes."""
    unpacked = unpacked_size(archive)
    if unpacked > MAX_RATIO * size + FREE_SIZE:
        raise FileError(f"{archive.filename} is refused: its {size:,} bytes would unpack to {unpacked:,}")


def read_zip_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return an entry's bytes; raise a FileError if the entry is missing or damaged."""
    try:
        return archive.read(name)
    except Exception as error:  # a KeyError, zipfile's, zlib's, lzma's and bz2's, of many classes
        raise FileError(f"{archive.filename} is damaged: {name} cannot be unpacked ({error})") from None


def unpacked_size(archive: zipfile.ZipFile) -> int:
    """Return the total size of a zip's entries, as its table of contents has it."""
    return sum(info.file_size for info in archive.infolist())


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
    storages: dict[str, np.ndarray] = {}

    def load_storage(key: Any) -> np.ndarray:
        _, kind, number, *_ = key
        if not isinstance(number, str):
            raise ValueError("a storage in it has no name")
        if number not in storages:
            storages[number] = _decode(read_zip_entry(archive, f"{root}{name}/{number}"), kind)
        return storages[number]

    content = read_zip_entry(archive, f"{root}{name}.pkl")
    return read_pickle(content, str(archive.filename), unpacked_size(archive), load_storage)


def _decode(content: bytes, kind: Any) -> np.ndarray:
    """Return the numbers of a storage of a class such as `torch.FloatStorage` from its bytes."""
    last = kind.last if isinstance(kind, GlobalName) else short_repr(kind)
    if last.removesuffix("Storage") not in STORAGE_DTYPES:
        raise ValueError(f"its tensors have numbers of an unknown kind, {last}")
    numbers = np.frombuffer(content, STORAGE_DTYPES[last.removesuffix("Storage")])
    return (numbers.astype(np.uint32) << 16).view(np.float32) if last == "BFloat16Storage" else numbers


# The unpickler --------------------------------------------------------------------------------------------------------


def _with_checked_keys(code: bytes, keys: slice) -> Callable[[Any], None]:
    """Wrap an opcode that builds a dict or a set: check its keys first, which are that slice of the stack."""
    opcode = pickle._Unpickler.dispatch[code[0]]

    def checked(unpickler: Any) -> None:
        _checked_keys(unpickler.stack[keys])
        opcode(unpickler)

    return checked


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler with safe opcodes. The version written in Python is used, as its opcodes can be replaced.

    Every call of the pickle goes through `_instantiate`, and every state of an object through `load_build`.
    """

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

    dispatch: ClassVar[dict[int, Any]] = pickle._Unpickler.dispatch | {
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_reduce,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: _with_checked_keys(pickle.SETITEM, slice(-2, -1)),
        pickle.SETITEMS[0]: _with_checked_keys(pickle.SETITEMS, slice(None, None, 2)),
        pickle.DICT[0]: _with_checked_keys(pickle.DICT, slice(None, None, 2)),
        pickle.ADDITEMS[0]: _with_checked_keys(pickle.ADDITEMS, slice(None)),
        pickle.FROZENSET[0]: _with_checked_keys(pickle.FROZENSET, slice(None)),
    }


def _size_of(value: Any) -> int:
    """Return the bytes of a built value, without the values in it."""
    return max(sys.getsizeof(value), getattr(value, "nbytes", 0))


# Objects that are built -----------------------------------------------------------------------------------------------


def build_object(function: Any, args: tuple[Any, ...]) -> Any:
    """Build an array or a plain container if the function is in BUILDERS and accepts the arguments; else a stub."""
    builder = BUILDERS.get(function.text) if isinstance(function, GlobalName) else None
    built = NotImplemented if builder is None else builder(*args)
    return ObjectStub(function) if built is NotImplemented else built


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


def _fill_array(array: np.ndarray, state: Any) -> np.ndarray:
    """Set the shape, dtype and bytes of the empty array that `_reconstruct` built, and return it."""
    _, shape, dtype, fortran, content = state
    if not isinstance(dtype, np.dtype):
        return array  # an array of objects stays empty
    content = content.encode("latin1") if isinstance(content, str) else content
    if math.prod(map(int, shape)) * dtype.itemsize != len(content):
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
    count = math.prod(size)
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
    "_codecs.encode": lambda text, *_: text.encode("latin1"),
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
