"""The experiments' own machinery: what is listed, resumed, tabulated, and a run of each that is as short as can be."""

import json
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="the extra `llm` is not installed")

from experiments.llm import budgets, frontier, gradients, labels, overhead, sharp, spelling, turning
from experiments.llm.__main__ import main
from experiments.llm.records import command_line, run_missing
from repolicy.errors import FileError, UsageError
from repolicy.llm import requirements
from repolicy.many.ledger import Ledger


def test_a_stopped_experiment_goes_on(tmp_path: Path) -> None:
    file, ran = tmp_path / "x.jsonl", []

    def run(job: Any) -> dict[str, Any]:
        ran.append(job["n"])
        if job["n"] == 2 and len(ran) == 3:
            raise KeyboardInterrupt
        return {"square": job["n"] ** 2}

    jobs = [{"n": n} for n in range(4)]
    with pytest.raises(KeyboardInterrupt):
        run_missing(jobs, file, "command", run)
    records = run_missing(jobs, file, "command", run)
    assert ran == [0, 1, 2, 2, 3]
    assert [record["square"] for record in records] == [0, 1, 4, 9]
    assert [row["job"]["n"] for row in Ledger(file).rows()] == [0, 1, 2, 3]


def test_nothing_to_tabulate(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.jsonl has no run with these settings"):
        run_missing([{"n": 1}], tmp_path / "x.jsonl", "command", dict, train=False)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"job"\n{"job": {}}\n')
    with pytest.raises(FileError, match=r"x\.jsonl, line 1 is no row of a ledger"):
        run_missing([{"n": 1}], file, "command", dict)


def test_gradients_tell_the_reward_from_the_loss(tmp_path: Path) -> None:
    record = gradients.gradients(gradients.Gradients(vocabulary=3, length=3, draws=3, output=tmp_path))
    cosine = record["cosine"]
    for name in ("KL: in the reward, returns onward", "entropy: in the reward, returns onward"):
        assert cosine[name] == pytest.approx(1, abs=1e-12)
        assert record["relative_norm"][name] == pytest.approx(1, abs=1e-12)
    assert cosine["KL: k3 in the loss, bias corrected"] < 0.99
    assert cosine["entropy: entropy_coef in the loss"] < 0.99
    assert (tmp_path / "gradients.md").read_text().count("\n| ") == 7


def test_frontier_jobs_are_all_different() -> None:
    jobs = [tuple(job.values()) for job in frontier.frontier_jobs(frontier.Frontier())]
    assert len(jobs) == len(set(jobs))
    assert {method for _, method, *_ in jobs} == {"onward", "decomposed", "grpo", "rloo", "whole"}
    assert {world for world, *_ in jobs} == set(frontier.WORLDS)


def test_frontier_table() -> None:
    measures = dict.fromkeys(("kl", "addon", "log_prior", "length", "entropy"), 1.0)
    job = {"world": "standard", "method": "residual", "omega": 0.1, "alpha": 0.2, "seed": 0}
    runs = [
        {"job": {**job, "seed": seed}, "before": measures, "after": {**measures, "kl": float(seed)}, "best": measures}
        for seed in (0, 1)
    ]
    assert "| standard | residual | 0.1 | 2 | 1.00 | 0.500 ± 0.707 |" in frontier.table(runs)


@pytest.mark.parametrize(("name", "worth"), [("ann", 0.5), ("anna", 0.5), ("emma", 0.5), ("jennett", 1.0), ("", 0.0)])
def test_doubled_letters(name: str, worth: float) -> None:
    assert spelling.doubled(name) == worth


def test_sampled_names_end_once() -> None:
    from experiments.llm.toy import new_model

    model = new_model(spelling.LETTERS, spelling.LONGEST, hidden=32, layers=1)
    rows = spelling.sample(model, 20, seed=0)
    assert all(0 not in row[:-1] and 1 <= len(row) <= spelling.LONGEST + 1 for row in rows)
    assert spelling.decode([1, 2, 0]) == "ab"
    assert torch.equal(torch.tensor(rows[0]), torch.tensor(spelling.sample(model, 20, seed=0)[0]))


def test_whole_experiments_in_little(
    toy: Any, prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line to table and picture; the second time, nothing is trained again."""
    monkeypatch.setattr(frontier, "WORLDS", {"standard": (toy, 1)})
    monkeypatch.setattr(labels, "TOY", toy)
    shutil.copytree(prior, tmp_path / "priors" / "standard")
    folders = ["--output", str(tmp_path / "out"), "--json"]
    toys = [*folders, "--priors", str(tmp_path / "priors"), "--seeds", "1"]
    little = ["--steps", "2", "--samples", "4"]
    for words, runs in (
        (["frontier", *toys, *little, "--omegas", "0.2", "--pairs", "8", "--no-controls"], 2),
        (["labels", *toys, "--pairs", "8"], 4),
        (["spelling", *folders, *little, "--pretraining", "2", "--omegas", "0.1", "--prior", str(tmp_path / "n")], 2),
    ):
        main(words)
        first = capsys.readouterr()
        found = json.loads(first.out)
        assert len(found["records"]) == runs
        assert f"{runs}/{runs}  " in first.err
        assert all(torch.tensor(r["after"]["kl"]).isfinite() for r in found["records"] if "after" in r)
        main(words)
        again = capsys.readouterr()
        assert json.loads(again.out) == found
        assert "/" not in again.err.replace(str(tmp_path), "").removeprefix("table: /out/")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("frontier.jsonl", "frontier.md", "frontier.png", "labels.jsonl", "labels.md", "labels.png"),
        *("spelling.jsonl", "spelling.md"),
    }


def test_later_experiments_in_little(
    toy: Any, prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (sharp, turning, budgets):
        monkeypatch.setattr(module, "WORLDS", {"standard": (toy, 1)})
    whole = turning.cost
    monkeypatch.setattr(turning, "cost", lambda: whole(tokens=2, rows=1, rounds=1))
    shutil.copytree(prior, tmp_path / "priors" / "standard")
    common = ["--output", str(tmp_path / "out"), "--priors", str(tmp_path / "priors"), "--seeds", "1", "--json"]
    for words, runs in (
        (["sharp", *common, "--steps", "2", "--samples", "4", "--omegas", "0.6"], 3),
        (["dial", *common, "--steps", "1", "--omegas", "0.2", "0.3"], 4),
        (["budget", *common, "--steps", "2", "--samples", "4", "--drawn", "8", "--starts", "0.1"], 2),
    ):
        main(words)
        found = json.loads(capsys.readouterr().out)
        assert len(found["records"]) == runs
        assert Path(found["table"]).read_text().count("\n|") >= 3
    exact = [r for r in Ledger(tmp_path / "out" / "dial.jsonl").rows() if r["job"].get("seed", 0) is None]
    assert exact[0]["after"][0]["kl"] == pytest.approx(0, abs=1e-9)  # at the anchor itself


def test_another_setting_is_another_run() -> None:
    usual, shorter = (frontier.frontier_jobs(frontier.Frontier(steps=steps))[0] for steps in (300, 30))
    assert usual != shorter


def test_time_of_steps(prior: Path) -> None:
    for name in overhead.TRAINERS:
        for ours in (False, True):
            times = overhead.step_times(name, ours, 5, prior, steps=3)
            assert len(times) == 1
            assert times[0] > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("frontier --alpha 0", "alpha is 0.0; the optimum divides by it, so it must be greater than 0"),
        ("frontier --omegas -0.1", "omegas must name one or more numbers, each 0 or greater"),
        ("labels --pairs 4", "pairs must be 8 or more, and seeds 1 or more"),
        ("spelling --samples 1", "steps and pretraining must be 1 or more, samples 2 or more"),
        ("gradients --vocabulary 20 --length 9", "20 tokens at length 9 make too many responses to list"),
        ("overhead --steps 2", "steps must be 3 or more, because two are not counted"),
    ],
)
def test_a_request_that_cannot_be_met(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"experiments.llm: {sentence}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("command", "absent"), [("frontier", "peft"), ("overhead", "trl")])
def test_missing_extra_is_named(
    command: str, absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == absent else ModuleSpec(name, None))
    with pytest.raises(SystemExit) as end:
        main([command])
    assert end.value.code == 2
    assert f"this needs {absent}, not installed here: pip install" in capsys.readouterr().err


def test_missing_names_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.llm.spelling.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        main(["spelling", "--output", str(tmp_path / "out")])
    assert end.value.code == 2
    assert (
        "the names come with the package `names`, which is not installed: pip install names" in capsys.readouterr().err
    )


def test_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        main(["gradients", "--output", str(tmp_path / "file" / "x")])
    assert end.value.code == 1
    assert "cannot be made a folder for the results" in capsys.readouterr().err


def test_json_alone_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gradients", "--vocabulary", "3", "--length", "2", "--draws", "1", "--output", str(tmp_path)]
    main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["records"][0]["command"] == "python -m experiments.llm gradients --vocabulary 3 --length 2 --draws 1"
    assert found["table"] == str(tmp_path / "gradients.md")
    main(words)
    assert capsys.readouterr().out == ""


def test_command_line_says_what_is_unusual() -> None:
    assert command_line(frontier.Frontier()) == "python -m experiments.llm frontier"
    options = frontier.Frontier(omegas=(0.1, 0.2), controls=False, train=False, output=Path("elsewhere"))
    assert command_line(options) == "python -m experiments.llm frontier --omegas 0.1 0.2 --no-controls"
