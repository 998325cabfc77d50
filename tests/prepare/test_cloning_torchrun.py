"""A prior that cannot be copied, under torchrun: every process fits the actor, and all must end with the same one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_envs import tiny
from typed_commands import answered

from repolicy.policies.storage import read
from repolicy.prepare import cloning
from repolicy.runs.folder import RunFolder
from repolicy.runs.machine import shares_memory

PROGRAM = """
def steer(observations):
    return -0.4 * observations

def wish(observations, actions, next_observations, info):
    return -(actions[:, 0] ** 2)
"""
TWICE = """
import sys
from repolicy.cli.main import main
from repolicy.prepare import cloning

cloning.FIT_EPOCHS = 2
try:
    main([*sys.argv[1:], "--out", "ranks"])
except SystemExit as refused:
    assert refused.code == 2
main([*sys.argv[1:], "--out", "torchrun"])
"""


@pytest.mark.skipif(not shares_memory(), reason="ranks of this machine need torchrun")
@pytest.mark.usefixtures("_elsewhere")
def test_a_clone_under_torchrun_ends_in_the_bits_of_two_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number of threads a process may have: a plain shell gives it as many as there are."""
    Path("mine.py").write_text(PROGRAM)
    Path("twice.py").write_text(TWICE)
    monkeypatch.setattr(cloning, "FIT_EPOCHS", 2)
    words = ["customize", "mine.py:steer", "--std", "0.3", "--addon", "mine.py:wish"]
    words += ["--env", tiny("LinearQuadratic"), "--omega", "0.3", "--alpha", "0.1", "--no-report"]
    words += ["--steps=1024", "--envs=16", "--n-steps=16", "--checkpoint-every=2", "--evaluation-episodes=2"]
    ours = answered(capsys, *words, "--ranks", "2", "--out", "ranks")
    assert ours["metrics"]["prior_kl"] == pytest.approx(0.0, abs=0.2)  # the second rank has imported the prior
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "twice.py"]
    seen = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*torchrun, *words, "--json"], capture_output=True, text=True, check=False, env=seen)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] is True  # one object: the second process says nothing
    assert done.stderr.count("runs as it is; a policy is fitted to it") == 1
    assert done.stderr.count("holds a run already") == 1  # the second rank is told, and does not wait for the first
    assert "RuntimeError" not in done.stderr
    for file in ("prior", "last_policy"):
        (one, header), (other, _) = (read(getattr(RunFolder(name), file), "policy") for name in ("ranks", "torchrun"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), file
        assert header["card"].get("clone_of") or header["card"]["prior_is"]
