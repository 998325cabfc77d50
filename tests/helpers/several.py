"""What the tests of trained dials share: a prior of linear–quadratic control, wishes for it, and a worker."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from known_optimum import SETTINGS, WISH, as_policy, optimum
from tiny_envs import CONTROL_COST, STATE_COST, tiny

from repolicy.learning.segments import Segments
from repolicy.learning.terms import DialedTerms
from repolicy.learning.worker import Worker
from repolicy.objective import Objective
from repolicy.policies.file import save_policy
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

ALPHA = 0.2
FAST, QUIET = (f"{__file__}:{name}" for name in ("fast", "quiet"))
FEW = Settings(
    **SETTINGS.as_dict() | {"steps": 512, "envs": 16, "checkpoint_every": 1, "minibatch": 128, "hidden": (8,)}
)


def fast(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return -np.square(next_observations[..., 0])


def quiet(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return -np.abs(actions[..., 0])


omega = how = quiet  # names of dials that are taken


def prior_file(folder: Path) -> Path:
    path = folder / "prior.safetensors"
    card = {"request": {"env": tiny("WithoutReward"), "objective": {"alpha": ALPHA}}}
    save_policy(path, as_policy(optimum(STATE_COST, CONTROL_COST, ALPHA)), card)
    return path


def worker(
    prior: Path, tmp_path: Path, objective: Objective, settings: Settings = FEW, wishes: tuple[str, ...] = (WISH,)
) -> Worker:
    """After its first segment has begun; its critic believes something, and its policy is the prior no more."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.prior.write_bytes(prior.read_bytes())
    segments = Segments(Request(tiny("WithoutReward"), objective, settings, wishes, "a checksum"), folder, SingleRank())
    segments.begin()
    made = segments.worker
    assert isinstance(made.terms, DialedTerms)
    with torch.no_grad():
        made.learner.parameters.add_(0.2 * torch.randn(len(made.learner.parameters)))
    return made
