"""Damaged or odd files, whose parts are not what a reader expects: each is refused in one sentence."""

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
from repolicy.readers.context import read_statistics
from repolicy.readers.description import CannotCopyError
from repolicy.readers.operations import OPERATIONS, TracedValue
from repolicy.readers.perceptrons import actions_of, observations_of
from repolicy.readers.pickles import GlobalName, ObjectStub, load


def test_a_storage_has_a_name(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(1)}, buffer)
    kept = with_entry(zipfile.ZipFile(buffer), "data.pkl", lambda pkl: pkl.replace(b"X\x01\x00\x00\x000", b")"))
    with pytest.raises(FileError, match="a storage in it has no name"):
        load(kept, "a file")


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
