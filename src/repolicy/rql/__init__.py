"""Residual Q-learning: the value-based family, on Stable-Baselines3 (extra `sb3`).

`ResidualDQN` and `ResidualSAC` are ordinary Stable-Baselines3 algorithms whose files are ordinary Repolicy policies.
They import Stable-Baselines3, and only when they are first asked for.
"""

import importlib
from typing import Any

HOMES = {
    "ResidualDQN": "algorithms",
    "ResidualSAC": "algorithms",
    "Settings": "hyperparameters",
    "WithAddon": "wrapping",
    "customize": "customizing",
    "train": "customizing",
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *HOMES]
