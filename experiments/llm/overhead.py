"""What a step of each trainer costs beside its TRL parent's: `python -m experiments.llm overhead`.

The same model, data and settings; CPU time of whole training steps, the two trainers taking turns; medians. Online, the
model writes 6 and 64 tokens.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.llm.records import command_line, done, prepare
from experiments.llm.toy import END, new_model, new_tokenizer
from repolicy.errors import UsageError
from repolicy.objective import kl
from repolicy.runs.machine import commit

LETTERS = "abcde"
TRAINERS = {"DPO": "DecomposedDPOTrainer", "KTO": "CrossEntropyDPOTrainer", "GRPO": "ResidualGRPOTrainer"}


@dataclass(frozen=True)
class Overhead:
    """Time of a training step of each trainer beside its TRL parent's.

    Example: python -m experiments.llm overhead --turns 6
    """

    steps: int = 12
    """Steps of a run; the first two are not counted."""
    turns: int = 6
    """How often each trainer runs."""
    output: Path = Path("results/llm")
    """Folder of overhead.jsonl and its table, which are written anew."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.steps < 3 or self.turns < 1:
            raise UsageError("steps must be 3 or more, because two are not counted, and turns 1 or more")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        return done(overhead(self), self.output / "overhead.md")


def overhead(options: Overhead) -> list[dict[str, Any]]:
    """Median CPU milliseconds of a step of parent and child, for each pair."""
    torch.set_num_threads(1)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        new_model(LETTERS, 80, hidden=128, layers=3).save_pretrained(folder)
        new_tokenizer(LETTERS).save_pretrained(folder)
        for name, tokens in (("DPO", 30), ("KTO", 30), ("GRPO", 6), ("GRPO", 64)):
            times: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(options.turns):
                for ours in (turn % 2 == 1, turn % 2 == 0):
                    times[ours] += step_times(name, ours, tokens, Path(folder), options.steps)
            parent, child = (1000 * statistics.median(times[ours]) for ours in (False, True))
            record = {
                "parent": name,
                "tokens": tokens,
                "parent_ms": round(parent, 1),
                "child_ms": round(child, 1),
                "overhead_percent": round(100 * (child / parent - 1), 1),
                "command": command_line(options),
                "commit": commit(),
            }
            records.append(record)
            print(json.dumps(record), file=sys.stderr, flush=True)
    (options.output / "overhead.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (options.output / "overhead.md").write_text(table(records))
    return records


def step_times(name: str, ours: bool, tokens: int, folder: Path, steps: int) -> list[float]:
    """CPU seconds of each step after the second."""
    from transformers import TrainerCallback

    from experiments.llm import toy_training

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.marks: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.marks.append(time.process_time())

    clock = Clock()
    with toy_training.scratch() as shared:
        shared |= {"per_device_train_batch_size": 16, "max_steps": steps, "learning_rate": 1e-9}
        trainer = make_trainer(name, ours, tokens, folder, shared)
        trainer.add_callback(clock)
        toy_training.run_quietly(trainer)
    return [after - before for before, after in zip(clock.marks[1:], clock.marks[2:], strict=False)]


def make_trainer(name: str, ours: bool, tokens: int, folder: Path, shared: dict[str, Any]) -> Any:
    """TRL's trainer, or ours with the same meaning: omega = alpha = beta."""
    import trl
    from datasets import Dataset

    from experiments.llm import toy_training
    from repolicy.llm import cross_entropy, dpo, grpo

    model, tokenizer = toy_training.load(folder)
    text = "abcde" * (tokens // 5)
    common: dict[str, Any] = {"processing_class": tokenizer}
    if ours:
        common["objective"] = kl(0.1)
    else:
        shared["beta"] = 0.1
    if name == "GRPO":
        shared |= {"num_generations": 16, "max_completion_length": tokens}
        shared |= {"generation_kwargs": {"eos_token_id": -1}}  # every response has all its tokens
        settings = {"scale_rewards": "none", "loss_type": "dr_grpo"}
        trainer, config = (
            (grpo.ResidualGRPOTrainer, grpo.ResidualGRPOConfig(**shared))
            if ours
            else (trl.GRPOTrainer, trl.GRPOConfig(**shared, **settings))
        )
        data = Dataset.from_list([{"prompt": END}] * 64)
        return trainer(model, toy_training.addon_reward, config, data, **common)
    reference = toy_training.load(folder)[0]
    if name == "DPO":
        data = Dataset.from_list([{"prompt": END, "chosen": text, "rejected": text[::-1]}] * 64)
        trainer, config = (
            (dpo.DecomposedDPOTrainer, dpo.DecomposedDPOConfig(**shared))
            if ours
            else (trl.DPOTrainer, trl.DPOConfig(**shared))
        )
    else:
        data = Dataset.from_list([{"prompt": END, "completion": text, "label": i % 2 == 0} for i in range(64)])
        trainer, config = (
            (cross_entropy.CrossEntropyDPOTrainer, cross_entropy.CrossEntropyDPOConfig(**shared))
            if ours
            else (trl.KTOTrainer, trl.KTOConfig(**shared, loss_type="apo_zero_unpaired"))
        )
    return trainer(model, reference, config, train_dataset=data, **common)


def table(records: list[dict[str, Any]]) -> str:
    """A row for each pair of trainers."""
    lines = [
        f"Made by `{records[0]['command']}`: CPU time of a whole training step, one thread, medians.\n",
        "| trainer | parent | tokens | parent, ms | ours, ms | difference |",
        "|---|---|---|---|---|---|",
    ]
    for r in records:
        difference = f"{r['overhead_percent']:+.1f} %"
        row = [TRAINERS[r["parent"]], r["parent"], r["tokens"], f"{r['parent_ms']:.0f}", f"{r['child_ms']:.0f}"]
        lines.append("| " + " | ".join(map(str, [*row, difference])) + " |")
    return "\n".join(lines) + "\n"
