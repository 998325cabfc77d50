"""Which weights a model has: the checksum of a prior, and whether two models are the same one."""

import hashlib
from typing import Any

import torch
from peft import PeftModel

from repolicy.errors import UsageError

IDENTITY = "repolicy.json"  # the file beside a model that describes its training


@torch.no_grad()
def checksum(model: Any, dtype: torch.dtype | None = None) -> str:
    """Return the sha256 of a model's weights in order; of a PEFT model, without the weights that are trained.

    The checksum does not depend on the dtype: bfloat16 weights that were loaded as float32 have the same one. With a
    `dtype`, weights are rounded to it first.
    """
    digest, is_peft = hashlib.sha256(), isinstance(model, PeftModel)
    skip_ref = is_peft and is_ref_adapter_unused(model)
    for name, parameter in model.named_parameters():
        if is_peft and (parameter.requires_grad or (skip_ref and ".ref." in name)):
            continue
        weights = parameter.to(dtype or torch.float32).float() if parameter.is_floating_point() else parameter
        digest.update(f"{weights.dtype}{tuple(weights.shape)}".encode())
        digest.update(weights.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_ref_adapter_unused(model: PeftModel) -> bool:
    """Return whether TRL's copy `ref` of the initial adapter has no effect: its B matrices are 0, as in a new LoRA."""
    b_matrices = [parameter for name, parameter in model.named_parameters() if ".lora_B.ref." in name]
    return bool(b_matrices) and not any(matrix.any() for matrix in b_matrices)


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
