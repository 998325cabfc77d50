"""The loop: the same bits however often it is interrupted, and answers that are known beforehand."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import known_optimum
import pytest
import tiny_envs
import torch
from small_runs import SMALL, Log, same, small, weights
from threaded_ranks import customized as customized_by_threads
from tiny_envs import Endless, Raises, tiny
from torch import Tensor

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, NumericError, RepolicyError, UsageError
from repolicy.evaluation import evaluate
from repolicy.learning.segments import Segments
from repolicy.learning.training import customize, train
from repolicy.objective import Objective, greedy, kl, no_entropy, soft
from repolicy.policies.storage import read
from repolicy.prepare.defaults import train_defaults
from repolicy.ranges import Range
from repolicy.runs import ranks
from repolicy.runs.folder import RunFolder
from repolicy.runs.machine import shares_memory
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request


# The same bits --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    small(folder)
    return folder


HELPERS = str(Path(tiny_envs.__file__).parent)
PROGRAM = """
import sys
from pathlib import Path
from small_runs import small
small(Path(sys.argv[1]))
"""


def test_a_run_that_is_killed_and_resumed_ends_in_the_same_bits(whole: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": HELPERS}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "killed")], env=environment)
    while not RunFolder(tmp_path / "killed").latest_checkpoint() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    small(tmp_path / "killed", resume=True)
    assert same(weights(whole), weights(tmp_path / "killed"))
    assert RunFolder(whole).policy.read_bytes() == RunFolder(tmp_path / "killed").policy.read_bytes()


class AtIteration(Log):
    """Does something once, when an iteration is over."""

    def __init__(self, iteration: int, action: Callable[[], object]) -> None:
        super().__init__()
        self._iteration, self._action = iteration, action

    def write(self, metrics: dict[str, float]) -> None:
        if metrics["iteration"] == self._iteration:
            self._action()


def test_a_signal_stops_after_the_iteration_and_the_run_goes_on_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """Where a segment ends in that iteration there is a checkpoint, a log of all and a policy."""
    before = [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))]  # a shell's background jobs ignore Ctrl-C
    last, folder = SMALL.iterations, RunFolder(tmp_path / "run")
    for iteration, each in ((8, signal.SIGINT), (11, signal.SIGTERM), (22, signal.SIGINT), (last, signal.SIGINT)):
        stop = AtIteration(iteration - 1, lambda each=each: os.kill(os.getpid(), each))
        stopped = train(tiny("LinearQuadratic"), soft(0.1), folder.path, SMALL, callbacks=[stop], resume=True)
        assert (stopped.finished, stopped.steps) == (iteration == last, iteration * SMALL.iteration_steps)
        if iteration % SMALL.checkpoint_every == 0:
            assert folder.latest_checkpoint()[1]["iteration"] == folder.read_metrics()["iteration"][-1] == iteration
            assert folder.last_policy.exists()
    assert [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))] == before
    assert same(weights(whole), weights(folder.path))


def test_a_full_disk_stops_the_run_and_loses_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fills_up = AtIteration(10, lambda: monkeypatch.setattr(os, "fsync", full))
    with pytest.raises(FileError, match="cannot be written: No space left on device; what was there before is untouch"):
        train(tiny("LinearQuadratic"), soft(0.1), tmp_path / "run", SMALL, callbacks=[fills_up])
    monkeypatch.undo()
    assert RunFolder(tmp_path / "run").latest_checkpoint()[1]["iteration"] == 8  # the segment before
    small(tmp_path / "run", resume=True)
    assert same(weights(whole), weights(tmp_path / "run"))


@pytest.mark.skipif(not shares_memory(), reason="ranks of this machine need torchrun")
def test_two_ranks_end_in_the_same_bits_and_hand_out_the_same_earlier_policy(prior: Path, tmp_path: Path) -> None:
    (tmp_path / "wish.py").write_text("def small(obs, action, next_obs, info):\n    return -(action**2).sum(-1)\n")
    wrecked = replace(SMALL, ranks=2, steps=1_024, checkpoint_every=4, learning_rate=0.2, schedule="constant")
    wrecked = replace(wrecked, evaluation_episodes=8)

    def run(name: str, **more: Any) -> RunFolder:
        wish = f"{tmp_path / 'wish.py'}:small"
        env = tiny("WithoutReward")
        return RunFolder(customize(prior, wish, kl(30.0), tmp_path / name, wrecked, env=env, **more).folder)

    ctrl_c = AtIteration(6, lambda: os.kill(os.getpid(), signal.SIGINT))
    stopped = run("run", callbacks=[ctrl_c])
    assert not stopped.replaced.exists()
    whole = RunFolder(tmp_path / "whole")
    customized_by_threads(stopped.load_request(), prior, whole.path)
    assert whole.replaced.exists()  # steps this large leave no policy as good as the prior
    assert run("run", resume=True).policy.read_bytes() == whole.policy.read_bytes()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_a_rank_of_torchrun_knows_what_failed_in_its_own_work_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []

    class Second(SingleRank):
        index, count = 1, 2

        def sum(self, tensor: Tensor) -> Tensor:
            if len(tensor) > 1:  # of a rollout, and not of whether the first rank could begin
                raise ranks.LostError("gone")
            return tensor

        def close(self) -> None:
            left.append(self)

    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "Distributed", Second)
    for env, envs, notes in (("Raises", 8, ["rank 1"]), ("Endless", 8, []), ("Endless", 7, [])):
        with pytest.raises(RepolicyError, match="on fire|gone|7, which 2 ranks cannot share") as failed:
            small(tmp_path / "run", replace(SMALL, envs=envs), env)
        assert getattr(failed.value, "__notes__", []) == notes
    assert len(left) == 3


def test_metrics_of_repeated_iterations_are_written_once(whole: Path, tmp_path: Path) -> None:
    folder = RunFolder(Path(shutil.copytree(whole, tmp_path / "run")))
    max((folder.path / "checkpoints").glob("*.safetensors")).unlink()
    half = f'{{"iteration": {SMALL.iterations + 1}, "ste'  # killed while writing
    folder.metrics.write_text(folder.metrics.read_text() + half)
    train(tiny("LinearQuadratic"), soft(0.1), folder.path, SMALL, resume=True)
    seen = [json.loads(line)["iteration"] for line in folder.metrics.read_text().splitlines()]
    assert seen == list(range(1, SMALL.iterations + 1))


# Known answers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("env", "value"), [("endless_with_time_limit", 1 / (1 - 0.9)), ("Mortal", 1 / (1 - 0.8 * 0.9))]
)
def test_the_critic_finds_the_value_of_one_a_step(tmp_path: Path, env: str, value: float) -> None:
    settings = replace(SMALL, steps=8_000, minibatch=128, learning_rate=8e-3, normalize_observations=False)
    settings = replace(settings, checkpoint_every=400)
    train(tiny(env), no_entropy(), tmp_path / "run", settings)
    segments = Segments(Request(tiny(env), no_entropy(), settings), RunFolder(tmp_path / "run"), SingleRank())
    segments.restore()
    assert float(segments.worker.learner.values(torch.zeros(1, 1)).detach()) == pytest.approx(value, rel=0.05)


@pytest.mark.long
def test_soft_ppo_finds_the_optimum_of_linear_quadratic_control(tmp_path: Path) -> None:
    settings = replace(known_optimum.SLOW, steps=150_000, initial_std=0.5)
    found = train(tiny("LinearQuadratic"), soft(known_optimum.ALPHA), tmp_path / "run", settings).policy
    known_optimum.assert_found(found, known_optimum.EXACT)


@pytest.mark.long
def test_cart_pole_is_learnt(tmp_path: Path) -> None:
    settings = replace(train_defaults("CartPole-v1"), ranks=1, steps=50_000, evaluation_episodes=4)
    found = train("CartPole-v1", no_entropy(), tmp_path / "run", settings)
    assert evaluate(found.policy, "CartPole-v1", 20).basic.mean() >= 475


# Refusals -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("objective", "more", "sentence"),
    [
        (soft(0.1), {"settings": replace(SMALL, steps=127)}, "steps is 127, and one update takes 128"),
        *(
            (
                soft(0.1),
                {"env": "CartPole-v1", "settings": replace(SMALL, **{name: 0.5})},
                f"{name} is for actions that",
            )
            for name in ("initial_std", "min_std")
        ),
        (kl(0.1), {"addon": ["x"]}, "needs a prior: use customize"),
        (Objective("basic", states=0.1), {}, "needs a prior: use customize"),
        (soft(Range(0.1, 0.3)), {}, "a range of weights, needs a prior"),
        (Objective("both", alpha=0.1), {"addon": tiny("stay_near") + "=0..2"}, "a range of weights, needs a prior"),
        (greedy(0.1), {}, "needs an add-on"),
        (soft(0.1), {"addon": tiny("stay_near")}, "leave it out"),
        (greedy(0.1), {"addon": tiny("stay_neer")}, "did you mean stay_near"),
    ],
)
def test_requests_that_make_no_sense_write_nothing(
    tmp_path: Path, objective: Objective, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        train(objective=objective, out=tmp_path / "run", **{"env": tiny("LinearQuadratic"), "settings": SMALL} | more)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["while learning", "while evaluating"])
def test_environments_are_closed_whatever_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    opened = list[object]()

    class Counted(Endless):
        def __init__(self) -> None:
            opened.append(self)

        def close(self) -> None:
            opened.remove(self)

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    if where == "while evaluating":
        monkeypatch.setattr("repolicy.learning.segments.run_episodes", fail)
    callback = AtIteration(2 if where == "while learning" else 0, fail)
    with pytest.raises(ZeroDivisionError) as _failed:
        train(Counted, soft(0.1), tmp_path / "run", SMALL, callbacks=[callback])
    assert opened == []


def test_a_mistake_before_the_first_iteration_is_no_bad_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Segments) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(Segments, "measure_prior", fails)
    with pytest.raises(ValueError, match="^a mistake$"):
        small(tmp_path / "run")


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ("NanObservation", "observation that is not finite .rollout step 11, after 11 steps of an episode"),
        ("NanReset", "observation that is not finite .rollout step 0, after 0 steps of an episode"),
        ("NanReward", "reward is not finite"),
    ],
)
def test_numbers_that_are_not_finite_stop_the_run_and_leave_evidence(tmp_path: Path, env: str, sentence: str) -> None:
    with pytest.raises(NumericError, match=sentence):
        small(tmp_path / "run", env=env)
    left, story = read(tmp_path / "run" / "failure-rank0.safetensors", "failure")
    assert story["iteration"] == 1 or env != "NanReward"
    if env == "NanReward":
        assert left["basic"].isnan().all()
    assert inspect(tmp_path / "run" / "failure-rank0.safetensors")["kind"] == "failure"


def test_an_environment_that_raises_is_reported_in_its_own_words(tmp_path: Path) -> None:
    failures = iter([OSError("it does not answer")])

    class Burning(Raises):
        def close(self) -> None:
            for error in failures if self._steps == 10 else ():
                raise error  # which is what comes of the fire

    with pytest.raises(RepolicyError, match="the motor is on fire"):
        train(Burning, soft(0.1), tmp_path / "run", SMALL)
