"""What the tests of several dials share: a prior of linear–quadratic control, and two wishes for it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import test_customize
from test_customize import SETTINGS, as_policy, optimum
from tiny_envs import CONTROL_COST, STATE_COST, tiny

from repolicy.engine.settings import Settings
from repolicy.policies.file import save_policy

ALPHA = 0.2
WISH = f"{Path(test_customize.__file__)}:wish"
FAST, QUIET = (f"{__file__}:{name}" for name in ("fast", "quiet"))
FEW = Settings(**SETTINGS.as_dict() | {"steps": 512, "envs": 16, "segment": 1, "minibatch": 128, "hidden": (8,)})


def fast(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return -np.square(next_observations[..., 0])


def quiet(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return -np.abs(actions[..., 0])


def omega(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    """Whose name is another dial's."""
    return -np.abs(actions[..., 0])


def prior_file(folder: Path) -> Path:
    path = folder / "prior.safetensors"
    card = {"request": {"env": tiny("WithoutReward"), "objective": {"alpha": ALPHA}}}
    save_policy(path, as_policy(optimum(STATE_COST, CONTROL_COST, ALPHA)), card)
    return path
