"""A campaign from its runs to its ledger."""

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import campaign, learning, one, rql
from experiments.ledger import Ledger, Row
from experiments.one import Run
from experiments.paper.__main__ import keep_prior
from experiments.paper.runs import PlannedRun
from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.files import file_sum
from repolicy.many.pool import Job
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.runs.folder import RunFolder
from repolicy.runs.result import Result

SMALL = (
    "--steps 256 --envs 2 --n-steps 64 --minibatch 64 --checkpoint-every 1 --evaluation-episodes 1 --ranks 1 --seed 0"
)
TRAIN = Run("pendulum/soft/0", ("train", "Pendulum-v1", "--alpha", "0.01", *SMALL.split()), "Pendulum-v1", episodes=2)


class Inside:
    """A job in this process: importing everything anew would take most of the test's time."""

    started: list[str]

    def __init__(self, job: Job) -> None:
        Inside.started.append(job.name)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        before, sys.argv = sys.argv, list(job.program[2:])
        try:
            one.main()
            self.code = 0
        except SystemExit as error:
            job.log.write_text("repolicy: a sentence\n")
            self.code = int(error.code or 0)
        finally:
            sys.argv = before

    def poll(self) -> int:
        return self.code

    def interrupt(self) -> None: ...
    def kill(self) -> None: ...


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setattr(campaign, "LocalProcess", Inside)
    monkeypatch.setattr(campaign, "POLL_SECONDS", 0.0)
    Inside.started = []
    monkeypatch.setattr(sys, "argv", ["x", "--ledger", str(tmp_path / "l.jsonl"), "--runs", str(tmp_path / "runs")])
    return campaign.make_parser("test", "").parse_args()


def test_a_program_measures_the_keys_that_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, drawn = tmp_path / "l.jsonl", list[list[str]]()
    monkeypatch.setattr(sys, "argv", ["x", "--ledger", str(ledger), "--only", "b", "c", "--seeds", "3", "4"])

    @campaign.program("ledger", "only", draw=lambda rows, path: drawn.append([*rows]), seeds=(0,), how=["one", "two"])
    def main(options: campaign.Options) -> campaign.Measurements:
        assert options.how == ["one", "two"]
        return {key: lambda: {"seeds": options.seeds} for key in ("apart", "beside", "close")}

    main()
    assert [(row["key"], row["seeds"]) for row in Ledger(ledger).rows()] == [("beside", [3, 4]), ("close", [3, 4])]
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--picture", "here.png"])
    main()
    assert drawn == [["beside", "close"]]
    monkeypatch.setattr(sys, "argv", ["x", "--how", "three"])
    with pytest.raises(SystemExit):
        main()


def test_a_run_becomes_a_line_and_is_not_repeated(options: argparse.Namespace, tmp_path: Path) -> None:
    policy = str(tmp_path / "runs" / TRAIN.folder / "policy.safetensors")
    again = Run("pendulum/again/0", (), "Pendulum-v1", policy=policy, episodes=2)
    wrong = Run("pendulum/wrong/0", ("train", "Pendulum-v1", "--alpha", "-1", *SMALL.split()), "Pendulum-v1")
    with pytest.raises(RepolicyError, match="1 runs failed and 0 were not begun"):
        campaign.run_missing(
            [TRAIN, again, replace(again, key="pendulum/elsewhere/0", evaluation_seed=7), wrong], options
        )
    rows = Ledger(options.ledger).by_key()
    row, elsewhere = rows["pendulum/soft/0"], rows["pendulum/elsewhere/0"]
    assert row["command"] == f"repolicy train Pendulum-v1 --alpha 0.01 {SMALL}"
    assert rows["pendulum/again/0"]["command"].endswith(
        "/policy.safetensors --env Pendulum-v1 --episodes 2 --seed 10000"
    )
    assert row["steps"] == row["curve"]["steps"][-1] == 256
    assert row["request"]["settings"]["envs"] == 2
    assert row["seconds"] > 0
    assert (row["addon"], row["evaluation_seed"]) == ("", 10_000)
    assert row["policies"]["best"] == rows["pendulum/again/0"]["policies"]["last"] == file_sum(Path(policy))
    assert row["best"] == {**rows["pendulum/again/0"]["last"]}, "the same policy on the same episodes"
    assert rows["pendulum/wrong/0"]["error"] == "a sentence"
    assert row["best"]["sampled"] != row["best"]["mean"]
    assert row["best"]["mean"] != elsewhere["last"]["mean"], "other episodes"
    Inside.started = []
    with pytest.raises(RepolicyError, match="1 runs failed"):
        campaign.run_missing([TRAIN, again, wrong], options)
    assert Inside.started == ["pendulum/wrong/0"], "what failed is tried again, what is done is not"
    options.jobs = 0
    with pytest.raises(UsageError, match="jobs is 0"):
        campaign.run_missing([TRAIN], options)


def test_what_waits_for_another_is_begun_after_it(
    options: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    never = Run("pendulum/never/0", (), "Pendulum-v1")
    with pytest.raises(RepolicyError, match="0 runs failed and 1 were not begun"):
        campaign.run_missing([never], options, ready=lambda run, rows: False, needs="it needs another")
    assert "pendulum/never/0 was not begun: it needs another" in capsys.readouterr().out


def test_a_row_tells_all_that_its_run_was_made_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Begun on one machine, ended on another, and evaluated again on a third, which trains nothing."""

    def measured_on(name: str) -> Row:
        monkeypatch.setattr(one, "provenance", lambda: {"machine": name})
        return one.measure_run(TRAIN, tmp_path / "run")

    def stopped(words: list[str]) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one, "command_line", stopped)
        with pytest.raises(KeyboardInterrupt):
            measured_on("first")
    for row in (measured_on("second"), measured_on("third")):
        assert (row["machine"], row["went_on_with"]) == ("first", [{"machine": "second"}])


def test_a_run_that_leaves_nothing_here_is_a_failure(options: argparse.Namespace) -> None:
    """As on a Ray cluster whose machines do not share the folder."""
    options.jobs = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one, "main", lambda: None)
        with pytest.raises(RepolicyError, match="1 runs failed"):
            campaign.run_missing([TRAIN], options)
    assert "must see that folder" in Ledger(options.ledger).by_key()[TRAIN.key]["error"]


def test_the_prior_is_the_best_policy_of_all_seeds(tmp_path: Path) -> None:
    options = argparse.Namespace(
        runs=tmp_path / "runs", priors=tmp_path / "priors", ledger=tmp_path / "l.jsonl", seeds=3
    )
    rows, kept = campaign.Rows(), options.priors / "hopper.safetensors"
    for seed, (last, best) in enumerate([(5.0, 4.0), (3.0, 7.0), (6.0, 6.5)]):
        plan = PlannedRun("hopper", "soft", seed)
        folder = RunFolder(options.runs / plan.run(Path()).folder)
        for name, score in ((folder.replaced, last), (folder.policy, best)):
            policy = Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), initial_std=score))
            save_policy(name, policy, {"score": score})
        ways = {"last": last, "best": best}.items()
        rows[plan.key] = {"key": plan.key} | {name: {"mean": {"basic_reward": [value, 0.0]}} for name, value in ways}
        files = {"last": folder.last_policy, "best": folder.policy}
        rows[plan.key]["policies"] = {name: file_sum(file) for name, file in files.items()}
        assert not kept.exists()
        keep_prior("hopper", rows, options)
    softs = [RunFolder(options.runs / f"hopper-soft-{seed}") for seed in range(3)]
    assert kept.read_bytes() == softs[1].policy.read_bytes()
    rows["hopper/soft/2"]["last"]["mean"]["basic_reward"] = [8.0, 0.0]
    keep_prior("hopper", rows, options)
    assert kept.read_bytes() == softs[1].policy.read_bytes(), "a prior that may be in use stays"
    kept.unlink()
    keep_prior("hopper", rows, options)
    assert kept.read_bytes() == softs[2].last_policy.read_bytes()
    kept.unlink()
    shutil.rmtree(softs[2].path)
    with pytest.raises(FileError, match="hopper.safetensors is missing, and .* is not what hopper/soft/2 was"):
        keep_prior("hopper", rows, options)


def test_folders_of_runs_are_folders(tmp_path: Path) -> None:
    assert "/" not in learning.make_run(learning.VARIED, 1).folder
    made = rql.make_run("cartpole", "rql", 2, Path("runs/rql"), 5)
    assert made.arguments[:3] == ("rql", "customize", "runs/rql/cartpole-prior-2")
    assert (made.folder, made.is_training) == ("cartpole-rql-2", True)


def test_a_run_that_a_signal_ended_early_becomes_no_line(tmp_path: Path) -> None:
    early, whole = (Result(tmp_path, 10, finished, {}) for finished in (False, True))
    with pytest.raises(KeyboardInterrupt):
        campaign.measure_missing(tmp_path / "rows.jsonl", {
            "whole": lambda: {"steps": campaign.require_finished(whole).steps},
            "early": lambda: {"steps": campaign.require_finished(early).steps},
        })  # fmt: skip
    assert [row["key"] for row in Ledger(tmp_path / "rows.jsonl").rows()] == ["whole"]
