"""Repolicy's objective for language models, on TRL (extra `llm`).

`losses` and `rloo` need only torch. The other modules import TRL, when one of their names is first used.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from repolicy.errors import UsageError
from repolicy.loading import check_version, imported_for_types, later

if TYPE_CHECKING:
    from repolicy.llm.budget import PriorBudget as PriorBudget
    from repolicy.llm.dpo import CrossEntropyDPOConfig as CrossEntropyDPOConfig
    from repolicy.llm.dpo import CrossEntropyDPOTrainer as CrossEntropyDPOTrainer
    from repolicy.llm.dpo import DecomposedDPOConfig as DecomposedDPOConfig
    from repolicy.llm.dpo import DecomposedDPOTrainer as DecomposedDPOTrainer
    from repolicy.llm.grpo import ResidualGRPOConfig as ResidualGRPOConfig
    from repolicy.llm.grpo import ResidualGRPOTrainer as ResidualGRPOTrainer
    from repolicy.llm.mixing import DialedGenerator as DialedGenerator
    from repolicy.llm.mixing import dial as dial
    from repolicy.llm.q_adapter import QAdapterConfig as QAdapterConfig
    from repolicy.llm.q_adapter import QAdapterTrainer as QAdapterTrainer
    from repolicy.llm.q_adapter import q_adapter_policy as q_adapter_policy
    from repolicy.llm.rloo import prior_reward as prior_reward
    from repolicy.llm.rloo import rloo_settings as rloo_settings

EXTRA = ("trl", "peft", "datasets")

HOMES = imported_for_types(__name__, __file__)
__all__ = list(HOMES)

if not TYPE_CHECKING:  # a type checker then knows that there are no other names

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
