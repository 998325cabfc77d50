"""Trainers of language models to test, on a prior that speaks the toy's language, and the rows that they read."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from shaken import shaken

pytest.importorskip("trl", reason="the extra `llm` is not installed")

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from repolicy.llm import (
    CrossEntropyDPOConfig,
    CrossEntropyDPOTrainer,
    DecomposedDPOConfig,
    DecomposedDPOTrainer,
    QAdapterConfig,
    QAdapterTrainer,
    ResidualGRPOConfig,
    ResidualGRPOTrainer,
)
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import Objective, residual

PAIRS = [
    {"prompt": ".", "chosen": chosen, "rejected": rejected}
    for chosen, rejected in [("ee", "ab"), ("aeb", "b"), ("e", "bbb"), ("ae", "a"), ("eee", ""), ("be", "b")] * 4
]
LABELLED = [
    {"prompt": ".", "completion": text, "label": label}
    for text, label in [("ee", True), ("ab", False), ("aeb", True), ("", False), ("e", False), ("eb", True)] * 4
]
PROMPTS = [{"prompt": "."}] * 8
ONLINE = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 4}
OFFLINE = {"per_device_train_batch_size": 4}
KINDS: dict[str, Any] = {
    "dpo": (DecomposedDPOTrainer, DecomposedDPOConfig, PAIRS, OFFLINE),
    "labels": (CrossEntropyDPOTrainer, CrossEntropyDPOConfig, LABELLED, OFFLINE),
    "grpo": (ResidualGRPOTrainer, ResidualGRPOConfig, PROMPTS, ONLINE),
    "q": (QAdapterTrainer, QAdapterConfig, PAIRS, OFFLINE),
    "stock dpo": (DPOTrainer, DPOConfig, PAIRS, OFFLINE),
}
USUAL = residual(0.3, 0.2)
Build = Callable[..., Any]  # what the fixture `build` is
OF_TRAINERS = ("model", "ref_model", "peft_config", "train_dataset", "eval_dataset", "args", "reward_funcs", "tools",
               "rollout_func", "environment_factory")  # fmt: skip


def addon(completions: list[str], **_: Any) -> list[float]:
    return [min(text.count("e"), 2) / 2 for text in completions]


REWARD = f"{__file__}:addon"


def load(folder: Path) -> Any:
    """A model of one's own. (To copy one takes a fifth of the time.)"""
    written = tuple(sorted((file.name, file.stat().st_mtime_ns) for file in folder.iterdir()))
    return copy.deepcopy(_loaded(folder, written))


@cache
def _loaded(folder: Path, written: tuple[tuple[str, int], ...]) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def perturbed(model: Any, by: float = 0.05, seed: int = 1) -> Any:
    """Change a model, so that it is not its prior and a wrong weight on either shows."""
    torch.manual_seed(seed)
    return shaken(model, by)


def apart(prior: Path) -> dict[str, Any]:
    """A policy that is not its prior, and that prior."""
    return {"model": perturbed(load(prior)), "ref_model": load(prior)}


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def written(batch: dict[str, Any]) -> list[list[int]]:
    """The token ids of each response of a generation batch, without its padding."""
    padded = zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    return [ids[mask > 0].tolist() for ids, mask in padded]


def log_probs(model: Any, responses: list[list[int]]) -> torch.Tensor:
    """The log-probability of each response to the toy's prompt."""
    return torch.tensor(response_log_probs(model, [([0], row) for row in responses]))


def first(trainer: Any, rows: int) -> Any:
    """A batch of the first rows of its data."""
    return trainer.data_collator([trainer.train_dataset[i] for i in range(rows)])


def trainer_of(
    prior: Path, settings: dict[str, Any], kind: str, objective: Objective | None = USUAL, **more: Any
) -> Any:
    """A trainer of a kind on a fresh model; what is no setting goes to the trainer."""
    trainer, config, rows, size = KINDS[kind]
    others = {name: more.pop(name) for name in OF_TRAINERS if name in more}
    others.setdefault("model", load(prior))
    others.setdefault("args", config(**{**settings, **size, **more}))
    others.setdefault("train_dataset", rows)
    if isinstance(others["train_dataset"], list):
        others["train_dataset"] = Dataset.from_list(others["train_dataset"])
    if kind == "grpo":
        others.setdefault("reward_funcs", addon)
    if objective is not None:
        others["objective"] = objective
    return trainer(processing_class=AutoTokenizer.from_pretrained(prior), **others)
