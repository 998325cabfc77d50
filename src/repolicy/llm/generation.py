"""Responses of models to prompts: sampled as they are, or with the dial turned."""

from typing import TYPE_CHECKING, Any

import torch

from repolicy.llm.identity import checksum
from repolicy.llm.mixing import dial
from repolicy.llm.models import load_prior, load_tuned, trained_for
from repolicy.llm.rloo import padded, prompt_ids

if TYPE_CHECKING:
    from repolicy.cli.llm import Generate


def generate(options: "Generate") -> list[dict[str, Any]]:
    """Each prompt and response, in the order of the prompts."""
    prior, tokenizer = load_prior(options.prior)
    prior_checksum, tuned = checksum(prior), []
    for index, name in enumerate(options.models):
        trained_at = options.trained_at[index] if options.trained_at else None
        objective = trained_for(name, trained_at, prior_checksum)
        prior, model = load_tuned(name, prior, index)
        tuned.append((model, objective))
    turned = dial(prior, *tuned, omega=options.omega, alpha=options.alpha)
    prompts = [prompt for prompt in options.prompt for _ in range(options.count)]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    ids, attention = prompt_tensors(tokenizer, chats if options.chat else prompts)
    torch.manual_seed(options.seed)
    rows = new_tokens(turned.generate, tokenizer, ids.to(prior.device), attention.to(prior.device), options.tokens)
    text = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    return [{"prompt": prompt, "text": response} for prompt, response in zip(prompts, text, strict=True)]


def prompt_tensors(
    tokenizer: Any, prompts: list[Any], template: dict[str, Any] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention `[B, T]`, padded on the left."""
    rows = [prompt_ids(tokenizer, prompt, template) for prompt in prompts]
    return padded(rows, "left", tokenizer.pad_token_id), padded([[1] * len(row) for row in rows], "left")


@torch.no_grad()
def new_tokens(
    generator: Any, tokenizer: Any, ids: Any, attention: Any, tokens: int, **settings: Any
) -> list[list[int]]:
    """Sampled responses as token ids, each up to and with its end token."""
    end = tokenizer.eos_token_id
    responses = generator(
        input_ids=ids,
        attention_mask=attention,
        max_new_tokens=tokens,
        eos_token_id=end,
        pad_token_id=tokenizer.pad_token_id,
        **settings,
    )[:, ids.shape[1] :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in responses]
