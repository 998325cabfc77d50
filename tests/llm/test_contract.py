"""What the trainers lean on inside TRL, by name: when TRL moves one of these, the test of that name fails first."""

import inspect
from importlib.metadata import version

import pytest

pytest.importorskip("trl", reason="the extra `llm` is not installed")

import trl
from packaging.version import Version
from transformers import TrainerCallback

from repolicy.llm import TRL_BELOW, TRL_FROM

METHODS = {
    "DPOTrainer.compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "DPOTrainer.compute_ref_log_probs": ["self", "model", "inputs"],
    "KTOTrainer.compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "KTOTrainer.compute_ref_log_probs": ["self", "model", "inputs"],
    "GRPOTrainer._generate_and_score_completions": ["self", "inputs"],
    "GRPOTrainer._calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "GRPOTrainer._compute_loss": ["self", "model", "inputs"],
    "GRPOTrainer.compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
}
FIELDS = {
    "DPOConfig": ["beta", "loss_type", "f_divergence_type", "precompute_ref_log_probs"],
    "KTOConfig": ["beta", "loss_type", "desirable_weight", "undesirable_weight", "train_sampling_strategy"],
    "GRPOConfig": ["beta", "loss_type", "scale_rewards", "temperature", "importance_sampling_level", "num_generations"],
    "RLOOConfig": ["beta", "reward_weights", "normalize_advantages", "temperature"],
}
# Names that are read or written inside the methods above: they must still be what TRL calls these things.
WORDS = {
    "DPOTrainer._compute_loss": ["self.precompute_ref_logps", "ref_chosen_logps", "ref_rejected_logps", "self.beta"],
    "KTOTrainer._prepare_dataset": ["unpair_preference_dataset", '"label"'],
    "GRPOTrainer._compute_loss": ['inputs["advantages"]', "advantages.dim() == 1", "self.beta != 0.0", "dr_grpo"],
    "GRPOTrainer._generate_and_score_completions": [
        "self._calculate_rewards(",
        "self.beta != 0.0",
        '"old_per_token_logps"',
        '"ref_per_token_logps"',
        '"tool_mask"',
    ],
}


def test_version_is_in_range() -> None:
    assert Version(TRL_FROM) <= Version(version("trl")) < Version(TRL_BELOW)


@pytest.mark.parametrize("name", METHODS)
def test_method(name: str) -> None:
    trainer, method = name.split(".")
    assert list(inspect.signature(getattr(getattr(trl, trainer), method)).parameters) == METHODS[name], (
        f"TRL has changed {name}; repolicy.llm overrides or calls it with these arguments"
    )


@pytest.mark.parametrize("name", FIELDS)
def test_settings(name: str) -> None:
    fields = getattr(trl, name).__dataclass_fields__
    for field in FIELDS[name]:
        assert field in fields, f"TRL's {name} has no {field} any more; repolicy.llm sets or checks it"


@pytest.mark.parametrize("name", WORDS)
def test_names_inside(name: str) -> None:
    trainer, method = name.split(".")
    source = inspect.getsource(getattr(getattr(trl, trainer), method))
    for word in WORDS[name]:
        assert word in source, f"{name} of TRL no longer speaks of {word}; repolicy.llm relies on it"


def test_grpo_scores_before_it_reads_the_advantages() -> None:
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    assert source.index("self._get_per_token_logps_and_entropies(") < source.index('inputs["advantages"]'), (
        "TRL's GRPO now reads the advantages before it scores; repolicy.llm.grpo makes them in between"
    )


def test_fused_head_gives_log_probs() -> None:
    from trl.trainer import utils

    assert "log_probs" in utils.FusedCausalLMOutput.__dataclass_fields__


def test_callbacks_are_stateful() -> None:
    from transformers.trainer_callback import ExportableState

    assert {"state", "from_state"} <= set(vars(ExportableState))
    assert inspect.isclass(TrainerCallback)
