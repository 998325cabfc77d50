"""What models are worth beside their prior: `repolicy llm evaluate`.

Every model writes responses to the same prompts. A number is a mean over prompts, and its interval comes from drawing
the prompts (or, of a single prompt, its responses) again with replacement.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repolicy.errors import FileError, UsageError, in_one_sentence
from repolicy.llm.identity import checksum
from repolicy.llm.mixing import SAMPLING, beside
from repolicy.llm.models import identity_for, load_prior, load_tuned, new_tokens, prompt_tensors
from repolicy.llm.requirements import check_counts
from repolicy.llm.rloo import prompt_ids, response_log_probs
from repolicy.loading import load_object
from repolicy.report.page import page, section, table

MEASURES = {"addon": "add-on", "log_prior": "log prior", "kl": "KL from the prior", "length": "tokens",
            "entropy": "entropy"}  # fmt: skip
NOTE = (
    "Means over prompts of what each model sampled, with 95 % bootstrap intervals. Log-probabilities, KL and entropy "
    "are of whole responses, in nats. A response that was cut off at the most tokens counts as it stands."
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
    check_counts(responses=responses, tokens=tokens)
    rows, judge = read_prompts(prompts), load_object(reward, "the reward")
    judged(judge, rows[:1], ["a"], [[0]])  # a mistake in it shows before any of the work
    base, tokenizer = load_prior(prior)
    repeated = [row for row in rows for _ in range(responses)]
    found, samples = [], []
    own = checksum(base)
    identities = {name: identity_for(name, own) for name in models}  # before any of the work
    for index, name in enumerate((None, *models)):
        base, model = (base, None) if name is None else load_tuned(name, base, index)
        torch.manual_seed(seed)
        each, text = measured(beside(base, model), beside(base, None), tokenizer, repeated, judge, tokens)
        shaped = {key: values.reshape(len(rows), responses) for key, values in each.items()}
        who = {"model": name, **identities[name]} if name else {"model": f"the prior, {prior}"}
        found.append({**who, **with_intervals(shaped)})
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
    try:
        rewards = np.array([np.nan if value is None else float(value) for value in values])
    except (TypeError, ValueError):
        raise UsageError("the reward does not return a list of numbers, one for each response") from None
    if len(rewards) != len(text):
        raise UsageError(f"the reward returned {len(rewards)} numbers for {len(text)} responses")
    return rewards


def with_intervals(shaped: dict[str, Any], draws: int = 2000) -> dict[str, Any]:
    """Return mean and 95 % interval of values `[prompts, responses]`."""
    generator, intervals = np.random.default_rng(0), {}
    for name, values in shaped.items():
        units = np.nanmean(values, axis=1) if len(values) > 1 else values[0]
        drawn = units[generator.integers(len(units), size=(draws, len(units)))]
        low, high = np.nanquantile(np.nanmean(drawn, axis=1), [0.025, 0.975])
        intervals[name] = {"mean": float(np.nanmean(units)), "low": float(low), "high": float(high)}
    return intervals


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


def last_words(prompt: Any) -> str:
    """Return the text of a prompt, or of the last of its messages, whose content may be a list of parts."""
    content = prompt if isinstance(prompt, str) else prompt[-1].get("content")
    return " ".join(part.get("text", "") for part in content) if isinstance(content, list) else content or ""


def as_page(lead: str, models: list[dict[str, Any]], rows: list[dict[str, Any]], samples: list[list[str]]) -> str:
    """Return a page that needs nothing but itself: the measures, and the first responses side by side."""
    names = [each["model"] for each in models]
    cells = [
        [each["model"], *(f"{each[key]:g}" if key in each else "" for key in ("omega", "alpha"))]
        + ["{mean:.2f}\n{low:.2f} to {high:.2f}".format(**each[key]) for key in MEASURES]
        for each in models
    ]
    shown = [[last_words(row["prompt"]), *texts] for row, *texts in zip(rows[:20], *samples, strict=False)]
    texts = f'<div class="texts">{table(["prompt", *names], shown)}</div>'
    parts = [
        section("What each is worth", table(["model", "omega", "alpha", *MEASURES.values()], cells), note=NOTE),
        section("Side by side", texts, note="The first response of each to each prompt."),
    ]
    return page("Models beside their prior", lead, parts)
