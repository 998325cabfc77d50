"""The objective with TRL's public RLOO trainer: settings and a reward function, without a trainer class of our own.

RLOO's reward is `Σ_k weight_k · reward_k − beta · (log policy − log reference)`. With beta = alpha, and the prior's
log-probability as one more reward function weighted omega − alpha, that is the sequence form of Eq. 27:

    add-on  +  omega · log prior  −  alpha · log policy

    args = RLOOConfig(output_dir="out", **rloo_settings(residual(0.3, 0.2)))
    trainer = RLOOTrainer(model, [addon, prior_reward(prior, tokenizer)], args, train_dataset=prompts)

Here the prior is evaluated twice per step, and an add-on that returns None counts as 0 beside the prior's reward.
`ResidualGRPOTrainer` evaluates the prior once, has a return for every token, and leaves out what no add-on judged.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from repolicy.errors import UsageError, in_one_sentence
from repolicy.llm.requirements import require_no_images
from repolicy.objective import Objective
from repolicy.objective_names import check_supported


def rloo_settings(objective: Objective, addons: int = 1, budget: bool = False) -> dict[str, Any]:
    """Return settings of RLOOConfig for an objective; its reward functions are `addons` add-ons, then the prior's.

    With a `budget`, the last reward function must be a `PriorBudget`, which includes its own weight.
    """
    if check_supported(objective, "RLOO").task != "addon":
        raise UsageError("RLOO's reward can be the add-on with a prior and an entropy; use greedy, kl or residual")
    return {
        "beta": objective.alpha,
        "reward_weights": [1.0] * addons + [1.0 if budget else objective.omega - objective.alpha],
        "normalize_advantages": False,
        "reward_clip_range": None,
        "mask_truncated_completions": False,
        "sync_ref_model": False,
        "disable_dropout": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
    }


def prior_reward(prior: Any, tokenizer: Any) -> Callable[..., list[float]]:
    """Return a reward function for TRL: the prior's log-probability of each response, summed over its tokens.

    A prior on the CPU is moved to the trainer's device.
    """

    def log_prior(
        prompts: list[Any], completion_ids: list[list[int]], log_extra: Any = None, **columns: Any
    ) -> list[float]:
        require_no_images(columns)
        trainer = getattr(log_extra, "__self__", None)  # TRL passes a method of the trainer to reward functions
        template = getattr(trainer, "chat_template_kwargs", None)  # TRL encodes the prompts with them
        if trainer is not None and prior.device.type == "cpu":
            prior.to(trainer.accelerator.device)
        ids = [prompt_ids(tokenizer, prompt, template) for prompt in prompts]
        return response_log_probs(prior, list(zip(ids, map(list, completion_ids), strict=True)))

    return log_prior


@torch.no_grad()
def response_log_probs(model: Any, rows: list[tuple[list[int], list[int]]], max_logits: int = 2**27) -> list[float]:
    """Return log model(response | prompt) for rows of token ids (prompt, response).

    A batch has at most `max_logits` logits, or one row: 64 rows of 1,024 tokens of 152,000 would take 40 GB.
    """
    longest = max((len(prompt) + len(response) for prompt, response in rows), default=1)
    size = max(1, max_logits // (longest * model.config.get_text_config().vocab_size))
    values: list[float] = []
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]  # padded on the right, so that positions count from the first token
        ids = padded([prompt + response for prompt, response in batch], "right").to(model.device)
        attention = padded([[1] * len(prompt + response) for prompt, response in batch], "right").to(model.device)
        mask = padded([[0] * len(prompt) + [1] * len(response) for prompt, response in batch], "right").to(model.device)
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits
        logits = logits[:, -ids.shape[1] : -1].float()  # prompt tuning puts virtual tokens before the ids
        log_probs = logits.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
        values += torch.where(mask[:, 1:] > 0, log_probs, 0.0).sum(1).tolist()
    return values


def padded(rows: list[list[int]], side: str, value: int = 0) -> torch.Tensor:
    """Return rows of different lengths as one tensor `[B, T]`, padded on a side, "left" or "right"."""
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], True, value, side)


def prompt_ids(tokenizer: Any, prompt: Any, template: dict[str, Any] | None = None) -> list[int]:
    """Return the ids of a prompt as TRL computes them: a chat template for messages, plain tokens for text."""
    if isinstance(prompt, str):
        ids: list[int] = tokenizer(prompt)["input_ids"]
    else:
        with in_one_sentence("the tokenizer's chat template cannot write the prompt", UsageError):
            ids = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_dict=True, **(template or {})
            )["input_ids"]
    if not ids:
        raise UsageError(f"the prompt {prompt!r} has no token, and a model needs one to begin from")
    return ids
