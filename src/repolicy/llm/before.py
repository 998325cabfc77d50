"""Before a run: one batch that changes nothing, and pairs whose gradients would vanish."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.objective import Objective

FAR = 4.0  # a margin beyond which a pair's gradient is below 2 % of the largest
SHARE = 0.2  # share of the pairs that may be beyond it


def margins_warning(objective: Objective, log_ratio: Tensor) -> str | None:
    """Say so where the first margins, (alpha − omega) · log prior(chosen)/prior(rejected) `[N]`, are far out.

    At the first step the policy is the prior, so the margin of Eq. 33 needs the prior alone. A pair far on the wrong
    side pulls with all its weight; one far on the right side, −log σ(margin), does not pull at all.
    """
    far = (((objective.alpha - objective.omega) * log_ratio).abs() > FAR).double().mean().item()
    if far <= SHARE:
        return None
    room = FAR / torch.quantile(log_ratio.abs().double(), 1 - SHARE, interpolation="higher").item()
    digits = 2 - math.floor(math.log10(room))
    room = math.floor(room * 10**digits) / 10**digits  # rounded down, so that what is said holds
    low, high = max(0.0, objective.alpha - room), objective.alpha + room
    return (
        f"{far:.0%} of the pairs begin with a margin beyond {FAR:g}, where the loss is nearly flat or a straight line: "
        f"the prior finds one of the two responses far likelier than the other. With omega between {low:.6g} and "
        f"{high:.6g} at this alpha it would be at most {SHARE:.0%}; or leave out pairs whose lengths differ much"
    )


def dry_run(trainer: Any) -> dict[str, float]:
    """Print and return what the first step of training would log, its loss and the gradient's norm; take no step.

    With a budget, the prior's own responses are drawn first, as in a run. The trainer is left as it was, and trains as
    if this had not been.
    """
    with _undone(trainer):
        trainer.look_before_the_first_step()
        batches = trainer.args.gradient_accumulation_steps  # which make up a step
        trainer.current_gradient_accumulation_steps = batches
        taken, items = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), batches, trainer.args.device)
        loss = sum(trainer.training_step(trainer.model, batch, items).item() for batch in taken)
        norms = [p.grad.float().norm() for p in trainer.model.parameters() if p.grad is not None]
        metrics = trainer._metrics["train"]
        measured = {name: float(np.mean(metrics[name])) for name in metrics if metrics[name] and name != "step_time"}
        measured |= {"loss": loss, "gradient_norm": torch.stack(norms).norm().item()}
    for name, value in measured.items():
        print(f"{name:48s} {value:.6g}")
    return measured


@contextmanager
def _undone(trainer: Any) -> Iterator[None]:
    """Leave all that a batch changes in a trainer as it was: gradients, counters, logs, and all random streams."""
    kept = (
        "_metrics", "_step", "_buffered_inputs", "_total_train_tokens", "_logs", "_sums", "_rewards",
        "_current_train_step_time",
    )  # fmt: skip
    before = {name: deepcopy(getattr(trainer, name)) for name in kept if hasattr(trainer, name)}
    values, training = dict(trainer.memory.values), trainer.model.training
    streams, tokens = (random.getstate(), np.random.get_state()), trainer.state.num_input_tokens_seen
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(streams[0])
        np.random.set_state(streams[1])
        trainer.state.num_input_tokens_seen = tokens
        for name, value in before.items():
            setattr(trainer, name, value)
        trainer.memory.values.clear()
        trainer.memory.values.update(values)
        trainer.model.zero_grad(set_to_none=True)
        trainer.model.train(training)
