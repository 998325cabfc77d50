"""Cross-Entropy-DPO on TRL: every response has a label of its own, good or bad (Eq. 32).

TRL's KTO trainer brings the unpaired data, the reference in all its forms and, given pairs, their conversion to labels
(chosen 1, rejected 0). Only the loss is another.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from trl import KTOConfig, KTOTrainer

from repolicy.errors import UsageError
from repolicy.llm.identity import MOVING_PRIOR, PreferenceSettings, WithReference, columns_of, require_labels
from repolicy.llm.losses import cross_entropy_dpo_loss, implicit_reward

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
        return inputs["ref_logps"] if self.precompute_ref_logps else self.reference_log_probs(model, inputs)[0]  # type: ignore[no-any-return]

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
        step = self.args.offset_rate * slope / max(curvature, 0.05 * count)
        self.memory.values["offset"] = self.offset + step

    def _record(self, label: Tensor, reward: Tensor, log_policy: Tensor, log_prior: Tensor | None) -> None:
        """Log rewards and log-probabilities of good and bad apart, over all ranks."""
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
