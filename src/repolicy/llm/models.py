"""Models by name: a prior, and what was tuned from it, each with the objective that it was trained for.

A trainer here leaves `repolicy.json` beside the weights. No path in it is ever followed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from repolicy.errors import FileError, UsageError, first_line
from repolicy.llm.identity import checksum
from repolicy.llm.mixing import dial
from repolicy.llm.requirements import check_counts, require_trl
from repolicy.llm.rloo import padded, prompt_ids
from repolicy.objective import Objective, residual

require_trl()

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


# Responses of models to prompts: sampled as they are, or with the dial turned -----------------------------------------


def generate(
    models: Sequence[str],
    prior: str,
    prompts: Sequence[str],
    *,
    omega: float,
    alpha: float | None = None,
    count: int = 1,
    tokens: int = 128,
    chat: bool = False,
    trained_at: Sequence[str] = (),
    seed: int = 0,
) -> list[dict[str, str]]:
    """Return `count` responses to each prompt, with the dial turned to omega; models and prior are names or folders."""
    check_counts(count=count, tokens=tokens)
    if trained_at and len(trained_at) != len(models):
        raise UsageError(f"trained_at has {len(trained_at)} entries, and there are {len(models)} models")
    base, tokenizer = load_prior(prior)
    own, tuned = checksum(base), []
    for index, name in enumerate(models):
        objective = trained_for(name, trained_at[index] if trained_at else None, own)
        base, model = load_tuned(name, base, index)
        tuned.append((model, objective))
    turned = dial(base, *tuned, omega=omega, alpha=alpha)
    repeated = [prompt for prompt in prompts for _ in range(count)]
    chats = [[{"role": "user", "content": prompt}] for prompt in repeated]
    ids, attention = prompt_tensors(tokenizer, chats if chat else repeated)
    torch.manual_seed(seed)
    rows = new_tokens(turned, tokenizer, ids.to(base.device), attention.to(base.device), tokens)
    text = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    return [{"prompt": prompt, "text": response} for prompt, response in zip(repeated, text, strict=True)]


def prompt_tensors(
    tokenizer: Any, prompts: Sequence[Any], template: dict[str, Any] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention `[B, T]`, padded on the left."""
    rows = [prompt_ids(tokenizer, prompt, template) for prompt in prompts]
    return padded(rows, "left", tokenizer.pad_token_id), padded([[1] * len(row) for row in rows], "left")


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return what ends a response when TRL trains: the tokenizer's token, and those of the generation config."""
    own = model.generation_config.eos_token_id
    listed = own if isinstance(own, list) else [own]
    return [token for token in dict.fromkeys([tokenizer.eos_token_id, *listed]) if token is not None]


@torch.no_grad()
def new_tokens(model: Any, tokenizer: Any, ids: Any, attention: Any, tokens: int, **settings: Any) -> list[list[int]]:
    """Return sampled responses as token ids, each up to and with its end token; of a model, or of what `dial` made."""
    ends = end_tokens(model, tokenizer)
    settings |= {"max_new_tokens": tokens, "eos_token_id": ends, "pad_token_id": tokenizer.pad_token_id}
    responses = model.generate(input_ids=ids, attention_mask=attention, **settings)[:, ids.shape[1] :].tolist()
    return [row[: next((i + 1 for i, token in enumerate(row) if token in ends), None)] for row in responses]
