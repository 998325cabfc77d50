"""An environment that hangs is reported by name, and ends the run where that is wanted."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny_envs import tiny

from repolicy.envs.envpool import EnvPoolEnvs
from repolicy.envs.watchdog import NOTE, Watchdog
from repolicy.errors import RepolicyError, UsageError
from repolicy.learning.training import watchdog
from repolicy.runs.machine import shares_memory

SMALL = ["--alpha", "0.1", "--steps", "4096", "--envs", "8", "--n-steps", "16", "--minibatch", "64"]


def ended(tmp_path: Path, *words: str) -> tuple[int, str]:
    """The exit code and stderr of a run whose environment hangs."""
    program = [sys.executable, "-m", "repolicy", "train", *words, *SMALL, "--out", str(tmp_path / "run")]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stderr


def test_patience_ends_a_run_that_hangs_and_says_where(tmp_path: Path) -> None:
    code, said = ended(tmp_path, tiny("HangsInRank?anywhere=true"), "--ranks", "1", "--env-timeout", "0.5")
    assert code == 1
    assert re.search(
        r"repolicy: environment 0 of '.*HangsInRank.anywhere=true' in rank 0 has not come back for 1 seconds "
        r"\(at .*tiny_envs.py:\d+\), which is beyond --env-timeout",
        said,
    ), said
    assert "Traceback" not in said


@pytest.mark.skipif(not shares_memory(), reason="ranks of this machine need torchrun")
def test_another_rank_that_hangs_is_reported_by_the_first(tmp_path: Path) -> None:
    code, said = ended(tmp_path, tiny("HangsInRank"), "--ranks", "2", "--env-timeout", "1")
    assert code == 1
    assert re.search(
        r"repolicy: rank 1 ended \(exit code 1\): environment 0 of '.*HangsInRank' in rank 1 has not", said
    )


def test_a_long_call_is_reported_once_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    began = threading.active_count()
    with Watchdog(3, None, long=0.05):
        with NOTE.calling("Pendulum-v1"):
            time.sleep(0.3)
        time.sleep(0.1)  # long, but no call
    said = capsys.readouterr().err
    assert said.count("repolicy: environment 'Pendulum-v1' in rank 3 has not come back for 0 seconds (at ") == 1
    assert said.count("\n") == 1
    assert threading.active_count() == began


def test_a_call_into_envpool_that_fails_is_one_sentence() -> None:
    pytest.importorskip("envpool")

    def fail() -> None:
        raise RuntimeError("the motor\nis on fire")

    with pytest.raises(RepolicyError, match="^environment 'Pendulum-v1' failed: RuntimeError: the motor is on fire"):
        EnvPoolEnvs("Pendulum-v1", 1, 0).call(fail)
    assert NOTE.began == 0.0


@pytest.mark.parametrize("env_timeout", [0.0, -1.0, float("nan")])
def test_patience_is_a_number_of_seconds(env_timeout: float) -> None:
    with pytest.raises(UsageError, match="env_timeout is .*; it must be a number of seconds above 0"):
        watchdog(env_timeout)
