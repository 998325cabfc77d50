"""The dial, to be seen: a model of people's names is asked for doubled letters: python -m experiments.llm spelling.

The names are those of the census, which the package `names` carries. The prior is a small transformer over letters. The
add-on reward counts doubled letters, up to two.
"""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments import campaign
from experiments.ledger import Row
from experiments.llm.jobs import PRIORS, Job, job_grid, measurements
from experiments.llm.toy import fit, new_model, new_tokenizer
from experiments.llm.toy_training import load, train_online
from experiments.pages import markdown_table
from repolicy.errors import UsageError
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import residual

LETTERS, LONGEST = "abcdefghijklmnopqrstuvwxyz", 11
MEASURED = {"addon": "add-on", "log_prior": "log prior", "length": "letters", "entropy": "entropy"}


def doubled(name: str) -> float:
    """Return the add-on reward: half a point for a doubled letter, a whole one for two or more."""
    return min(sum(a == b for a, b in pairwise(name)), 2) / 2


def doubled_reward(completions: list[str], **_: Any) -> list[float]:
    """Return the same of a list, as TRL calls reward functions."""
    return [doubled(name) for name in completions]


def read_names() -> list[str]:
    """Return census names in lower case: the 20,000 commonest surnames and every first name, each once."""
    found = find_spec("names")
    if found is None or found.origin is None:
        raise UsageError("the names come with the package `names`, which is not installed: pip install names")
    folder, names = Path(found.origin).parent, set()
    for file, most in (("dist.all.last", 20_000), ("dist.female.first", None), ("dist.male.first", None)):
        names |= {line.split()[0].lower() for line in (folder / file).read_text().splitlines()[:most]}
    return sorted(name for name in names if len(name) <= LONGEST and name.isalpha())


def pretrain_names(folder: Path, steps: int, batch: int = 128) -> None:
    """Teach a small transformer the names, and save it, where it is not there yet."""
    if (folder / "config.json").exists():
        return
    model = new_model(LETTERS, LONGEST, hidden=96, layers=3)
    tokens = torch.tensor([_tokens(name) for name in read_names()])
    generator = torch.Generator().manual_seed(0)

    def loss() -> Tensor:
        rows = tokens[torch.randint(len(tokens), (batch,), generator=generator)]
        logits = model(input_ids=rows[:, :-1].clamp(min=0)).logits.flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten(), ignore_index=-1)

    fit(model, loss, steps, weight_decay=0.01)
    new_tokenizer(LETTERS).save_pretrained(folder)
    model.save_pretrained(folder)


def _tokens(name: str) -> list[int]:
    """Return a name as tokens: end, letters, end, and −1 up to the longest."""
    return [0, *(LETTERS.index(letter) + 1 for letter in name), 0] + [-1] * (LONGEST - len(name))


def run(job: Job, priors: Path) -> Row:
    """Measure the prior itself, or what becomes of it at one omega: 500 sampled names, and what they are worth."""
    folder = priors / f"names-{job['pretraining']}"
    pretrain_names(folder, job["pretraining"])
    model = prior = load(folder)[0]
    if job["omega"] is not None:
        how = {name: job[name] for name in ("steps", "samples", "seed", "rate")}
        objective = residual(job["omega"], job["alpha"])
        model, _ = train_online(folder, objective, length=LONGEST, addon=doubled_reward, **how)
    names = sample(model, 500, seed=1)
    known, text = set(read_names()), [decode(row) for row in names]
    rows = [([0], row) for row in names]
    return {
        "addon": sum(map(doubled, text)) / len(text),
        "log_prior": sum(response_log_probs(prior, rows)) / len(rows),
        "entropy": -sum(response_log_probs(model, rows)) / len(rows),
        "length": sum(map(len, text)) / len(text),
        "different": len(set(text)),
        "real": sum(name in known for name in text) / len(text),
        "names": text[:24],
    }


@torch.no_grad()
def sample(model: Any, count: int, seed: int) -> list[list[int]]:
    """Return token ids of sampled responses, each up to and with its end token."""
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    ids = torch.zeros(count, 1, dtype=torch.long)
    for _ in range(LONGEST + 1):
        chances: Tensor = model(input_ids=ids).logits[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], dim=1)
    rows = [row[1:] for row in ids.tolist()]
    return [row[: row.index(0) + 1] if 0 in row else row for row in rows]


def decode(row: list[int]) -> str:
    """Return the letters of a response."""
    return "".join(LETTERS[token - 1] for token in row if token)


def table(rows: list[Row]) -> str:
    """Return the measures, and 12 names as they came, at each omega."""
    order, lines, shown = sorted(rows, key=lambda row: row["job"]["omega"] or -1), list[list[str]](), ""
    for row in order:
        title = "the prior" if row["job"]["omega"] is None else f"{row['job']['omega']:g}"
        numbers = [f"{row[name]:.2f}" for name in MEASURED]
        lines.append([title, *numbers, str(row["different"]), f"{row['real']:.2f}"])
        shown += f"\n\n**{title}**: {', '.join(name.capitalize() or '(empty)' for name in row['names'][:12])}"
    return markdown_table(["omega", *MEASURED.values(), "different", "real"], lines) + shown


@campaign.program(
    "ledger", priors=PRIORS, omegas=(0.02, 0.1, 0.2), alpha=0.1, seed=0, steps=150, samples=64, rate=1e-3,
    pretraining=1000,
)  # fmt: skip
def main(options: campaign.Options) -> campaign.Measurements:
    common = ("alpha", "seed", "pretraining")
    of_prior = job_grid(options, common, omega=[None])
    tuned = job_grid(options, (*common, "steps", "samples", "rate"), omega=options.omegas)
    return measurements([*of_prior, *tuned], run, options.priors)
