"""Cross-Entropy-DPO on TRL: every response has a label of its own, good or bad (Eq. 32).

TRL's KTO trainer brings the unpaired data, the reference in all its forms and, given pairs, their conversion to labels
(chosen 1, rejected 0). Only the loss is another.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.llm.identity import PreferenceSettings, WithReference
from repolicy.llm.losses import cross_entropy_dpo_loss, implicit_reward
from repolicy.llm.requirements import (
    MOVING_PRIOR,
    columns_of,
    datasets_in,
    own_settings,
    require_columns,
    require_labels,
    require_no_columns,
    require_reference,
    require_settings,
    require_trl,
    set_beta,
    text_objective,
)
from repolicy.objective import Objective

require_trl()

from trl import KTOConfig, KTOTrainer  # noqa: E402

NOT_FOR_THE_MODEL = ("completion_mask", "label", "ref_logps")


@dataclass
class CrossEntropyDPOConfig(PreferenceSettings, KTOConfig):  # type: ignore[misc]
    """TRL's KTOConfig, with `omega` and `alpha` where it has `beta`.

    offset: learn one number beside the policy, for alpha · log Z and the threshold between good and bad.
    offset_rate: the share of a Newton step by which that number moves at each step of the optimizer.
    """

    offset: bool = field(default=True, metadata={"help": "Learn one number for alpha times log Z."})
    offset_rate: float = field(default=0.1, metadata={"help": "The share of a Newton step that the offset takes."})
    train_sampling_strategy: str = field(default="random", metadata={"help": "KTO keeps the file's order; we do not."})
    loss_type: str = field(default="apo_zero_unpaired", metadata={"help": "Leave as it is: it spares KTO's KL pass."})


class CrossEntropyDPOTrainer(WithReference, KTOTrainer):  # type: ignore[misc]
    """`KTOTrainer` on the loss of Eq. 32. Say the objective once: `objective=residual(omega, alpha)`, or in `args`."""

    def __init__(
        self,
        model: Any,
        ref_model: Any = None,
        args: CrossEntropyDPOConfig | None = None,
        train_dataset: Any = None,
        *,
        objective: Objective | None = None,
        **others: Any,
    ) -> None:
        args = own_settings(args, CrossEntropyDPOConfig)
        self.objective = text_objective(objective, args.omega, args.alpha)
        check_cross_entropy(self.objective, args)
        for dataset in (train_dataset, others.get("eval_dataset")):
            if dataset is not None or dataset is train_dataset:
                check_labelled(dataset)
        if not self.objective.reads_prior:
            ref_model = None
        require_reference(self.objective, model, ref_model, args, others.get("peft_config"), "Cross-Entropy-DPO")
        with _without_advice_on_weights():
            super().__init__(model, ref_model, args, train_dataset=train_dataset, **others)
        self.precompute_ref_logps = args.precompute_ref_log_probs and self.objective.reads_prior
        self.introduce(reference_given=ref_model is not None, offset_learned=args.offset)
        self._sums = torch.zeros(3)

    @property
    def offset(self) -> float:
        """The learned number; it is saved with the trainer's state and comes back when a run is resumed."""
        return self.memory.values.get("offset", 0.0)

    @offset.setter
    def offset(self, value: float) -> None:
        self.memory.values["offset"] = value

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        label = inputs["label"].to(inputs["input_ids"].device).float()
        log_policy, outputs = self._log_policy(model, inputs)
        log_prior = self._log_prior(model, inputs)
        losses = cross_entropy_dpo_loss(self.objective, log_policy, log_prior, label, self.offset)
        reward = implicit_reward(self.objective, log_policy.detach(), log_prior)
        self._record(label, reward, log_policy.detach(), log_prior)
        if self.args.offset and self.model.training:
            self._move_offset(label, reward)
        loss = losses.mean()
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * outputs.aux_loss
        return (loss, outputs) if return_outputs else loss

    def _log_policy(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
        """The log-probability of every response `[B]`, and what the model returned."""
        arguments = {name: value for name, value in inputs.items() if name not in NOT_FOR_THE_MODEL}
        if self.aux_loss_enabled:
            arguments["output_router_logits"] = True
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
        outputs = model(**arguments, labels=labels, use_cache=False, fused_lm_head=True)
        return outputs.log_probs[:, -(labels.shape[1] - 1) :].sum(-1), outputs

    def _log_prior(self, model: Any, inputs: dict[str, Any]) -> Tensor | None:
        if not self.objective.reads_prior:
            return None
        log_prior: Tensor = (
            inputs["ref_logps"] if self.precompute_ref_logps else self.reference_log_probs(model, inputs)[0]
        )
        return log_prior

    def _move_offset(self, label: Tensor, reward: Tensor) -> None:
        """A share of a Newton step of the same loss in the offset alone, the same on every rank.

        Sums are kept until the optimizer's step: all its micro-batches see one offset, however they were cut.
        """
        probability = torch.sigmoid(reward + self.offset)
        self._sums = self._sums.to(reward) + torch.stack(
            [(label - probability).sum(), (probability * (1 - probability)).sum(), label.new_tensor(len(label))]
        )
        if not self.accelerator.sync_gradients:
            return
        slope, curvature, count = self.accelerator.reduce(self._sums, reduction="sum").tolist()
        self._sums = torch.zeros(3)
        self.offset += self.args.offset_rate * slope / max(curvature, 0.05 * count)

    def _record(self, label: Tensor, reward: Tensor, log_policy: Tensor, log_prior: Tensor | None) -> None:
        """Rewards and log-probabilities of good and bad apart, over all ranks."""
        values = {"rewards": reward, "logps": log_policy} | ({} if log_prior is None else {"prior_logps": log_prior})
        label, reward = self.accelerator.gather_for_metrics((label, reward))
        for what, each in values.items():
            everyone = reward if what == "rewards" else self.accelerator.gather_for_metrics(each)
            for name, chosen in (("chosen", label == 1), ("rejected", label == 0)):
                if chosen.any():
                    self.metrics[f"{what}/{name}"].append(everyone[chosen].mean().item())
        right = (reward + self.offset > 0) == (label == 1)
        self.metrics["rewards/accuracies"].append(right.float().mean().item())
        self.metrics["offset"].append(self.offset)


@contextmanager
def _without_advice_on_weights() -> Iterator[None]:
    """KTO advises weights where good and bad are not equally many. Here the offset does that; weights are refused."""
    logger = logging.getLogger("trl.trainer.kto_trainer")

    def keep(record: logging.LogRecord) -> bool:
        return "weights on the desirable and undesirable losses" not in str(record.msg)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def check_cross_entropy(objective: Objective, args: CrossEntropyDPOConfig) -> None:
    set_beta(args, objective, "the loss is a function of alpha · log policy")
    require_settings(args, {"sync_ref_model": MOVING_PRIOR})
    if args.loss_type != "apo_zero_unpaired":
        raise UsageError(f"loss_type is {args.loss_type!r}; the loss here is Eq. 32 and no other, so leave it out")
    if (args.desirable_weight, args.undesirable_weight) != (1.0, 1.0):
        raise UsageError("weights on good and bad responses move the threshold between them; set offset=True instead")
    if not 0 < args.offset_rate <= 1:
        raise UsageError(f"offset_rate is {args.offset_rate}; it is the share of a step, above 0 and at most 1")


def check_labelled(dataset: Any) -> None:
    """Labelled responses, or pairs, which TRL turns into labelled responses."""
    if dataset is not None and not isinstance(dataset, dict) and {"chosen", "rejected"} <= {*columns_of(dataset)}:
        return
    require_columns(dataset, ("prompt", "completion", "label"), "Cross-Entropy-DPO (or chosen and rejected)")
    require_no_columns(dataset, ["ref_logps"])
    for part in datasets_in(dataset).values():
        require_labels(part)
