"""A run's folder: its newest whole checkpoint, one request, one run at a time."""

import json
from pathlib import Path

import pytest
import torch

from repolicy.errors import FileError, UsageError
from repolicy.objective import soft
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

STATE = {"parameters": torch.arange(4.0)}


def with_segments(tmp_path: Path, count: int) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    for segment in range(1, count + 1):
        folder.save(segment, {"parameters": STATE["parameters"] * segment}, {"iteration": 10 * segment})
    return folder


def test_the_newest_checkpoint_is_taken(tmp_path: Path) -> None:
    folder = with_segments(tmp_path, 11)
    found = folder.latest()
    assert found is not None
    tensors, story, complaints = found
    assert torch.equal(tensors["parameters"], STATE["parameters"] * 11)
    assert (story["segment"], story["iteration"], complaints) == (11, 110, [])
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["000010.safetensors", "000011.safetensors"]


def test_checkpoints_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for segment in (999_998, 999_999, 1_000_000, 1_000_001):
        folder.save(segment, STATE, {"iteration": segment})
        (tmp_path / "checkpoints" / "1 copy.safetensors").touch()
        found = folder.latest()
        assert found[1]["segment"] == segment
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["1 copy.safetensors", "1000000.safetensors", "1000001.safetensors"]


def test_there_may_be_none_yet(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "run").latest() is None


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    folder = with_segments(tmp_path, 3)
    newest = tmp_path / "run" / "checkpoints" / "000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    found = folder.latest()
    assert found is not None
    _, story, complaints = found
    assert story["segment"] == 2
    assert len(complaints) == 1
    assert "000003.safetensors is damaged" in complaints[0]
    assert complaints[0].endswith("; going on from the one before")


def test_when_all_are_damaged_that_is_said(tmp_path: Path) -> None:
    folder = with_segments(tmp_path, 2)
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.write_bytes(b"")
    with pytest.raises(FileError, match=r"000002.* is damaged.*000001.* is damaged.*; there is no other checkpoint$"):
        folder.latest()


REQUEST = json.loads(json.dumps(Request("Ant-v4", soft(0.1), Settings(steps=100), ("a",)).as_dict()))


@pytest.mark.parametrize(
    "name", ["policy.safetensors", "metrics.jsonl", "prior.safetensors", "sweep.json", "report.html"]
)
def test_files_of_nobodys_run_are_not_written_over(tmp_path: Path, name: str) -> None:
    mine, prior = tmp_path / name, tmp_path / "elsewhere"
    mine.write_text("mine")
    prior.write_text("a prior")
    with pytest.raises(UsageError, match=f"{name} is there already, and of no run"):
        RunFolder(tmp_path).begin({}, {}, False, prior)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "run.json").exists()


def test_a_run_that_was_killed_as_it_began_may_begin_again(tmp_path: Path) -> None:
    (tmp_path / "prior.safetensors").write_text("a prior")
    RunFolder(tmp_path).begin(REQUEST, {}, True, b"a prior")
    assert RunFolder(tmp_path).request() == REQUEST


def test_a_folder_belongs_to_one_request(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.request() is None
    folder.begin(REQUEST, {"torch": "2"}, resume=False)
    folder.begin(REQUEST, {"torch": "3"}, resume=True)
    assert folder.request() == REQUEST
    with pytest.raises(UsageError, match="holds a run already; add --resume to go on with it, or choose another --out"):
        folder.begin(REQUEST, {}, resume=False)
    other = Request("Hopper-v4", soft(0.1), Settings(steps=200), ("a",)).as_dict()
    with pytest.raises(
        UsageError, match="with other settings: env was Ant-v4 and is now Hopper-v4; steps was 100 and is now 200$"
    ):
        folder.begin(other, {}, resume=True)
    assert folder.request() == REQUEST


def test_a_run_that_began_before_there_was_a_setting_goes_on(tmp_path: Path) -> None:
    settings = {name: value for name, value in REQUEST["settings"].items() if name != "surrogate"}
    folder = RunFolder(tmp_path)
    folder.begin(REQUEST | {"settings": settings}, {}, resume=False)
    folder.save(1, STATE, {"iteration": 10})
    folder.metrics.touch()
    folder.policy.touch()
    assert folder.begin(REQUEST, {}, resume=True) == []


def test_one_run_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(FileError, match="another run is at work in .*run; wait for it"):
        RunFolder(tmp_path / "run").locked().__enter__()
    with folder.locked():
        pass  # it is free again


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(FileError, match="cannot be used as a run's folder: File exists"):
        RunFolder(tmp_path / "run").locked().__enter__()
