"""Checks before training: a dry run of one batch, and a warning of preference pairs whose gradients would vanish."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.objective import Objective

FLAT_MARGIN = 4.0  # beyond this margin, a pair's gradient is below 2 % of the largest
MAX_FLAT_SHARE = 0.2  # share of the pairs that may be beyond it without a warning


def margins_warning(objective: Objective, log_ratio: Tensor) -> str | None:
    """Return a warning if many initial margins are large, given log prior(chosen)/prior(rejected) `[N]`.

    At the first step the policy equals the prior, so the margin of Eq. 33 is (alpha − omega) · log_ratio. A large
    negative margin gives the full gradient, whatever the policy does; a large positive margin gives almost none.
    """
    flat_share = (((objective.alpha - objective.omega) * log_ratio).abs() > FLAT_MARGIN).double().mean().item()
    if flat_share <= MAX_FLAT_SHARE:
        return None
    quantile = torch.quantile(log_ratio.abs().double(), 1 - MAX_FLAT_SHARE, interpolation="higher").item()
    max_distance = FLAT_MARGIN / quantile  # of omega from alpha
    digits = 2 - math.floor(math.log10(max_distance))
    max_distance = math.floor(max_distance * 10**digits) / 10**digits  # rounded down, so that the warning holds
    low, high = max(0.0, objective.alpha - max_distance), objective.alpha + max_distance
    return (
        f"{flat_share:.0%} of the pairs begin with a margin beyond {FLAT_MARGIN:g}, where the loss is nearly flat or a "
        f"straight line: the prior finds one of the two responses far likelier than the other. With omega between "
        f"{low:.6g} and {high:.6g} at this alpha it would be at most {MAX_FLAT_SHARE:.0%}; or leave out pairs whose "
        "lengths differ much"
    )


def dry_run(trainer: Any) -> dict[str, float]:
    """Print and return metrics, loss and gradient norm of the first training step, then restore the trainer's state.

    With a budget, the prior's own responses are sampled first, as in a run.
    """
    if trainer.is_deepspeed_enabled:
        raise UsageError("DeepSpeed begins with the training: make the dry run without it")
    with _state_preserved(trainer):
        trainer.before_first_step()
        steps = trainer.args.gradient_accumulation_steps
        trainer.current_gradient_accumulation_steps = steps
        batches, items = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), steps, trainer.args.device)
        loss = 0.0
        for number, batch in enumerate(batches, 1):
            trainer.accelerator.sync_gradients = number == len(batches)  # as in a run: whether the step ends here
            loss += trainer.training_step(trainer.model, batch, items).item()
        norms = [p.grad.float().norm() for p in trainer.model.parameters() if p.grad is not None]
        logged = trainer._metrics["train"]
        metrics = {name: float(np.mean(logged[name])) for name in logged if logged[name] and name != "step_time"}
        metrics |= {"loss": loss, "gradient_norm": torch.stack(norms).norm().item()}
    for name, value in metrics.items():
        print(f"{name:48s} {value:.6g}")
    return metrics


@contextmanager
def _state_preserved(trainer: Any) -> Iterator[None]:
    """Restore everything that a batch changes in a trainer: gradients, counters, logs, and all random streams."""
    names = (
        "_metrics", "_step", "_buffered_inputs", "_total_train_tokens", "_logs", "_sums", "_rewards",
        "_current_train_step_time",
    )  # fmt: skip
    attributes = {name: deepcopy(getattr(trainer, name)) for name in names if hasattr(trainer, name)}
    memory_values, is_training = dict(trainer.memory.values), trainer.model.training
    python_rng, numpy_rng = random.getstate(), np.random.get_state()
    tokens = trainer.state.num_input_tokens_seen
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_rng)
        np.random.set_state(numpy_rng)
        trainer.state.num_input_tokens_seen = tokens
        for name, value in attributes.items():
            setattr(trainer, name, value)
        trainer.memory.values.clear()
        trainer.memory.values.update(memory_values)
        trainer.model.zero_grad(set_to_none=True)
        trainer.model.train(is_training)
