"""Ledgers: how they grow, what made each row, what is older than its code, and statistics of few seeds."""

import argparse
import importlib
import json
import math
import re
import shlex
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import stale, statistics
from experiments.ledger import Ledger, checksum, current_command, current_commit
from experiments.statistics import bootstrap_interval, iqm, mean, mean_and_error, permutation_p_value
from repolicy.cli import main as cli
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
    made_by = {"command": current_command(), "commit": current_commit()}
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


@pytest.mark.parametrize("line", ["[]", '{"key": "a"}', '{"key": "a", "sha'])
def test_a_line_that_is_no_row_is_named(ledger: Ledger, line: str) -> None:
    with open(ledger.path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(FileError, match="line 3 is no row of a ledger"):
        ledger.rows()


def test_one_program_fills_it_at_a_time(ledger: Ledger) -> None:
    with ledger.locked():
        ledger.add({"key": "c"})
        with pytest.raises(FileError, match="another program is filling"), ledger.locked():
            pass
    with ledger.locked():
        assert len(ledger.rows()) == 3


def test_rows_are_stale_that_do_not_contain_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    commits = []
    for message in ("before", "the change", "after"):
        git("commit", "-q", "--allow-empty", "-m", message)
        commits.append(git("rev-parse", "HEAD").strip())
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    rows = [("old", commits[0]), ("edited", f"{commits[0]}+"), ("new", commits[1]), ("newest", f"{commits[2]}+")]
    rows += [("lost", "f" * 40)]
    written = [{"key": key, "commit": commit, "command": "repolicy customize a"} for key, commit in rows]
    written += [{"key": "prior", "commit": commits[0], "command": "repolicy evaluate a"}]
    (tmp_path / "runs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in written))
    (tmp_path / "none.jsonl").write_text("")
    change = stale.Change(commits[1], "it", ("runs", "none"), "repolicy customize")
    assert stale.stale_rows(tmp_path, change) == {"runs": ["old", "edited", "lost"]}
    assert stale.stale_rows(tmp_path, change._replace(keys="d$")) == {"runs": ["old", "edited"]}


RESULTS = Path(__file__).parents[2] / "results"


def test_a_change_names_ledgers_of_rows_that_have_a_key() -> None:
    for name in {name for change in stale.CHANGES for name in change.files}:
        lines = (RESULTS / f"{name}.jsonl").read_text().splitlines()
        assert all("key" in json.loads(line) for line in lines), name


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.jsonl")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_row_names_its_commit_and_a_command_that_is_understood(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows, start=1):
        missing = {"command", "commit"} - row.keys()
        assert not missing, f"row {number} lacks {' and '.join(sorted(missing))}"
        assert re.match(r"(repolicy|python) ", row["command"]), number
        assert not re.search(r"(^|[\s=])/", row["command"]), f"row {number} names a place on somebody's disk"
        assert re.fullmatch(r"[0-9a-f]{40}\+?", row["commit"]), number
        assert set(row.get("filled_in", [])) <= {"command", "commit"}
        if "key" in row:  # of a ledger
            assert row["sha256"] == checksum({name: value for name, value in row.items() if name != "sha256"})
    for command in {row["command"] for row in rows}:
        assert exit_code(shlex.split(command), monkeypatch) == 0, command


def exit_code(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a program that only reads its command line would end with: 2 for words that are not understood."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
        found = parse(parser, words)
        if parser.prog == "python -m experiments.llm":  # one of its programs parses the rest
            return found
        raise SystemExit(0)

    if words[0] == "repolicy":
        cli._parse_command(words[1:])
        return 0
    assert words[1] == "-m", f"{words}: a script does not find the other folders"
    module = importlib.import_module(words[2].replace(".llm", ".llm.__main__"))
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        patch.setattr("sys.argv", words[2:])
        with pytest.raises(SystemExit) as ended:
            module.main()
    return ended.value.code


def test_a_ledger_names_both_where_the_row_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    monkeypatch.setattr("sys.orig_argv", ["/somewhere/python3", "-m", "experiments.found", "--tasks", "go1 too"])
    ledger.add({"key": "mine"})
    ledger.add({"key": "told", "command": "repolicy train", "commit": "c" * 40})
    mine, told = ledger.rows()
    assert (mine["command"], mine["commit"]) == (current_command(), current_commit())
    assert mine["command"] == "python -m experiments.found --tasks 'go1 too'"
    assert (told["command"], told["commit"]) == ("repolicy train", "c" * 40)


X = np.array([[4.1, 0.2], [5.3, 0.9], [2.2, 0.4], [9.9, 0.7], [4.8, -3.0]])
Y = np.array([[3.9, 0.1], [4.1, 0.8], [1.0, 0.5], [5.5, 0.6]])


def test_the_figures_are_those_of_rliable() -> None:
    """rliable 1.2.0: aggregate_iqm."""
    assert iqm(X) == pytest.approx(2.1833333333333336, abs=1e-12)
    assert iqm(Y) == pytest.approx(1.575, abs=1e-12)


def test_an_interval_is_that_of_all_resamples() -> None:
    scores = np.array([[1.0], [2.0], [4.0]])
    every = np.array([scores[list(which)] for which in product(range(3), repeat=3)])
    low, high = np.quantile(mean(every), [0.1, 0.9])
    assert bootstrap_interval(mean, scores, share=0.8) == pytest.approx((low, high), abs=1e-9)


def test_a_chance_is_the_share_of_deals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3 and 3 there are 20 ways to deal; of 2^3 signs one is as large. Of too many so many are drawn."""
    low, high = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])

    def gap(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        return np.asarray(ours.mean(axis=-1) - theirs.mean(axis=-1))

    assert permutation_p_value(gap, high, low) == 1 / 20
    assert permutation_p_value(gap, low, high) == 1.0
    assert permutation_p_value(gap, high, np.array([3.5]), known=True) == 1 / 8
    seeds, others = np.random.default_rng(0).normal(size=(2, 6))  # 924 deals, 64 signs
    for sides, known in (((seeds + 0.5, others), False), ((seeds + 0.5, np.array([0.0])), True)):
        exact = permutation_p_value(gap, *sides, known)
        with monkeypatch.context() as patch:
            patch.setattr(statistics, "MAX_PERMUTATIONS", 60)
            assert (
                0.0 < abs(permutation_p_value(gap, *sides, known) - exact) < 0.15
            )  # drawn: 2.5 standard errors at most
            patch.setattr(statistics, "MAX_PERMUTATIONS", 50_000)
            assert permutation_p_value(gap, *sides, known) == exact


def test_a_standard_error_is_that_of_a_sample() -> None:
    """Of n − 1: two values 0 and 2 have a variance of 2, and their mean a standard error of 1."""
    assert mean_and_error(np.array([0.0, 2.0])) == [1.0, 1.0]
