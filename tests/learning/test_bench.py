"""What the bench says hangs together. (How fast it is belongs to benchmarks/, never to a test.)"""

from dataclasses import replace

import pytest
import threaded_ranks
from tiny_envs import tiny

from repolicy.learning.bench import PARTS, bench
from repolicy.runs import ranks
from repolicy.runs.machine import shares_memory
from repolicy.runs.settings import Settings

SMALL = Settings(envs=8, n_steps=8, minibatch=32, checkpoint_every=2 * PARTS, evaluation_episodes=2, hidden=(8,))


@pytest.mark.skipif(not shares_memory(), reason="ranks of this machine need torchrun")
def test_shares_are_the_ratio_of_the_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "launch_ranks", threaded_ranks.launched)
    found = bench(tiny("LinearQuadratic"), replace(SMALL, ranks=2), slices=3)
    assert found["steps"] == 3 * 2 * 8 * 8  # three slices of two iterations
    assert 0.0 < found["share"] < found["slice_shares"]["max"]
    assert found["ranks"] == 2
    assert found["memory_mb_a_rank"] > 50  # of this process, whatever other tests imported
