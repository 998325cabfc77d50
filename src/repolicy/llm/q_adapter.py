"""Q-Adapter on TRL: an adapter learns a residual Q-function, and the policy combines it with the frozen model.

Q_R is the difference of the logits with the adapter on and off, so it is 0 at the start. At every token,

    policy logits  =  (Q_R + omega · log prior) / alpha

The trainer computes them in training, `q_adapter_policy` in generation. With chi = 0 this is Decomposed-DPO in another
parametrization. (In the published version Q_R is all of the logits, and preferences are by padded length.)
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from trl import DPOConfig, DPOTrainer

from repolicy.errors import UsageError
from repolicy.llm.losses import implicit_reward, q_adapter_log_probs, q_adapter_loss
from repolicy.llm.mixing import DialedGenerator, dialed_generator
from repolicy.llm.mixins import PreferenceSettings, ReferenceMixin
from repolicy.llm.requirements import require_positive_alpha
from repolicy.objective import Objective
from repolicy.objective_names import check_supported

ITS_OWN_LOSS = "Q-Adapter has its own loss"
REQUIRED_SETTINGS: dict[str, tuple[Any, str]] = {
    "loss_type": (["sigmoid"], ITS_OWN_LOSS),
    "loss_weights": (None, ITS_OWN_LOSS),
    "f_divergence_type": ("reverse_kl", ITS_OWN_LOSS),
    "label_smoothing": (0.0, ITS_OWN_LOSS),
    "use_weighting": (False, ITS_OWN_LOSS),
    "ld_alpha": (None, "every token of a response counts"),
    "precompute_ref_log_probs": (False, "Q-Adapter needs the prior's whole distribution at every token"),
}


@dataclass
class QAdapterConfig(PreferenceSettings, DPOConfig):  # type: ignore[misc]
    """TRL's DPOConfig, with `omega` (α₀ in Q-Adapter's paper) and `alpha` (α̃) in place of `beta`, and `chi`.

    chi: weight of the mean squared token reward, which keeps Q_R from growing without bound.
    """

    chi: float = field(default=0.1, metadata={"help": "Weight of the mean squared token reward."})


class QAdapterTrainer(ReferenceMixin, DPOTrainer):  # type: ignore[misc]
    """`DPOTrainer`'s data and loop with Q-Adapter's loss. It needs a `peft_config`, because it trains an adapter."""

    SETTINGS_CLASS, FIXED_SETTINGS = QAdapterConfig, ("chi",)
    REQUIRED_COLUMNS, REQUIRED_SETTINGS = ("chosen", "rejected"), REQUIRED_SETTINGS
    _paper: dict[str, str] = {}  # noqa: RUF012 - the card names none: this is not quite the published one

    def __init__(self, model: Any, ref_model: Any = None, *arguments: Any, **others: Any) -> None:
        if others.get("peft_config") is None or ref_model is not None:
            raise UsageError("the prior is the model with its adapter off: give a peft_config, and no ref_model")
        super().__init__(model, None, *arguments, **others)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Return the micro-batches of a step and their common number of tokens, so that all tokens weigh the same."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        tokens = torch.tensor(sum(int(batch["completion_mask"][:, 1:].sum()) for batch in batches), device=device)
        return batches, self.accelerator.gather(tokens).sum().clamp(min=1)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean of Q-Adapter's loss over the pairs. Chosen and rejected responses are halves of a batch."""
        arguments = {name: value for name, value in inputs.items() if name != "completion_mask"} | {"use_cache": False}
        router = {"output_router_logits": True} if self.aux_loss_enabled else {}
        outputs = model(**arguments, **router)
        log_prior, residual = residual_q(self.accelerator.unwrap_model(model), outputs.logits, arguments)
        # Position t predicts token t + 1.
        log_prior, residual, next_ids = log_prior[:, :-1], residual[:, :-1], inputs["input_ids"][:, 1:, None]
        log_policy = q_adapter_log_probs(self.objective, residual, log_prior).gather(-1, next_ids).squeeze(-1)
        log_prior = log_prior.gather(-1, next_ids).squeeze(-1)
        chosen, rejected = implicit_reward(self.objective, log_policy, log_prior).chunk(2)
        chosen_mask, rejected_mask = inputs["completion_mask"][:, 1:].chunk(2)
        tokens = None
        if num_items_in_batch is not None:
            tokens = num_items_in_batch / self.current_gradient_accumulation_steps / self.accelerator.num_processes
        loss = q_adapter_loss(chosen, rejected, chosen_mask, rejected_mask, self.args.chi, tokens).mean()
        self._log_rewards((chosen.detach() * chosen_mask).sum(1), (rejected.detach() * rejected_mask).sum(1))
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * outputs.aux_loss
            self.metrics["aux_loss"].append(self.accelerator.gather_for_metrics(outputs.aux_loss).mean().item())
        return (loss, outputs) if return_outputs else loss

    def _log_rewards(self, chosen: Tensor, rejected: Tensor) -> None:
        """Log the mean rewards of whole responses over all ranks, given those of this rank `[B]`."""
        chosen, rejected = self.accelerator.gather_for_metrics((chosen, rejected))
        rewards = {"accuracies": chosen > rejected, "margins": chosen - rejected}
        for name, values in ({"chosen": chosen, "rejected": rejected} | rewards).items():
            self.metrics[f"rewards/{name}"].append(values.float().mean().item())


def residual_q(model: Any, logits: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return log prior and Q_R `[B, T, V]`, given the logits with the adapter on; Q_R is what the adapter adds."""
    with torch.no_grad(), model.disable_adapter():
        prior_logits = model(**arguments).logits.float()
    logits = logits[:, -prior_logits.shape[1] :].float()  # prompt tuning puts virtual tokens before the ids
    return prior_logits.log_softmax(-1), logits - prior_logits


def q_adapter_policy(model: PeftModel, objective: Objective) -> DialedGenerator:
    """Return a generator of the policy of a model with its Q-adapter: `q_adapter_policy(...).generate(**prompt)`."""
    check_supported(objective, "a Q-adapter's policy")
    require_positive_alpha(objective, "the policy's logits are divided by it")
    return dialed_generator(model, ["default"], through_q_adapter([0.0, 1.0], 0, objective))


def through_q_adapter(coefficients: list[float], index: int, objective: Objective) -> list[float]:
    """Return coefficients of `mixture` where the tuned model with this index is the prior with a Q-adapter on.

    Its policy has the logits (log adapted + (omega − 1) · log prior) / alpha, up to a constant.
    """
    prior, *tuned = coefficients
    tuned[index] /= objective.alpha
    return [prior + tuned[index] * (objective.omega - 1), *tuned]
