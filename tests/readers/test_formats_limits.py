"""Small files that would take very long to read, or very much memory: each is refused before it does."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import describe
from made_checkpoints import Seen, brax_file, with_entry
from made_graphs import script, stacked
from torch import nn

from repolicy.errors import FileError
from repolicy.policies import ActionSpace
from repolicy.readers import pickles
from repolicy.readers.context import read_statistics
from repolicy.readers.description import CannotCopyError
from repolicy.readers.operations import OPERATIONS, TracedValue
from repolicy.readers.perceptrons import actions_of, observations_of
from repolicy.readers.pickles import GlobalName, ObjectStub, load, read_pickle

DEEP = b")" + b"2\x86" * 20  # nested tuples that hold 2^20 of them


NO_KEY, NO_NAME = "a key in it is neither text nor a number", "requires str"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"}" + DEEP + b"Ns.", NO_KEY),
        (b"}(" + DEEP + b"Nu.", NO_KEY),
        (b"(" + DEEP + b"Nd.", NO_KEY),
        (b"(" + DEEP + b"\x91.", NO_KEY),
        (b"\x8f(" + DEEP + b"\x90.", NO_KEY),
        (b"c__builtin__\nset\n](" + DEEP + b"e\x85R.", NO_KEY),
        (b"c__builtin__\nfrozenset\n](" + DEEP + b"e\x85R.", NO_KEY),
        (b"ccollections\nOrderedDict\n](" + DEEP + b"N\x86e\x85R.", NO_KEY),
        (DEEP + b"\x8c\x01a\x93.", NO_NAME),
        (b"\x8c\x01a" + DEEP + b"\x93.", NO_NAME),
    ],
)
def test_what_takes_long_to_hash_is_no_key_and_what_takes_long_to_write_no_name(content: bytes, sentence: str) -> None:
    with pytest.raises(FileError, match=sentence):
        read_pickle(b"\x80\x04" + content, "a file")


SIZE = 2**20
TEXT = b"X" + SIZE.to_bytes(4, "little") + b"a" * SIZE + b"q\x01"  # so many letters, remembered as number 1
BYTES = b"B" + TEXT[1:]
NONES = b"](" + b"N" * 2**17 + b"eq\x01"
TABLE = b"}q\x01(" + b"".join(b"M" + n.to_bytes(2, "little") + b"N" for n in range(2**16)) + b"u"
STATE = b"(K\x01J" + SIZE.to_bytes(4, "little") + b"\x85cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85R\x89h\x01t"


NEGATIVE = b"ctorch._utils\n_rebuild_parameter\nJ\x00\x00\x00\x80\x85R"  # which does not raise the limit


@pytest.mark.parametrize(
    ("made", "again"),
    [
        (b"c_codecs\nencode\nq\x00" + TEXT, b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R"),
        (NEGATIVE + b"c_codecs\nencode\nq\x00" + TEXT, b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R"),
        (b"c__builtin__\nbytearray\nq\x00" + BYTES, b"h\x00h\x01\x85R"),
        (b"c__builtin__\nlist\nq\x00" + NONES, b"h\x00h\x01\x85R"),
        (b"cmine\nKind\nq\x00" + NONES, b"h\x00h\x01R"),
        (b"cmine\nKind\nq\x00" + TABLE, b"h\x00)Rh\x01b"),
        (TEXT, b"h\x01h\x01\x93"),
        (b"cnumpy.core.multiarray\n_reconstruct\nq\x00" + TEXT, b"h\x00)R" + STATE + b"b"),
    ],
)
def test_one_large_thing_is_not_made_again_and_again(made: bytes, again: bytes) -> None:
    """A few times are fine: a tensor may be pickled as text, and be a parameter as well."""
    read_pickle(b"\x80\x04](" + made + 3 * again + b"e.", "a file")
    with pytest.raises(FileError, match="it would unpack to far more than it holds"):
        read_pickle(b"\x80\x04](" + made + 400 * again + b"e.", "a file")


@pytest.mark.parametrize(
    "many",
    [
        b"(" + b"\x8f" * 600 + b"l",  # sets
        b"(" + b"]" * 600 + b"l",
        b"(" + b"}" * 600 + b"l",
        b"(" + b"N\x85" * 600 + b"l",  # tuples of one
        b"(" + b"(t" * 600 + b"l",
        b"N" + b"\x94" * 600,  # what remembers the same thing, again and again
        b"}(" + b"".join(b"J" + n.to_bytes(4, "little") + b"N" for n in range(600)) + b"u",
        b"\x8f(" + b"".join(b"J" + n.to_bytes(4, "little") for n in range(600)) + b"\x90",
    ],
)
def test_many_small_things_are_counted(many: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pickles.MAX_OPCODES < 600_000  # of some hundred bytes each
    monkeypatch.setattr(pickles, "MAX_OPCODES", 500)
    with pytest.raises(FileError, match="it would unpack to far more than it holds"):
        read_pickle(b"\x80\x04" + many + b".", "a file")


def test_tensors_may_share_their_numbers_a_few_times() -> None:
    shared = torch.arange(1_500_000.0)
    for count in (3, 15):
        buffer = io.BytesIO()
        torch.save({str(n): shared.view(1500, 1000) for n in range(count)}, buffer)
        if count == 3:
            assert all(each[1499, 999] == 1_499_999.0 for each in load(buffer.getvalue(), "a file").values())
        else:
            with pytest.raises(FileError, match="far more than it holds"):
                load(buffer.getvalue(), "a file")


def test_rows_of_rows_are_no_array(tmp_path: Path) -> None:
    """Each row may be the same one."""
    rows = ((0.0, 0.0), (0.0, 0.0))
    layer = {"kernel": np.ones((5, 4), "f4"), "bias": rows}
    with pytest.raises(FileError, match="stands where an array is expected"):
        describe(brax_file(tmp_path / "params", hidden_0=layer))
    (tmp_path / "seen.pkl").write_bytes(pickle.dumps(Seen(obs_rms=Seen(mean=rows, var=rows), clip_obs=10.0)))
    with pytest.raises(FileError, match="stands where an array is expected"):
        read_statistics(tmp_path / "seen.pkl")


# Spaces ---------------------------------------------------------------------------------------------------------------
def space(name: str, **state: Any) -> ObjectStub:
    return ObjectStub(GlobalName(f"gymnasium.spaces.{name}"), state=state)


def test_a_dict_within_a_dict_is_refused() -> None:
    inner = space("Dict", spaces={"a": space("Box", _shape=(3,))})
    assert observations_of(inner) == (("a", 3),)
    with pytest.raises(CannotCopyError, match="its observations are a Dict"):
        observations_of(space("Dict", spaces={"a": inner, "b": inner}))


def test_choices_that_do_not_begin_at_0_are_refused() -> None:
    for space_of in (space("Discrete", n=3, start=np.int64(0)), space("MultiDiscrete", nvec=np.array([3]))):
        assert actions_of(space_of) == ActionSpace("discrete", (3,))
    for name, told in (("Discrete", {"n": 3, "start": np.int64(1)}), ("MultiDiscrete", {"start": np.array([0, 1])})):
        with pytest.raises(CannotCopyError, match="choices begin at .*1.* may have sent them counted from 0"):
            actions_of(space(name, **told))


def test_switches_are_counted_before_they_are_made() -> None:
    for n in (3, (3,), np.array([3])):
        assert actions_of(space("MultiBinary", n=n)).sizes == (2, 2, 2)
    for n in (200_000, (2, 100_000)):
        with pytest.raises(ValueError, match="200,000 switches"):
            actions_of(space("MultiBinary", n=n))
    with pytest.raises(TypeError):
        actions_of(space("MultiBinary", n=(2**30, (1, 1))))
    with pytest.raises(TypeError):
        observations_of(space("Box", _shape=(2**30, (1, 1))))


# TorchScript ----------------------------------------------------------------------------------------------------------
def test_lists_of_lists_are_no_numbers() -> None:
    row = [1.0, 2.0]
    assert OPERATIONS["add"]([row, row], {}).tolist() == [2.0, 4.0]
    for name, args in (("add", [TracedValue(()), [row]]), ("linear", [TracedValue(()), [row]]), ("sqrt", [[row]])):
        with pytest.raises(ValueError, match="a list of no numbers"):
            OPERATIONS[name](args, {})


def test_code_that_is_too_deep_for_pythons_parser(tmp_path: Path) -> None:
    path = script(tmp_path / "policy.pt", stacked(nn.Tanh()), 5)
    with zipfile.ZipFile(path) as archive:
        content = with_entry(archive, ".py", lambda _: b"x = " + b"-" * 60_000 + b"1\n")
    path.write_bytes(content)
    with pytest.raises(CannotCopyError, match="cannot be copied: its code has a line that is nested too deep"):
        describe(path)
