"""An environment that hangs is reported by name, and ends the run where that is wanted."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import SMALL
from tiny_envs import tiny

from repolicy.envs.batches import EnvPoolEnvs
from repolicy.envs.watchdog import ENV_CALL, Watchdog
from repolicy.errors import RepolicyError, UsageError
from repolicy.learning.training import train, watchdog
from repolicy.objective import soft
from repolicy.runs.machine import shares_memory

HANGS = r"environment 0 of '.*HangsInRank' in rank {} has not come back for 1 seconds \(at .*tiny_envs.py:\d+\), which "


@pytest.mark.skipif(not shares_memory(), reason="ranks of this machine need torchrun")
def test_patience_ends_a_rank_that_hangs_and_the_first_one_says_where(tmp_path: Path) -> None:
    with pytest.raises(RepolicyError, match=r"^rank 1 ended \(exit code 1\): " + HANGS.format(1)):
        train(tiny("HangsInRank"), soft(0.1), tmp_path / "run", replace(SMALL, ranks=2), env_timeout=0.5)


def test_patience_ends_the_first_rank_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    codes = list[int]()
    monkeypatch.setattr(os, "_exit", codes.append)
    with Watchdog(0, 0.05), ENV_CALL.calling("Pendulum-v1"):
        time.sleep(0.2)
    assert {*codes} == {1}
    said = capsys.readouterr().err
    assert said.startswith("repolicy: environment 'Pendulum-v1' in rank 0 has not come back for 0 seconds (at ")
    assert "), which is beyond --env-timeout: ended; --resume goes on\n" in said


def test_a_long_call_is_reported_once_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    began = threading.active_count()
    with Watchdog(3, None, long=0.05):
        with ENV_CALL.calling("Pendulum-v1"):
            time.sleep(0.2)
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
    assert ENV_CALL.began == 0.0


@pytest.mark.parametrize("env_timeout", [0.0, -1.0, float("nan")])
def test_patience_is_a_number_of_seconds(env_timeout: float) -> None:
    with pytest.raises(UsageError, match="env_timeout is .*; it must be a number of seconds above 0"):
        watchdog(env_timeout)
