"""Residual Q-learning: the value-based family, on Stable-Baselines3 (extra `sb3`).

`ResidualDQN` and `ResidualSAC` are ordinary Stable-Baselines3 algorithms whose files are ordinary Repolicy policies.
Stable-Baselines3 is imported only when one of them is first used.
"""

from repolicy.loading import later

HOMES = {
    "ResidualDQN": "algorithms",
    "ResidualSAC": "algorithms",
    "Settings": "hyperparameters",
    "WithAddon": "wrapping",
    "customize": "customizing",
    "train": "customizing",
}

__all__ = list(HOMES)
__getattr__ = later(__name__, HOMES)


def __dir__() -> list[str]:
    return __all__
