"""A prior that cannot be copied, under torchrun: every process fits the actor, and all must end with the same one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_envs import tiny

from repolicy.policies.storage import read
from repolicy.runs.folder import RunFolder
from repolicy.runs.machine import shares_memory

PROGRAM = """
import numpy as np

def steer(observations):
    return -0.4 * observations

def wish(observations, actions, next_observations, info):
    return -np.square(actions[:, 0])
"""


@pytest.mark.skipif(not shares_memory(), reason="ranks of this machine need torchrun")
def test_a_clone_under_torchrun_ends_in_the_bits_of_two_ranks(tmp_path: Path) -> None:
    """Whatever number of threads a process may have: torchrun gives each one, a plain shell as many as there are."""
    (tmp_path / "mine.py").write_text(PROGRAM)
    words = ["-m", "repolicy", "customize", "mine.py:steer", "--std", "0.3", "--addon", "mine.py:wish"]
    words += ["--env", tiny("LinearQuadratic"), "--omega", "0.3", "--alpha", "0.1", "--no-report"]
    words += ["--steps=1024", "--envs=16", "--n-steps=16", "--checkpoint-every=2", "--evaluation-episodes=2"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def run(name: str, threads: str, *more: str) -> RunFolder:
        """Two numbers added by gloo or in shared memory are the same sum."""
        done = subprocess.run(
            [sys.executable, *more, "--json", "--out", name],
            capture_output=True, text=True, check=False, cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["finished"] is True  # one object: the second process says nothing
        assert done.stderr.count("runs as it is; a policy is fitted to it") == 1
        return RunFolder(tmp_path / name)

    ours, theirs = run("ranks", "2", *words, "--ranks", "2"), run("torchrun", "1", *torchrun, *words)
    for file in ("prior", "last_policy"):
        (one, header), (other, _) = (read(getattr(folder, file), "policy") for folder in (ours, theirs))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), file
        assert header["card"].get("clone_of") or header["card"]["prior_is"]
    with pytest.raises(AssertionError) as refused:
        run("torchrun", "1", *torchrun, *words)
    assert str(refused.value).count("holds a run already") == 1
    assert "RuntimeError" not in str(refused.value)  # the second rank is told, and does not wait for the first
