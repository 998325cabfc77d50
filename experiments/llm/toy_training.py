"""Train the toy's prior online and offline, by this package's trainers and by TRL's own.

`train_online` and `train_offline` take the prior's folder and return the trained model.
"""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.ledger import Row
from experiments.llm.jobs import Job
from experiments.llm.toy import END, Toy, make_prior, measure, optimum, policy_log_probs, reward
from repolicy.llm import require_trl
from repolicy.objective import Objective, residual

require_trl()

from datasets import Dataset, disable_progress_bars  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback  # noqa: E402
from transformers.utils.logging import disable_progress_bar  # noqa: E402
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # noqa: E402

from repolicy.llm.budget import PriorBudget  # noqa: E402
from repolicy.llm.dpo import CrossEntropyDPOConfig, CrossEntropyDPOTrainer, DecomposedDPOConfig, DecomposedDPOTrainer  # noqa: E402
from repolicy.llm.grpo import ResidualGRPOConfig, ResidualGRPOTrainer  # noqa: E402
from repolicy.llm.rloo import prior_reward, rloo_settings  # noqa: E402

ONLINE_RATE, OFFLINE_RATE = 1e-3, 3e-4
WORLDS = {"standard": (Toy(), 500), "early": (Toy(), 40), "fixed": (Toy(fixed=True), 500)}  # and steps of pretraining


def open_world(world: str, priors: Path) -> tuple[Toy, Path, Tensor]:
    """Return a toy, its prior's folder, which is made where it is missing, and log prior of every response `[N]`."""
    toy, pretraining = WORLDS[world]
    make_prior(toy, priors / world, pretraining)
    return toy, priors / world, policy_log_probs(toy, load(priors / world)[0])


def compare_with_optimum(toy: Toy, objective: Objective, log_prior: Tensor, trained: Tensor) -> Row:
    """Return what the prior (before), a trained policy (after) and the exact optimum (best) are worth."""
    found = {"before": log_prior, "after": trained, "best": optimum(objective, log_prior, toy.rewards)}
    return {name: asdict(measure(toy, objective, policy, log_prior)) for name, policy in found.items()}


def run_online(job: Job, priors: Path, **mends: Any) -> Row:
    """Train the prior online, as a job of `train_online`, and compare the policy with the exact optimum."""
    toy, folder, log_prior = open_world(job.get("world", "standard"), priors)
    objective = residual(job["omega"], job["alpha"])
    how = {name: job[name] for name in ("method", "steps", "samples", "seed", "rate") if name in job}
    model, _ = train_online(folder, objective, length=toy.length, **how, **mends)
    return compare_with_optimum(toy, objective, log_prior, policy_log_probs(toy, model))


def addon_reward(completions: list[str], **_: Any) -> list[float]:
    """Return the toy's add-on reward, as TRL calls reward functions."""
    return [reward(text) for text in completions]


def load(folder: Path) -> tuple[Any, Any]:
    """Return a model and its tokenizer."""
    disable_progress_bar()  # the bars of a hundred short runs would hide their one line of output
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def trained(trainer: Any) -> Any:
    """Train without the line that transformers prints at the end. Return the model."""
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.model


@contextmanager
def scratch_settings(**settings: Any) -> Iterator[dict[str, Any]]:
    """Yield the settings of a run: these and the common ones, which save and report nothing, in a temporary folder."""
    disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="repolicy-toy-") as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
        shared = {"output_dir": folder, "report_to": "none", "save_strategy": "no", "logging_strategy": "no"}
        off = ("bf16", "gradient_checkpointing", "dataloader_pin_memory")
        yield {**shared, "use_cpu": True, "disable_tqdm": True, **dict.fromkeys(off, False), **settings}


def train_online(
    prior: Path,
    objective: Objective,
    method: str = "whole",
    *,
    length: int,
    addon: Any = addon_reward,
    steps: int = 300,
    samples: int = 64,
    seed: int = 0,
    rate: float = ONLINE_RATE,
    budget: tuple[float, float, int] | None = None,
    **mends: Any,
) -> tuple[Any, dict[str, float]]:
    """Train online on words of that length. Return the model and, with a `budget`, its final omega and `own`.

    method: `whole` (returns of the whole response), `onward` (from each token on), `rloo` (the recipe on TRL's RLOO)
    or `grpo` (stock, beta = alpha). budget: nats, rate, and responses that are drawn. mends: `omega_schedule` and
    `prior_share`.
    """
    model, tokenizer = load(prior)
    data = {"train_dataset": Dataset.from_list([{"prompt": END}] * 8), "processing_class": tokenizer}
    with scratch_settings(
        per_device_train_batch_size=samples, num_generations=samples, max_completion_length=length + 1,
        max_steps=steps, learning_rate=rate, lr_scheduler_type="linear", seed=seed,
    ) as shared:  # fmt: skip
        if method in ("whole", "onward"):
            mends |= zip(("budget", "budget_rate", "budget_samples"), budget or (), strict=False)
            settings = ResidualGRPOConfig(**shared, returns=method, **mends)
            trainer = ResidualGRPOTrainer(model, addon, settings, objective=objective, **data)
            return trained(trainer), trainer.memory.values
        if method == "grpo":
            settings = GRPOConfig(**shared, beta=objective.alpha, scale_rewards="none", loss_type="dr_grpo")
            return trained(GRPOTrainer(model, addon, settings, **data)), {}
        frozen = load(prior)[0].eval()
        second = PriorBudget(frozen, tokenizer, objective, *budget) if budget else prior_reward(frozen, tokenizer)
        settings = RLOOConfig(**shared, **rloo_settings(objective, budget=bool(budget)))
        callbacks = second.callbacks if isinstance(second, PriorBudget) else None
        trainer = RLOOTrainer(model, [addon, second], settings, callbacks=callbacks, **data)
        return trained(trainer), second.values if isinstance(second, PriorBudget) else {}


def train_offline(
    prior: Path,
    objective: Objective,
    rows: list[dict[str, Any]],
    method: str = "decomposed",
    batch: int = 64,
    steps: int = -1,
    seed: int = 0,
    rate: float = OFFLINE_RATE,
    **settings: Any,
) -> Any:
    """Train by `decomposed` (on pairs) or `cross_entropy` (on labels), once through the rows. Return the model.

    settings: those of the trainer, such as `offset`.
    """
    (model, tokenizer), (reference, _) = load(prior), load(prior)
    trainer, config = {
        "decomposed": (DecomposedDPOTrainer, DecomposedDPOConfig),
        "cross_entropy": (CrossEntropyDPOTrainer, CrossEntropyDPOConfig),
    }[method]
    with scratch_settings(
        per_device_train_batch_size=batch, num_train_epochs=1, max_steps=steps, learning_rate=rate,
        lr_scheduler_type="linear", seed=seed, **settings,
    ) as shared:  # fmt: skip
        data = {"train_dataset": Dataset.from_list(rows), "processing_class": tokenizer}
        return trained(trainer(model, reference, config(**shared), objective=objective, **data))
