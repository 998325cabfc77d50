"""Residual policy gradient on TRL's GRPO: the paper's reward for every token (Eq. 27 with separate coefficients).

Stock GRPO has one advantage per response and a KL term in the loss. Here every token has its own advantage: the return
of `add-on + omega · log prior − alpha · log policy`, minus the mean return of the other responses to the same prompt
that are not finished at that token. TRL accepts advantages `[B, T]` from subclasses; the rest of it is unchanged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import is_async_callable

from repolicy.errors import NumericError, UsageError, check_counts
from repolicy.llm.budget import check_budget, move_omega, prior_mean_log_prob
from repolicy.llm.losses import leave_one_out, returns_to_go, token_rewards, whole_returns
from repolicy.llm.mixing import SAMPLING, ModelView, add_position_ids, use_prior
from repolicy.llm.mixins import ObjectiveMixin, ObjectiveSettings
from repolicy.llm.requirements import (
    NO_REFERENCE_SYNC,
    checked_rewards,
    first_row,
    require_enough_prompts,
    require_no_images,
    require_saved_path,
    require_settings,
)
from repolicy.objective import Objective

SAMPLING_REASON = "log-probabilities must be those that were sampled from"
# Setting -> (required value, reason). With another value the update would not be the gradient of the objective.
REQUIRED_SETTINGS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("temperature", "top_p", "repetition_penalty"), (1.0, SAMPLING_REASON)),
    **dict.fromkeys(("min_p", "vllm_structured_outputs_regex", "neftune_noise_alpha"), (None, SAMPLING_REASON)),
    "top_k": (0, SAMPLING_REASON),
    "scale_rewards": ("none", "a scaled reward changes what omega and alpha are worth"),
    "multi_objective_aggregation": ("sum_then_normalize", "rewards are summed, not normalized"),
    "importance_sampling_level": ("token", "every token has its own advantage"),
    "entropy_coef": (0.0, "the entropy is in the reward, weighted alpha, and not in the loss"),
    "use_adaptive_entropy": (False, "the entropy is in the reward, weighted alpha, and not in the loss"),
    "top_entropy_quantile": (1.0, "every token has a part in the return"),
    "disable_dropout": (True, SAMPLING_REASON),
    "mask_truncated_completions": (False, "a response that was cut off has a reward like any other"),
    "off_policy_mask_threshold": (None, "a masked response is missing from the objective"),
    "sync_ref_model": NO_REFERENCE_SYNC,
    "beta": (0.0, "the prior is in the reward, weighted omega, and not in the loss"),
}
# Generation options and the values that leave the model's distribution unchanged (None is neutral for all of them).
NEUTRAL_GENERATION: dict[str, Any] = {
    **SAMPLING,
    "top_h": None, "bad_words_ids": None, "min_new_tokens": 0, "forced_bos_token_id": None, "sequence_bias": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "begin_suppress_tokens": None,
    "watermarking_config": None, "penalty_alpha": None, "prefix_allowed_tokens_fn": None,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": None, "allowed_token_ids": None,  # vLLM's
    "min_tokens": 0, "bad_words": None, "structured_outputs": None,
}  # fmt: skip
SCORING_PARAMETERS = signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters  # with the image inputs
COMMON_DIVISOR_LOSSES = ("dr_grpo", "dapo")


@dataclass
class ResidualGRPOConfig(ObjectiveSettings, GRPOConfig):  # type: ignore[misc]
    """TRL's GRPOConfig, with `omega`, `alpha` and `gamma` in place of `beta`.

    returns: the return of a token: `whole` sums the rewards of the whole response, `onward` (as in the paper) those
        from the token on. The expected gradient is equal. Without a critic, `whole` has far less noise.
    omega_schedule: share of the run in which omega moves from alpha to its value; 0 sets it at once. For sharp targets.
    prior_share: share of every group that the prior writes. With `whole` returns the update then descends the
        variance of the returns, whichever model wrote the responses, and the optimum stays. For sharp targets.
    budget: nats by which a response may be, on average, less likely under the prior than the prior's own responses.
        Omega is moved to meet it (`repolicy.llm.budget`); `omega` is the initial value.
    budget_samples: the prior's own responses that are sampled; the mean of their log-probability, and with it what is
        spent, is off by about their std / √budget_samples.
    """

    gamma: float = field(default=1.0, metadata={"help": "Discount of the return."})
    returns: str = field(default="whole", metadata={"help": "Credit a token with the `whole`, or what is `onward`."})
    omega_schedule: float = field(default=0.0, metadata={"help": "Share of the run in which omega leaves alpha."})
    prior_share: float = field(default=0.0, metadata={"help": "Share of every group that the prior writes."})
    budget: float | None = field(default=None, metadata={"help": "Nats below the prior's own log-probability."})
    budget_rate: float = field(default=0.02, metadata={"help": "The share of a Newton step that omega takes."})
    budget_samples: int = field(default=1024, metadata={"help": "Responses that tell the prior's own."})
    disable_dropout: bool = field(default=True, metadata={"help": "Leave as it is: a response is scored as sampled."})
    scale_rewards: str = field(default="none", metadata={"help": "Leave as it is: rewards are not scaled."})
    loss_type: str = field(default="dr_grpo", metadata={"help": f"One of {', '.join(COMMON_DIVISOR_LOSSES)}."})
    vllm_importance_sampling_mode: str = field(
        default="sequence_truncate", metadata={"help": "`sequence_truncate` or `token_truncate`: neither masks."}
    )


class ResidualGRPOTrainer(ObjectiveMixin, GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` with the reward of Eq. 27 at every token. Pass the objective once: as `objective=` or in `args`.

    The prior is TRL's reference: a copy loaded from the model's path, or (with PEFT) the model with its adapter off.
    """

    SETTINGS_CLASS, FIXED_SETTINGS = ResidualGRPOConfig, ("returns", "gamma", "omega_schedule", "prior_share", "budget")
    REQUIRED_COLUMNS: tuple[str, ...] = ("prompt",)
    model_wrapped: Any  # set by transformers: the model that is trained, with which TRL generates
    reward_funcs: list[Any]  # set by TRL

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: ResidualGRPOConfig | None = None,
        train_dataset: Any = None,
        *,
        objective: Objective | None = None,
        **others: Any,
    ) -> None:
        args = self.resolve_settings(objective, args)
        self._rewards = torch.empty(0)  # of the latest generation on all ranks, [N, reward functions]
        check_grpo(self.objective, args, others)
        if args.budget is not None:
            check_budget(args.budget, self.objective)
            check_counts(budget_samples=args.budget_samples)
        if others.get("environment_factory"):
            self.REQUIRED_COLUMNS = ()  # because an environment may write the prompt
        self.check_inputs(model, train_dataset, others.get("eval_dataset"))
        if train_dataset is not None and (args.prior_share or args.budget is not None):
            require_no_images(first_row(train_dataset))
        if self.objective.reads_prior and others.get("peft_config") is None:
            require_saved_path(model, "GRPO")
        args.beta = 1.0 if self.objective.reads_prior else 0.0  # TRL keeps a reference only if beta is not 0 ...
        try:
            super().__init__(model, reward_funcs, args, train_dataset, **others)
        finally:
            args.beta = 0.0
        self.beta = 0.0  # ... and adds a KL term to the loss unless beta is 0
        self.reward_funcs = [checked_reward(reward_func) for reward_func in self.reward_funcs]
        for network in [self.model] if self.ref_model is None else [self.model, self.ref_model]:
            add_position_ids(self.accelerator.unwrap_model(network, keep_torch_compile=False))
        check_sampling(self)
        require_enough_prompts(train_dataset, args)
        self.record_identity(reference_given=False)

    @property
    def current_objective(self) -> Objective:
        """The objective of this step; a budget or, in training, the schedule sets its omega."""
        if self.args.budget is not None:
            return replace(self.objective, omega=self.trained_omega)
        if self.model.training:
            return replace(self.objective, omega=self._scheduled_omega(self.state.global_step))
        return self.objective

    def _scheduled_omega(self, step: int) -> float:
        """Return the omega of a step: it moves linearly from alpha to its final value."""
        schedule_steps = self.args.omega_schedule * max(self.state.max_steps, 1)
        alpha, omega = self.objective.alpha, self.objective.omega
        return omega if step >= schedule_steps else alpha + step / schedule_steps * (omega - alpha)

    @property
    def trained_omega(self) -> float:
        """The omega that the weights were last trained with: the budget's, or the latest batch's."""
        return self.memory.values.get("omega", self._scheduled_omega(0))

    def before_first_step(self) -> None:
        """Estimate the prior's mean log-probability of its own responses, if there is a budget."""
        if self.args.budget is None or "own" in self.memory.values:
            return
        network = self.model if self.ref_model is None else self.ref_model
        prior = ModelView(self.accelerator.unwrap_model(network), self._generating_prior)
        samples, tokens = self.args.budget_samples, self.args.max_completion_length
        mean = prior_mean_log_prob(
            prior, self._tokenizer, self.train_dataset, samples, tokens, self.chat_template_kwargs
        )
        self.memory.values |= {"own": mean, "omega": self.objective.omega}

    def _move_omega(self, log_prior: Tensor) -> None:
        """Move omega towards the budget, given log prior of all responses of a generation `[N]`."""
        rows, alpha = self._policy_rows(log_prior), self.objective.alpha
        if not rows.isnan().all():
            spent = move_omega(self.memory.values, alpha, rows, self.args.budget, self.args.budget_rate, self.state)
            self.metrics["residual/spent"].append(spent)

    @property
    def _group_size(self) -> int:
        """The number of responses to a prompt, which are compared with each other."""
        return self.num_generations if self.model.training else self.num_generations_eval

    @property
    def _prior_rows(self) -> int:
        """The number of responses in a group that the prior writes; they come first in the group."""
        return round(self.args.prior_share * self._group_size) if self.model.training else 0

    def _policy_rows(self, values: Tensor) -> Tensor:
        """Select the policy's among values of all responses, `[N]` to `[groups, responses]`; NaN without a reward."""
        values = values.where(self._has_reward, torch.nan)
        return values.view(-1, self._group_size)[:, self._prior_rows :]

    @property
    def _has_reward(self) -> Tensor:
        """Whether any reward function judged a response `[N]`, for all ranks; the other responses are ignored."""
        return ~self._rewards.isnan().all(1)

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Generate as TRL does; with a `prior_share`, the prior writes the first rows of every group."""
        generate = super()._generate_single_turn
        if not self._prior_rows:
            return generate(prompt_ids, images, multimodal_fields, *args, **kwargs)
        if multimodal_fields:
            added = ", ".join(multimodal_fields)
            raise UsageError(f"the model's processor adds {added} to prompts; prior_share would lose it: leave it out")

        def write(rows: list[int]) -> dict[int, Any]:
            """Return responses by row, written by the model that TRL generates with now."""
            if not rows and not self.is_sharded:
                return {}
            # Where the weights are shared out, a rank without rows must write along, and what it writes is dropped.
            responses, *_ = generate([prompt_ids[row] for row in rows or [0]], None, {}, *args, **kwargs)
            return dict(zip(rows, responses, strict=False))

        rows = range(len(prompt_ids))
        first = self.accelerator.process_index * len(prompt_ids)  # index of this rank's first row among all ranks
        by_prior = [row for row in rows if (first + row) % self.num_generations < self._prior_rows]
        responses = write([row for row in rows if row not in by_prior])
        with self._generating_prior():
            responses |= write(by_prior)
        return [responses[row] for row in rows], None

    @contextmanager
    def _generating_prior(self) -> Iterator[None]:
        """Make TRL generate with the prior in place of the policy."""
        if self.ref_model is None:
            with use_prior(self.accelerator.unwrap_model(self.model)):
                yield
            return
        policy, self.model_wrapped = self.model_wrapped, self.ref_model
        try:
            yield
        finally:
            self.model_wrapped = policy

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """Compute rewards as TRL does, and store those of all ranks `[N, functions]` for the advantages."""
        self._rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._rewards.isinf().any():
            raise NumericError("a reward is infinite, and would make the weights NaN: return None to judge nothing")
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Generate as TRL does, then replace its advantages of responses `[B]` by those of tokens `[B, T]`."""
        self.beta = 1.0 if self.objective.reads_prior else 0.0
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        finally:
            self.beta = 0.0
        log_policy = output.get("old_per_token_logps")
        if log_policy is None:  # the loss then takes its own log-probabilities for the old ones
            log_policy = self._log_policy(output)
        output["advantages"] = self._advantages(log_policy, output.pop("ref_per_token_logps", None), _mask(output))
        return output

    def _advantages(self, log_policy: Tensor, log_prior: Tensor | None, mask: Tensor) -> Tensor:
        """Return advantages of this rank's rows `[B, T]`. Returns are gathered: a group may be on several ranks."""
        rewards = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1)
        first = self.accelerator.process_index * len(mask)
        local = slice(first, first + len(mask))  # this rank's rows among those of all ranks
        mask = mask * self._has_reward[local].unsqueeze(1)
        rewards_of_tokens = token_rewards(self.current_objective, rewards[local], log_policy, log_prior, mask)
        self._log_metrics(rewards, log_policy, log_prior, mask)
        if self.model.training:
            self.memory.values["omega"] = self.current_objective.omega
            if self.args.budget is not None:
                assert log_prior is not None
                self._move_omega(self.accelerator.gather((log_prior * mask).sum(1)))
        if self._group_size < 2:  # evaluation with a single response, which has no baseline
            return torch.zeros_like(rewards_of_tokens)
        if self.args.returns == "whole":
            returns = whole_returns(rewards_of_tokens)
        else:
            returns = returns_to_go(rewards_of_tokens, self.args.gamma)
        # Ranks may have responses of different lengths, and only equal shapes can be gathered.
        returns, padded_mask = (self.accelerator.pad_across_processes(each, dim=1) for each in (returns, mask))
        returns, padded_mask = self.accelerator.gather(returns), self.accelerator.gather(padded_mask)
        advantages = leave_one_out(returns, padded_mask, self._group_size)
        shown, table = advantages[:, 0].tolist(), self._logs["advantages"]  # of completions; TRL's are the add-on's own
        kept = [*table][: -len(shown)]
        table.clear()
        table.extend([*kept, *shown])
        return advantages[local, : mask.shape[1]]

    @torch.no_grad()
    def _log_policy(self, output: dict[str, Any]) -> Tensor:
        """Return the policy's log-probabilities of sampled tokens `[B, T]`, which TRL's output may lack."""
        responses, args = output["completion_ids"], self.args
        return self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([output["prompt_ids"], responses], dim=1),
            torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
            responses.size(1),
            batch_size=args.per_device_train_batch_size if self.model.training else args.per_device_eval_batch_size,
            **{name: output[name] for name in SCORING_PARAMETERS if name in output},
        )[0]

    def _log_metrics(self, rewards: Tensor, log_policy: Tensor, log_prior: Tensor | None, mask: Tensor) -> None:
        """Log the mean add-on, prior and entropy terms of the policy's responses, and their KL from the prior."""
        omega, entropy = self.current_objective.omega, -self.objective.alpha * (log_policy * mask).sum(1)
        terms = {"prior": torch.zeros_like(entropy), "entropy": entropy}
        if log_prior is not None:
            terms["prior"] = omega * (log_prior * mask).sum(1)
            terms["kl"] = ((log_policy - log_prior) * mask).sum(1)
        terms = {"addon": rewards} | {name: self.accelerator.gather(term) for name, term in terms.items()}
        for name, values in terms.items():
            self.metrics[f"residual/{name}"].append(self._policy_rows(values).nanmean(1).nanmean().item())
        self.metrics["residual/omega"].append(omega)


def _mask(batch: dict[str, Any]) -> Tensor:
    """Return 1 for tokens that the model wrote, 0 for padding and for the answers of tools."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def checked_reward(reward_func: Any) -> Any:
    """Wrap a reward function: raise if it returns no list, or NaN or another non-number, which TRL takes for None."""
    if isinstance(reward_func, torch.nn.Module):
        return reward_func

    async def await_and_check(**columns: Any) -> list[Any]:
        return checked_rewards(await reward_func(**columns))

    def call_and_check(**columns: Any) -> list[Any]:
        return checked_rewards(reward_func(**columns))

    return wraps(reward_func)(await_and_check if is_async_callable(reward_func) else call_and_check)


def check_sampling(trainer: Any) -> None:
    """Raise if a response would be scored by another distribution than the one that it is sampled from."""
    adapter = getattr(trainer.model, "active_peft_config", None)
    if adapter is not None and adapter.is_prompt_learning:
        problem = f"{adapter.peft_type.value} puts virtual tokens before a shorter prompt's padding"
        raise UsageError(f"{problem}, and {SAMPLING_REASON}: use LoRA, or another adapter inside the model")
    options = dict(trainer.args.generation_kwargs or {})
    if not trainer.use_vllm:
        options |= trainer.model._prepare_generation_config(trainer.generation_config)[0].to_dict()
    for name, neutral in NEUTRAL_GENERATION.items():
        value = options.get(name)
        if value is not None and value != neutral:
            where = "by generation_kwargs or the model's generation config"
            raise UsageError(f"{name} is {value!r} {where}; it must be {neutral!r}, because {SAMPLING_REASON}")


def check_grpo(objective: Objective, args: ResidualGRPOConfig, others: dict[str, Any]) -> None:
    """Raise if the update would not be the gradient of the objective, or if options exclude each other."""
    require_settings(args, REQUIRED_SETTINGS)
    if args.loss_type not in COMMON_DIVISOR_LOSSES:
        losses = ", ".join(COMMON_DIVISOR_LOSSES)
        raise UsageError(f"loss_type is {args.loss_type!r}; only {losses} divide every token by the same number")
    if args.loss_type == "dapo" and args.gradient_accumulation_steps > args.steps_per_generation * args.num_iterations:
        problem = "with several generations in a step, loss_type 'dapo' would not divide every token of a step by the"
        raise UsageError(f"{problem} same number: raise steps_per_generation, or leave loss_type out")
    if (
        args.use_vllm
        and args.vllm_importance_sampling_correction
        and args.vllm_importance_sampling_mode.endswith("_mask")
    ):
        problem = f"vllm_importance_sampling_mode is {args.vllm_importance_sampling_mode!r}"
        raise UsageError(f"{problem}; a masked response is missing from the objective: leave it out")
    if args.returns not in ("onward", "whole"):
        raise UsageError(f"returns is {args.returns!r}; it must be 'onward' or 'whole'")
    if args.returns == "whole" and args.gamma != 1:
        raise UsageError(f"gamma is {args.gamma}; returns of the whole have no discount; set returns='onward'")
    if args.budget is not None and args.omega_schedule:
        raise UsageError("both omega_schedule and budget move omega; leave out one of them")
    if args.load_best_model_at_end and (args.omega_schedule or args.budget is not None):
        raise UsageError("omega moves in the run, so load_best_model_at_end would compare different aims: leave it out")
    for name in ("omega_schedule", "prior_share"):
        if not 0 <= getattr(args, name) < 1:
            raise UsageError(f"{name} is {getattr(args, name)}; it is a share, 0 or greater and below 1")
        if getattr(args, name) and not objective.reads_prior:
            raise UsageError(f"{name} needs a prior, and omega is 0")
    if (args.prior_share or args.budget is not None) and (others.get("tools") or others.get("environment_factory")):
        raise UsageError("with tools or environments the prior writes in turns; leave out prior_share and budget")
    if not args.prior_share:
        return
    if args.returns != "whole":
        raise UsageError("prior_share needs returns='whole': those onward would be another objective")
    if args.use_vllm or args.use_transformers_continuous_batching or others.get("rollout_func"):
        raise UsageError("prior_share needs transformers' generation: no use_vllm, continuous batching, rollout_func")
    if not 1 <= round(args.prior_share * args.num_generations) < args.num_generations:
        raise UsageError(f"prior_share is {args.prior_share}: neither none nor all of a group must be the prior's")
