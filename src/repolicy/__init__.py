"""Repolicy gives a trained policy a new requirement without its old reward.

The names below are imported when they are first used: `import repolicy` costs nothing.
"""

from typing import TYPE_CHECKING

from repolicy.loading import imported_for_types, later

if TYPE_CHECKING:
    from repolicy.errors import RepolicyError as RepolicyError
    from repolicy.evaluation import evaluate as evaluate
    from repolicy.learning.training import customize as customize
    from repolicy.learning.training import train as train
    from repolicy.many.comparing import compare as compare
    from repolicy.many.sweep import sweep as sweep
    from repolicy.objective import Objective as Objective
    from repolicy.objective import full as full
    from repolicy.objective import kl as kl
    from repolicy.objective import residual as residual
    from repolicy.objective import soft as soft
    from repolicy.planning.asking import plan as plan
    from repolicy.policies import Policy as Policy
    from repolicy.policies import save_policy as save_policy
    from repolicy.priors import dial as dial
    from repolicy.priors import load_policy as load_policy
    from repolicy.report.run_page import write_report as write_report
    from repolicy.runs.settings import Settings as Settings

__version__ = "0.1.0"

_HOMES = imported_for_types(__name__, __file__)
__all__ = list(_HOMES)
if not TYPE_CHECKING:  # a type checker then knows that there are no other names
    __getattr__ = later(__name__, _HOMES)


def __dir__() -> list[str]:
    return ["__version__", *__all__]
