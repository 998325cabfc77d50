"""Checks before a trainer starts; each raises one sentence with a remedy."""

from typing import Any

from peft import PeftModel

from repolicy.errors import UsageError
from repolicy.objective import Objective

# Values of PEFT's `init_lora_weights` that leave the base model's weights unchanged.
BASE_PRESERVING_INITS = (True, False, "gaussian", "orthogonal", "eva")
NO_REFERENCE_SYNC = (False, "the prior must not change; with True it follows the policy")


def require_no_adapter_inside(model: Any) -> None:
    """Raise if transformers loaded an adapter into the model: PEFT would switch it off with its own adapters."""
    if getattr(model, "_hf_peft_config_loaded", False):
        remedy = "merge_and_unload the adapter, or load it on its base with PeftModel.from_pretrained"
        raise UsageError(f"the model came from an adapter's folder, so adapters off would change it: {remedy}")


def require_prior_when_off(model: PeftModel) -> None:
    """Raise if a PEFT model with its adapters off is not the prior, or does not stay the prior in training."""
    reason = "with PEFT the prior is the model with its adapter off"
    for config in model.peft_config.values():
        init = getattr(config, "init_lora_weights", True)
        if (init.lower() if isinstance(init, str) else init) not in BASE_PRESERVING_INITS:
            choices = ", ".join(map(repr, BASE_PRESERVING_INITS))
            problem = f"init_lora_weights is {init!r}, which may move a part of the model's weights into the adapter"
            raise UsageError(f"{problem}, and {reason}: set it to one of {choices}")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not model.peft_config.keys() & set(name.split(".")):
            problem = f"{name} is trained and belongs to no adapter, so that it is not turned off"
            raise UsageError(f"{problem}, and {reason}: set bias='none' in the peft_config, and unfreeze nothing else")


def require_settings(args: Any, required: dict[str, tuple[Any, str]]) -> None:
    """Raise with the reason if a setting differs from its required value. `required`: name -> (value, reason)."""
    for name, (value, reason) in required.items():
        if getattr(args, name) != value:
            raise UsageError(f"{name} is {getattr(args, name)!r}; it must be {value!r}, because {reason}")


def require_enough_prompts(dataset: Any, args: Any) -> None:
    """Raise if the prompts do not fill one batch. TRL drops a partial batch, so it would end without a step."""
    batch_prompts = args.generation_batch_size // args.num_generations
    if hasattr(dataset, "__len__") and not isinstance(dataset, dict) and len(dataset) < batch_prompts:
        remedy = "make the batch smaller, num_generations larger, or give more prompts"
        raise UsageError(f"the dataset has {len(dataset)} prompts, and each generation takes {batch_prompts}: {remedy}")


def require_positive_alpha(objective: Objective, reason: str) -> None:
    """Raise with the reason if alpha is not above 0."""
    if objective.alpha <= 0:
        raise UsageError(f"alpha is {objective.alpha}; it must be greater than 0, because {reason}")


def require_saved_path(model: Any, trainer_name: str) -> None:
    """Raise if the model has no path, from which TRL could load its reference."""
    if isinstance(model, str) or "peft" in type(model).__module__:
        return
    if not getattr(model.config, "_name_or_path", ""):
        problem = "loads its reference from the model's own path, and this model was built in memory"
        raise UsageError(f"{trainer_name} {problem}: save_pretrained it first and load it from there")


def list_datasets(dataset: Any) -> list[Any]:
    """Return the datasets of a dictionary, or the one dataset, or none."""
    if dataset is None:
        return []
    return [*dataset.values()] if isinstance(dataset, dict) else [dataset]


def column_names_of(dataset: Any) -> list[str]:
    """Return the column names. A streamed dataset may not declare them, so its first row is read."""
    return list(dataset.column_names or next(iter(dataset)))


def require_labels(dataset: Any) -> None:
    """Raise if a label is not 0 or 1 (false or true); of a streamed dataset the first is read."""
    for value in dataset["label"] if hasattr(dataset, "__getitem__") else [next(iter(dataset))["label"]]:
        if value not in (0, 1):
            raise UsageError(f"a label is {value!r}; every label must be 0 or 1 (false or true)")
