"""The same objective with TRL's public RLOO trainer and nothing else: a recipe of two functions.

RLOO's reward is `Σ_k weight_k · reward_k − beta · (log policy − log reference)`. With beta = alpha, and the prior's
log-probability as one more reward function weighted omega − alpha, that is the sequence form of Eq. 27:

    add-on  +  omega · log prior  −  alpha · log policy

    args = RLOOConfig(output_dir="out", **rloo_settings(residual(0.3, 0.2)))
    trainer = RLOOTrainer(model, [addon, prior_reward(prior, tokenizer)], args, train_dataset=prompts)

The prior is asked twice a step, once by TRL and once here. `ResidualGRPOTrainer` asks once, and has a return a token.
"""

from collections.abc import Callable
from typing import Any

import torch

from repolicy.errors import UsageError
from repolicy.objective import Objective


def rloo_settings(objective: Objective, addons: int = 1) -> dict[str, Any]:
    """Settings of RLOOConfig that make its reward this objective's, for `addons` reward functions and the prior's."""
    if objective.task != "addon" or objective.bonus:
        raise UsageError("RLOO's reward can be the add-on with a prior and an entropy; use greedy, kl or residual")
    if addons < 1:
        raise UsageError(f"addons is {addons}; there must be a reward function beside the prior's")
    return {
        "beta": objective.alpha,
        "reward_weights": [1.0] * addons + [objective.omega - objective.alpha],
        "normalize_advantages": False,
        "temperature": 1.0,
    }


def prior_reward(prior: Any, tokenizer: Any, batch_size: int = 64) -> Callable[..., list[float]]:
    """A reward function for TRL: the prior's log-probability of each response, summed over its tokens."""

    def log_prior(prompts: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        rows = [
            (_prompt_ids(tokenizer, prompt), list(ids)) for prompt, ids in zip(prompts, completion_ids, strict=True)
        ]
        return [
            value
            for start in range(0, len(rows), batch_size)
            for value in response_log_probs(prior, rows[start : start + batch_size])
        ]

    return log_prior


@torch.no_grad()
def response_log_probs(model: Any, rows: list[tuple[list[int], list[int]]]) -> list[float]:
    """log model(response | prompt) for rows of token ids (prompt, response). Padded on the right, so positions hold."""
    length = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    attention, scored = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids[i, :end] = torch.tensor(prompt + response)
        attention[i, :end] = 1
        scored[i, len(prompt) : end] = 1
    ids, attention, scored = (x.to(model.device) for x in (ids, attention, scored))
    log_probs = model(input_ids=ids, attention_mask=attention).logits[:, :-1].float().log_softmax(-1)
    chosen = log_probs.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    values: list[float] = torch.where(scored[:, 1:] > 0, chosen, 0.0).sum(1).tolist()
    return values


def _prompt_ids(tokenizer: Any, prompt: Any) -> list[int]:
    """As TRL makes them: a chat template for messages, plain tokens for text."""
    if isinstance(prompt, str):
        ids: list[int] = tokenizer(prompt)["input_ids"]
        return ids
    chat: list[int] = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    return chat
