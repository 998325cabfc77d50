"""The reader of pickles: what it puts together, and that it runs nothing and allocates nothing that is not there."""

import collections
import contextlib
import io
import os
import pickle
import pickletools
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import describe, recognized
from made_checkpoints import with_entry

from repolicy.errors import FileError
from repolicy.readers.pickles import GlobalName, ObjectStub, load, read_pickle

PROTOCOLS = pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
INTEGERS = [sign * 2**power + more for power in (0, 8, 16, 31, 63, 70, 2100) for sign in (1, -1) for more in (-1, 0)]
FLOATS = [0.0, -0.0, 0.1, -1e308, 5e-324, float("inf"), float("-inf")]
TEXTS = ["", "a" * 300, "two\nlines\\", "ω′", "\x00", "\U0001f600", "\ud800"]
SCALARS = [None, True, False, *INTEGERS, *FLOATS, *TEXTS, *(text.encode("utf-8", "surrogatepass") for text in TEXTS)]
NESTED = [[], [SCALARS], {}, {text: [text] for text in TEXTS}, {2: {0.5: {None: ()}}}, *(SCALARS[:n] for n in range(5))]


@PROTOCOLS
@pytest.mark.parametrize("kept", [*SCALARS, *NESTED, *map(tuple, NESTED)], ids=range(len(SCALARS + 2 * NESTED)))
def test_plain_values_come_back(kept: Any, protocol: int) -> None:
    found = read_pickle(pickle.dumps(kept, protocol), "a file")
    assert (repr(found), type(found)) == (repr(kept), type(kept))


@PROTOCOLS
@pytest.mark.parametrize("kind", ["f4", ">f8", "i8", "u1", "?", "f2"])
def test_arrays_come_back(kind: str, protocol: int) -> None:
    array = np.arange(12).reshape(3, 4).astype(kind)
    for kept in (array, array.T, array[1:, ::2], np.zeros((0, 3), kind), array[0, 1]):
        found = read_pickle(pickle.dumps(kept, protocol), "a file")
        assert found.dtype.newbyteorder("=") == kept.dtype.newbyteorder("=")  # NumPy turns it around
        assert np.array_equal(found, kept)
        assert found.shape == kept.shape


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.bfloat16]
)
def test_tensors_come_back(dtype: torch.dtype) -> None:
    base = torch.arange(24).reshape(4, 6).to(dtype)
    kept = {"whole": base, "turned": base.t(), "part": base[1:3, 2:5], "one": base[2, 3], "none": base[:0]}
    kept["parameter"] = torch.nn.Parameter(base.float()).data
    buffer = io.BytesIO()
    torch.save(collections.OrderedDict(kept), buffer)
    found = load(buffer.getvalue(), "a file")
    assert found.keys() == kept.keys()
    for name, tensor in kept.items():
        wanted = tensor.float().numpy() if dtype == torch.bfloat16 else tensor.numpy()
        assert found[name].shape == wanted.shape
        assert np.array_equal(found[name], wanted)


def test_all_else_is_a_shell() -> None:
    made = {"seen": collections.Counter("aab"), "who": random.Random(0), "what": Path}
    kept = read_pickle(pickle.dumps(made), "a file")
    assert isinstance(kept["who"], ObjectStub)
    assert kept["who"].name == GlobalName("random.Random")
    assert kept["what"] == GlobalName("pathlib.Path") or kept["what"].last == "Path"
    assert isinstance(kept["seen"], ObjectStub)


class Calls:
    """A pickle of this calls a function when it is loaded."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@PROTOCOLS
def test_nothing_is_called(protocol: int, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    harmful = [
        Calls(os.mkdir, str(trap)),
        Calls(eval, f"__import__('os').mkdir({str(trap)!r})"),
        Calls(getattr, trap, "touch"),
        Calls(trap.touch),
    ]
    for kept in harmful:
        content = pickle.dumps({"weights": kept}, protocol)
        read_pickle(content, "a file")
        (tmp_path / "policy.pt").write_bytes(content)
        assert recognized(tmp_path / "policy.pt") is None
        assert not trap.exists()
    pickle.loads(pickle.dumps(harmful[0]))
    assert trap.exists()  # it would have


@pytest.mark.parametrize("shape", [(2**40,), (2**31, 2**31), (-1,), (3,)])
def test_an_array_is_never_larger_than_its_bytes(shape: tuple[int, ...]) -> None:
    plain = pickletools.optimize(pickle.dumps(np.zeros(1, "f8"), 2))
    assert plain.count(b"K\x01\x85") == 1
    other = b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", n) for n in shape) + b"t"
    with pytest.raises(FileError, match="a file is damaged"):
        read_pickle(plain.replace(b"K\x01\x85", other), "a file")


def saved_tensor() -> zipfile.ZipFile:
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(6.0).reshape(2, 3)}, buffer)
    return zipfile.ZipFile(buffer)


SHAPE, STRIDES, STORAGE = b"K\x02K\x03\x86", b"K\x03K\x01\x86", b"X\x01\x00\x00\x000"


@pytest.mark.parametrize(
    ("replaced", "sentence"),
    [
        ({SHAPE: b"K\xffK\xff\x86"}, "does not fit into"),
        ({SHAPE: b"K\xffK\xff\x86", STRIDES: b"K\x00K\x00\x86"}, r"\(255, 255\) does not fit into the 6 numbers"),
        ({b"FloatStorage": b"CloudStorage"}, "unknown kind"),
        ({STORAGE: b"X\x01\x00\x00\x009"}, "9 cannot be unpacked"),
        ({STORAGE: b")"}, "a storage in it has no name"),
    ],
)
def test_a_damaged_file_of_tensors_is_one_sentence(replaced: dict[bytes, bytes], sentence: str) -> None:
    def change(content: bytes) -> bytes:
        for old, new in replaced.items():
            assert old in content
            content = content.replace(old, new)
        return content

    with pytest.raises(FileError, match=sentence) as caught:
        load(with_entry(saved_tensor(), "data.pkl", change), "a file")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "end", "sentence"), [("data/0", -4, "does not fit into the 5 numbers"), ("data.pkl", 40, "damaged")]
)
def test_a_file_of_tensors_of_which_a_part_was_cut_is_one_sentence(ending: str, end: int, sentence: str) -> None:
    with pytest.raises(FileError, match=sentence):
        load(with_entry(saved_tensor(), ending, lambda content: content[:end]), "a file")


def test_a_file_of_an_old_pytorch_is_to_be_saved_again() -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(1)}, buffer, _use_new_zipfile_serialization=False)
    with pytest.raises(FileError, match="as PyTorch before 1.6 wrote it: torch.load it, and torch.save it again"):
        load(buffer.getvalue(), "a file")


def test_a_byte_of_the_table_of_contents_that_is_damaged_is_one_sentence() -> None:
    """Among them the version of zips that it asks for, which Python does not have."""
    content = with_entry(saved_tensor(), "data/0", lambda content: content)
    start = content.index(b"PK\x01\x02")
    for place in range(start, len(content)):
        damaged = content[:place] + b"\xff" + content[place + 1 :]
        with contextlib.suppress(FileError):
            load(damaged, "a file")
    damaged = content[: start + 6] + b"\xff" + content[start + 7 :]
    with pytest.raises(FileError, match=r"a file is no whole zip: zip file version"):
        load(damaged, "a file")


def test_an_entry_that_unpacks_out_of_proportion_is_refused() -> None:
    bomb = with_entry(saved_tensor(), "data/0", lambda _: bytes(5_000_000), zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    with pytest.raises(FileError, match="bytes would unpack to"):
        load(bomb, "a file")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x02}q\x00.", b"\x08\x07", b"hello there", bytes(64)]
)
def test_files_that_hold_no_policy_are_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.zip"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        describe(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_in_a_file_cannot_begin_a_line_of_a_message(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    torch.save({"a\nrepolicy: all is well": torch.zeros(1)}, path)
    with pytest.raises(FileError, match=r"a dict of a\\nrepolicy: all is well"):
        describe(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file"):
        describe(tmp_path / "policy.zip")
    with pytest.raises(FileError, match="cannot be read"):
        describe(tmp_path)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # Python's own word about a damaged string
def test_random_damage_is_one_sentence_or_another_value() -> None:
    """Bytes of pickles are changed at random: no error but a FileError comes out."""
    archive, chance = saved_tensor(), random.Random(0)

    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)

    for _ in range(200):
        with contextlib.suppress(FileError):
            load(with_entry(archive, "data.pkl", damage), "a file")
