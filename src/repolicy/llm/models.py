"""Models by name: a prior, and what was tuned from it, each with the objective that it was trained for.

A trainer here leaves `repolicy.json` beside the weights. No path in it is ever followed.
"""

import json
from pathlib import Path
from typing import Any

from repolicy.errors import FileError, UsageError, first_line
from repolicy.llm.requirements import require_trl
from repolicy.objective import Objective, residual

require_trl()

import torch  # noqa: E402
from peft import PeftModel  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

IDENTITY = "repolicy.json"


def load_prior(name: str) -> tuple[Any, Any]:
    """Return a causal language model and its tokenizer, from a folder or by its name on the hub; safetensors alone."""
    model = _model(name)
    tokenizer = _loaded(lambda: AutoTokenizer.from_pretrained(name), name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def load_tuned(name: str, prior: Any, index: int) -> tuple[Any, Any]:
    """Return (prior, tuned): a whole model; or, of an adapter's folder, its name in the prior, which becomes PEFT's."""
    if not (Path(name) / "adapter_config.json").is_file():
        return prior, _model(name)
    if not (Path(name) / "adapter_model.safetensors").is_file():
        raise FileError(f"{name} has no adapter_model.safetensors; an adapter in another format is not read")
    adapter = f"tuned{index}"
    if isinstance(prior, PeftModel):
        _loaded(lambda: prior.load_adapter(name, adapter_name=adapter), name)
    else:
        prior = _loaded(lambda: PeftModel.from_pretrained(prior, name, adapter_name=adapter), name).eval()
    return prior, adapter


def _model(name: str) -> Any:
    """Load a causal language model onto the accelerator, if there is one."""
    model = _loaded(lambda: AutoModelForCausalLM.from_pretrained(name, use_safetensors=True), name)
    return model.to(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu").eval()


def _loaded(load: Any, name: str) -> Any:
    """Load in one sentence: of the many ways in which a folder is no model, the first line is enough."""
    try:
        return load()
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise FileError(f"{name} cannot be read as a language model: {first_line(error)}") from error


def read_identity(name: str) -> dict[str, Any]:
    """Return what a trainer of this package wrote beside a model, if anything. A Q-adapter is refused."""
    file = Path(name) / IDENTITY
    if not file.is_file():
        return {}
    try:
        identity = json.loads(file.read_text())
        checksum, method = identity.get("prior_checksum"), identity.get("method")
        residual(identity["omega"], identity["alpha"])  # which refuses what is no weight
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise FileError(f"{file} is damaged: it does not say omega and alpha, each 0 or greater") from error
    if method == "QAdapterTrainer":
        raise UsageError(
            f"{name} is a Q-adapter, which is no policy by itself: what it adds to the prior's logits is Q_R; generate "
            "with a repolicy.llm.QAdapterLogits"
        )
    return {name: identity[name] for name in ("omega", "alpha")} | {"prior_checksum": checksum}


def identity_for(name: str, prior_checksum: str) -> dict[str, Any]:
    """Return the same; refused where the model was tuned from another prior."""
    identity = read_identity(name)
    if identity and identity["prior_checksum"] not in (None, prior_checksum):
        raise UsageError(f"{name} was tuned from another prior than the one that was given: their checksums differ")
    return identity


def trained_for(name: str, trained_at: str | None, prior_checksum: str) -> Objective:
    """Return the objective of a tuned model: as typed (`0.1,0.2`: omega and alpha), or from its own file."""
    if trained_at is not None:
        read_identity(name)  # a Q-adapter is refused all the same
        try:
            omega, alpha = (float(number) for number in trained_at.split(","))
        except ValueError:
            raise UsageError(f"--trained-at {trained_at!r} is not of the form omega,alpha, such as 0.1,0.2") from None
        return residual(omega, alpha)
    identity = identity_for(name, prior_checksum)
    if not identity:
        raise UsageError(
            f"{name} has no {IDENTITY}, so it is not known what it was trained for; say --trained-at omega,alpha for "
            "every model"
        )
    return residual(identity["omega"], identity["alpha"])
