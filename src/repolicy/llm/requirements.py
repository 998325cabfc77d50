"""Checks of what a trainer is given; each raises one sentence with a remedy."""

from collections.abc import Iterable
from math import isnan
from typing import Any, SupportsFloat

import torch
from datasets import Dataset
from peft import PeftModel

from repolicy.errors import NumericError, UsageError
from repolicy.objective import Objective

# Values of PEFT's `init_lora_weights` that leave the base model's weights unchanged.
BASE_PRESERVING_INITS = (True, False, "gaussian", "orthogonal", "eva")
NO_REFERENCE_SYNC = (False, "the prior must not change; with True it follows the policy")


def require_no_adapter_inside(model: Any) -> None:
    """Raise if transformers loaded an adapter into the model: PEFT would switch it off with its own adapters."""
    if getattr(model, "_hf_peft_config_loaded", False):
        remedy = "merge_and_unload the adapter, or load it on its base with PeftModel.from_pretrained"
        raise UsageError(f"the model came from an adapter's folder, so adapters off would change it: {remedy}")


def require_one_adapter(model: Any) -> None:
    """Raise if a PEFT model has another adapter than one named default, of which TRL's reference is a copy."""
    names = [*model.peft_config] if isinstance(model, PeftModel) else ["default"]
    if names != ["default"]:
        problem = f"the model has the adapter {' and '.join(names)}, and TRL goes on from a single one, named default"
        remedy = "load only that one, or merge_and_unload and give a peft_config"
        raise UsageError(f"{problem}: {remedy}")


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


@torch.no_grad()
def require_same_weights(model: Any, reference: Any) -> None:
    """Raise if the weights differ from those at the model's path, which TRL has loaded as the reference."""
    reference_parameters = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        other = reference_parameters.get(name)
        same = other is not None and other.shape == parameter.shape and torch.equal(other.to(parameter), parameter)
        if not same:
            difference = f"{name} differs from {reference.config._name_or_path}"
            remedy = "save_pretrained it and load it from there, or give a peft_config (for DPO also: a ref_model)"
            raise UsageError(f"the model was changed after it was loaded ({difference}): {remedy}")


def require_same_vocabulary(prior_config: Any, config: Any, name: str) -> None:
    """Raise if a model has a vocabulary of another size than its prior."""
    expected, tokens = (each.get_text_config().vocab_size for each in (prior_config, config))
    if tokens != expected:
        problem = f"the prior has a vocabulary of {expected} tokens and {name} one of {tokens}"
        raise UsageError(f"{problem}; only models with the same tokens can be mixed or compared")


def require_settings(args: Any, required: dict[str, tuple[Any, str]]) -> None:
    """Raise with the reason if a setting differs from its required value. `required`: name -> (value, reason)."""
    for name, (value, reason) in required.items():
        if getattr(args, name) != value:
            raise UsageError(f"{name} is {getattr(args, name)!r}; it must be {value!r}, because {reason}")


def require_enough_prompts(dataset: Any, args: Any) -> None:
    """Raise if the prompts do not fill one batch. TRL drops a partial batch, so it would end without a step."""
    batch_prompts = args.generation_batch_size // args.num_generations
    if hasattr(dataset, "__len__") and len(dataset) < batch_prompts:
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


def first_row(dataset: Any) -> dict[str, Any]:
    """Return the first row, which has all columns; raise if there is none."""
    for row in dataset:
        return dict(row)
    raise UsageError("the dataset has no row")


def values_of(dataset: Any, column: str) -> Any:
    """Return the values of a column; of a streamed dataset only the first is read."""
    return dataset[column] if isinstance(dataset, Dataset) else [first_row(dataset)[column]]


def require_columns(dataset: Any, required: tuple[str, ...]) -> None:
    """Raise if a dataset lacks a required column, or if a text in it is null."""
    columns = [*first_row(dataset)]
    missing = [column for column in required if column not in columns]
    if missing:
        raise UsageError(f"the dataset has no column {', '.join(missing)}; its columns are {columns}")
    for column in sorted({"prompt", "completion", "chosen", "rejected"}.intersection(columns)):
        for row, value in enumerate(values_of(dataset, column)):
            if value is None:
                raise UsageError(f"{column} is null in row {row} (the first is 0) of the dataset: filter it out")


def require_tokens(dataset: Any, tokenizer: Any) -> None:
    """Raise if a prompt is an empty text, unless the tokenizer begins every text with a token."""
    if "prompt" not in first_row(dataset) or tokenizer("")["input_ids"]:
        return
    for row, prompt in enumerate(values_of(dataset, "prompt")):
        if prompt == "":
            reason = "and a model needs a token to begin from"
            raise UsageError(f"prompt is empty in row {row} (the first is 0) of the dataset, {reason}: filter it out")


def require_no_images(columns: Iterable[str]) -> None:
    """Raise if rows of these columns have images, which the prior would not see."""
    if {"image", "images"} & {*columns}:
        remedy = "leave out prior_share and budget, and for TRL's RLOO use ResidualGRPOTrainer"
        raise UsageError(f"the rows have images, and the prior would read the prompts without them: {remedy}")


def require_labels(labels: Any) -> None:
    """Raise if a label is not 0 or 1 (false or true)."""
    for value in labels:
        if value not in (0, 1):
            raise UsageError(f"a label is {value!r}; every label must be 0 or 1 (false or true)")


def checked_rewards(values: Any) -> list[Any]:
    """Return what a reward function returned as a list; raise if it is none, or has NaN or another non-number."""
    if not isinstance(values, Iterable):
        raise NumericError(f"the reward returned {values!r}, and no list with a number for each response")
    for value in (values := list(values)):
        if not isinstance(value, SupportsFloat | None) or (value is not None and isnan(value)):
            raise NumericError(f"a reward is {value!r}, and no number: return None to judge nothing")
    return values
