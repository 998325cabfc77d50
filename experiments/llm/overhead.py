"""What a step of each trainer costs beside its TRL parent's: python -m experiments.llm overhead.

The same model, data and settings; CPU time of whole training steps, the two trainers taking turns; medians. Online, the
model writes 6 and 64 tokens.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer

from experiments.ledger import Row
from experiments.llm.program import Job, Program
from experiments.llm.toy import END, new_model, new_tokenizer
from experiments.llm.toy_training import addon_reward, load, scratch, trained
from experiments.pages import markdown
from repolicy.llm.cross_entropy import CrossEntropyDPOConfig, CrossEntropyDPOTrainer
from repolicy.llm.dpo import DecomposedDPOConfig, DecomposedDPOTrainer
from repolicy.llm.grpo import ResidualGRPOConfig, ResidualGRPOTrainer
from repolicy.objective import kl

LETTERS = "abcde"
TRAINERS: dict[str, dict[bool, tuple[Any, Any]]] = {  # of TRL, and ours
    "DPO": {False: (DPOTrainer, DPOConfig), True: (DecomposedDPOTrainer, DecomposedDPOConfig)},
    "KTO": {False: (KTOTrainer, KTOConfig), True: (CrossEntropyDPOTrainer, CrossEntropyDPOConfig)},
    "GRPO": {False: (GRPOTrainer, GRPOConfig), True: (ResidualGRPOTrainer, ResidualGRPOConfig)},
}
# Settings in which the parent means what ours does.
ALIKE: dict[str, dict[str, str]] = {"DPO": {}, "KTO": {"loss_type": "apo_zero_unpaired"}}
ALIKE["GRPO"] = {"scale_rewards": "none", "loss_type": "dr_grpo"}


class Clock(TrainerCallback):  # type: ignore[misc]
    """CPU seconds at the end of each step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.marks.append(time.process_time())


def jobs(settings: Any) -> list[Job]:
    size = {"steps": settings.steps, "turns": settings.turns}
    kinds = (("DPO", 30), ("KTO", 30), ("GRPO", 6), ("GRPO", 64))
    return [{"parent": parent, "tokens": tokens, **size} for parent, tokens in kinds]


def run(job: Job, priors: Path) -> Row:
    """Measure the median CPU milliseconds of a step of parent and child."""
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        new_model(LETTERS, 80, hidden=128, layers=3).save_pretrained(folder)
        new_tokenizer(LETTERS).save_pretrained(folder)
        for turn in range(job["turns"]):
            for ours in (turn % 2 == 1, turn % 2 == 0):
                times[ours] += step_times(job["parent"], ours, job["tokens"], Path(folder), job["steps"])
    parent, child = (1000 * statistics.median(times[ours]) for ours in (False, True))
    costs = {"parent_ms": parent, "child_ms": child, "overhead_percent": 100 * (child / parent - 1)}
    return {name: job[name] for name in ("parent", "tokens")} | {name: round(cost, 1) for name, cost in costs.items()}


def step_times(name: str, ours: bool, tokens: int, folder: Path, steps: int) -> list[float]:
    """Return CPU seconds of each step after the second."""
    clock = Clock()
    with scratch(per_device_train_batch_size=16, max_steps=steps, learning_rate=1e-9) as shared:
        trainer = make_trainer(name, ours, tokens, folder, shared)
        trainer.add_callback(clock)
        trained(trainer)
    return [after - before for before, after in zip(clock.marks[1:], clock.marks[2:], strict=False)]


def make_trainer(name: str, ours: bool, tokens: int, folder: Path, shared: dict[str, Any]) -> Any:
    """Return TRL's trainer, or ours with the same meaning: omega = alpha = beta."""
    (model, tokenizer), text = load(folder), LETTERS * (tokens // 5)
    trainer, config = TRAINERS[name][ours]
    common = {"processing_class": tokenizer, **({"objective": kl(0.1)} if ours else {})}
    shared |= {} if ours else {"beta": 0.1, **ALIKE[name]}
    if name == "GRPO":
        shared |= {"num_generations": 16, "max_completion_length": tokens}
        shared |= {"generation_kwargs": {"eos_token_id": -1}}  # every response has all its tokens
        data = Dataset.from_list([{"prompt": END}] * 64)
        return trainer(model, addon_reward, config(**shared), data, **common)
    rows: list[dict[str, Any]] = [{"prompt": END, "chosen": text, "rejected": text[::-1]}] * 64
    if name == "KTO":
        rows = [{"prompt": END, "completion": text, "label": i % 2 == 0} for i in range(64)]
    return trainer(model, load(folder)[0], config(**shared), train_dataset=Dataset.from_list(rows), **common)


def table(rows: list[Row]) -> str:
    """Return a row for each pair of trainers."""
    lines = []
    for row in rows:
        ours, times = TRAINERS[row["parent"]][True][0], [f"{row[f'{who}_ms']:.0f}" for who in ("parent", "child")]
        lines.append([ours.__name__, row["parent"], str(row["tokens"]), *times, f"{row['overhead_percent']:+.1f} %"])
    return markdown(["trainer", "parent", "tokens", "parent, ms", "ours, ms", "difference"], lines)


PROGRAM = Program({"steps": 12, "turns": 6}, jobs, run, table)
