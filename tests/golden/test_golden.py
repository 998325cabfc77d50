"""Files that an earlier version wrote are read, say the same numbers, and go on."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make import EXPORTED, RUNS, WISHES, paid, told

from repolicy import rql
from repolicy.learning import multipliers
from repolicy.learning.training import customize, train
from repolicy.many.sweep_folder import SweepFolder
from repolicy.objective import soft
from repolicy.policies.storage import read
from repolicy.rql.customizing import Request as ResidualQLearning
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request

HERE = Path(__file__).parent
FOLDERS = sorted(HERE.glob("v*"))
POLICIES = {
    (folder, name): said for folder in FOLDERS for name, said in json.loads((folder / "told.json").read_text()).items()
}


@pytest.mark.parametrize(("folder", "name"), POLICIES, ids=lambda part: str(getattr(part, "name", part)))
def test_a_policy_says_what_it_said(folder: Path, name: str) -> None:
    for what, values in told(folder / name).items():
        np.testing.assert_allclose(values, POLICIES[folder, name][what], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [EXPORTED, *WISHES])
def test_a_graph_and_a_wish_say_what_they_said(name: str) -> None:
    later = HERE / "later"
    for what, values in (told if name == EXPORTED else paid)(later / name).items():
        np.testing.assert_allclose(values, json.loads((later / "told.json").read_text())[name][what], rtol=1e-4)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_run_goes_on_where_it_stopped(
    folder: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipliers, "RETURN_EPISODES", 2)
    run = tmp_path / name
    shutil.copytree(folder / name, run)
    before = RunFolder(run).latest_checkpoint()
    assert before is not None
    again: dict[str, Any] = {"out": run, "resume": True}
    prior = run / "prior.safetensors"
    result = customize(prior, **again) if prior.exists() else train("CartPole-v1", **again)
    assert result.finished
    assert result.steps > before[1]["steps"]
    moved = ("kept", "limit_hind_leg<=0.3", "multiplier_hind_leg<=0.3", "multiplier_x_velocity>=-9")
    assert name != "held" or all(np.isfinite(result.last[each]) for each in moved)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_sweep_and_a_run_of_residual_q_learning_are_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "rql", tmp_path / "rql")
    swept, run = SweepFolder(folder / "swept").read(), RunFolder(tmp_path / "rql", Request, ResidualQLearning)
    assert [point["omega"] for point in swept["points"]] == swept["omegas"] == [0.1, 1.0]
    assert run.latest_checkpoint() is not None
    assert rql.train("repolicy.rql.tasks:CartPole", soft(0.5), tmp_path / "rql", resume=True).finished


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_file_says_its_format(folder: Path) -> None:
    for path in folder.rglob("*.safetensors"):
        assert read(path)[1]["format"] == 1
    for path in [*folder.rglob("run.json"), *folder.rglob("sweep.json")]:
        assert json.loads(path.read_text())["format"] == 1


def test_the_files_stay_small() -> None:
    files = [path for path in HERE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert sum(path.stat().st_size for path in files) <= 300_000
