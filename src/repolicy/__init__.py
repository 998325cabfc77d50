"""Repolicy gives a trained policy a new requirement without its old reward.

The names below are imported when they are first used: `import repolicy` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repolicy.engine.defaults import customize_defaults as customize_defaults
    from repolicy.engine.defaults import train_defaults as train_defaults
    from repolicy.engine.display import Display as Display
    from repolicy.engine.result import Result as Result
    from repolicy.engine.settings import Settings as Settings
    from repolicy.engine.training import customize as customize
    from repolicy.engine.training import train as train
    from repolicy.engine.wanted import Wanted as Wanted
    from repolicy.envs.addons import Addon as Addon
    from repolicy.envs.evaluation import Evaluation as Evaluation
    from repolicy.envs.evaluation import evaluate as evaluate
    from repolicy.errors import RepolicyError as RepolicyError
    from repolicy.many.sweep import sweep as sweep
    from repolicy.objective import Objective as Objective
    from repolicy.objective import end_entropy as end_entropy
    from repolicy.objective import full as full
    from repolicy.objective import greedy as greedy
    from repolicy.objective import kl as kl
    from repolicy.objective import no_entropy as no_entropy
    from repolicy.objective import repeat_entropy as repeat_entropy
    from repolicy.objective import residual as residual
    from repolicy.objective import soft as soft
    from repolicy.policies.dials import dial as dial
    from repolicy.policies.file import load_policy as load_policy
    from repolicy.policies.file import save_policy as save_policy
    from repolicy.policies.policy import Policy as Policy
    from repolicy.policies.policy import PolicySpec as PolicySpec
    from repolicy.policies.policy import Prior as Prior
    from repolicy.report.publish import push as push
    from repolicy.report.run import write_report as write_report

__version__ = "0.1.0"

_HOMES = {
    "Addon": "envs.addons",
    "Display": "engine.display",
    "Evaluation": "envs.evaluation",
    "Objective": "objective",
    "Policy": "policies.policy",
    "PolicySpec": "policies.policy",
    "Prior": "policies.policy",
    "RepolicyError": "errors",
    "Result": "engine.result",
    "Settings": "engine.settings",
    "Wanted": "engine.wanted",
    "customize": "engine.training",
    "customize_defaults": "engine.defaults",
    "dial": "policies.dials",
    "end_entropy": "objective",
    "evaluate": "envs.evaluation",
    "full": "objective",
    "greedy": "objective",
    "kl": "objective",
    "load_policy": "policies.file",
    "no_entropy": "objective",
    "repeat_entropy": "objective",
    "push": "report.publish",
    "residual": "objective",
    "save_policy": "policies.file",
    "soft": "objective",
    "sweep": "many.sweep",
    "train": "engine.training",
    "train_defaults": "engine.defaults",
    "write_report": "report.run",
}

__all__ = ["__version__", *_HOMES]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"repolicy.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'repolicy' has no attribute {name!r}")
