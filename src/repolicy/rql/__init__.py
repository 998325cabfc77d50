"""Residual Q-learning: the value-based family, on Stable-Baselines3 (extra `sb3`).

`ResidualDQN` and `ResidualSAC` are ordinary Stable-Baselines3 algorithms whose files are ordinary Repolicy policies.
Stable-Baselines3 is imported only when one of them is first used.
"""

from typing import TYPE_CHECKING

from repolicy.loading import imported_for_types, later

if TYPE_CHECKING:
    from repolicy.rql.algorithms import ResidualDQN as ResidualDQN
    from repolicy.rql.algorithms import ResidualSAC as ResidualSAC
    from repolicy.rql.customizing import customize as customize
    from repolicy.rql.customizing import train as train
    from repolicy.rql.hyperparameters import Settings as Settings
    from repolicy.rql.wrapping import WithAddon as WithAddon

HOMES = imported_for_types(__name__, __file__)
__all__ = list(HOMES)
if not TYPE_CHECKING:  # a type checker then knows that there are no other names
    __getattr__ = later(__name__, HOMES)


def __dir__() -> list[str]:
    return __all__
