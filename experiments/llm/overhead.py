"""What a step of each trainer costs beside its TRL parent's: python -m experiments.llm overhead.

The same model, data and settings; whole training steps, the two trainers taking turns; medians. On a processor it is
the CPU time of a tiny model. With `--device cuda` it is the time on the clock, and the most memory, of a model of
Qwen2.5-0.5B's size, with random weights, in bfloat16.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer

from experiments import campaign
from experiments.ledger import Row
from experiments.llm.jobs import Job, job_grid, measurements
from experiments.llm.toy import END, new_model, new_tokenizer
from experiments.llm.toy_training import addon_reward, load, scratch_settings, trained
from experiments.pages import markdown_table
from repolicy.llm.dpo import CrossEntropyDPOConfig, CrossEntropyDPOTrainer, DecomposedDPOConfig, DecomposedDPOTrainer
from repolicy.llm.grpo import ResidualGRPOConfig, ResidualGRPOTrainer
from repolicy.objective import kl

LETTERS = "abcde"
TRAINERS: dict[str, dict[bool, tuple[Any, Any]]] = {  # of TRL, and ours
    "DPO": {False: (DPOTrainer, DPOConfig), True: (DecomposedDPOTrainer, DecomposedDPOConfig)},
    "KTO": {False: (KTOTrainer, KTOConfig), True: (CrossEntropyDPOTrainer, CrossEntropyDPOConfig)},
    "GRPO": {False: (GRPOTrainer, GRPOConfig), True: (ResidualGRPOTrainer, ResidualGRPOConfig)},
}
KINDS = {  # device -> parents, and tokens of a response
    "cpu": [("DPO", 30), ("KTO", 30), ("GRPO", 6), ("GRPO", 64)],
    "cuda": [("DPO", 255), ("KTO", 255), ("GRPO", 128)],
}
# Settings in which the parent means what ours does.
ALIKE: dict[str, dict[str, str]] = {"DPO": {}, "KTO": {"loss_type": "apo_zero_unpaired"}}
ALIKE["GRPO"] = {"scale_rewards": "none", "loss_type": "dr_grpo"}


class Clock(TrainerCallback):  # type: ignore[misc]
    """The time at the end of each step."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.marks = now, list[float]()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.marks.append(self.now())


def gpu_time() -> float:
    """Return the time on the clock once the GPU has done what it was told."""
    torch.cuda.synchronize()
    return time.perf_counter()


def untrained(device: str) -> Any:
    """Return a tiny Llama, or, for a GPU, what has the size of Qwen2.5-0.5B."""
    if device == "cpu":
        return new_model(LETTERS, 80, hidden=128, layers=3)
    sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "tie_word_embeddings": True}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=151_936, **sizes, **heads))


def run(job: Job, _: Path) -> Row:
    """Measure the median milliseconds of a step of parent and child, and on a GPU the most gigabytes."""
    times: dict[bool, list[float]] = {False: [], True: []}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        untrained(job["device"]).save_pretrained(folder)
        new_tokenizer(LETTERS).save_pretrained(folder)
        for turn in range(job["turns"]):
            for ours in (turn % 2 == 1, turn % 2 == 0):
                times[ours] += step_times(job["parent"], ours, job["tokens"], Path(folder), job["steps"], job["device"])
                if job["device"] == "cuda":
                    memory["child_gb" if ours else "parent_gb"] = torch.cuda.max_memory_allocated() / 1e9
    parent, child = (1000 * statistics.median(times[ours]) for ours in (False, True))
    costs = {"parent_ms": parent, "child_ms": child, "overhead_percent": 100 * (child / parent - 1)} | memory
    named = {"device": torch.cuda.get_device_name() if memory else job["device"]}
    named |= {name: job[name] for name in ("parent", "tokens")}
    return named | {name: round(cost, 1) for name, cost in costs.items()}


def step_times(name: str, ours: bool, tokens: int, folder: Path, steps: int, device: str = "cpu") -> list[float]:
    """Return the seconds of each step after the second."""
    clock = Clock(gpu_time if device == "cuda" else time.process_time)
    with scratch_settings(per_device_train_batch_size=16, max_steps=steps, learning_rate=1e-9) as shared:
        if device == "cuda":
            shared |= {"use_cpu": False, "bf16": True}
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
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
        memory = [f"{row[f'{who}_gb']:.1f} GB" for who in ("parent", "child") if f"{who}_gb" in row]
        named = [ours.__name__, row["parent"], str(row["tokens"])]
        lines.append([*named, *times, f"{row['overhead_percent']:+.1f} %", *memory])
    memory_too = ["parent's memory", "ours"] if len(lines[0]) > 6 else []
    return markdown_table(["trainer", "parent", "tokens", "parent, ms", "ours, ms", "difference", *memory_too], lines)


@campaign.program("ledger", steps=12, turns=6, device={"choices": KINDS, "default": "cpu"})
def main(options: campaign.Options) -> campaign.Measurements:
    [size] = job_grid(options, ("steps", "turns", "device"))
    jobs = [{"parent": parent, "tokens": tokens, **size} for parent, tokens in KINDS[options.device]]
    return measurements(jobs, run, Path())
