"""What happens when a command does not end as it should: a sentence of at most three lines, and an exit code."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from tiny_envs import tiny
from typed_commands import refused, typed

from repolicy.cli.about import Addons
from repolicy.cli.run_commands import Train, report_end
from repolicy.cli.wish_commands import LearnWish
from repolicy.errors import RepolicyError
from repolicy.runs import Result

pytestmark = pytest.mark.usefixtures("_elsewhere")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ("train Pendulum-v1 --step 3", 2, "there is no option --step; did you mean --steps, "),
        ("train Pendulum-v1 --steps x", 2, "repolicy: --steps is 'x'; it must be a whole number"),
        ("train Pendulum-v1 --steps 2.5e0", 2, "--steps is '2.5e0'; it must be a whole number"),
        ("sweep hopper --omega 0.1..3", 2, "--omega is '0.1..3'; it must be a number"),
        ("customize hopper --omega 0.1 0.3", 2, "0.3 is too much (of omega, several values are `repolicy sweep`, and"),
        ("customize hopper --omega", 2, "repolicy: argument --omega: expected one argument; repolicy customize --help"),
        ("customize --prior hopper", 2, "repolicy: PRIOR stands by itself, without --prior; repolicy"),
        ("train Pendulum-v1 --out=", 2, "--out is empty; if you wrote a variable of your shell, it is not set"),
        ("train", 2, "repolicy: the following arguments are required: ENV; repolicy train --help lists the options"),
        ("llm generate a b --prior c", 2, "the following arguments are required: --omega, --prompt; repolicy llm"),
        ("learn-wish hopper --omega 1", 2, "the following arguments are required: --features, --alpha"),
        ("evaluate {long}", 1, "cannot be read: File name too long"),
        ("train Pendulum-v1 --alpha 0.1 --out {long}", 1, "run.json cannot be written: File name too long"),
        ("{long}", 2, "there is no command 'xxx"),
        ("train Pendulum-v1 --alpha 0.1 --envs 1 --n-steps 1", 2, "from one step there is nothing to learn"),
        ("train {tiny}:QuitsAtOnce --alpha 0.1", 2, "QuitsAtOnce' cannot be made: it called sys.exit(0)"),
        ("trian CartPole-v1", 2, "there is no command 'trian'; did you mean train"),
        ("train CartPole-v1 --objective residual", 2, "argument --objective: invalid choice: 'residual' (choose from"),
        ("bench Hopper-v4 --steps 5", 2, "a bench has no --steps: how long it takes is --slices"),
        ("doctor model_1.pt --std 0.2", 2, "how to read the checkpoint's policy goes with --batch"),
        ("bench CartPole-v1 --slices 0", 2, "slices is 0"),
        ("rql {nothing} --alpha 1", 2, "there is no command ''"),
        ("customize halfcheetah --addon hind_leg.py:mine(joint=bshin) --omega 0.1", 2, "/hind_leg.py"),
        ("train CartPole-v1 --alpha 0.1 --kl-budget 1", 2, "kl_budget holds a policy to its prior, and there is none"),
        ("train CartPole-v1 --alpha 0.1 --keep 90%", 2, "keep holds a policy to its prior, and there is none"),
        ("train CartPole-v1 --alpha 0.1 --surrogate vanilla", 2, "add --epochs 1"),
        ("train CartPole-v1 --alpha 0.1 --surrogate vanilla --epochs 1 --clip 0.1", 2, "clip is read with surrogate"),
        ("train CartPole-v1 --alpha 0.1 --desired-kl 0.02", 2, "desired_kl is read with schedule adaptive alone"),
        ("train CartPole-v1 --alpha 0.1 --critic-explains 0.5", 2, "critic_explains is read with a critic_warmup"),
        ("customize halfcheetah --addon hind_leg --omega 0.1 --chunk 3", 2, "chunk is 3, which goes with noise"),
        ("sweep halfcheetah --addon hind_leg --omega 0.1 --chunk 3", 2, "chunk is 3, which goes with noise"),
        ("plan halfcheetah --addon hind_leg --port 80", 2, "--port goes with --live"),
        ("plan halfcheetah --addon hind_leg --live --episodes 3 --port 99999", 2, "--episodes goes without --live"),
        ("train CartPole-v1 --settings nothing.json", 2, "--settings: there is no file nothing.json"),
        ("rql train Pendulum-v1 --alpha 0.1 --addon hind_leg --objective greedy", 2, "the numbers of HalfCheetah"),
        ("customize halfcheetah --addon hind_leg --omega much", 2, "--omega is 'much'; it must be a number, a range"),
        ("sweep halfcheetah --addon hind_leg --omega 0.1 --ranks 2", 2, "ranks is 2; a sweep trains each point on one"),
        ("sweep halfcheetah --addon hind_leg=0..2 --omega 0.1", 2, "hind_leg has a range of weights"),
        ("customize halfcheetah --addon hind_leg height --omega 0.1", 2, "height is too much (an add-on more has its"),
        ("export halfcheetah mine.onnx", 2, "mine.onnx is too much (the file to write is named by --out)"),
        ("train my_envs.py --alpha 0.1", 2, "to make one of your own, name what makes it: my_envs.py:NAME"),
        ("evaluate hopper --seed -1", 2, "seed is -1; it must lie between 0 and 2147483647"),
        (
            "diagnose mine.py:act --std 0.1 --env Hopper-v4 --addon height",
            2,
            "customize, sweep, evaluate and compare take code",
        ),
    ],
)
def test_what_is_wrong_is_said_in_at_most_three_lines(
    words: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"long": "x" * 5000, "tiny": Path(tiny("")).as_posix()[:-1], "nothing": ""}
    found, out, err = typed(capsys, *(word.format(**named) for word in words.split()))
    assert (found, out) == (code, ""), err
    assert sentence in err
    said = err[err.index("repolicy: ") :]
    assert said.count("\n") <= 3
    assert len(said) < 1500
    assert not {"Traceback", "None"} & {*re.findall(r"\w+", err)}
    assert code == 1 or not list(Path().iterdir())  # nothing was begun


def pretend(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A command that raises."""

    def raises(_: object) -> None:
        raise error

    monkeypatch.setattr(Addons, "run", raises)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("no\nnumber"), "ZeroDivisionError: no number ("),
        (asyncio.CancelledError(), "CancelledError ("),
    ],
)
def test_a_surprise_is_a_sentence_and_a_file(
    error: BaseException, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("left").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", "left")
    pretend(monkeypatch, error)
    code, out, said = typed(capsys, "addons", "--json")
    assert (code, out, said.count("\n"), "Traceback" in said) == (1, "", 2, False)
    assert said.startswith(f"repolicy: unexpected {words}")
    [left] = Path("left").iterdir()
    assert str(left) in said
    assert f"{type(error).__name__}" in left.read_text()
    assert "in raises" in left.read_text()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(0), "repolicy: the command was ended by the code that it ran: it called sys.exit(0)\n"),
        (PermissionError(13, "Permission denied", "mine"), "repolicy: Permission denied: 'mine'\n"),
        (RepolicyError("red \x1b[31m\a\nsecond\n\nthird\nfourth"), "repolicy: red \\x1b[31m\\x07\nsecond\nthird\n"),
    ],
    ids=["ended from within", "an error of the system", "control characters"],
)
def test_what_else_is_raised_is_a_sentence(
    error: BaseException, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, error)
    assert typed(capsys, "addons", "--json") == (1, "", said)


def test_ctrl_c_within_an_import_of_which_an_extension_makes_an_import_error_is_ctrl_c(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_error(_: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(Addons, "run", import_error)
    assert refused(capsys, 130, "addons") == "repolicy: stopped\n"
    Path("mine.py").write_text("raise ImportError('initialization failed') from KeyboardInterrupt()\n")
    assert refused(capsys, 130, "bench", "mine.py:Maze") == "repolicy: stopped\n"


def test_a_run_that_is_stopped_at_once_says_how_it_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Train, "run", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    said = refused(capsys, 130, "train", "CartPole-v1")
    assert said == "repolicy: stopped; the same command with --resume goes on\n"
    monkeypatch.setattr(LearnWish, "run", Train.run)
    words = ["learn-wish", "hopper", "--features", "next^1", "--omega", "1", "--alpha", "1"]
    assert refused(capsys, 130, *words) == "repolicy: stopped; the same command goes on\n"


def test_a_run_that_is_not_finished_ends_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for finished, code in ((False, 130), (True, 0)):
        monkeypatch.setattr(Train, "run", lambda _, finished=finished: {"finished": finished})
        assert typed(capsys, "train", "CartPole-v1", "--json")[0] == code


STOPS_AT = """
import os, signal, sys
class Stops:
    def find_spec(self, name, *_):
        if name == 'argparse':
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stops())
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a script starts with `&`
from {0} import main
main()
"""


def test_ctrl_c_is_no_traceback_from_the_first_import_on() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module = project["scripts"]["repolicy"].partition(":")[0]
    program = [sys.executable, "-c", STOPS_AT.format(module)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "repolicy: stopped\n")


def test_a_later_rank_of_torchrun_says_what_failed_in_its_own_work_and_ends_before_the_policy_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    pretend(monkeypatch, error := RepolicyError("the motor is on fire"))
    assert typed(capsys, "addons")[2] == ""  # the first rank says it
    error.add_note("rank 1")
    assert typed(capsys, "addons")[2] == "repolicy: rank 1: the motor is on fire\n"
    values = report_end(Result(tmp_path, 64, True, {}))
    assert values == {"folder": str(tmp_path), "steps": 64, "finished": True, "metrics": {}}
    assert capsys.readouterr().err == ""
