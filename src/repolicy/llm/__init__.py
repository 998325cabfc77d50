"""The same objective for language models, on TRL (extra `llm`).

`losses` is the mathematics and needs torch alone. The trainers import TRL, and only when they are first asked for.
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
    if HOMES.get(name, "rloo") != "rloo":  # which needs torch alone
        require_trl()
    return later(__name__, HOMES)(name)


def require_trl() -> None:
    """Raise where the extra is missing, or TRL of another version than those whose extension points are known."""
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise UsageError(f"this needs {' and '.join(missing)}, not installed here: pip install 'repolicy[llm]'")
    check_version("trl", (1, 16), (1, 17), "llm")
