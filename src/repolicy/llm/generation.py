"""Responses of models to prompts: sampled as they are, or with the dial turned."""

from collections.abc import Sequence
from typing import Any

import torch

from repolicy.errors import UsageError
from repolicy.llm.identity import checksum
from repolicy.llm.mixing import dial
from repolicy.llm.models import load_prior, load_tuned, trained_for
from repolicy.llm.requirements import check_counts
from repolicy.llm.rloo import padded, prompt_ids


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
