"""Generate text; with the dial, at an omega and alpha between those that models were trained at.

At its optimum, a model trained at (omega_i, alpha_i) encodes the add-on reward: alpha_i · log policy_i − omega_i · log
prior, up to a constant. A weighted mean of such rewards, in the optimum at another (omega, alpha), gives a sum of
log-probabilities with known coefficients (`mixture`). This module computes the sum token by token, which only
approximates the sum over responses; `python -m experiments.llm dial` measures the error. With two models at
different omegas the prior's coefficient is 0, so the prior is not evaluated.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from inspect import signature
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import LogitsProcessor
from transformers.modeling_outputs import CausalLMOutputWithPast
from trl.trainer.utils import use_adapter

from repolicy.errors import UsageError
from repolicy.llm.requirements import require_no_adapter_inside, require_positive_alpha
from repolicy.llm.rloo import padded
from repolicy.objective import Objective, residual
from repolicy.objective_names import check_supported
from repolicy.text import format_count

# Options of `generate` that sample from the model's own distribution, whatever its generation config says.
SAMPLING: dict[str, Any] = {
    "do_sample": True, "num_beams": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0, "guidance_scale": 1.0,
}  # fmt: skip

GENERATION_BATCH = 64  # responses that a model writes in one batch
# The name of a model's key-value cache, in its arguments and in its outputs: another one from transformers 5.24 on.
CACHE = "cache" if "cache" in {each.name for each in fields(CausalLMOutputWithPast)} else "past_key_values"


def mixture(anchors: Sequence[Objective], omega: float, alpha: float | None = None) -> list[float]:
    """Return coefficients of log prior and of the log policies of one or two tuned models for the logits at omega.

    alpha: by default that of the first model.

    >>> mixture([residual(0.1, 0.2), residual(0.4, 0.2)], omega=0.2)
    [0.0, 0.6666666666666667, 0.3333333333333333]
    """
    if len(anchors) not in (1, 2):
        raise UsageError(f"the dial turns with one or two tuned models, and an objective each; here are {len(anchors)}")
    target = residual(omega, anchors[0].alpha if alpha is None else alpha)
    for objective in (target, *anchors):
        if check_supported(objective, "the dial").reads_basic:
            raise UsageError(f"the dial needs objectives with a prior, and one here is on {objective.task!r}")
        require_positive_alpha(objective, "the logits are divided by it")
    shares = [1.0]
    if len(anchors) == 2:
        first, second = (anchor.omega for anchor in anchors)
        if first == second:
            raise UsageError(f"both models were trained with omega {first:g}; between two models omega must differ")
        share = (second - target.omega) / (second - first)
        shares = [share, 1 - share]
        if not 0 <= share <= 1:
            position = f"omega {target.omega:g} is not between those of the two models, {first:g} and {second:g}"
            warnings.warn(f"{position}; beyond them the mixture soon goes wrong", stacklevel=3)
    coefficients = [share * anchor.alpha / target.alpha for share, anchor in zip(shares, anchors, strict=True)]
    prior_omega = target.omega - sum(share * anchor.omega for share, anchor in zip(shares, anchors, strict=True))
    return [0.0 if abs(prior_omega) < 1e-12 else prior_omega / target.alpha, *coefficients]


def mixed_log_probs(coefficients: Sequence[float], log_probs: Sequence[Tensor]) -> Tensor:
    """Return log p(next token) of the mixture `[..., V]`, from those of the prior and the anchors.

    A token that is impossible under one of them is impossible under the mixture.
    """
    sizes = {each.shape[-1] for each in log_probs}
    if len(sizes) > 1:
        raise UsageError(f"the models have vocabularies of {sorted(sizes)} tokens, and a mixture needs the same tokens")
    total = torch.zeros_like(log_probs[0])
    for coefficient, each in zip(coefficients, log_probs, strict=True):
        if coefficient:  # 0 · −inf would be NaN
            total = total + coefficient * each
    impossible = torch.stack([each.isneginf() for each in log_probs]).any(0)
    return total.masked_fill(impossible, -torch.inf).log_softmax(-1)


def position_ids(attention: Tensor) -> Tensor:
    """Return the positions of tokens `[B, T]` without the padding, as `generate` counts them."""
    return (attention.long().cumsum(-1) - 1).clamp(min=0)


def base_model(model: Any) -> Any:
    """Return the model without the wrapper of its adapters."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def add_position_ids(model: Any) -> None:
    """Make the forward pass of a model with learned positions, such as GPT-2, count positions without the padding.

    TRL passes no position ids when it scores left-padded prompts. Rotary positions are relative and need none.
    """

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        attention = kwargs.get("attention_mask")
        if attention is not None and kwargs.get("position_ids") is None and kwargs.get(CACHE) is None:
            kwargs = kwargs | {"position_ids": position_ids(attention)}
        return args, kwargs

    base = base_model(model)
    has_rotary_positions = getattr(model.config.get_text_config(), "rope_parameters", None)
    if not has_rotary_positions and "position_ids" in signature(base.forward).parameters:
        model.register_forward_pre_hook(hook, with_kwargs=True)


class ModelView:
    """A model, a context manager that selects its adapter, and its own key-value cache for next-token logits."""

    def __init__(self, model: Any, adapter: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.model, self.adapter = model, adapter
        self.reset_cache()

    def reset_cache(self) -> None:
        self.cached_ids, self.cache = torch.empty(0, 0, dtype=torch.long), None

    @torch.no_grad()
    def logits(self, ids: Tensor, prompt_attention: Tensor | None) -> Tensor:
        """Return next-token logits `[B, V]` after ids `[B, T]`.

        If the cache holds all ids but the last, in the same order of rows, the model reads only the last.
        """
        fresh = self.cache is None or not torch.equal(self.cached_ids.to(ids.device), ids[:, :-1])
        attention = torch.ones_like(ids)
        if prompt_attention is not None:
            repeats = len(ids) // len(prompt_attention)
            attention[:, : prompt_attention.shape[1]] = prompt_attention.repeat_interleave(repeats, 0)
        base = base_model(self.model)
        # Of the class, because PEFT replaces the method of the object while it generates.
        prepare = type(base).prepare_inputs_for_generation
        inputs = prepare(
            base,
            ids,
            next_sequence_length=None if fresh else 1,
            attention_mask=attention,
            position_ids=position_ids(attention),
            use_cache=True,
            is_first_iteration=fresh,
            **{CACHE: None if fresh else self.cache},
        )
        with self.adapter():
            outputs = self.model(**inputs)
        # Mamba has no cache by this name before transformers 5.24, and then reads all ids again.
        self.cached_ids, self.cache = ids, outputs.get(CACHE)
        return outputs.logits[:, -1].float()


class DialedGenerator(LogitsProcessor):  # type: ignore[misc]
    """Generates from the mixture: the first tuned model generates, and this logits processor adds the others.

    `others` are the prior and the second tuned model, if any; `coefficients` are in the order of `mixture`.
    """

    def __init__(self, generator: ModelView, others: list[ModelView], coefficients: list[float]) -> None:
        self.generator, self.others, self.coefficients = generator, others, coefficients
        self.attention: Tensor | None = None
        self.generation_config, self.device = generator.model.generation_config, generator.model.device

    def generate(self, input_ids: Tensor, attention_mask: Tensor | None = None, **settings: Any) -> Any:
        """Sample from the mixture. `settings` are those of the model's own `generate`, and override `SAMPLING`."""
        self.attention = attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        for view in self.others:
            view.reset_cache()
        settings = SAMPLING | settings
        settings["logits_processor"] = [*settings.get("logits_processor", []), self]
        with self.generator.adapter():
            return self.generator.model.generate(input_ids=input_ids, attention_mask=attention_mask, **settings)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the mixture's scores `[B, V]` from ids `[B, T]` and the first tuned model's scores `[B, V]`."""
        prior_coefficient, first_coefficient, *rest = self.coefficients
        coefficients, log_probs = [first_coefficient], [scores.float().log_softmax(-1)]
        for coefficient, view in zip((prior_coefficient, *rest), self.others, strict=True):
            if coefficient:
                coefficients.append(coefficient)
                log_probs.append(view.logits(input_ids, self.attention).log_softmax(-1))
        return mixed_log_probs(coefficients, log_probs)


def dial(prior: Any, *tuned: tuple[Any, Objective], omega: float, alpha: float | None = None) -> DialedGenerator:
    """Return a generator at (omega, alpha) from the prior and one or two tuned models, each with its objective.

        dial(prior, (one, residual(0.1, 0.2)), (two, residual(0.4, 0.2)), omega=0.25).generate(**prompt)

    alpha: by default that of the first tuned model.
    With PEFT, `prior` is the model with its adapters, and a tuned model may be the name of an adapter. The prior is
    then the model with its adapters off, or with TRL's copy `ref` of the adapter from which training continued.
    """
    coefficients = mixture([objective for _, objective in tuned], omega, alpha)
    return dialed_generator(prior, [model for model, _ in tuned], coefficients)


def dialed_generator(prior: Any, tuned: Sequence[Any], coefficients: list[float]) -> DialedGenerator:
    """Return a generator from the prior, the tuned models and the coefficients of `mixture`."""
    first, *rest = (model_view(prior, model) for model in tuned)
    return DialedGenerator(first, [model_view(prior, None), *rest], coefficients)


def use_prior(model: PeftModel) -> AbstractContextManager[Any]:
    """Return a context in which a PEFT model is its prior: adapters off, or TRL's copy `ref` of the initial adapter."""
    return use_adapter(model, "ref" if "ref" in model.peft_config else None)


def model_view(prior: Any, model: Any) -> ModelView:
    """Return a view of a model, of the prior's adapter with that name, or (for None) of the prior."""
    if isinstance(prior, PeftModel) and (model is None or isinstance(model, str)):
        require_no_adapter_inside(prior.get_base_model())
        if model is not None and model not in prior.peft_config:
            raise UsageError(f"the prior has no adapter {model!r}; it has {', '.join(prior.peft_config)}")
        return ModelView(prior, lambda: use_prior(prior) if model is None else use_adapter(prior, model))
    if isinstance(model, str):
        raise UsageError(f"{model!r} is the name of an adapter, and the prior is no PEFT model")
    return ModelView(prior if model is None else model)


@torch.no_grad()
def sample(
    model: Any, tokenizer: Any, prompts: list[list[int]], tokens: int, batch: int = GENERATION_BATCH, **settings: Any
) -> list[list[int]]:
    """Return a response to each prompt, all as token ids, each with its end token, generated in batches.

    `model` may be a `DialedGenerator`. A response ends as in training with TRL: at the tokenizer's end token, or at one
    of the generation config.
    """
    configured = model.generation_config.eos_token_id
    configured = configured if isinstance(configured, list) else [configured]
    ends = [token for token in dict.fromkeys([tokenizer.eos_token_id, *configured]) if token is not None]
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    settings |= {"max_new_tokens": tokens, "eos_token_id": ends, "pad_token_id": padding}
    responses: list[list[int]] = []
    for start in range(0, len(prompts), batch):
        rows = prompts[start : start + batch]
        ids = padded(rows, "left", padding).to(model.device)
        attention = padded([[1] * len(row) for row in rows], "left").to(model.device)
        try:
            written = model.generate(input_ids=ids, attention_mask=attention, **settings)[:, ids.shape[1] :].tolist()
        except IndexError as error:  # raised by torch if a model with learned positions has too few of them
            length = f"a prompt of {format_count(ids.shape[1], 'token')} and {tokens} more"
            raise UsageError(f"the model has no position for {length}: name fewer --tokens") from error
        responses += [row[: next((i + 1 for i, token in enumerate(row) if token in ends), None)] for row in written]
    return responses
