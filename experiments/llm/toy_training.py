"""Train the toy's prior online and offline, by this package's trainers and by TRL's own; returns the trained policies.

Each function takes the prior's folder and gives log p(response) `[N]` of what it trained.
"""

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.llm.toy import END, Toy, policy_log_probs, reward
from repolicy.llm.requirements import require_trl
from repolicy.objective import Objective, residual

require_trl()

from datasets import (  # noqa: E402
    Dataset,
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback  # noqa: E402
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled  # noqa: E402
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # noqa: E402

from repolicy.llm.budget import PriorBudget  # noqa: E402
from repolicy.llm.cross_entropy import CrossEntropyDPOConfig, CrossEntropyDPOTrainer  # noqa: E402
from repolicy.llm.dpo import DecomposedDPOConfig, DecomposedDPOTrainer  # noqa: E402
from repolicy.llm.grpo import ResidualGRPOConfig, ResidualGRPOTrainer  # noqa: E402
from repolicy.llm.rloo import prior_reward, rloo_settings  # noqa: E402

ONLINE_RATE, OFFLINE_RATE = 1e-3, 3e-4


def addon_reward(completions: list[str], **_: Any) -> list[float]:
    """The toy's add-on reward, as TRL calls reward functions."""
    return [reward(text) for text in completions]


def load(folder: Path) -> tuple[Any, Any]:
    with _without_bars():
        return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """A bar for each of a hundred short runs would hide the one line that each has to say."""
    shown = is_progress_bar_enabled(), are_progress_bars_disabled()
    disable_progress_bar()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown[0]:
            enable_progress_bar()
        if not shown[1]:
            enable_progress_bars()


def run_quietly(trainer: Any) -> None:
    """Train without the line that transformers prints at the end."""
    trainer.remove_callback(PrinterCallback)
    trainer.train()


@contextmanager
def scratch() -> Iterator[dict[str, Any]]:
    """Settings that every run here shares: nothing is saved, shown or reported; one thread, one process."""
    with tempfile.TemporaryDirectory(prefix="repolicy-toy-") as folder, _without_bars(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
        yield {
            "output_dir": folder,
            "bf16": False,
            "use_cpu": True,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "gradient_checkpointing": False,
            "dataloader_pin_memory": False,
        }


def online(toy: Toy, prior: Path, objective: Objective, *arguments: Any, **settings: Any) -> Tensor:
    """log p(response) `[N]` of what `online_model` trains."""
    return policy_log_probs(toy, online_model(toy, prior, objective, *arguments, **settings))


def online_model(
    toy: Toy,
    prior: Path,
    objective: Objective,
    method: str = "whole",
    steps: int = 300,
    samples: int = 64,
    seed: int = 0,
    rate: float = ONLINE_RATE,
    **mends: Any,
) -> Any:
    """Online, by one of four methods; `mends` are `omega_schedule` and `prior_share`.

    method: `whole` (returns of the whole response), `onward` (from each token on), `rloo` (the recipe on TRL's RLOO)
    or `grpo` (stock, beta = alpha).
    """
    model, tokenizer = load(prior)
    with scratch() as shared:
        shared |= {
            "per_device_train_batch_size": samples,
            "num_generations": samples,
            "max_completion_length": toy.length + 1,
            "max_steps": steps,
            "learning_rate": rate,
            "lr_scheduler_type": "linear",
            "seed": seed,
        }
        data = {"train_dataset": Dataset.from_list([{"prompt": END}] * 8), "processing_class": tokenizer}
        trainer: Any
        if method in ("whole", "onward"):
            settings = ResidualGRPOConfig(**shared, returns=method, **mends)
            trainer = ResidualGRPOTrainer(model, addon_reward, settings, objective=objective, **data)
        elif method == "rloo":
            second = prior_reward(load(prior)[0].eval(), tokenizer)
            trainer = RLOOTrainer(
                model, [addon_reward, second], RLOOConfig(**shared, **rloo_settings(objective)), **data
            )
        else:
            settings = GRPOConfig(**shared, beta=objective.alpha, scale_rewards="none", loss_type="dr_grpo")
            trainer = GRPOTrainer(model, addon_reward, settings, **data)
        run_quietly(trainer)
    return trainer.model


def budgeted(toy: Toy, prior: Path, job: Mapping[str, Any]) -> tuple[Tensor, dict[str, float]]:
    """Online with omega from a budget: log p(response) `[N]`, and what the budget ended with."""
    model, tokenizer = load(prior)
    objective = residual(job["start"], job["alpha"])
    with scratch() as shared:
        shared |= {
            "per_device_train_batch_size": job["samples"],
            "num_generations": job["samples"],
            "max_completion_length": toy.length + 1,
            "max_steps": job["steps"],
            "learning_rate": ONLINE_RATE,
            "lr_scheduler_type": "linear",
            "seed": job["seed"],
        }
        data = {"train_dataset": Dataset.from_list([{"prompt": END}] * 8), "processing_class": tokenizer}
        trainer: Any
        if job["method"] == "rloo":
            held = PriorBudget(load(prior)[0].eval(), tokenizer, objective, job["nats"], job["rate"], job["drawn"])
            settings = RLOOConfig(**shared, **rloo_settings(objective, budget=True))
            trainer = RLOOTrainer(model, [addon_reward, held], settings, callbacks=held.callbacks, **data)
            memory = held.memory
        else:
            own = {"budget": job["nats"], "budget_rate": job["rate"], "budget_samples": job["drawn"]}
            trainer = ResidualGRPOTrainer(
                model, addon_reward, ResidualGRPOConfig(**shared, **own), objective=objective, **data
            )
            memory = trainer.memory
        run_quietly(trainer)
    return policy_log_probs(toy, trainer.model), dict(memory.values)


def offline(
    toy: Toy,
    prior: Path,
    objective: Objective,
    rows: list[dict[str, Any]],
    method: str = "decomposed",
    batch: int = 64,
    epochs: float = 1,
    steps: int = -1,
    seed: int = 0,
    rate: float = OFFLINE_RATE,
    offset: bool = True,
) -> Tensor:
    """method: `decomposed` (pairs) or `cross_entropy` (labelled responses)."""
    model, tokenizer = load(prior)
    reference, _ = load(prior)
    with scratch() as shared:
        shared |= {
            "per_device_train_batch_size": batch,
            "num_train_epochs": epochs,
            "max_steps": steps,
            "learning_rate": rate,
            "lr_scheduler_type": "linear",
            "seed": seed,
        }
        data = {"train_dataset": Dataset.from_list(rows), "processing_class": tokenizer}
        trainer: Any
        if method == "decomposed":
            trainer = DecomposedDPOTrainer(model, reference, DecomposedDPOConfig(**shared), objective=objective, **data)
        else:
            settings = CrossEntropyDPOConfig(**shared, offset=offset)
            trainer = CrossEntropyDPOTrainer(model, reference, settings, objective=objective, **data)
        run_quietly(trainer)
    return policy_log_probs(toy, trainer.model)
