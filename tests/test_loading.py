"""Objects named by text, and the nearest names to one that is unknown."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repolicy.envs.making import make_envs
from repolicy.errors import UsageError
from repolicy.loading import load_object, reference_to
from repolicy.text import format_digits, stem_of, suggest


def test_a_file_may_hold_dataclasses(tmp_path: Path) -> None:
    content = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Pair:\n    a: int\n"
    )
    (tmp_path / "mine.py").write_text(content)
    assert load_object(f"{tmp_path / 'mine.py'}:Pair", "thing")(3).a == 3


def test_a_file_finds_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "a_neighbour_of_mine.py").write_text("answer = 42\n")
    (tmp_path / "mine.py").write_text("from a_neighbour_of_mine import answer\n")
    assert load_object(f"{tmp_path / 'mine.py'}:answer", "number") == 42


def test_an_edit_within_the_same_second_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for answer in (41, 42):
        path.write_text(f"answer = {answer}\n")
        os.utime(path, (1e9, 1e9))
        assert load_object(f"{path}:answer", "number") == answer


def test_a_file_is_run_once_for_all_environments_of_a_batch(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\nfrom tiny_envs import Endless\nos.mkdir(__file__ + '.ran')\n")
    make_envs(f"{tmp_path / 'mine.py'}:Endless", 3, 0)  # a second time, the folder would be there


def test_figures_have_no_exponent_and_a_number_behind_a_dot_is_no_suffix() -> None:
    found = [format_digits(value, digits) for value, digits in ((-1460.4, 4), (284.0, 2), (0.01234, 2), (1234567.0, 2))]
    assert found == ["−1,460", "280", "0.012", "1,200,000"]
    stems = [stem_of(name) for name in ("runs/omega-0.1", "a/mine.safetensors", "zoo", "x.pt")]
    assert stems == ["omega-0.1", "mine", "zoo", "x"]


def test_from_the_folder_that_one_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_module_of_my_own.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert load_object("a_module_of_my_own:answer", "number") == 42


def test_functions_that_are_called_the_same_are_several() -> None:
    def made(number: float) -> Any:
        def reward(*_: Any) -> float:
            return number

        return reward

    functions = [made(1.0), made(2.0), partial(max, 3.0), partial(max, 4.0), lambda: 5.0, lambda: 6.0]
    references = [reference_to(function) for function in functions]
    assert [load_object(reference, "it") for reference in references] == functions
    assert [reference_to(function) for function in functions] == references  # and each keeps its name


CELL = """
class Maze:
    limits = {LIMITS}
    def __init__(self): super().__init__()
    def reset(self): return {NUMBER}

def quiet(observations, actions, after, info, weight={NUMBER}):
    return weight * actions[:, 0] + {NUMBER}

quiet.metric = lambda *_: {NUMBER}
"""


def ran(cell: dict[str, Any], number: float, limits: str = "()") -> list[str]:
    """Run a notebook's cell; the names of what it defines."""
    exec(CELL.replace("{NUMBER}", str(number)).replace("{LIMITS}", limits), cell)
    return [reference_to(cell[name]) for name in ("Maze", "quiet")]


def test_what_is_defined_anew_gets_a_name_of_its_own_unless_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.loading._session", {})
    notebook = {"__name__": "__main__", "array": np.zeros}
    first, before = ran(notebook, 0.5), dict(notebook)
    assert first == ["session:Maze", "session:quiet"]
    assert ran(notebook, 0.5) == first  # so that a run resumes where its cell ran again
    assert ran(notebook, 0.25) == ["session:Maze_2", "session:quiet_2"]
    assert load_object(first[1], "wish")(*np.ones((4, 1, 1))) == before["quiet"](*np.ones((4, 1, 1))) == 1.0
    assert load_object(first[0], "environment")().reset() == 0.5
    assert ran(notebook, 0.5) == first  # and back
    assert ran(notebook, 0.5, "array(2)")[0] == "session:Maze_3"
    assert ran(notebook, 0.5, "array(2)")[0] == "session:Maze_4"  # arrays are not compared
    assert ran({"__name__": "__main__"}, 0.5)[1] == "session:quiet_3"  # it would read other globals


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("hypot", "add-on 'hypot' is not of the form module:name or file.py:name"),
        ("math:", "is not of the form"),
        ("math:hypott", "math has no 'hypott'; did you mean hypot"),
        ("no_such_module_at_all:f", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("nowhere/mine.py:f", "there is no file /.*/nowhere/mine.py$"),
    ],
)
def test_what_is_wrong_is_said(reference: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_object(reference, "add-on")


def test_a_file_that_fails_is_one_sentence(tmp_path: Path) -> None:
    for content, why in (("raise SystemExit(3)\n", r"it called sys.exit\(3\)"), ("def f(:\n", "SyntaxError")):
        (tmp_path / "mine.py").write_text(content)
        with pytest.raises(UsageError, match=f"mine.py:f' cannot be imported: {why}"):
            load_object(f"{tmp_path}/mine.py:f", "environment")


def test_nearest() -> None:
    known = ["Hopper-v4", "Hopper-v5", "Ant-v4", "HalfCheetah-v4"]
    assert suggest("Hoper-v4", known) == "; did you mean Hopper-v4 or Hopper-v5?"
    assert suggest("Ant-v44", known) == "; did you mean Ant-v4?"
    assert suggest("xyz", known) == ""
