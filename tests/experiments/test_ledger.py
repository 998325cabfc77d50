"""A ledger grows, and tells when a line of it was changed."""

import json
import math
from pathlib import Path

import pytest

from experiments.ledger import Ledger, command, commit
from repolicy.errors import FileError


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(tmp_path / "folder" / "ledger.jsonl")
    found.add({"key": "a", "value": 1.5})
    found.add({"key": "b", "value": math.nan, "each": [1, {"ω": "π"}]})
    return found


def test_rows_come_back_as_they_were_added(ledger: Ledger) -> None:
    assert Ledger(ledger.path.with_name("none.jsonl")).rows() == []
    ledger.add({"key": "a", "value": 2.0})
    assert [row["key"] for row in ledger.rows()] == ["a", "b", "a"]
    made_by = {"command": command(), "commit": commit()}
    assert ledger.rows()[1] == made_by | {"key": "b", "value": None, "each": [1, {"ω": "π"}]}
    assert ledger.by_key()["a"]["value"] == 2.0


def test_a_line_may_be_written_anew_but_not_changed(ledger: Ledger) -> None:
    lines = ledger.path.read_text().splitlines()
    other_order = json.dumps(dict(reversed(json.loads(lines[0]).items())))
    ledger.path.write_text("\n".join([other_order, lines[1]]) + "\n")
    assert len(ledger.rows()) == 2
    ledger.path.write_text("\n".join([lines[0].replace("1.5", "9.5"), lines[1]]) + "\n")
    with pytest.raises(FileError, match=r"ledger.jsonl, line 1 was changed after it was written"):
        ledger.rows()


def test_a_last_line_without_its_end_stays_a_line(ledger: Ledger) -> None:
    ledger.path.write_text(ledger.path.read_text().removesuffix("\n"))
    ledger.add({"key": "c"})
    assert [row["key"] for row in ledger.rows()] == ["a", "b", "c"]
    assert ledger.path.read_text().count("\n") == 3


@pytest.mark.parametrize("line", ["no JSON", "{}", "[]", '{"key": "a"}', '{"key": "a", "sha', "null"])
def test_a_line_that_is_no_row_is_named(ledger: Ledger, line: str) -> None:
    with open(ledger.path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(FileError, match="line 3 is no row of a ledger"):
        ledger.rows()


def test_a_file_that_is_no_text_or_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    for name in ("bytes", "."):
        with pytest.raises(FileError, match="cannot be read"):
            Ledger(tmp_path / name).rows()
    with pytest.raises(FileError, match="cannot be written"):
        Ledger(tmp_path / "bytes" / "x").add({"key": "a"})


def test_one_program_fills_it_at_a_time(ledger: Ledger) -> None:
    with ledger.claimed():
        ledger.add({"key": "c"})
        with pytest.raises(FileError, match="another program is filling"), ledger.claimed():
            pass
    with ledger.claimed():
        assert len(ledger.rows()) == 3
