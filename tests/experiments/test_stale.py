"""Rows that are older than the code that they depend on, in a clone of its own."""

import json
import subprocess
from pathlib import Path

import pytest

from experiments import stale

WHO = ("-c", "user.name=a", "-c", "user.email=a@b.c")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    stale.changed_since.cache_clear()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def committed(clone: Path, **files: str) -> str:
    """A commit of these files, `__` in a name for a folder; its name."""
    for name, text in files.items():
        path = clone / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "add", "-A"], cwd=clone, check=True)
    subprocess.run(["git", *WHO, "commit", "-qm", "a step"], cwd=clone, check=True)
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True)
    return told.stdout.strip()


def rows(*commits: str) -> str:
    return "".join(json.dumps({"key": str(index), "commit": each}) + "\n" for index, each in enumerate(commits))


def test_a_row_is_stale_once_what_it_depends_on_has_changed(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = committed(clone, src__repolicy__learning="1", src__repolicy__llm="1")
    second = committed(clone, src__repolicy__learning="2")
    third = committed(clone, src__repolicy__llm="2", docs="1")
    (clone / "results").mkdir()
    (clone / "results" / "runs.jsonl").write_text(rows(first, f"{first}+", second, third, "f" * 40))
    committed(clone, results__llm__dial="")
    expected = {
        ("runs.jsonl", first): (1, 1), ("runs.jsonl", f"{first}+"): (1, 1), ("runs.jsonl", "f" * 40): (1, None)
    }  # fmt: skip
    assert stale.stale(clone / "results") == expected
    monkeypatch.setattr("sys.argv", ["stale", "--results", str(clone / "results")])
    stale.main()
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"runs.jsonl: 1 rows of {first[:10]}, changed 1 times since"
    assert "ffffffffff, a commit that this clone does not have" in told[2]
    assert told[3] == "3 rows in 1 files are older than the code that they depend on"
    committed(clone, src__repolicy__learning="3")
    (clone / "results" / "new.jsonl").write_text(rows(first))  # git does not know it yet
    stale.changed_since.cache_clear()
    found = stale.stale(clone / "results")
    assert found["new.jsonl", first] == found["runs.jsonl", first] == (1, 2)
    assert sum(count for count, _ in found.values()) == 6


def test_what_a_kind_depends_on() -> None:
    assert "src/repolicy/llm" in stale.depends_on("llm/rate-0.002/frontier.jsonl")
    assert "src/repolicy/learning" in stale.depends_on("anything.jsonl")
    assert "src/repolicy/learning" not in stale.depends_on("adapters.jsonl")
    root = Path(stale.__file__).parents[1]
    assert all((root / path).exists() for paths in stale.KINDS.values() for path in paths)
