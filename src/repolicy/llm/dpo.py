"""Decomposed-DPO on TRL: the prior and the entropy with weights of their own (Eq. 33).

Stock DPO with beta = alpha sees `alpha · (log policy − log reference)`. Handed `omega/alpha · log prior` in place of
the reference's log-probability, it sees `alpha · log policy − omega · log prior`; all of TRL around it stays as it is.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import DPOConfig, DPOTrainer

from repolicy.errors import UsageError
from repolicy.llm.before import margins_warning
from repolicy.llm.identity import MOVING_PRIOR, PreferenceSettings, WithReference

LOOKED_AT = 128  # pairs, for a warning before the first step
# The losses of TRL that read the margin of Eq. 33, or (bco_pair) the two rewards in it, and nothing besides.
COVERED_LOSSES = ("sigmoid", "hinge", "robust", "bco_pair", "sft")


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
        for name in args.loss_type:
            if name not in COVERED_LOSSES:
                raise UsageError(f"loss_type {name!r} has no decomposed form; choose from {', '.join(COVERED_LOSSES)}")
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
            everyone = self.accelerator.gather_for_metrics(log_prior)
            self.metrics[f"prior_logps/{side}"].append(everyone.mean().item())
        return ratio * chosen, ratio * rejected

    def _log_prior(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the prior's log-probability of the chosen and of the rejected responses `[B]`."""
        if "ref_chosen_logps" in inputs:  # precomputed, unscaled
            return inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        chosen, rejected = self.reference_log_probs(model, inputs)
        return chosen, rejected
