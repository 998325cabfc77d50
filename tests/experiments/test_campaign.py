"""A campaign from its runs to its ledger."""

import argparse
import shutil
import sys
from pathlib import Path

import pytest

from experiments import campaign, learning, one, rql
from experiments.one import Run
from experiments.paper.__main__ import check_priors, keep_best
from experiments.paper.runs import Planned
from repolicy.engine.folder import RunFolder
from repolicy.errors import FileError, UsageError
from repolicy.loading import file_sum
from repolicy.many.ledger import Ledger
from repolicy.many.pool import Job
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.policies.spaces import ActionSpace

SMALL = "--steps 256 --envs 2 --horizon 64 --minibatch 64 --segment 1 --evaluation-episodes 1 --ranks 1 --seed 0"
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
    monkeypatch.setattr(campaign, "Here", Inside)
    monkeypatch.setattr(campaign, "PAUSE", 0.0)
    Inside.started = []
    monkeypatch.setattr(sys, "argv", ["x", "--ledger", str(tmp_path / "l.jsonl"), "--runs", str(tmp_path / "runs")])
    return campaign.parser("test", "").parse_args()


def test_a_run_becomes_a_line_and_is_not_repeated(options: argparse.Namespace, tmp_path: Path) -> None:
    policy = str(tmp_path / "runs" / TRAIN.folder / "best.safetensors")
    again = Run("pendulum/again/0", (), "Pendulum-v1", policy=policy, episodes=2)
    wrong = Run("pendulum/wrong/0", ("train", "Pendulum-v1", "--alpha", "-1", *SMALL.split()), "Pendulum-v1")
    campaign.fill([TRAIN, again, wrong], options)
    rows = Ledger(options.ledger).by_key()
    row = rows["pendulum/soft/0"]
    assert row["command"] == f"repolicy train Pendulum-v1 --alpha 0.01 {SMALL}"
    assert row["steps"] == row["curve"]["steps"][-1] == 256
    assert row["request"]["settings"]["envs"] == 2
    assert row["seconds"] > 0
    assert row["policies"]["best"] == rows["pendulum/again/0"]["policies"]["last"] == file_sum(Path(policy))
    assert row["best"] == {**rows["pendulum/again/0"]["last"]}, "the same policy on the same episodes"
    assert rows["pendulum/wrong/0"]["error"] == "a sentence"
    Inside.started = []
    campaign.fill([TRAIN, again, wrong], options)
    assert Inside.started == ["pendulum/wrong/0"], "what failed is tried again, what is done is not"


def test_what_waits_for_another_is_begun_after_it(
    options: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    never = Run("pendulum/never/0", (), "Pendulum-v1")
    campaign.fill([never], options, ready=lambda run, rows: False, needs="it needs another")
    assert "pendulum/never/0 was not begun: it needs another" in capsys.readouterr().out
    campaign.status([never], options)
    assert "missing" in capsys.readouterr().out


def test_no_jobs_are_refused(options: argparse.Namespace) -> None:
    options.jobs = 0
    with pytest.raises(UsageError, match="jobs is 0"):
        campaign.fill([TRAIN], options)


def test_the_prior_is_the_best_policy_of_all_seeds(tmp_path: Path) -> None:
    options = argparse.Namespace(runs=tmp_path / "runs", priors=tmp_path / "priors", ledger=tmp_path / "l.jsonl")
    rows: campaign.Rows = {}
    for seed, (last, best) in enumerate([(5.0, 4.0), (3.0, 7.0), (6.0, 6.5)]):
        plan = Planned("hopper", "soft", seed)
        folder = RunFolder(options.runs / plan.run(Path()).folder)
        for name, score in ((folder.last_policy, last), (folder.best_policy, best)):
            policy = Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), initial_std=score))
            save_policy(name, policy, {"score": score})
        ways = {"last": last, "best": best}.items()
        rows[plan.key] = {"key": plan.key} | {name: {"mean": {"basic_reward": [value, 0.0]}} for name, value in ways}
        files = {"last": folder.last_policy, "best": folder.best_policy}
        rows[plan.key]["policies"] = {name: file_sum(file) for name, file in files.items()}
        keep_best(plan, rows, options)
    kept = (options.priors / "hopper.safetensors").read_bytes()
    assert kept == RunFolder(options.runs / "hopper-soft-1").best_policy.read_bytes()
    check_priors([Planned("hopper", "kl", 0)], rows, options)
    shutil.copyfile(folder.best_policy, options.priors / "hopper.safetensors")  # 6.5 where another one has 7
    with pytest.raises(FileError, match="hopper.safetensors is another than the best policy of hopper/soft/0"):
        check_priors([Planned("hopper", "kl", 0)], rows, options)
    (options.priors / "hopper.safetensors").unlink()
    with pytest.raises(FileError, match="hopper.safetensors is missing, the best policy of hopper/soft/0"):
        check_priors([Planned("hopper", "kl", 0)], rows, options)


def test_folders_of_runs_are_folders(tmp_path: Path) -> None:
    assert "/" not in learning.run(learning.VARIED, 1).folder
    made = rql.run("cartpole", "rql", 2, Path("runs/rql"), 5)
    assert made.words[:3] == ("rql", "customize", "runs/rql/cartpole-prior-2")
    assert (made.folder, made.trains) == ("cartpole-rql-2", True)
