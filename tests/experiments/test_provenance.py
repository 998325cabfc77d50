"""Every row of `results/` says what made it: the command, and the commit of the code."""

import json
import re
from pathlib import Path

import pytest

from experiments.ledger import Ledger, checksum, command, commit

RESULTS = Path(__file__).parents[2] / "results"
FILES = sorted(RESULTS.rglob("*.jsonl"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_every_row_names_its_command_and_its_commit(path: Path) -> None:
    for number, row in enumerate(map(json.loads, path.read_text().splitlines()), start=1):
        missing = {"command", "commit"} - row.keys()
        assert not missing, f"row {number} lacks {' and '.join(sorted(missing))}"
        assert re.match(r"(repolicy|python) ", row["command"]), number
        assert not re.search(r"(^|[\s=])/", row["command"]), f"row {number} names a place on somebody's disk"
        assert re.fullmatch(r"[0-9a-f]{40}\+?", row["commit"]), number
        assert set(row.get("filled_in", [])) <= {"command", "commit"}
        if "key" in row:  # of a ledger
            assert row["sha256"] == checksum({name: value for name, value in row.items() if name != "sha256"})


def test_a_ledger_names_both_where_the_row_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    monkeypatch.setattr("sys.orig_argv", ["/somewhere/python3", "-m", "experiments.found", "--tasks", "go1 too"])
    ledger.add({"key": "mine"})
    ledger.add({"key": "told", "command": "repolicy train", "commit": "c" * 40})
    mine, told = ledger.rows()
    assert (mine["command"], mine["commit"]) == (command(), commit())
    assert mine["command"] == "python -m experiments.found --tasks 'go1 too'"
    assert (told["command"], told["commit"]) == ("repolicy train", "c" * 40)
