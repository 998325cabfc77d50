"""A sweep of a prior that cannot be copied: each point is the run that `customize` makes of it alone."""

from pathlib import Path

import numpy as np
import pytest
from compared import point_jobs_replaced

from repolicy.cli.main import main
from repolicy.errors import UsageError
from repolicy.learning.training import customize
from repolicy.many.sweep import sweep
from repolicy.many.sweep_folder import SweepFolder
from repolicy.objective import residual
from repolicy.policies.storage import read
from repolicy.prepare import cloning
from repolicy.readers.reading import Options

ENV, SMALL = "InvertedPendulum-v4", {"steps": 512, "envs": 4, "n_steps": 64, "epochs": 1, "ranks": 1}
PRIOR, WISH = f"{__file__}:lean", f"{__file__}:still"


def lean(observations: np.ndarray) -> np.ndarray:
    """Pushes against the angle: the mean action of a prior without a file."""
    return np.asarray(-2.0 * observations[:, 1:2], np.float32)


def hasty(observations: np.ndarray) -> np.ndarray:
    """Pushes more, so it is another prior."""
    return 2.0 * lean(observations)


def still(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: object) -> np.ndarray:
    """Pays for small actions."""
    return -np.square(np.asarray(actions, float)[..., 0])


def test_each_point_is_the_run_that_customize_makes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It begins with the sweep's clone, which is the one that the run would fit, and is scored by the prior itself."""
    point_jobs_replaced(monkeypatch, lambda job: main(list(job.program[job.program.index("repolicy") + 1 :])))
    monkeypatch.setattr(cloning, "FIT_EPOCHS", 2)
    reading, folder = Options(std=0.4), SweepFolder(tmp_path / "sweep")
    swept = sweep(PRIOR, WISH, [0.3], 0.1, folder.path, SMALL, states=0.0, env=ENV, reading=reading, episodes=2)
    of_point = capsys.readouterr().err
    assert "to train" in of_point
    assert "fit" not in of_point  # it has the sweep's clone, and counts no steps for it
    customize(PRIOR, WISH, residual(0.3, 0.1), tmp_path / "run", SMALL, env=ENV, reading=reading)
    tensors, _ = read(swept.points[0].policy, "policy")
    expected, _ = read(tmp_path / "run" / "policy.safetensors", "policy")
    assert tensors.keys() == expected.keys()
    assert all((tensors[name] == expected[name]).all() for name in tensors)
    assert folder.run(0.3).prior.read_bytes() == folder.prior.read_bytes()
    for another, std in ((f"{__file__}:hasty", 0.4), (PRIOR, 0.3)):
        with pytest.raises(UsageError, match="prior was .* and is now"):
            sweep(another, WISH, [1.0], out=folder.path, resume=True, reading=Options(std=std))
