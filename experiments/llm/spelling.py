"""The dial, to be seen: a model of people's names is asked for doubled letters: `python -m experiments.llm spelling`.

The names are those of the census, which the package `names` carries. The prior is a small transformer over letters. The
add-on reward counts doubled letters, up to two. At a small omega the model pays for them with what makes a name a
name; at a large one it finds names that have them; larger still, it says the commonest names and little else.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.llm.records import Job, command_line, done, prepare, run_missing
from experiments.llm.toy import END, new_model, new_tokenizer
from repolicy.errors import UsageError
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import Objective, residual

LETTERS, LONGEST = "abcdefghijklmnopqrstuvwxyz", 11


def doubled(name: str) -> float:
    """The add-on reward: half a point for a doubled letter, a whole one for two or more."""
    return min(sum(a == b for a, b in pairwise(name)), 2) / 2


def doubled_reward(completions: list[str], **_: Any) -> list[float]:
    return [doubled(name) for name in completions]


def read_names() -> list[str]:
    """Census names in lower case: the 20,000 commonest surnames and every first name, each once."""
    found = find_spec("names")
    if found is None or found.origin is None:
        raise UsageError("the names come with the package `names`, which is not installed: pip install names")
    folder, names = Path(found.origin).parent, set()
    for file, most in (("dist.all.last", 20_000), ("dist.female.first", None), ("dist.male.first", None)):
        names |= {line.split()[0].lower() for line in (folder / file).read_text().splitlines()[:most]}
    return sorted(name for name in names if len(name) <= LONGEST and name.isalpha())


def pretrain_names(folder: Path, steps: int, batch: int = 128, seed: int = 0) -> None:
    """Teach a small transformer the names, and save it, where it is not there yet."""
    if (folder / "config.json").exists():
        return
    model = new_model(LETTERS, LONGEST, hidden=96, layers=3, seed=seed)
    tokens = torch.tensor([_tokens(name) for name in read_names()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = tokens[torch.randint(len(tokens), (batch,), generator=generator)]
        inputs, targets = rows[:, :-1].clamp(min=0), rows[:, 1:]
        logits = model(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    new_tokenizer(LETTERS).save_pretrained(folder)
    model.save_pretrained(folder)


def _tokens(name: str) -> list[int]:
    """End, letters, end, and −1 up to the longest."""
    return [0, *(LETTERS.index(letter) + 1 for letter in name), 0] + [-1] * (LONGEST - len(name))


@dataclass(frozen=True)
class Spelling:
    """Sampled names before and after a model of them is asked for doubled letters, at three omegas.

    Example: python -m experiments.llm spelling --omegas 0.02 0.1 0.2
    """

    omegas: tuple[float, ...] = (0.02, 0.1, 0.2)
    """Weights of the prior's log-probability."""
    alpha: float = 0.1
    """Weight of the policy's entropy."""
    seed: int = 0
    """Seed of the training."""
    steps: int = 150
    """Online steps."""
    samples: int = 64
    """Responses in an online step."""
    rate: float = 1e-3
    """Learning rate; it falls to 0 in a line."""
    pretraining: int = 1000
    """Steps in which the prior learns names."""
    train: bool = True
    """Run what is missing. Without it, only the samples are made anew."""
    output: Path = Path("results/llm")
    """Folder of spelling.jsonl and the samples. Runs that have a line there are not run again."""
    prior: Path = Path("runs/llm-names")
    """Folder of the prior, which is made where it is missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise UsageError(f"alpha is {self.alpha}; the optimum divides by it, so it must be greater than 0")
        if not self.omegas or min(self.omegas) < 0:
            raise UsageError("omegas must name one or more numbers, each 0 or greater")
        if min(self.steps, self.samples - 1, self.pretraining) < 1 or self.rate <= 0:
            raise UsageError("steps and pretraining must be 1 or more, samples 2 or more, rate greater than 0")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        read_names()  # better found missing before the work
        return done(spelling(self), self.output / "spelling.md")


def spelling(options: Spelling) -> list[dict[str, Any]]:
    """Run what is missing, write the samples, and return the records."""
    torch.set_num_threads(1)
    common = {"alpha": options.alpha, "seed": options.seed, "pretraining": options.pretraining}
    size = {"steps": options.steps, "samples": options.samples, "rate": options.rate}
    jobs: list[Job] = [{"omega": None, **common}]
    jobs += [{"omega": omega, **common, **size} for omega in options.omegas]
    records = run_missing(
        jobs, options.output / "spelling.jsonl", command_line(options), lambda job: run_job(job, options), options.train
    )
    (options.output / "spelling.md").write_text(table(records))
    return records


def run_job(job: Job, options: Spelling) -> dict[str, Any]:
    """The prior itself, or what became of it at one omega: 500 sampled names, and what they are worth."""
    from experiments.llm import toy_training

    pretrain_names(options.prior, options.pretraining)
    prior, tokenizer = toy_training.load(options.prior)
    model = prior
    if job["omega"] is not None:
        model = train(options, residual(job["omega"], job["alpha"]), tokenizer)
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


def train(options: Spelling, objective: Objective, tokenizer: Any) -> Any:
    from datasets import Dataset

    from experiments.llm import toy_training
    from repolicy.llm.grpo import ResidualGRPOConfig, ResidualGRPOTrainer

    model, _ = toy_training.load(options.prior)
    with toy_training.scratch() as shared:
        settings = ResidualGRPOConfig(
            **shared,
            per_device_train_batch_size=options.samples,
            num_generations=options.samples,
            max_completion_length=LONGEST + 1,
            max_steps=options.steps,
            learning_rate=options.rate,
            seed=options.seed,
        )
        data = Dataset.from_list([{"prompt": END}] * 8)
        trainer = ResidualGRPOTrainer(
            model, doubled_reward, settings, data, objective=objective, processing_class=tokenizer
        )
        toy_training.run_quietly(trainer)
    return trainer.model


@torch.no_grad()
def sample(model: Any, count: int, seed: int) -> list[list[int]]:
    """Token ids of sampled responses, each up to and with its end token."""
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    ids = torch.zeros(count, 1, dtype=torch.long)
    for _ in range(LONGEST + 1):
        chances: Tensor = model(input_ids=ids).logits[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], dim=1)
    rows = [row[1:] for row in ids.tolist()]
    return [row[: row.index(0) + 1] if 0 in row else row for row in rows]


def decode(row: list[int]) -> str:
    return "".join(LETTERS[token - 1] for token in row if token)


def table(records: list[dict[str, Any]]) -> str:
    """The measures, and 24 names as they came, at each omega."""
    lines = [
        "Made by `python -m experiments.llm spelling`. 500 sampled names a row; `real`: the share of census names.\n",
        "| omega | add-on | log prior | letters | entropy | different | real |",
        "|---|---|---|---|---|---|---|",
    ]
    order = sorted(records, key=lambda record: -1 if record["job"]["omega"] is None else record["job"]["omega"])
    for r in order:
        numbers = [f"{r[name]:.2f}" for name in ("addon", "log_prior", "length", "entropy")]
        lines.append("| " + " | ".join([_title(r), *numbers, str(r["different"]), f"{r['real']:.2f}"]) + " |")
    for r in order:
        lines += ["", f"**{_title(r)}**: {', '.join(name.capitalize() or '(empty)' for name in r['names'])}"]
    return "\n".join(lines) + "\n"


def _title(record: dict[str, Any]) -> str:
    return "the prior" if record["job"]["omega"] is None else f"{record['job']['omega']:g}"
