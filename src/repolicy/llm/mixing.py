"""Turn omega and alpha while text is generated, between models that were trained at other values.

At the optimum a model trained at (omega_i, alpha_i) stands for the add-on reward: it is alpha_i · log policy_i −
omega_i · log prior, up to a number. A mean of such rewards, put into the optimum at another (omega, alpha), is a sum
of log-probabilities with known coefficients (`mixture`). Here that sum is taken token by token, and a token's is not
quite a response's: how far it is off was measured (`python -m experiments.llm dial`). With two models at different
omegas the prior's coefficient is 0, and it is not even asked.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import LogitsProcessor
from trl.trainer.utils import use_adapter

from repolicy.errors import UsageError
from repolicy.llm.identity import require_no_adapter_inside, require_positive_alpha
from repolicy.objective import Objective, residual
from repolicy.objective_names import plain

# Tokens are sampled as the model has them, whatever its own generation config says; unless the caller asks for other.
SAMPLING: dict[str, Any] = {
    "do_sample": True, "num_beams": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0, "guidance_scale": 1.0,
}  # fmt: skip


def mixture(target: Objective, anchors: Sequence[Objective]) -> list[float]:
    """Return the coefficients of log prior and of each anchor's log policy in the logits at `target`.

    >>> mixture(residual(0.2, 0.2), [residual(0.1, 0.2), residual(0.4, 0.2)])
    [0.0, 0.6666666666666667, 0.3333333333333333]
    """
    for objective in (target, *anchors):
        if plain(objective, "the dial").reads_basic:
            raise UsageError(
                f"the dial turns between wishes on a prior, and an objective here is on {objective.task!r}"
            )
        require_positive_alpha(objective, "the logits are divided by it")
    shares = [1.0]
    if len(anchors) == 2:
        one, other = (anchor.omega for anchor in anchors)
        if one == other:
            raise UsageError(f"both models were trained with omega {one:g}; between two models omega must differ")
        share = (other - target.omega) / (other - one)
        shares = [share, 1 - share]
        if not 0 <= share <= 1:
            said = f"omega {target.omega:g} is not between those of the two models, {one:g} and {other:g}; beyond them "
            warnings.warn(f"{said}the mixture soon goes wrong", stacklevel=4)
    own = [share * anchor.alpha / target.alpha for share, anchor in zip(shares, anchors, strict=True)]
    rest = target.omega - sum(share * anchor.omega for share, anchor in zip(shares, anchors, strict=True))
    return [0.0 if abs(rest) < 1e-12 else rest / target.alpha, *own]


def mixed_log_probs(coefficients: Sequence[float], log_probs: Sequence[Tensor]) -> Tensor:
    """Return log p(next token) of the mixture `[..., V]`, from those of the prior and the anchors.

    A token that one of them cannot write is not written.
    """
    if len(sizes := {each.shape[-1] for each in log_probs}) > 1:
        raise UsageError(f"the models have vocabularies of {sorted(sizes)} tokens, and a mixture needs the same tokens")
    total = torch.zeros_like(log_probs[0])
    for coefficient, each in zip(coefficients, log_probs, strict=True):
        if coefficient:  # 0 · −inf is not a number
            total = total + coefficient * each
    impossible = torch.stack([each.isneginf() for each in log_probs]).any(0)
    return total.masked_fill(impossible, -torch.inf).log_softmax(-1)


def positions(attention: Tensor) -> Tensor:
    """Return the positions `[B, T]` of tokens among those that are attended to, as `generate` counts them."""
    return (attention.long().cumsum(-1) - 1).clamp(min=0)


def count_as_generate(model: Any) -> None:
    """Let a model with learned positions, as GPT-2, count its tokens as when it writes: without the padding before.

    TRL scores prompts that are padded on the left, and says no positions. Rotary ones are the same from anywhere.
    """
    if getattr(model.config.get_text_config(), "rope_parameters", None):
        return
    plain = model.get_base_model() if isinstance(model, PeftModel) else model
    if "position_ids" in signature(plain.forward).parameters:
        model.register_forward_pre_hook(_with_positions, with_kwargs=True)


def _with_positions(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    attention = named.get("attention_mask")
    if attention is not None and named.get("position_ids") is None and named.get("past_key_values") is None:
        named = named | {"position_ids": positions(attention)}
    return given, named


class Beside:
    """A model that is asked for its next token beside the one that generates, with a key-value cache of its own."""

    def __init__(self, model: Any, adapter: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.model, self.adapter = model, adapter
        self.forget()

    def forget(self) -> None:
        """Drop the cache, before another text."""
        self.seen, self.cache = torch.empty(0, 0, dtype=torch.long), None

    @torch.no_grad()
    def logits(self, ids: Tensor, prompt_attention: Tensor | None) -> Tensor:
        """Return logits `[B, V]` after ids `[B, T]`; only the last is read where the others were, in this order."""
        fresh = self.cache is None or not torch.equal(self.seen.to(ids.device), ids[:, :-1])
        attention = torch.ones_like(ids)
        if prompt_attention is not None:
            repeats = len(ids) // len(prompt_attention)
            attention[:, : prompt_attention.shape[1]] = prompt_attention.repeat_interleave(repeats, 0)
        places = positions(attention)
        with self.adapter():
            outputs = self.model(
                input_ids=ids if fresh else ids[:, -1:],
                attention_mask=attention,
                position_ids=places if fresh else places[:, -1:],
                past_key_values=None if fresh else self.cache,
                use_cache=True,
            )
        self.seen, self.cache = ids, outputs.past_key_values
        return outputs.logits[:, -1].float()


class DialedGenerator(LogitsProcessor):  # type: ignore[misc]
    """Made by `dial`. `generate` takes what a model's own `generate` takes."""

    def __init__(self, generator: Beside, others: list[Beside], coefficients: list[float]) -> None:
        self.generator, self.others, self.coefficients = generator, others, coefficients
        self.attention: Tensor | None = None

    @property
    def generation_config(self) -> Any:
        """Return that of the model which generates, the first tuned one."""
        return self.generator.model.generation_config

    def generate(self, input_ids: Tensor, attention_mask: Tensor | None = None, **settings: Any) -> Any:
        """Sample from the mixture itself, unless `settings` say otherwise."""
        self.attention = attention_mask
        for each in self.others:
            each.forget()
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        settings = SAMPLING | settings
        settings["logits_processor"] = [*settings.get("logits_processor", []), self]
        with self.generator.adapter():
            return self.generator.model.generate(input_ids=input_ids, attention_mask=attention_mask, **settings)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the mixture's scores `[B, V]` from ids `[B, T]` and the first tuned model's scores `[B, V]`."""
        prior, own, *rest = self.coefficients
        coefficients, log_probs = [own], [scores.float().log_softmax(-1)]
        for coefficient, model in zip((prior, *rest), self.others, strict=True):
            if coefficient:
                coefficients.append(coefficient)
                log_probs.append(model.logits(input_ids, self.attention).log_softmax(-1))
        return mixed_log_probs(coefficients, log_probs)


def dial(prior: Any, *tuned: tuple[Any, Objective], omega: float, alpha: float | None = None) -> DialedGenerator:
    """Return a generator at (omega, alpha) from the prior and one or two models, each with its objective.

        dial(prior, (one, residual(0.1, 0.2)), (two, residual(0.4, 0.2)), omega=0.25).generate(**prompt)

    alpha: as that of the first tuned model, unless it is given.
    With PEFT, `prior` is the model with its adapters, off (of a trained one, TRL's copy `ref` of the adapter that was
    given); a tuned model is then the name of an adapter.
    """
    return between(prior, [model for model, _ in tuned], turned([each for _, each in tuned], omega, alpha))


def turned(anchors: Sequence[Objective], omega: float, alpha: float | None) -> list[float]:
    """Return the coefficients of `mixture` at (omega, alpha), for whoever has models to load first."""
    if len(anchors) not in (1, 2):
        raise UsageError(f"the dial turns with one or two tuned models, and an objective each; here are {len(anchors)}")
    return mixture(residual(omega, anchors[0].alpha if alpha is None else alpha), anchors)


def between(prior: Any, tuned: Sequence[Any], coefficients: list[float]) -> DialedGenerator:
    """Return a generator from the prior and the tuned models of `dial`, by the coefficients of `turned`."""
    models = [beside(prior, model) for model in tuned]
    return DialedGenerator(models[0], [beside(prior, None), *models[1:]], coefficients)


def as_prior(model: PeftModel) -> AbstractContextManager[Any]:
    """Make a PEFT model its prior: its adapters off, or TRL's copy `ref` of the adapter that training went on from."""
    return use_adapter(model, "ref" if "ref" in model.peft_config else None)


def beside(prior: Any, model: Any) -> Beside:
    """Return a model to ask, or an adapter of the prior by name, or (None) the prior: PEFT's with its adapters off."""
    if isinstance(prior, PeftModel) and (model is None or isinstance(model, str)):
        require_no_adapter_inside(prior.get_base_model())
        if model is not None and model not in prior.peft_config:
            raise UsageError(f"the prior has no adapter {model!r}; it has {', '.join(prior.peft_config)}")
        return Beside(prior, lambda: as_prior(prior) if model is None else use_adapter(prior, model))
    if isinstance(model, str):
        raise UsageError(f"{model!r} is the name of an adapter, and the prior is no PEFT model")
    return Beside(prior if model is None else model)
