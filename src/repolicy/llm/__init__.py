"""Repolicy's objective for language models, on TRL (extra `llm`).

`losses` and `rloo` need only torch. The other modules import TRL, when one of their names is first used.
"""

from importlib.util import find_spec
from typing import Any

from repolicy.errors import UsageError
from repolicy.loading import check_version, later

EXTRA = ("trl", "peft", "datasets")

HOMES = {
    "DecomposedDPOConfig": "dpo",
    "DecomposedDPOTrainer": "dpo",
    "CrossEntropyDPOConfig": "dpo",
    "CrossEntropyDPOTrainer": "dpo",
    "QAdapterConfig": "q_adapter",
    "QAdapterTrainer": "q_adapter",
    "QAdapterLogits": "q_adapter",
    "ResidualGRPOConfig": "grpo",
    "ResidualGRPOTrainer": "grpo",
    "DialedGenerator": "mixing",
    "dial": "mixing",
    "SAMPLING": "mixing",
    "prior_reward": "rloo",
    "rloo_settings": "rloo",
    "PriorBudget": "budget",
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if HOMES.get(name, "rloo") != "rloo":
        require_trl()
    return later(__name__, HOMES)(name)


def require_trl() -> None:
    """Raise if the extra `llm` is missing, or if the version of TRL is not one that the trainers were written for."""
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise UsageError(f"this needs {' and '.join(missing)}, not installed here: pip install 'repolicy[llm]'")
    check_version("trl", (1, 16), (1, 17), "llm")
