"""Decomposed-DPO on pairs (Eq. 33) and Cross-Entropy-DPO on labelled responses (Eq. 32), on TRL.

Stock DPO with beta = alpha computes `alpha · (log policy − log reference)`. With `omega/alpha · log prior` in place of
log reference it computes `alpha · log policy − omega · log prior`, and the rest of TRL stays unchanged.

In Cross-Entropy-DPO every response has a label, good or bad. TRL's KTO trainer provides the unpaired data, all forms of
the reference, and the conversion of pairs to labels (chosen 1, rejected 0). The loss differs,
and the metrics: those of pairs, `prior_logps` and `offset`, and no KL, entropy or logits.
"""

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

from repolicy.errors import UsageError
from repolicy.llm.losses import cross_entropy_dpo_loss, implicit_reward
from repolicy.llm.mixins import PreferenceSettings, ReferenceMixin
from repolicy.llm.requirements import NO_REFERENCE_SYNC, first_row, require_columns, require_labels, values_of
from repolicy.objective import Objective

MARGIN_PAIRS = 128  # pairs that are read for a warning before the first step
FLAT_MARGIN = 4.0  # beyond this margin, a pair's gradient is below 2 % of the largest
MAX_FLAT_SHARE = 0.2  # share of the pairs that may be beyond it without a warning
# The losses of TRL that depend only on the margin of Eq. 33, or (bco_pair) on its two rewards.
COVERED_LOSSES = ("sigmoid", "hinge", "robust", "exo_pair", "discopop", "bco_pair")


@dataclass
class DecomposedDPOConfig(PreferenceSettings, DPOConfig):  # type: ignore[misc]
    """TRL's DPOConfig, with `omega` and `alpha` in place of `beta`.

    omega = alpha is stock DPO with beta = alpha.
    """


class DecomposedDPOTrainer(ReferenceMixin, DPOTrainer):  # type: ignore[misc]
    """`DPOTrainer` with the loss of Eq. 33. Pass the objective once: as `objective=` or in `args`.

    The reference may be a model in memory, TRL's own copy, precomputed log-probabilities, or (with PEFT) the model with
    its adapter off. Its log-probabilities are stored unscaled, so that a cache serves every omega.
    """

    precompute_ref_logps: bool  # set by TRL: whether reference log-probabilities come with the inputs

    SETTINGS_CLASS, REQUIRED_COLUMNS = DecomposedDPOConfig, ("chosen", "rejected")
    STORED = ("ref_chosen_logps", "ref_rejected_logps")
    REQUIRED_SETTINGS = {  # noqa: RUF012
        "sync_ref_model": NO_REFERENCE_SYNC,
        "ld_alpha": (None, "every token of a response counts"),
        "use_weighting": (False, "weighted pairs change the objective"),
        "f_divergence_type": ("reverse_kl", "omega and alpha can be separated only in the KL divergence"),
    }

    def resolve_settings(self, objective: Any, args: Any) -> Any:
        """Resolve the settings, and raise if a loss does not depend on the margin of Eq. 33."""
        args = super().resolve_settings(objective, args)
        on_margin = [name for name in args.loss_type if name != "sft"]
        if not on_margin or not {*on_margin} <= {*COVERED_LOSSES}:
            choices = ", ".join(COVERED_LOSSES)
            raise UsageError(f"loss_type {args.loss_type} has no decomposed form; choose from {choices}")
        if "sft" in args.loss_type:
            effect = "omega and alpha do not give the optimum of the sum, so a dial between such models is not exact"
            warnings.warn(f"loss_type 'sft' beside another is a second objective: {effect}", stacklevel=4)
        return args

    def before_first_step(self) -> None:
        """Warn if the gradients of many pairs would vanish; the first pairs of the dataset are read."""
        if self.objective.omega == self.objective.alpha or not isinstance(self.train_dataset, Dataset):
            return
        rows = range(min(MARGIN_PAIRS, len(self.train_dataset)))
        size, log_ratios = self.args.per_device_train_batch_size, []
        for start in rows[::size]:
            pairs = [self.train_dataset[i] for i in rows[start : start + size]]
            batch = self._prepare_inputs(self.data_collator(pairs))
            with torch.no_grad(), self.compute_loss_context_manager():
                chosen, rejected = self.log_prior(self.model, batch)
                log_ratios.append(chosen - rejected)
        warning = margins_warning(self.objective, torch.cat(log_ratios))
        if warning is not None:
            warnings.warn(warning, stacklevel=2)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of stock DPO with the scaled prior as its reference."""
        chosen, rejected = self._scaled_log_prior(model, inputs)
        inputs = {**inputs, "ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        precomputed, self.precompute_ref_logps = self.precompute_ref_logps, True
        try:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        finally:
            self.precompute_ref_logps = precomputed

    def _scaled_log_prior(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return omega/alpha · log prior of chosen and rejected responses `[B]`, and log the prior's metrics."""
        ratio = self.objective.omega / self.objective.alpha
        if not self.objective.reads_prior:
            zeros = inputs["input_ids"].new_zeros(len(inputs["input_ids"]) // 2, dtype=self.model.dtype)
            return zeros, zeros
        chosen, rejected = self.log_prior(model, inputs)
        for side, log_prior in (("chosen", chosen), ("rejected", rejected)):
            self.metrics[f"prior_logps/{side}"].append(self.accelerator.gather_for_metrics(log_prior).mean().item())
        return ratio * chosen, ratio * rejected


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


@dataclass
class CrossEntropyDPOConfig(PreferenceSettings, KTOConfig):  # type: ignore[misc]
    """TRL's KTOConfig, with `omega` and `alpha` in place of `beta`.

    offset: learn a scalar besides the policy, for alpha · log Z and the threshold between good and bad.
    """

    offset: bool = field(default=True, metadata={"help": "Learn one number for alpha times log Z."})
    offset_rate: float = field(default=0.1, metadata={"help": "The share of a Newton step that the offset takes."})
    train_sampling_strategy: str = field(default="random", metadata={"help": "KTO keeps the file's order; we do not."})
    loss_type: str = field(default="apo_zero_unpaired", metadata={"help": "Leave as it is: it spares KTO's KL pass."})


class CrossEntropyDPOTrainer(ReferenceMixin, KTOTrainer):  # type: ignore[misc]
    """`KTOTrainer` with the loss of Eq. 32. Pass the objective once: as `objective=` or in `args`."""

    SETTINGS_CLASS, FIXED_SETTINGS, STORED = CrossEntropyDPOConfig, ("offset",), ("ref_logps",)
    REQUIRED_COLUMNS = ("prompt", "completion", "label")
    REQUIRED_SETTINGS = {  # noqa: RUF012
        "sync_ref_model": NO_REFERENCE_SYNC,
        "loss_type": ("apo_zero_unpaired", "the loss is always Eq. 32"),
        **dict.fromkeys(("desirable_weight", "undesirable_weight"), (1.0, "offset=True learns the threshold")),
    }
    _sums: Any = 0.0  # slope, curvature and count of the offset's loss since the latest optimizer step

    def check_rows(self, dataset: Any) -> None:
        """Raise if the rows are neither labelled responses nor pairs; TRL converts pairs to labelled responses."""
        is_pairs = {"chosen", "rejected"} <= first_row(dataset).keys()
        require_columns(dataset, () if is_pairs else self.REQUIRED_COLUMNS)
        if not is_pairs:
            require_labels(values_of(dataset, "label"))

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, name: str) -> Any:
        """Prepare rows as TRL does, without the weights that it recommends for rows named train: they are refused."""
        return super()._prepare_dataset(dataset, processing_class, args, name.replace("train", "training"))

    @property
    def offset(self) -> float:
        """The learned scalar, which checkpoints store."""
        return self.memory.values.get("offset", 0.0)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean loss of Eq. 32, and move the offset."""
        require_labels(inputs["label"].tolist())  # of a streamed dataset only the first was read before
        label = inputs["label"].to(inputs["input_ids"].device).float()
        log_policy, outputs = self._log_policy(model, inputs)
        log_prior = self.log_prior(model, inputs)[0] if self.objective.reads_prior else None
        losses = cross_entropy_dpo_loss(self.objective, log_policy, log_prior, label, self.offset)
        reward = implicit_reward(self.objective, log_policy.detach(), log_prior)
        self._log_metrics(label, reward, log_policy.detach(), log_prior)
        if self.model.training:  # as TRL counts them
            tokens = self.accelerator.gather_for_metrics(inputs["attention_mask"].sum()).sum().item()
            self._total_train_tokens += tokens // self._tp_size
        self.metrics["num_tokens"] = [self._total_train_tokens]
        if self.args.offset and self.model.training:
            self._move_offset(label, reward)
        loss = losses.mean()
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * outputs.aux_loss
            self.metrics["aux_loss"].append(self.accelerator.gather_for_metrics(outputs.aux_loss).mean().item())
        if not return_outputs:
            return loss
        # `compute_metrics` needs logits, which the fused head did not return.
        return loss, model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])

    def _log_policy(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
        """Return the policy's log-probability of every response `[B]`, and the model's outputs."""
        not_the_models = ("completion_mask", "label", *self.STORED)
        arguments = {name: value for name, value in inputs.items() if name not in not_the_models}
        if self.aux_loss_enabled:
            arguments["output_router_logits"] = True
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
        outputs = model(**arguments, labels=labels, use_cache=False, fused_lm_head=True)
        return outputs.log_probs[:, -(labels.shape[1] - 1) :].sum(-1), outputs

    def _move_offset(self, label: Tensor, reward: Tensor) -> None:
        """Add a batch to the sums; at an optimizer step, move the offset by a fraction of a Newton step of the loss.

        The sums are over all micro-batches of the step and all ranks, so that the split into batches has no effect.
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

    def _log_metrics(self, label: Tensor, reward: Tensor, log_policy: Tensor, log_prior: Tensor | None) -> None:
        """Log mean rewards and log-probabilities of good and of bad responses, over all ranks."""
        gather = self.accelerator.gather_for_metrics
        label, reward = gather((label, reward))
        is_good = label == 1
        quantities = {"rewards": reward, "logps": gather(log_policy)}
        if log_prior is not None:
            quantities["prior_logps"] = gather(log_prior)
        for name, values in quantities.items():
            for side, mask in (("chosen", is_good), ("rejected", ~is_good)):
                if mask.any():
                    self.metrics[f"{name}/{side}"].append(values[mask].mean().item())
        if is_good.any() and not is_good.all():
            self.metrics["rewards/margins"].append((reward[is_good].mean() - reward[~is_good].mean()).item())
        is_correct = (reward + self.offset > 0) == is_good
        self.metrics["rewards/accuracies"].append(is_correct.float().mean().item())
        self.metrics["offset"].append(self.offset)
