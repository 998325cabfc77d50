"""Repolicy gives a trained policy a new requirement without its old reward.

The names below are imported when they are first used: `import repolicy` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repolicy.addons import Addon as Addon
    from repolicy.checkpoint import load_policy as load_policy
    from repolicy.checkpoint import save_policy as save_policy
    from repolicy.errors import RepolicyError as RepolicyError
    from repolicy.evaluation import Evaluation as Evaluation
    from repolicy.evaluation import evaluate as evaluate
    from repolicy.objective import Objective as Objective
    from repolicy.policy import Policy as Policy
    from repolicy.policy import Prior as Prior
    from repolicy.report import write_report as write_report
    from repolicy.settings import Settings as Settings
    from repolicy.settings import customizing as customizing
    from repolicy.settings import defaults as defaults
    from repolicy.training import Result as Result
    from repolicy.training import customize as customize
    from repolicy.training import train as train

__version__ = "0.1.0"

_HOMES = {
    "Addon": "addons",
    "Evaluation": "evaluation",
    "Objective": "objective",
    "Policy": "policy",
    "Prior": "policy",
    "RepolicyError": "errors",
    "Result": "training",
    "Settings": "settings",
    "customize": "training",
    "customizing": "settings",
    "defaults": "settings",
    "evaluate": "evaluation",
    "load_policy": "checkpoint",
    "save_policy": "checkpoint",
    "train": "training",
    "write_report": "report",
}

__all__ = ["__version__", *_HOMES]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"repolicy.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'repolicy' has no attribute {name!r}")
