"""Pickles, and what PyTorch writes with them, read without running them.

A pickle is a program that may call whatever it names. Here nothing is called: a name stays a `Name`, and what would
have been an object is an empty `Shell` that remembers its arguments and its state. Plain containers, NumPy's arrays and
PyTorch's tensors (as arrays) are the exception: they are made here of the bytes that are in the file, and all of them
together are not much larger than the file.
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

Storages = Callable[[Any], np.ndarray]  # from the key of a tensor's storage to its numbers
PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}
PLAIN = "biuf"  # kinds of NumPy's types: booleans, integers, and real numbers
DAMAGE_ERRORS = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError),
    *(EOFError, struct.error, pickle.UnpicklingError, zlib.error),
)
MOST = 500_000  # steps of a pickle, of which the costliest makes some hundred bytes; a policy's has a few thousand
ROOM, FACTOR = 2**24, 8  # so many bytes, and so many times those of the file, may be made by calls
ZIP_MAGIC, PICKLE_MAGIC = b"PK\x03\x04", b"\x80"  # how a zip begins, and a pickle since protocol 2
TOO_MUCH = "it would unpack to far more than it holds"
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_START = bytes.fromhex("6cfc9c46f9206aa85019")  # the same, as it stands in a file
STORAGES = {  # BFloat16 is the upper half of a float
    "Double": "f8", "Float": "f4", "Half": "f2", "BFloat16": "u2", "Long": "i8", "Int": "i4", "Short": "i2",
    "Char": "i1", "Byte": "u1", "Bool": "b1",
}  # fmt: skip


@dataclass(frozen=True)
class GlobalName:
    """A class or a function that a pickle names. It is not imported."""

    text: str

    @property
    def last(self) -> str:
        return self.text.rpartition(".")[2]


@dataclass(eq=False)
class ObjectStub:
    """What would have been an object: who would have made it, of what, and what it would have remembered."""

    name: Any
    args: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> str:
        """The last part of its class's name."""
        return self.name.last if isinstance(self.name, GlobalName) else "?"

    def __repr__(self) -> str:
        return f"<{self.last}>"

    def extend(self, *entries: Any) -> None:
        """Take entries, as a list's or a dict's own class would; nobody reads them."""

    append = add = __setitem__ = extend


def read_pickle(content: bytes, where: str) -> Any:
    """Return what a pickle holds; FileError says in one sentence what is wrong with it."""
    return _unpickled(io.BytesIO(content), where, len(content))


def load(content: bytes, where: str) -> Any:
    """Return what `torch.save` or pickle wrote: arrays for tensors, and shells for what is neither plain nor one."""
    if content[:4] == ZIP_MAGIC:
        return read_torch_pickle(open_zip(content, where), "data")
    return _load_legacy(content, where) if LEGACY_START in content[:32] else read_pickle(content, where)


def short_repr(found: Any) -> str:
    """Return what was in a pickle, for a sentence. (Its whole text can be as long as a short pickle wishes.)"""
    return reprlib.repr(found)[:80]


def real_array(found: Any) -> np.ndarray:
    """Return an array of real numbers. (Nested tuples could be as many of them as a short pickle wishes.)"""
    if not isinstance(found, np.ndarray | np.generic | int | float):
        raise TypeError(f"{short_repr(found)} stands where an array is expected")
    if (made := np.asarray(found)).dtype.kind not in PLAIN:
        raise TypeError(f"it holds {made.dtype} where real numbers are expected")
    return made


# PyTorch's zips -------------------------------------------------------------------------------------------------------


def find_root(archive: zipfile.ZipFile) -> str:
    """Return the folder in the zip in which PyTorch's `data.pkl` is."""
    roots = [name.removesuffix("data.pkl") for name in archive.namelist() if name.endswith("data.pkl")]
    if not roots:
        names = ", ".join(archive.namelist()[:6])
        raise FileError(f"{archive.filename} is a zip, but none that PyTorch wrote: it holds {names}")
    return min(roots, key=len)


def read_torch_pickle(archive: zipfile.ZipFile, name: str) -> Any:
    """Return what the pickle `name`.pkl in PyTorch's zip holds; the bytes of its tensors are in the folder `name`."""
    root = find_root(archive)
    big = f"{root}byteorder" in archive.namelist() and read_zip_entry(archive, f"{root}byteorder") == b"big"
    known: dict[str, np.ndarray] = {}

    def storage(key: Any) -> np.ndarray:
        _, kind, number, *_ = key
        if _text(number) not in known:
            known[number] = _numbers(read_zip_entry(archive, f"{root}{name}/{number}"), kind, big)
        return known[number]

    content = io.BytesIO(read_zip_entry(archive, f"{root}{name}.pkl"))
    return _unpickled(content, str(archive.filename), unpacked_size(archive), storage)


def _load_legacy(content: bytes, where: str) -> Any:
    """Return what PyTorch wrote before 1.6: five pickles in a row, of which the fourth is the object and the fifth the
    names of its storages; then the bytes of these. Tensors show their storages, which are filled last."""
    stream, kinds, made = io.BytesIO(content), dict[str, Any](), dict[str, np.ndarray]()

    def storage(key: Any) -> np.ndarray:
        _, kind, name, _, count, *_ = key
        if _text(name) not in made:
            kinds[name], made[name] = kind, np.zeros(count, _numbers(b"", kind).dtype)
            if sum(each.nbytes for each in made.values()) > 2 * len(content):  # twice: half a float becomes a whole one
                raise ValueError("its tensors are cut short")
        return made[name]

    if _unpickled(stream, where, len(content)) != LEGACY_MAGIC:
        raise FileError(f"{where} is no file that PyTorch wrote")
    _, _, found, names = (_unpickled(stream, where, len(content), storage) for _ in range(4))
    try:
        for name in names:
            (count,) = struct.unpack("<q", stream.read(8))
            made[name][:] = _numbers(stream.read(count * _dtype_of(kinds[name]).itemsize), kinds[name])
    except DAMAGE_ERRORS as error:
        raise FileError(f"{where} is damaged: its tensors are cut short ({first_line(error)})") from None
    return found


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError("a storage in it has no name")
    return name


def _dtype_of(kind: Any) -> np.dtype:
    last = kind.last if isinstance(kind, GlobalName) else short_repr(kind)
    if last.removesuffix("Storage") not in STORAGES:
        raise ValueError(f"its tensors have numbers of an unknown kind, {last}")
    return np.dtype(STORAGES[last.removesuffix("Storage")])


def _numbers(content: bytes, kind: Any, big: bool = False) -> np.ndarray:
    numbers = np.frombuffer(content, _dtype_of(kind).newbyteorder(">" if big else "<"))
    if kind.last == "BFloat16Storage":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(numbers.dtype.newbyteorder("="))


# Pickles --------------------------------------------------------------------------------------------------------------


def _unpickled(stream: io.BytesIO, where: str, size: int, storages: Storages | None = None) -> Any:
    """Return what the next pickle of a stream holds; `size` is how many bytes the file has, unpacked."""
    start = stream.tell()
    try:
        if sum(1 for _ in pickletools.genops(stream)) > MOST:
            raise ValueError(TOO_MUCH)
        stream.seek(start)
        return _Reader(stream, size, storages).load()
    except DAMAGE_ERRORS as error:
        raise FileError(f"{where} is damaged, or no pickle of a policy: {first_line(error)}") from None


class _Reader(pickle._Unpickler):
    """Python's own unpickler, the one that is written in Python, as each of its steps can be given another meaning.

    All that it would call goes through `_instantiate`, and what it would tell objects through `load_build`.
    """

    dispatch: ClassVar[dict[int, Any]] = pickle._Unpickler.dispatch.copy()
    stack: list[Any]  # since the last mark
    append: Callable[[Any], None]

    def __init__(self, stream: io.BytesIO, size: int, storages: Storages | None) -> None:
        super().__init__(stream, encoding="latin1")
        self.storages, self.left = storages, ROOM + FACTOR * size

    def find_class(self, module: str, name: str) -> GlobalName:
        self.take(len(module) + len(name))
        return GlobalName(f"{PYTHON_2.get(module, module)}.{name}")

    def persistent_load(self, key: Any) -> np.ndarray:
        if self.storages is None:
            raise ValueError("it points to something outside of itself")
        return self.storages(key)

    def take(self, *made: Any) -> None:
        """Count bytes, or things: a short pickle could make the same large one again and again."""
        for each in made:
            self.left -= each if isinstance(each, int) else max(sys.getsizeof(each), getattr(each, "nbytes", 0))
        if self.left < 0:
            raise ValueError(TOO_MUCH)

    def _instantiate(self, function: Any, args: Any) -> None:
        made = build_object(function, tuple(args))
        self.take(made, args)
        self.append(made)

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
                    self.take(part)
                    target.state.update(part)
        elif isinstance(target, np.dtype):
            if state[1] not in "<>|=":
                raise ValueError("an array's type is damaged")
            target.__setstate__((3, state[1], None, None, None, -1, -1, 0))  # type: ignore[attr-defined]
        elif isinstance(target, np.ndarray):
            self.take(_filled(target, state))


def _with_checked_keys(step: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """Return a step before which the keys of a dict or a set, which are at that place of the stack, are checked."""

    def checked(reader: _Reader) -> None:
        _keys(reader.stack[keys])
        step(reader)

    return checked


_Reader.dispatch |= {
    pickle.REDUCE[0]: _Reader.load_reduce,
    pickle.NEWOBJ[0]: _Reader.load_reduce,
    pickle.NEWOBJ_EX[0]: _Reader.load_newobj_ex,
    pickle.BUILD[0]: _Reader.load_build,
} | {
    code[0]: _with_checked_keys(_Reader.dispatch[code[0]], keys)
    for code, keys in (
        (pickle.SETITEM, slice(-2, -1)),
        (pickle.SETITEMS, slice(None, None, 2)),
        (pickle.DICT, slice(None, None, 2)),
        (pickle.ADDITEMS, slice(None)),
        (pickle.FROZENSET, slice(None)),
    )
}


# What is put together here --------------------------------------------------------------------------------------------


def build_object(function: Any, args: tuple[Any, ...]) -> Any:
    """Return an array or a plain container where the name is one of those below; else a shell."""
    maker = MAKERS.get(function.text) if isinstance(function, GlobalName) else None
    made = NotImplemented if maker is None else maker(*args)
    return ObjectStub(function, args) if made is NotImplemented else made


def _keys(entries: Iterable[Any]) -> list[Any]:
    """Return what a dict or a set may be made of. (To hash nested tuples can take as long as a short pickle wishes.)"""
    entries = list(entries)
    if any(isinstance(key, tuple | frozenset) for key in entries):
        raise ValueError("a key in it is neither text nor a number")
    return entries


def _dict(entries: Any = (), *_: Any) -> dict[Any, Any]:
    entries = [*entries.items()] if isinstance(entries, dict) else list(entries)
    _keys(key for key, _ in entries)
    return dict(entries)


def _dtype(name: Any = None, *_: Any) -> Any:
    if not isinstance(name, str) or len(name) > 3:
        return NotImplemented
    dtype = np.dtype(name, False, True)  # type: ignore[call-overload]  # a copy, as its byte order may be set
    return dtype if dtype.kind in PLAIN else NotImplemented


def _bytes(text: Any, encoding: str = "latin1", *_: Any) -> Any:
    return text.encode("latin1") if isinstance(text, str) and encoding in ("latin1", "latin-1") else NotImplemented


def _filled(array: np.ndarray, state: Any) -> np.ndarray:
    """Give an array its own shape, type and bytes, after `_reconstruct` made an empty one, and return it."""
    _, shape, dtype, fortran, content = state
    if not isinstance(dtype, np.dtype):
        return array  # one of objects stays empty
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
    made = _from_buffer(content.encode("latin1") if isinstance(content, str) else content, dtype)
    return made if made is NotImplemented else made[0]


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Any:
    """Return a tensor as an array that shows a part of its storage, and is never larger."""
    if not isinstance(storage, np.ndarray):
        return NotImplemented
    size, stride = [int(number) for number in size], [int(number) for number in stride]
    count = int(np.prod(size, dtype=object))
    last = offset + sum((number - 1) * step for number, step in zip(size, stride, strict=True)) if count else offset
    if min([offset, *size, *stride]) < 0 or count > len(storage) or (count and last >= len(storage)):
        raise ValueError(f"a tensor of shape {tuple(size)} does not fit into the {len(storage)} numbers that it shows")
    steps = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)


MAKERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "flax.core.frozen_dict.FrozenDict": _dict,
    "builtins.set": lambda entries=(): set(_keys(entries)),
    "builtins.frozenset": lambda entries=(): frozenset(_keys(entries)),
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
    "jax._src.array._reconstruct_array": lambda _, __, state, *___: _filled(np.empty(0), state),
    "jax._src.device_array.reconstruct_device_array": lambda _, __, state, *___: _filled(np.empty(0), state),
}
for _core in ("numpy.core", "numpy._core"):
    MAKERS[f"{_core}.multiarray._reconstruct"] = lambda *_: np.empty(0)
    MAKERS[f"{_core}.multiarray.scalar"] = _scalar
    MAKERS[f"{_core}.numeric._frombuffer"] = _from_buffer
