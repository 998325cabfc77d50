"""Repolicy gives a trained policy a new requirement without its old reward.

The names below are imported when they are first used: `import repolicy` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repolicy.envs.addons import Addon as Addon
    from repolicy.envs.evaluation import Evaluation as Evaluation
    from repolicy.envs.evaluation import evaluate as evaluate
    from repolicy.errors import RepolicyError as RepolicyError
    from repolicy.learning.training import customize as customize
    from repolicy.learning.training import train as train
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
    from repolicy.plan.defaults import customize_defaults as customize_defaults
    from repolicy.plan.defaults import train_defaults as train_defaults
    from repolicy.plan.wanted import Wanted as Wanted
    from repolicy.policies.file import save_policy as save_policy
    from repolicy.policies.policy import Policy as Policy
    from repolicy.policies.policy import PolicySpec as PolicySpec
    from repolicy.policies.policy import Prior as Prior
    from repolicy.priors.dials import dial as dial
    from repolicy.priors.opening import load_policy as load_policy
    from repolicy.report.publish import push as push
    from repolicy.report.run_page import write_report as write_report
    from repolicy.runs.display import Display as Display
    from repolicy.runs.result import Result as Result
    from repolicy.runs.settings import Settings as Settings

__version__ = "0.1.0"

_HOMES = {
    "Addon": "envs.addons",
    "Display": "runs.display",
    "Evaluation": "envs.evaluation",
    "Objective": "objective",
    "Policy": "policies.policy",
    "PolicySpec": "policies.policy",
    "Prior": "policies.policy",
    "RepolicyError": "errors",
    "Result": "runs.result",
    "Settings": "runs.settings",
    "Wanted": "plan.wanted",
    "customize": "learning.training",
    "customize_defaults": "plan.defaults",
    "dial": "priors.dials",
    "end_entropy": "objective",
    "evaluate": "envs.evaluation",
    "full": "objective",
    "greedy": "objective",
    "kl": "objective",
    "load_policy": "priors.opening",
    "no_entropy": "objective",
    "repeat_entropy": "objective",
    "push": "report.publish",
    "residual": "objective",
    "save_policy": "policies.file",
    "soft": "objective",
    "sweep": "many.sweep",
    "train": "learning.training",
    "train_defaults": "plan.defaults",
    "write_report": "report.run_page",
}

__all__ = ["__version__", *_HOMES]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"repolicy.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'repolicy' has no attribute {name!r}")
