"""DPO on TRL, decomposed (`dpo`: Eq. 33) and with a label for each response (`ce`: Eq. 32).

Stock DPO with beta = alpha sees `alpha · (log policy − log reference)`. Handed `omega/alpha · log prior` in place of
the reference's log-probability, it sees `alpha · log policy − omega · log prior`; all of TRL around it stays as it is.

For Cross-Entropy-DPO, every response has a label of its own, good or bad. TRL's KTO trainer brings the unpaired data,
the reference in all its forms and, given pairs, their conversion to labels (chosen 1, rejected 0). Only the loss is
another.
"""

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

from repolicy.errors import UsageError
from repolicy.llm.before import margins_warning
from repolicy.llm.identity import MOVING_PRIOR, PreferenceSettings, WithReference, columns_of, require_labels
from repolicy.llm.losses import cross_entropy_dpo_loss, implicit_reward

LOOKED_AT = 128  # pairs, for a warning before the first step
# The losses of TRL that read the margin of Eq. 33, or (bco_pair) the two rewards in it, and nothing besides.
COVERED_LOSSES = ("sigmoid", "hinge", "robust", "bco_pair")


@dataclass
class DecomposedDPOConfig(PreferenceSettings, DPOConfig):  # type: ignore[misc]
    """TRL's DPOConfig, with `omega` and `alpha` where it has `beta`.

    omega = alpha is stock DPO with beta = alpha.
    """


class DecomposedDPOTrainer(WithReference, DPOTrainer):  # type: ignore[misc]
    """`DPOTrainer` on the loss of Eq. 33. Say the objective once: `objective=residual(omega, alpha)`, or in `args`.

    The reference may be a model in memory, TRL's own copy, precomputed log-probabilities, or (with PEFT) the model with
    its adapter off. Its log-probabilities are scaled when they are used, never when they are stored, so a cache made
    at one omega serves every other.
    """

    precompute_ref_logps: bool  # TRL's: whether reference log-probabilities come with the inputs

    SETTINGS, COLUMNS = DecomposedDPOConfig, ("chosen", "rejected")
    NEEDED = {  # noqa: RUF012
        "sync_ref_model": MOVING_PRIOR,
        "ld_alpha": (None, "every token of a response counts"),
        "use_weighting": (False, "a weighted pair is another objective"),
        "f_divergence_type": ("reverse_kl", "omega and alpha come apart only in the KL divergence"),
    }

    def settled(self, objective: Any, args: Any) -> Any:
        """Return the settings; refused with a loss that does not read the margin of Eq. 33."""
        args = super().settled(objective, args)
        known = ", ".join(COVERED_LOSSES)
        for name in args.loss_type:
            if name not in (*COVERED_LOSSES, "sft"):
                raise UsageError(f"loss_type {name!r} has no decomposed form; choose from {known}")
        if "sft" in args.loss_type:
            weights = args.loss_weights or [1.0] * len(args.loss_type)
            if not any(w for name, w in zip(args.loss_type, weights, strict=False) if name != "sft"):
                without = "reads neither omega nor alpha, which would do nothing"
                raise UsageError(
                    f"loss_type 'sft' by itself {without}: name one of {known} beside it, or use SFTTrainer"
                )
            dial = "omega and alpha do not name the optimum of the sum, and between models of it the dial is not exact"
            warnings.warn(f"loss_type 'sft' beside another is a second objective: {dial}", stacklevel=4)
        return args

    def look_before_the_first_step(self) -> None:
        """Warn of pairs whose gradients would vanish, from the first of them."""
        if self.objective.omega == self.objective.alpha or not isinstance(self.train_dataset, Dataset):
            return
        rows = range(min(LOOKED_AT, len(self.train_dataset)))
        size, log_ratios = self.args.per_device_train_batch_size, []
        for start in rows[::size]:
            chunk = [self.train_dataset[i] for i in rows[start : start + size]]
            batch = self._prepare_inputs(self.data_collator(chunk))
            with torch.no_grad(), self.compute_loss_context_manager():
                log_ratios.append(torch.sub(*self._log_prior(self.model, batch)))
        if warning := margins_warning(self.objective, torch.cat(log_ratios)):
            warnings.warn(warning, stacklevel=2)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of stock DPO, given the prior's log-probabilities times omega/alpha."""
        chosen, rejected = self._reference(model, inputs)
        inputs = {**inputs, "ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        precomputed, self.precompute_ref_logps = self.precompute_ref_logps, True
        try:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        finally:
            self.precompute_ref_logps = precomputed

    def _reference(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return what stands in the place of the reference: omega/alpha · log prior of chosen and rejected `[B]`."""
        ratio = self.objective.omega / self.objective.alpha
        if not self.objective.reads_prior:
            zeros = inputs["input_ids"].new_zeros(len(inputs["input_ids"]) // 2, dtype=self.model.dtype)
            return zeros, zeros
        chosen, rejected = self._log_prior(model, inputs)
        for side, log_prior in (("chosen", chosen), ("rejected", rejected)):
            self.metrics[f"prior_logps/{side}"].append(self.accelerator.gather_for_metrics(log_prior).mean().item())
        return ratio * chosen, ratio * rejected

    def _log_prior(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the prior's log-probability of the chosen and of the rejected responses `[B]`."""
        if "ref_chosen_logps" in inputs:  # precomputed, unscaled
            return inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        chosen, rejected = self.reference_log_probs(model, inputs)
        return chosen, rejected


NOT_FOR_THE_MODEL = ("completion_mask", "label", "ref_logps")


@dataclass
class CrossEntropyDPOConfig(PreferenceSettings, KTOConfig):  # type: ignore[misc]
    """TRL's KTOConfig, with `omega` and `alpha` where it has `beta`.

    offset: learn one number beside the policy, for alpha · log Z and the threshold between good and bad.
    """

    offset: bool = field(default=True, metadata={"help": "Learn one number for alpha times log Z."})
    offset_rate: float = field(default=0.1, metadata={"help": "The share of a Newton step that the offset takes."})
    train_sampling_strategy: str = field(default="random", metadata={"help": "KTO keeps the file's order; we do not."})
    loss_type: str = field(default="apo_zero_unpaired", metadata={"help": "Leave as it is: it spares KTO's KL pass."})


class CrossEntropyDPOTrainer(WithReference, KTOTrainer):  # type: ignore[misc]
    """`KTOTrainer` on the loss of Eq. 32. Say the objective once: `objective=residual(omega, alpha)`, or in `args`."""

    SETTINGS, FIXED, COLUMNS = CrossEntropyDPOConfig, ("offset",), ("prompt", "completion", "label")
    NEEDED = {  # noqa: RUF012
        "sync_ref_model": MOVING_PRIOR,
        "loss_type": ("apo_zero_unpaired", "the loss here is Eq. 32 and no other"),
        **dict.fromkeys(("desirable_weight", "undesirable_weight"), (1.0, "offset=True learns the threshold")),
    }
    _sums: Any = 0.0  # of the micro-batches since the optimizer's last step, for the offset

    def settled(self, objective: Any, args: Any) -> Any:
        """Return the settings; refused where the offset would not move, or beyond its aim."""
        args = super().settled(objective, args)
        if not 0 < args.offset_rate <= 1:
            raise UsageError(f"offset_rate is {args.offset_rate}; it is the share of a step, above 0 and at most 1")
        return args

    def check_rows(self, dataset: Any) -> None:
        """Raise where the rows are neither labelled responses nor pairs, which TRL turns into labelled responses."""
        if dataset is None or isinstance(dataset, dict) or not {"chosen", "rejected"} <= {*columns_of(dataset)}:
            super().check_rows(dataset)
            require_labels(dataset)

    @property
    def offset(self) -> float:
        """The learned number; it is saved with the trainer's state and comes back when a run is resumed."""
        return self.memory.values.get("offset", 0.0)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean loss of Eq. 32, and move the offset."""
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
        if return_outputs:  # for `compute_metrics`; what a fused head returned has no logits
            outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        return (loss, outputs) if return_outputs else loss

    def _log_policy(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
        """Return the log-probability of every response `[B]`, and what the model returned."""
        arguments = {name: value for name, value in inputs.items() if name not in NOT_FOR_THE_MODEL}
        if self.aux_loss_enabled:
            arguments["output_router_logits"] = True
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
        outputs = model(**arguments, labels=labels, use_cache=False, fused_lm_head=True)
        return outputs.log_probs[:, -(labels.shape[1] - 1) :].sum(-1), outputs

    def _log_prior(self, model: Any, inputs: dict[str, Any]) -> Tensor | None:
        """Return log prior of every response `[B]`, or None where nobody asks."""
        if not self.objective.reads_prior:
            return None
        return inputs["ref_logps"] if self.precompute_ref_logps else self.reference_log_probs(model, inputs)[0]

    def _move_offset(self, label: Tensor, reward: Tensor) -> None:
        """Take a share of a Newton step of the same loss in the offset alone, the same on every rank.

        Sums are kept until the optimizer's step: all its micro-batches see one offset, however they were cut.
        """
        probability = torch.sigmoid(reward + self.offset)
        self._sums = self._sums + torch.stack(
            [(label - probability).sum(), (probability * (1 - probability)).sum(), label.new_tensor(len(label))]
        )
        if not self.accelerator.sync_gradients:
            return
        slope, curvature, count = self.accelerator.reduce(self._sums, reduction="sum").tolist()
        self._sums = 0.0
        self.memory.values["offset"] = self.offset + self.args.offset_rate * slope / max(curvature, 0.05 * count)

    def _record(self, label: Tensor, reward: Tensor, log_policy: Tensor, log_prior: Tensor | None) -> None:
        """Log rewards and log-probabilities of good and bad apart, over all ranks."""
        gather = self.accelerator.gather_for_metrics
        label, reward = gather((label, reward))
        everyone = {"rewards": reward, "logps": gather(log_policy)}
        if log_prior is not None:
            everyone["prior_logps"] = gather(log_prior)
        for what, values in everyone.items():
            for name, chosen in (("chosen", label == 1), ("rejected", label == 0)):
                if chosen.any():
                    self.metrics[f"{what}/{name}"].append(values[chosen].mean().item())
        right = (reward + self.offset > 0) == (label == 1)
        self.metrics["rewards/accuracies"].append(right.float().mean().item())
        self.metrics["offset"].append(self.offset)
