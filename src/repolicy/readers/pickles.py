"""Reading a pickle without running it.

A pickle is a program that may call whatever it names. Here it is interpreted and nothing is ever called: a name stays
a `Name`, and what would have been an object is an empty `Shell` that remembers its arguments and its state. Plain
containers, NumPy's arrays and PyTorch's tensors (as arrays) are the exception: they are put together here, from the
bytes that are in the file, and all of them together are not much larger than the file.
"""

import pickletools
import reprlib
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repolicy.errors import FileError, first_line

Storages = Callable[[Any], Any]  # from a key to a flat array, or to something that stays a shell
PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}
PLAIN = "biuf"  # kinds of NumPy's types: booleans, integers, and real numbers
DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, struct.error, RecursionError)
PLACE = 100  # bytes that an entry of a dict takes, such as of that which remembers what was made
ROOM, FACTOR = 2**24, 8  # so many bytes, and so many times those of the file and its tensors, may be made of a pickle


@dataclass(frozen=True)
class Name:
    """A class or a function that a pickle names. It is not imported."""

    text: str

    @property
    def last(self) -> str:
        return self.text.rpartition(".")[2]


@dataclass(eq=False)
class Shell:
    """What would have been an object: who would have made it, of what, and what it would have remembered."""

    name: Any
    args: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)

    @property
    def last(self) -> str:
        """The last part of its class's name."""
        return self.name.last if isinstance(self.name, Name) else "?"

    def __repr__(self) -> str:
        return f"<{self.last}>"


def read_pickle(content: bytes, where: str, storages: Storages | None = None) -> Any:
    """What a pickle holds, or one sentence about what is wrong with it. `storages` gives the bytes of tensors."""
    return read_pickles(content, where, storages)[0]


def read_pickles(content: bytes, where: str, storages: Storages | None = None) -> tuple[Any, int]:
    """The same of a pickle that other bytes may follow, and where they begin."""
    try:
        return _Reader(len(content), storages).run(content)
    except FileError:
        raise
    except DAMAGE as error:
        raise FileError(f"{where} is damaged, or no pickle of a policy: {first_line(error)}") from None


def shortened(found: Any) -> str:
    """What was in a pickle, for a sentence. (Its whole text can be as long as a short pickle wishes.)"""
    return reprlib.repr(found)[:80]


def array(found: Any) -> np.ndarray:
    """An array or a number of a pickle. (Nested tuples can be as many numbers as a short pickle wishes.)"""
    if not isinstance(found, np.ndarray | np.generic | int | float):
        raise TypeError(f"{shortened(found)} stands where an array is expected")
    return np.asarray(found)


_MARK = object()


class _Reader:
    """A pickle's stack machine, with nothing in it that could call out."""

    def __init__(self, size: int, storages: Storages | None) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages = storages
        self.left = ROOM + FACTOR * size  # bytes that may still be made
        self.counted: set[int] = set()  # the storages whose sizes are in it

    def run(self, content: bytes) -> tuple[Any, int]:
        for code, argument, position in pickletools.genops(content):
            if code.name == "STOP":
                return self.stack.pop(), (position or 0) + 1
            if code.name in _VALUES:
                self.stack.append(argument)
            elif code.name in _SINGLE:
                self.stack.append(_SINGLE[code.name])
            elif code.name in _EMPTY:
                self.push(_EMPTY[code.name]())
            elif code.name in _STEPS:
                _STEPS[code.name](self, argument)
            elif code.name not in ("PROTO", "FRAME"):
                raise ValueError(f"it uses {code.name}, which no library's file needs")
        raise ValueError("it ends too early")

    def above(self) -> list[Any]:
        """Everything above the last mark, which goes too."""
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                above = self.stack[index + 1 :]
                del self.stack[index:]
                return above
        raise ValueError("a mark is missing")

    def push(self, made: Any) -> None:
        """Put what was made on the stack, and count it."""
        self.stack.append(made)
        self.spend(made)

    def put(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]
        self.take(PLACE)

    def extend(self, entries: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Shell):
            target.items.extend(entries)
        elif isinstance(target, list):
            target.extend(entries)
        elif isinstance(target, set):
            self.take(PLACE * len(entries))
            target.update(_keys(entries))

    def assign(self, entries: list[Any]) -> None:
        target, pairs = self.stack[-1], [*zip(entries[::2], entries[1::2], strict=True)]
        if isinstance(target, Shell):
            target.items.extend(pairs)
        elif isinstance(target, dict):
            self.take(PLACE * len(pairs))
            target.update(_dict(pairs))

    def spend(self, *made: Any) -> None:
        """Count what was made: a short pickle could make the same large thing again and again."""
        self.take(sum(max(sys.getsizeof(each), getattr(each, "nbytes", 0)) for each in made))

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise ValueError("it would unpack to far more than it holds")

    def call(self, function: Any, args: Any) -> None:
        self.push(make(function, tuple(args)))
        self.spend(args)

    def build(self, state: Any) -> None:
        target = self.stack[-1]
        if isinstance(target, Shell):
            for part in state if isinstance(state, tuple) else (state,):
                self.spend(part)
                if isinstance(part, dict):
                    target.state.update(part)
                elif part is not None:
                    target.state.setdefault("", []).append(part)
        elif isinstance(target, np.dtype):
            if state[1] not in "<>|=":
                raise ValueError("an array's type is damaged")
            target.__setstate__((3, state[1], None, None, None, -1, -1, 0))  # type: ignore[attr-defined]
        elif isinstance(target, np.ndarray):
            _fill(target, state)
            self.spend(target)

    def persistent(self, key: Any) -> None:
        if self.storages is None:
            raise ValueError("it points to something outside of itself")
        self.stack.append(storage := self.storages(key))
        if isinstance(storage, np.ndarray) and id(storage) not in self.counted:
            self.counted.add(id(storage))
            self.left += FACTOR * storage.nbytes


def _named(argument: str) -> Name:
    """A name as it is today: older protocols write that of Python 2."""
    module, _, name = argument.partition(" ")
    return Name(f"{PYTHON_2.get(module, module)}.{name}")


def _instance(reader: _Reader, argument: str) -> None:
    reader.call(_named(argument), reader.above())


def _object(reader: _Reader, _: Any) -> None:
    function, *args = reader.above()
    reader.call(function, args)


def _reduce(reader: _Reader, _: Any) -> None:
    args, function = reader.stack.pop(), reader.stack.pop()
    reader.call(function, args)


def _new_with_keywords(reader: _Reader, _: Any) -> None:
    keywords, args, function = (reader.stack.pop() for _ in range(3))
    reader.call(function, (*args, *keywords.values()))


def _stack_global(reader: _Reader, _: Any) -> None:
    name, module = reader.stack.pop(), reader.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("a name in it is no text")
    reader.stack.append(named := _named(f"{module} {name}"))
    reader.spend(named.text)


def _tuple(count: int) -> Callable[[_Reader, Any], None]:
    def step(reader: _Reader, _: Any) -> None:
        if len(reader.stack) < count:
            raise ValueError("a tuple is cut short")
        made = tuple(reader.stack[-count:])
        del reader.stack[-count:]
        reader.push(made)

    return step


def _gathered(make: Callable[[list[Any]], Any]) -> Callable[[_Reader, Any], None]:
    return lambda reader, _: reader.push(make(reader.above()))


_SINGLE = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}

_STEPS: dict[str, Callable[[_Reader, Any], Any]] = {
    "MARK": lambda reader, _: reader.stack.append(_MARK),
    "POP": lambda reader, _: reader.stack.pop(),
    "POP_MARK": lambda reader, _: reader.above(),
    "DUP": lambda reader, _: reader.stack.append(reader.stack[-1]),
    "TUPLE": _gathered(tuple),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "LIST": _gathered(list),
    "FROZENSET": _gathered(lambda entries: frozenset(_keys(entries))),
    "DICT": _gathered(lambda entries: _dict(zip(entries[::2], entries[1::2], strict=True))),
    "APPEND": lambda reader, _: reader.extend([reader.stack.pop()]),
    "APPENDS": lambda reader, _: reader.extend(reader.above()),
    "ADDITEMS": lambda reader, _: reader.extend(reader.above()),
    "SETITEM": lambda reader, _: reader.assign([reader.stack.pop(-2), reader.stack.pop()]),
    "SETITEMS": lambda reader, _: reader.assign(reader.above()),
    "GLOBAL": lambda reader, argument: reader.stack.append(_named(argument)),
    "STACK_GLOBAL": _stack_global,
    "INST": _instance,
    "OBJ": _object,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_with_keywords,
    "BUILD": lambda reader, _: reader.build(reader.stack.pop()),
    "PERSID": lambda reader, argument: reader.persistent(argument),
    "BINPERSID": lambda reader, _: reader.persistent(reader.stack.pop()),
    "MEMOIZE": lambda reader, _: reader.put(None),
} | {
    f"{prefix}{name}": step
    for name, step in (
        ("PUT", lambda reader, index: reader.put(index)),
        ("GET", lambda reader, index: reader.stack.append(reader.memo[index])),
    )
    for prefix in ("", "BIN", "LONG_BIN")
}


# What is put together here --------------------------------------------------------------------------------------------


def make(function: Any, args: tuple[Any, ...]) -> Any:
    """An array or a plain container where the name is one of those below; else a shell."""
    maker = MAKERS.get(function.text) if isinstance(function, Name) else None
    made = NotImplemented if maker is None else maker(*args)
    return Shell(function, args) if made is NotImplemented else made


def _keys(entries: Iterable[Any]) -> list[Any]:
    """What a dict or a set may be made of. (To hash nested tuples can take as long as a short pickle wishes.)"""
    entries = list(entries)
    if any(isinstance(key, tuple | frozenset) for key in entries):
        raise ValueError("a key in it is neither text nor a number")
    return entries


def _dict(entries: Any = (), *_: Any) -> dict[Any, Any]:
    if not isinstance(entries, dict):
        entries = list(entries)
        _keys(key for key, _ in entries)
    return dict(entries)


def _dtype(name: Any = None, *_: Any) -> Any:
    if not isinstance(name, str) or len(name) > 3:
        return NotImplemented
    dtype = np.dtype(name, False, True)  # type: ignore[call-overload]  # a copy, as its byte order may be set
    return dtype if dtype.kind in PLAIN else NotImplemented


def _bytes(text: Any, encoding: str = "latin1", *_: Any) -> Any:
    return text.encode("latin1") if isinstance(text, str) and encoding in ("latin1", "latin-1") else NotImplemented


def _fill(array: np.ndarray, state: Any) -> None:
    """An array's own shape, type and bytes, after `_reconstruct` made an empty one."""
    _, shape, dtype, fortran, content = state
    if not isinstance(dtype, np.dtype):
        return  # an array of objects stays empty
    content = content.encode("latin1") if isinstance(content, str) else content
    if int(np.prod([int(size) for size in shape], dtype=object)) * dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
    whole: Any = (1, tuple(shape), dtype, bool(fortran), bytes(content))
    array.__setstate__(whole)


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any = "C") -> Any:
    if not isinstance(dtype, np.dtype) or not isinstance(content, bytes | bytearray):
        return NotImplemented
    return np.frombuffer(content, dtype).reshape(shape, order=order)


def _scalar(dtype: Any, content: Any = b"") -> Any:
    if not isinstance(dtype, np.dtype):
        return NotImplemented
    return np.frombuffer(_bytes(content) if isinstance(content, str) else content, dtype, 1)[0]


def _from_jax(_: Any, __: Any, state: Any, *___: Any) -> np.ndarray:
    array = np.empty(0)
    _fill(array, state)
    return array


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Any:
    """A tensor as an array of its own; never larger than the storage that it shows."""
    if not isinstance(storage, np.ndarray):
        return NotImplemented
    size, stride = [int(number) for number in size], [int(number) for number in stride]
    count = int(np.prod(size, dtype=object))
    last = offset + sum((number - 1) * step for number, step in zip(size, stride, strict=True)) if count else offset
    if min([offset, *size, *stride]) < 0 or count > len(storage) or (count and last >= len(storage)):
        raise ValueError(f"a tensor of shape {tuple(size)} does not fit into the {len(storage)} numbers that it shows")
    if not count:
        return np.empty(size, storage.dtype)
    view = np.lib.stride_tricks.as_strided(
        storage[offset:], size, [step * storage.itemsize for step in stride], writeable=False
    )
    return np.array(view)


MAKERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "flax.core.frozen_dict.FrozenDict": _dict,
    "builtins.set": lambda entries=(): set(_keys(entries)),
    "builtins.frozenset": lambda entries=(): frozenset(_keys(entries)),
    "builtins.list": lambda entries=(): list(entries) if isinstance(entries, list | tuple) else NotImplemented,
    "builtins.bytes": lambda content=b"", *_: content if isinstance(content, bytes) else NotImplemented,
    "builtins.bytearray": lambda content=b"", *_: bytes(content) if isinstance(content, bytes) else NotImplemented,
    "_codecs.encode": _bytes,
    "copyreg._reconstructor": lambda kind, *_: Shell(kind),
    "torch.Size": lambda size=(): tuple(size),
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
    "torch._tensor._rebuild_from_type_v2": lambda function, _, args, *__: make(function, tuple(args)),
    "numpy.dtype": _dtype,
    "jax._src.array._reconstruct_array": _from_jax,
    "jax._src.device_array.reconstruct_device_array": _from_jax,
}
for _core in ("numpy.core", "numpy._core"):
    MAKERS[f"{_core}.multiarray._reconstruct"] = lambda *_: np.empty(0)
    MAKERS[f"{_core}.multiarray.scalar"] = _scalar
    MAKERS[f"{_core}.numeric._frombuffer"] = _from_buffer
