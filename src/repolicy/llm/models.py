"""Models by name: a prior, and what was tuned from it; their responses, and what these are worth.

A trainer here leaves `repolicy.json` beside the weights. No path in it is ever followed. A measure is a mean over
prompts, and its interval is Student's t over the prompts (or, of a single prompt, over its responses).
"""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from repolicy.errors import FileError, UsageError, first_line, in_one_sentence
from repolicy.llm.identity import check_sampling_counts, checksum
from repolicy.llm.mixing import SAMPLING, beside, between, turned
from repolicy.llm.rloo import padded, prompt_ids, response_log_probs
from repolicy.loading import load_object
from repolicy.objective import Objective, residual
from repolicy.report.page import page, section, table
from repolicy.report.verdict import student_t_p_value
from repolicy.text import counted

IDENTITY, ADAPTER = "repolicy.json", "adapter_config.json"
LOADED_IN = (None, torch.bfloat16, torch.float16)  # what a prior may have been rounded to before it was tuned


def load_prior(name: str) -> tuple[Any, Any]:
    """Return a causal language model and its tokenizer, from a folder or by its name on the hub; safetensors alone."""
    model = _model(name)
    tokenizer = _loaded(lambda: AutoTokenizer.from_pretrained(name), name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def load_tuned(name: str, prior: Any, index: int) -> tuple[Any, Any]:
    """Return (prior, tuned): a whole model; or, of an adapter's folder, its name in the prior, which becomes PEFT's.

    Where the prior is itself an adapter's, which the tuned one goes on from, that is no longer off with it off: then
    both are whole models.
    """
    if not (Path(name) / ADAPTER).is_file():
        return prior, _model(name)
    if not (Path(name) / "adapter_model.safetensors").is_file():
        raise FileError(f"{name} has no adapter_model.safetensors; an adapter in another format is not read")
    if getattr(prior, "_hf_peft_config_loaded", False):
        return prior, _model(name)
    adapter = f"tuned{index}"
    before = first_logits(prior)
    if isinstance(prior, PeftModel):
        _loaded(lambda: prior.load_adapter(name, adapter_name=adapter), name)
    else:
        prior = _loaded(lambda: PeftModel.from_pretrained(prior, name, adapter_name=adapter), name).eval()
    if not torch.allclose(first_logits(prior), before, rtol=1e-3, atol=1e-3):
        moved = f"with the adapter of {name} loaded and turned off, the prior is no longer what it was"
        why = "by its adapter_config.json: bias, init_lora_weights or ensure_weight_tying"
        remedy = "merge_and_unload the adapter, save_pretrained the whole model, and name its folder"
        raise UsageError(f"{moved} ({why}): {remedy}")
    return prior, adapter


@torch.no_grad()
def first_logits(prior: Any) -> torch.Tensor:
    """Return a prior's logits after its first tokens `[T, V]`, by which another model would be known."""
    ids = torch.arange(min(8, prior.config.get_text_config().vocab_size), device=prior.device).unsqueeze(0)
    asked = beside(prior, None)
    with asked.adapter():
        return asked.model(input_ids=ids, use_cache=False).logits[0].float()


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
        method = identity.get("method")
        residual(identity["omega"], identity["alpha"])  # which refuses what is no weight
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise FileError(f"{file} is damaged: it does not say omega and alpha, each 0 or greater") from error
    if method == "QAdapterTrainer":
        raise UsageError(f"{name} is a Q-adapter, which is no policy: generate with a repolicy.llm.QAdapterLogits")
    return dict(identity)


def require_tuned_from(prior: Any, models: Sequence[str]) -> None:
    """Raise where a model, by name, says that it was tuned from another prior, or has another number of tokens."""
    own = cache(lambda dtype: checksum(prior, dtype))
    size = prior.config.get_text_config().vocab_size
    for name in models:
        identity = read_identity(name)
        known = identity.get("prior_checksum")
        if known is not None and known not in map(own, LOADED_IN):  # which asks for one more only where it must
            said = f"its {IDENTITY} names {identity.get('prior')!r}, and the checksums of the weights differ"
            if (Path(name) / ADAPTER).is_file():
                said += "; where training went on from an adapter, that adapter's folder is the prior"
            raise UsageError(f"{name} was tuned from another prior than the one that was given: {said}")
        if (Path(name) / ADAPTER).is_file():
            continue
        tokens = _loaded(lambda name=name: AutoConfig.from_pretrained(name), name).get_text_config().vocab_size
        if tokens != size:
            both = f"the prior has a vocabulary of {size} tokens and {name} one of {tokens}"
            raise UsageError(f"{both}; only with the same tokens can they be set beside each other")


def trained_for(name: str, trained_at: str | None) -> Objective:
    """Return the objective of a tuned model: as typed (`0.1,0.2`: omega and alpha), or from its own file."""
    identity = read_identity(name)
    if trained_at is not None:
        try:
            omega, alpha = (float(number) for number in trained_at.split(","))
        except ValueError:
            raise UsageError(f"--trained-at {trained_at!r} is not of the form omega,alpha, such as 0.1,0.2") from None
        return residual(omega, alpha)
    if not Path(name).exists():
        raise UsageError(f"there is no folder {name}; of a model on the hub, say --trained-at omega,alpha")
    if not identity:
        raise UsageError(f"{name} is no folder with a {IDENTITY}; say --trained-at omega,alpha for every model")
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
    check_sampling_counts(seed, count=count, tokens=tokens)
    if trained_at and len(trained_at) != len(models):
        raise UsageError(f"trained_at has {len(trained_at)} entries, and there are {len(models)} models")
    anchors = [trained_for(name, trained_at[index] if trained_at else None) for index, name in enumerate(models)]
    coefficients = turned(anchors, omega, alpha)
    base, tokenizer = load_prior(prior)
    require_tuned_from(base, models)
    tuned = []
    for index, name in enumerate(models):
        base, model = load_tuned(name, base, index)
        tuned.append(model)
    repeated = [prompt for prompt in prompts for _ in range(count)]
    chats = [[{"role": "user", "content": prompt}] for prompt in repeated]
    ids, attention = prompt_tensors(tokenizer, chats if chat else repeated)
    torch.manual_seed(seed)
    writer = between(base, tuned, coefficients)
    rows = new_tokens(writer, tokenizer, ids.to(base.device), attention.to(base.device), tokens)
    text = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    return [{"prompt": prompt, "text": response} for prompt, response in zip(repeated, text, strict=True)]


def prompt_tensors(
    tokenizer: Any, prompts: Sequence[Any], template: dict[str, Any] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention `[B, T]`, padded on the left."""
    rows = [prompt_ids(tokenizer, prompt, template) for prompt in prompts]
    return padded(rows, "left", tokenizer.pad_token_id), padded([[1] * len(row) for row in rows], "left")


@torch.no_grad()
def new_tokens(model: Any, tokenizer: Any, ids: Any, attention: Any, tokens: int, **settings: Any) -> list[list[int]]:
    """Return sampled responses as token ids, each up to and with its end token; of a model, or of what `dial` made.

    A response ends as when TRL trains: at the tokenizer's token, and at those of the generation config.
    """
    own = model.generation_config.eos_token_id
    listed = own if isinstance(own, list) else [own]
    ends = [token for token in dict.fromkeys([tokenizer.eos_token_id, *listed]) if token is not None]
    settings |= {"max_new_tokens": tokens, "eos_token_id": ends, "pad_token_id": tokenizer.pad_token_id}
    try:
        responses = model.generate(input_ids=ids, attention_mask=attention, **settings)[:, ids.shape[1] :].tolist()
    except IndexError as error:  # torch's, of a model with a table of positions
        length = f"a prompt of {counted(ids.shape[1], 'token')} and {tokens} more"
        raise UsageError(f"the model has no position for {length}: name fewer --tokens") from error
    return [row[: next((i + 1 for i, token in enumerate(row) if token in ends), None)] for row in responses]


# What models are worth beside their prior: means over prompts, with intervals -----------------------------------------


MEASURES = {"addon": "add-on", "log_prior": "log prior", "kl": "KL from the prior", "length": "tokens",
            "entropy": "entropy"}  # fmt: skip
NOTE = (
    "Means over prompts of what each model sampled, with 95 % intervals (Student's t). Log-probabilities, KL and "
    "entropy are of whole responses, in nats. A response that was cut off at the most tokens counts as it stands."
)


def evaluate(
    models: Sequence[str],
    prior: str,
    prompts: Path,
    reward: str,
    *,
    responses: int = 8,
    tokens: int = 128,
    seed: int = 0,
) -> tuple[list[dict[str, Any]], str]:
    """Return a dictionary for the prior and for each model, and the page that shows them; all are names or files."""
    check_sampling_counts(seed, responses=responses, tokens=tokens)
    rows = read_prompts(prompts)
    judge = load_object(reward, "the reward")
    judged(judge, rows[:1], ["a"], [[0]])  # a mistake in it shows before any of the work
    base, tokenizer = load_prior(prior)
    repeated = [row for row in rows for _ in range(responses)]
    require_tuned_from(base, models)  # before any of the work
    found: list[dict[str, Any]] = []
    samples: list[list[str]] = []  # of each model, its first response to every prompt
    for index, name in enumerate((None, *models)):
        who: dict[str, Any] = {"model": name or f"the prior, {prior}"}
        model = None
        if name is not None:
            base, model = load_tuned(name, base, index)
            known = read_identity(name)
            who |= {key: known[key] for key in ("omega", "alpha") if known}
        torch.manual_seed(seed)
        measures, text = measured(beside(base, model), beside(base, None), tokenizer, repeated, judge, tokens)
        shaped = {key: values.reshape(len(rows), responses) for key, values in measures.items()}
        found.append(who | with_intervals(shaped))
        samples.append(text[::responses])
    lead = f"{len(rows)} prompts, {responses} responses to each, at most {tokens} tokens."
    return found, as_page(lead, found, rows, samples)


def measured(
    model: Any, prior: Any, tokenizer: Any, rows: list[dict[str, Any]], reward: Any, tokens: int, batch: int = 64
) -> tuple[dict[str, Any], list[str]]:
    """Return every measure of a response to every row `[N]`, and the responses as text."""
    ids: list[list[int]] = []
    for start in range(0, len(rows), batch):
        prompts, attention = prompt_tensors(tokenizer, [row["prompt"] for row in rows[start : start + batch]])
        device = prior.model.device
        with model.adapter():
            ids += new_tokens(model.model, tokenizer, prompts.to(device), attention.to(device), tokens, **SAMPLING)
    text = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    pairs = [(prompt_ids(tokenizer, row["prompt"]), each) for row, each in zip(rows, ids, strict=True)]
    with model.adapter():
        log_policy = np.array(response_log_probs(model.model, pairs))
    with prior.adapter():
        log_prior = np.array(response_log_probs(prior.model, pairs))
    return {
        "addon": judged(reward, rows, text, ids),
        "log_prior": log_prior,
        "kl": log_policy - log_prior,
        "length": np.array([len(row) for row in ids], dtype=float),
        "entropy": -log_policy,
    }, text


def judged(reward: Any, rows: list[dict[str, Any]], text: list[str], ids: list[list[int]]) -> Any:
    """Return rewards `[N]` of a function, called as TRL does: with messages for messages, and every column."""
    chat = not isinstance(rows[0]["prompt"], str)
    completions = [[{"role": "assistant", "content": each}] for each in text] if chat else text
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    prompts = [row["prompt"] for row in rows]
    with in_one_sentence("the reward failed", UsageError):
        values = reward(prompts=prompts, completions=completions, completion_ids=ids, **columns)
        values = [None if value is None else float(value) for value in values]
    if len(values) != len(text):
        raise UsageError(f"the reward returned {len(values)} numbers for {len(text)} responses")
    rewards = np.array([0.0 if value is None else value for value in values])
    if not np.isfinite(rewards).all():
        raise UsageError(f"the reward returned {rewards[~np.isfinite(rewards)][0]}: return None to judge nothing")
    rewards[[value is None for value in values]] = np.nan
    return rewards


def with_intervals(shaped: dict[str, Any]) -> dict[str, Any]:
    """Return mean and 95 % interval of values `[prompts, responses]`; what was not judged, NaN, does not count."""
    intervals = {}
    for name, values in shaped.items():
        rows = [row[~np.isnan(row)] for row in values]
        units = np.array([row.mean() for row in rows if len(row)]) if len(rows) > 1 else rows[0]
        if not len(units):
            raise UsageError("the reward judged no response of one of the models: it returned None for all")
        mean, reach = float(units.mean()), _reach(units)
        intervals[name] = {"mean": mean, "low": mean - reach, "high": mean + reach}
    return intervals


def _reach(units: Any) -> float:
    """Return how far the ends of a 95 % interval are from the mean of numbers `[N]`; of a single one, without end."""
    freedom = min(len(units) - 1, 1000)  # beyond which Student's t is a Gaussian
    if not freedom:
        return math.inf
    low, high = 0.0, 13.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p_value(middle, freedom) > 0.05 else (low, middle)
    return high * float(units.std(ddof=1)) / math.sqrt(len(units))


def read_prompts(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file, each with a prompt and the same columns."""
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not one JSON object a line"
        raise FileError(f"{file} cannot be read as prompts: {reason}") from error
    if not rows:
        raise FileError(f"{file} has no prompt")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), (str, list)) or row.keys() != rows[0].keys():
            raise FileError(f"row {number} of {file} must have a prompt, and the same columns as the first row")
    return rows


def as_page(lead: str, models: list[dict[str, Any]], rows: list[dict[str, Any]], samples: list[list[str]]) -> str:
    """Return a page that needs nothing but itself: the measures, and the first responses side by side."""
    names = [each["model"] for each in models]
    cells = [
        [each["model"], *(f"{each[key]:g}" if key in each else "" for key in ("omega", "alpha"))]
        + ["{mean:.2f}\n{low:.2f} to {high:.2f}".format(**each[key]) for key in MEASURES]
        for each in models
    ]
    prompts = [row["prompt"] for row in rows[:20]]
    asked = [prompt if isinstance(prompt, str) else str(prompt[-1].get("content")) for prompt in prompts]
    shown = [[prompt, *texts] for prompt, *texts in zip(asked, *samples, strict=False)]
    texts = f'<div class="texts">{table(["prompt", *names], shown)}</div>'
    parts = [
        section("What each is worth", table(["model", "omega", "alpha", *MEASURES.values()], cells), note=NOTE),
        section("Side by side", texts, note="The first response of each model, to at most 20 prompts."),
    ]
    return page("Models beside their prior", lead, parts)
