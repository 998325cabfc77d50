"""The notebook of the first hour runs from top to bottom, with fewer steps."""

import json
import re
from pathlib import Path

import pytest
from typed_commands import with_few_states

from repolicy import evaluation
from repolicy.prepare import worth
from repolicy.runs.result import Result

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_hour.ipynb"
FEWER = {"STEPS": "256", "EPISODES": "1"}
SMALL = '"steps": STEPS, "envs": 8, "n_steps": 32, "minibatch": 64, "evaluation_episodes": 1'


def cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("agg")
    with_few_states(monkeypatch)
    monkeypatch.setattr(evaluation, "episode_cap", lambda _: 100)
    monkeypatch.setattr(worth, "MAX_EPISODE_STEPS", 20)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells():
        for name, value in FEWER.items():
            cell = re.sub(rf"^{name} = .*$", f"{name} = {value}", cell, flags=re.MULTILINE)
        cell = cell.replace('"steps": STEPS', SMALL)
        exec(compile(cell, "first_hour.ipynb", "exec"), names)
    assert names["STEPS"] == 256
    higher = names["higher"]
    assert isinstance(higher, Result)
    assert higher.finished
    said = capsys.readouterr().out
    assert "mean loudness" in said  # the add-on's metric, by its name
    assert "in 100 steps" in said


def test_it_is_kept_without_outputs() -> None:
    """They would be somebody's numbers of some day."""
    code = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert len({cell["id"] for cell in code}) == len(code)
