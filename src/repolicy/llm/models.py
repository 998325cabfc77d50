"""The work of `repolicy llm`: load a prior and tuned models by name, generate responses, and evaluate the models.

The trainers write `repolicy.json` into a model's folder. No path in it is ever followed. A measure is a mean over
prompts, with Student's t interval over the prompts (or, for a single prompt, over its responses).
"""

import asyncio
import inspect
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerState

from repolicy.differences import student_t_p_value
from repolicy.errors import FileError, UsageError, check_counts, first_line, in_one_sentence
from repolicy.files import read_json
from repolicy.llm.mixing import SAMPLING, ModelView, dialed_generator, mixture, model_view, sample
from repolicy.llm.mixins import IDENTITY, checksum
from repolicy.llm.q_adapter import through_q_adapter
from repolicy.llm.requirements import checked_rewards, require_same_vocabulary
from repolicy.llm.rloo import prompt_ids, response_log_probs
from repolicy.loading import load_function
from repolicy.objective import Objective, residual
from repolicy.report.page import page, section, table
from repolicy.text import format_count, with_minus

ADAPTER, TOKENIZER = "adapter_config.json", "tokenizer_config.json"
TRL_COLUMNS = ("prompt", "completion", "completion_ids")  # TRL hands a reward its own of these, not the dataset's
PRIOR_DTYPES = (None, torch.bfloat16, torch.float16)  # to which a prior may have been rounded before it was tuned


def load_tokenizer(models: Sequence[str], prior: str) -> Any:
    """Load the tokenizer of the first model whose folder has one, else the prior's.

    Training may have given it another chat template or end token than the prior's, and the prior was read with it, too.
    """
    home = next((name for name in models if (Path(name) / TOKENIZER).is_file()), prior)
    return _load(lambda: AutoTokenizer.from_pretrained(home), home)


def load_tuned(name: str, prior: Any, index: int) -> tuple[Any, Any]:
    """Load a tuned model; return (prior, whole model), or for an adapter's folder (PEFT prior, name of the adapter).

    If the prior itself came from an adapter's folder, PEFT would also switch that off; a whole model is then loaded.
    """
    if not (Path(name) / ADAPTER).is_file():
        return prior, _load_model(name)
    if not (Path(name) / "adapter_model.safetensors").is_file():
        raise FileError(f"{name} has no adapter_model.safetensors; an adapter in another format is not read")
    if getattr(prior, "_hf_peft_config_loaded", False):
        return prior, _load_model(name)
    adapter = f"tuned{index}"
    logits_before = probe_logits(prior)
    if isinstance(prior, PeftModel):
        _load(lambda: prior.load_adapter(name, adapter_name=adapter), name)
    else:
        prior = _load(lambda: PeftModel.from_pretrained(prior, name, adapter_name=adapter), name).eval()
    if not torch.allclose(probe_logits(prior), logits_before, rtol=1e-3, atol=1e-3):
        problem = f"with the adapter of {name} loaded and turned off, the prior is no longer what it was"
        reason = "by its adapter_config.json: bias, init_lora_weights or ensure_weight_tying"
        remedy = "merge_and_unload the adapter, save_pretrained the whole model, and name its folder"
        raise UsageError(f"{problem} ({reason}): {remedy}")
    return prior, adapter


@torch.no_grad()
def probe_logits(prior: Any) -> torch.Tensor:
    """Return the prior's logits on a fixed short input `[T, V]`, to detect that an adapter has changed the prior."""
    ids = torch.arange(min(8, prior.config.get_text_config().vocab_size), device=prior.device).unsqueeze(0)
    view = model_view(prior, None)
    with view.adapter():
        return view.model(input_ids=ids, use_cache=False).logits[0].float()


def _load_model(name: str) -> Any:
    """Load a causal language model onto the accelerator, if there is one; weights only from safetensors."""
    model = _load(lambda: AutoModelForCausalLM.from_pretrained(name, use_safetensors=True), name)
    return model.to(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu").eval()


def _load(load: Any, name: str) -> Any:
    """Call `load`, and raise a FileError with the first line of the many kinds of errors that a bad folder causes."""
    try:
        return load()
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, SafetensorError) as error:
        place = name if Path(name).exists() else f"there is no folder {name}, and from the hub it"
        raise FileError(f"{place} cannot be read as a language model: {first_line(error)}") from error


def read_identity(name: str) -> dict[str, Any]:
    """Return the content of a model's `repolicy.json`, or nothing without one."""
    file = Path(name) / IDENTITY
    if not file.is_file():
        return {}
    identity = read_json(file)
    try:
        residual(identity["omega"], identity["alpha"])  # raises if one of them is no valid weight
        dict(**identity.get("chat_template_kwargs", {}))
    except (KeyError, TypeError, UsageError) as error:
        problem = "it does not say omega and alpha, each 0 or greater, or its chat_template_kwargs have no names"
        raise FileError(f"{file} is damaged: {problem}") from error
    return dict(identity)


def is_q_adapter(name: str) -> bool:
    """Return whether a model is a Q-adapter, whose logits are not those of its policy."""
    return read_identity(name).get("method") == "QAdapterTrainer"


def require_tuned_from(prior: Any, models: Sequence[str]) -> None:
    """Raise if a named model was tuned from another prior, or has a vocabulary of another size."""
    prior_checksum = cache(lambda dtype: checksum(prior, dtype))
    for name in models:
        identity = read_identity(name)
        expected = identity.get("prior_checksum")
        if expected is not None and not any(prior_checksum(dtype) == expected for dtype in PRIOR_DTYPES):
            reason = f"its {IDENTITY} names {identity.get('prior')!r}, and the checksums of the weights differ"
            if (Path(name) / ADAPTER).is_file():
                reason += "; where training went on from an adapter, that adapter's folder is the prior"
            raise UsageError(f"{name} was tuned from another prior than the one that was given: {reason}")
        if (Path(name) / ADAPTER).is_file():
            continue
        config = _load(lambda name=name: AutoConfig.from_pretrained(name), name)
        require_same_vocabulary(prior.config, config, name)


def read_template(models: Sequence[str], prior: str) -> dict[str, Any]:
    """Return the chat_template_kwargs that the models were trained with; raise if two read a chat differently."""
    known = {
        name: (identity.get("chat_template_kwargs", {}), load_tokenizer([name], prior).chat_template)
        for name in models
        if (identity := read_identity(name))
    }
    first = next(iter(known), "")
    for name, template in known.items():
        if template != known[first]:
            problem = f"{first} and {name} were trained with different chat templates or chat_template_kwargs"
            raise UsageError(f"{problem}: the two read a chat as other prompts, so name one of them at a time")
    return known[first][0] if known else {}


def read_objective(name: str, trained_at: str | None) -> Objective:
    """Return the objective of a tuned model, from `trained_at` ("omega,alpha") or from its `repolicy.json`."""
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
    """Return `count` responses to each prompt with the dial at omega; models and prior are folders or hub names."""
    check_sampling_counts(seed, count=count, tokens=tokens)
    if trained_at and len(trained_at) != len(models):
        weighted, named = format_count(len(trained_at), "model"), format_count(len(models), "model")
        raise UsageError(f"--trained-at has omega,alpha of {weighted}, for {named} to generate with")
    anchors = [read_objective(name, trained_at[index] if trained_at else None) for index, name in enumerate(models)]
    coefficients = mixture(anchors, omega, alpha)  # which raises before a model is loaded
    for index, (name, anchor) in enumerate(zip(models, anchors, strict=True)):
        if is_q_adapter(name):
            coefficients = through_q_adapter(coefficients, index, anchor)
    prior_model, tokenizer = _load_model(prior), load_tokenizer(models, prior)
    require_tuned_from(prior_model, models)
    template = read_template(models, prior) if chat else None
    tuned = []
    for index, name in enumerate(models):
        prior_model, model = load_tuned(name, prior_model, index)
        tuned.append(model)
    repeated = [prompt for prompt in prompts for _ in range(count)]
    messages = [[{"role": "user", "content": prompt}] if chat else prompt for prompt in repeated]
    torch.manual_seed(seed)
    generator = dialed_generator(prior_model, tuned, coefficients)
    responses = sample(generator, tokenizer, [prompt_ids(tokenizer, each, template) for each in messages], tokens)
    texts = [tokenizer.decode(response, skip_special_tokens=True) for response in responses]
    return [{"prompt": prompt, "text": text} for prompt, text in zip(repeated, texts, strict=True)]


def check_sampling_counts(seed: int, **counts: int) -> None:
    """Raise if a count is below 1, or if the seed is not between 0 and 2³¹ − 1."""
    if not 0 <= seed < 2**31:
        raise UsageError(f"seed is {seed}; it must lie between 0 and {2**31 - 1}")
    check_counts(**counts)


# Evaluation of models and their prior: means over prompts, with intervals ---------------------------------------------

MEASURES = {"addon": "add-on", "log_prior": "log prior", "kl": "KL from the prior", "length": "tokens",
            "entropy": "entropy"}  # fmt: skip
PAGE_NOTE = (
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
    """Return the measures of the prior and of each model, and an HTML page that shows them; `reward` is a name."""
    check_sampling_counts(seed, responses=responses, tokens=tokens)
    for adapter in filter(is_q_adapter, models):
        raise UsageError(f"{adapter} is a Q-adapter, whose logits are no policy's: try it with `repolicy llm generate`")
    rows = read_prompts(prompts)
    reward_func = load_function(reward, "the reward")
    call_reward(reward_func, rows[:1], ["a"], [[0]])  # an error in it shows before the long work
    prior_model, tokenizer = _load_model(prior), load_tokenizer(models, prior)
    repeated = [row for row in rows for _ in range(responses)]
    require_tuned_from(prior_model, models)
    template = read_template(models, prior) if not all(isinstance(row["prompt"], str) for row in rows) else None
    ids = [prompt_ids(tokenizer, row["prompt"], template) for row in repeated]
    results: list[dict[str, Any]] = []
    samples: list[list[str]] = []  # for each model, its first response to every prompt
    for index, name in enumerate((None, *models)):
        result: dict[str, Any] = {"model": name or f"the prior, {prior}"}
        model = None
        if name is not None:
            prior_model, model = load_tuned(name, prior_model, index)
            result |= {key: value for key, value in read_identity(name).items() if key in ("omega", "alpha")}
        torch.manual_seed(seed)
        # The views have no name here, which would keep a model in memory while the next is loaded.
        measures, texts = measure(
            model_view(prior_model, model), model_view(prior_model, None), tokenizer, repeated, ids, reward_func, tokens
        )
        by_prompt = {key: values.reshape(len(rows), responses) for key, values in measures.items()}
        results.append(result | with_intervals(by_prompt))
        samples.append(texts[::responses])
    lead = f"{format_count(len(rows), 'prompt')}, {format_count(responses, 'response')} to each, up to {tokens} tokens."
    return results, render_page(lead, results, rows, samples)


def measure(
    model: ModelView,
    prior: ModelView,
    tokenizer: Any,
    rows: list[dict[str, Any]],
    prompts: list[list[int]],
    reward_func: Any,
    tokens: int,
) -> tuple[dict[str, Any], list[str]]:
    """Generate one response for each row, whose prompt has these ids; return its measures, each `[N]`, and texts."""
    with model.adapter():
        responses = sample(model.model, tokenizer, prompts, tokens, **SAMPLING)
        pairs = list(zip(prompts, responses, strict=True))
        log_policy = np.array(response_log_probs(model.model, pairs))
    with prior.adapter():
        log_prior = np.array(response_log_probs(prior.model, pairs))
    texts = [tokenizer.decode(response, skip_special_tokens=True) for response in responses]
    return {
        "addon": call_reward(reward_func, rows, texts, responses),
        "log_prior": log_prior,
        "kl": log_policy - log_prior,
        "length": np.array([len(response) for response in responses], dtype=float),
        "entropy": -log_policy,
    }, texts


def call_reward(reward_func: Any, rows: list[dict[str, Any]], texts: list[str], ids: list[list[int]]) -> Any:
    """Call a reward function as TRL does, with the other columns of the rows; return rewards `[N]`, NaN for None."""
    is_chat = not isinstance(rows[0]["prompt"], str)
    completions = [[{"role": "assistant", "content": text}] for text in texts] if is_chat else texts
    columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0] if key not in TRL_COLUMNS}
    columns |= {"trainer_state": TrainerState(), "log_extra": lambda *_: None, "log_metric": lambda *_: None}
    prompts = [row["prompt"] for row in rows]
    with in_one_sentence("the reward failed", UsageError):
        values = reward_func(prompts=prompts, completions=completions, completion_ids=ids, **columns)
        values = checked_rewards(asyncio.run(values) if inspect.iscoroutine(values) else values)
    if len(values) != len(texts):
        returned, expected = format_count(len(values), "number"), format_count(len(texts), "response")
        raise UsageError(f"the reward returned {returned} for {expected}")
    rewards = np.array(values, dtype=float)
    if np.isinf(rewards).any():
        raise UsageError("a reward is infinite: return None to judge nothing")
    return rewards


def with_intervals(measures: dict[str, Any]) -> dict[str, Any]:
    """Return mean and 95 % interval of each measure `[prompts, responses]`; NaN entries do not count."""
    intervals = {}
    for name, values in measures.items():
        rows = [row[~np.isnan(row)] for row in values]
        units = np.array([row.mean() for row in rows if len(row)]) if len(rows) > 1 else rows[0]
        if not len(units):
            raise UsageError("the reward judged no response of one of the models: it returned None for all")
        mean, half_width = float(units.mean()), _half_width(units)
        intervals[name] = {"mean": mean, "low": mean - half_width, "high": mean + half_width}
    return intervals


def _half_width(units: Any) -> float:
    """Return half the width of the 95 % interval of the mean of numbers `[N]`; infinite for a single number."""
    degrees = min(len(units) - 1, 1000)  # beyond that, Student's t is practically Gaussian
    if not degrees:
        return math.inf
    low, high = 0.0, 13.0  # bisection for the quantile of t
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p_value(middle, degrees) > 0.05 else (low, middle)
    return high * float(units.std(ddof=1)) / math.sqrt(len(units))


def read_prompts(file: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file, whose rows all have a prompt and the same columns."""
    rows: list[Any] = []
    try:
        for line in filter(bytes.strip, file.read_bytes().split(b"\n")):
            rows.append(json.loads(line))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"row {len(rows) + 1} is not one JSON object"
        raise FileError(f"{file} cannot be read as prompts: {reason}") from error
    if not rows:
        raise FileError(f"{file} has no prompt")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), (str, list)) or row.keys() != rows[0].keys():
            raise FileError(f"row {number} of {file} must have a prompt, and the same columns as the first row")
    return rows


def format_interval(mean: float, low: float, high: float) -> str:
    """Return `1.50 (1.20 to 1.80)`; a single number has no interval."""
    interval = f"{low:.2f} to {high:.2f}" if math.isfinite(high - low) else "unknown"
    return with_minus(f"{mean:.2f} ({interval})")


def render_page(lead: str, models: list[dict[str, Any]], rows: list[dict[str, Any]], samples: list[list[str]]) -> str:
    """Return an HTML page without external files: the measures, and the first responses side by side."""
    names = [model["model"] for model in models]
    cells = []
    for model in models:
        weights = [f"{model[key]:g}" if key in model else "" for key in ("omega", "alpha")]
        cells.append([model["model"], *weights, *(format_interval(**model[key]) for key in MEASURES)])
    prompts = [row["prompt"] for row in rows[:20]]
    questions = [prompt if isinstance(prompt, str) else str(prompt[-1].get("content")) for prompt in prompts]
    text_cells = [[*texts] for texts in zip(questions, *samples, strict=False)]
    texts = f'<div class="texts">{table(["prompt", *names], text_cells)}</div>'
    sections = [
        section("What each is worth", table(["model", "omega", "alpha", *MEASURES.values()], cells), note=PAGE_NOTE),
        section("Side by side", texts, note="The first response of each model, to at most 20 prompts."),
    ]
    return page("Models beside their prior", lead, sections)
