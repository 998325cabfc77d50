"""The same objective for language models, on TRL (extra `llm`).

`losses` is the mathematics and needs torch alone. The trainers import TRL, and only when they are first asked for.
"""

import importlib
from typing import Any

HOMES = {
    "DecomposedDPOConfig": "dpo",
    "DecomposedDPOTrainer": "dpo",
    "CrossEntropyDPOConfig": "cross_entropy",
    "CrossEntropyDPOTrainer": "cross_entropy",
    "QAdapterConfig": "q_adapter",
    "QAdapterTrainer": "q_adapter",
    "QAdapterLogits": "q_adapter",
    "ResidualGRPOConfig": "grpo",
    "ResidualGRPOTrainer": "grpo",
    "DialedGenerator": "mixing",
    "dial": "mixing",
    "PriorBudget": "budget",
    "prior_reward": "rloo",
    "rloo_settings": "rloo",
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
