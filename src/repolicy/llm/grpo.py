"""Residual policy gradient on TRL's GRPO: the paper's reward, token by token (Eq. 27, its coefficients apart).

GRPO has one advantage a response, and puts its KL into the loss. Here every token has an advantage of its own: the
return of `add-on + omega · log prior − alpha · log policy`, minus what the other responses to the same prompt that are
still being written at that token return. TRL takes advantages `[B, T]` from subclasses; nothing else of it changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from math import isnan
from typing import Any, SupportsFloat

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import is_async_callable

from repolicy.errors import NumericError, UsageError, check_counts
from repolicy.llm.budget import check_budget, move_omega, own_log_prior
from repolicy.llm.identity import (
    MOVING_PRIOR,
    ObjectiveSettings,
    WithObjective,
    require_enough_prompts,
    require_first_tokens,
    require_saved_path,
    require_settings,
)
from repolicy.llm.losses import leave_one_out, returns_to_go, token_rewards, whole_returns
from repolicy.llm.mixing import SAMPLING, Beside, as_prior, count_as_generate
from repolicy.objective import Objective

AS_SAMPLED = "log-probabilities must be those that were sampled from"
# Settings at any other value of which the update would not be the gradient of the objective.
NEEDED: dict[str, tuple[Any, str]] = {
    "temperature": (1.0, AS_SAMPLED),
    "top_p": (1.0, AS_SAMPLED),
    "top_k": (0, AS_SAMPLED),
    "min_p": (None, AS_SAMPLED),
    "repetition_penalty": (1.0, AS_SAMPLED),
    "scale_rewards": ("none", "a scaled reward changes what omega and alpha are worth"),
    "multi_objective_aggregation": ("sum_then_normalize", "rewards are summed, not normalized"),
    "importance_sampling_level": ("token", "advantages are a token's own"),
    "entropy_coef": (0.0, "the entropy is in the reward, weighted alpha, and not in the loss"),
    "use_adaptive_entropy": (False, "the entropy is in the reward, weighted alpha, and not in the loss"),
    "top_entropy_quantile": (1.0, "every token has a part in the return"),
    "disable_dropout": (True, AS_SAMPLED),
    "mask_truncated_completions": (False, "a response that was cut off has a reward like any other"),
    "off_policy_mask_threshold": (None, "a masked response is missing from the objective"),
    "vllm_structured_outputs_regex": (None, AS_SAMPLED),
    "neftune_noise_alpha": (None, AS_SAMPLED),
    "sync_ref_model": MOVING_PRIOR,
    "beta": (0.0, "the prior is in the reward, weighted omega, and not in the loss"),
}
# What generation must not do, by name, with the values that do nothing (None does nothing anywhere).
NEUTRAL: dict[str, Any] = {
    **SAMPLING,
    "top_h": None, "bad_words_ids": None, "min_new_tokens": 0, "forced_bos_token_id": None, "sequence_bias": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "begin_suppress_tokens": None,
    "watermarking_config": None, "penalty_alpha": None, "prefix_allowed_tokens_fn": None,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": None, "allowed_token_ids": None,  # vLLM's
    "min_tokens": 0, "bad_words": None, "structured_outputs": None,
}  # fmt: skip
OF_SCORING = signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters  # images, too
COMMON_DIVISOR_LOSSES = ("dr_grpo", "dapo")


@dataclass
class ResidualGRPOConfig(ObjectiveSettings, GRPOConfig):  # type: ignore[misc]
    """TRL's GRPOConfig, with `omega`, `alpha` and `gamma` where it has `beta`.

    returns: what a token is credited with: the `whole` response's rewards, or (the paper's) those from it `onward`.
        In expectation the gradient is the same. Without a critic the whole is far less noisy: see `whole_returns`.
    omega_schedule: the share of the run in which omega goes from alpha to its value; 0 is at once. For sharp targets.
    prior_share: the share of every group that the prior writes. With returns of the whole, the update then descends
        the variance of the returns, whoever wrote the responses, and the optimum stays. For sharp targets.
    budget: omega is moved so that a response is, on average, this many nats less likely to the prior than the prior's
        own (`repolicy.llm.budget`); `omega` is then where the search starts.
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


class ResidualGRPOTrainer(WithObjective, GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` with the reward of Eq. 27 at every token. Say the objective once: `objective=`, or in `args`.

    The reference is TRL's own: loaded once more from the model's path, or (with PEFT) the model with its adapter off.
    """

    SETTINGS, FIXED = ResidualGRPOConfig, ("returns", "gamma", "omega_schedule", "prior_share", "budget")
    COLUMNS = ("prompt",)
    model_wrapped: Any  # transformers': what is trained, and what TRL generates with
    reward_funcs: list[Any]  # TRL's

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
        args = self.settled(objective, args)
        self._rewards = torch.empty(0)
        self._last_omega: float | None = None  # of the rewards that training saw last
        self._waiting: dict[str, Any] | None = None
        check_grpo(self.objective, args, others)
        if args.budget is not None:
            check_budget(args.budget, args.budget_rate, self.objective)
            check_counts(budget_samples=args.budget_samples)
        self.check_datasets(train_dataset, others.get("eval_dataset"))
        if self.objective.reads_prior and others.get("peft_config") is None:
            require_saved_path(model, "GRPO")
        args.beta = 1.0 if self.objective.reads_prior else 0.0  # TRL keeps a reference where beta is not 0 ...
        try:
            super().__init__(model, reward_funcs, args, train_dataset, **others)
        finally:
            args.beta = 0.0
        self.beta = 0.0  # ... and adds no KL to the loss where it is
        self.reward_funcs = [in_numbers(each) for each in self.reward_funcs]
        for each in filter(None, (self.model, self.ref_model)):
            count_as_generate(self.accelerator.unwrap_model(each))
        check_sampling(self)
        for dataset in (train_dataset, others.get("eval_dataset")):
            require_first_tokens(dataset, self._tokenizer)
        require_enough_prompts(train_dataset, args)
        self.introduce(reference_given=False)

    @property
    def present_objective(self) -> Objective:
        """Return the objective of this step: omega may still be on its way from alpha, or follow a budget."""
        if "omega" in self.memory.values:
            return replace(self.objective, omega=self.memory.values["omega"])
        return (
            replace(self.objective, omega=self._scheduled(self.state.global_step))
            if self.model.training
            else self.objective
        )

    def _scheduled(self, step: int) -> float:
        """Return the omega of a step, by the schedule."""
        share = self.args.omega_schedule * max(self.state.max_steps, 1)
        alpha, omega = self.objective.alpha, self.objective.omega
        return omega if step >= share else alpha + step / share * (omega - alpha)

    @property
    def trained_omega(self) -> float:
        """Return the omega of the responses that were trained on last, or where a budget has moved it."""
        last = self._scheduled(max(self.state.global_step - 1, 0)) if self._last_omega is None else self._last_omega
        return self.memory.values.get("omega", last)

    def look_before_the_first_step(self) -> None:
        """Find out, for a budget, what the prior thinks of its own responses."""
        if self.args.budget is None or "own" in self.memory.values:
            return
        model = self.accelerator.unwrap_model(self.model)
        prior = Beside(model, self._as_prior) if self.ref_model is None else Beside(self.ref_model)
        prompts = list(self.train_dataset["prompt"])
        samples, tokens = self.args.budget_samples, self.args.max_completion_length
        own = own_log_prior(prior, self._tokenizer, prompts, samples, tokens, self.chat_template_kwargs)
        self.memory.values |= {"own": own, "omega": self.objective.omega}

    def _move_omega(self, log_prior: Tensor) -> None:
        """Move omega towards the budget, by log prior of all responses `[N]` of a generation."""
        rows, alpha = self._policys(log_prior), self.objective.alpha
        if rows.isnan().all():
            return
        spent = move_omega(self.memory.values, alpha, rows, self.args.budget, self.args.budget_rate, self.state)
        self.metrics["residual/spent"].append(spent)

    @property
    def _group(self) -> int:
        """Return how many responses to a prompt are compared."""
        return self.num_generations if self.model.training else self.num_generations_eval

    def _policys(self, values: Tensor) -> Tensor:
        """Return, of a value for each response of all ranks `[N]`, those of the policy's own `[groups, own]`.

        It is not a number where no reward function could judge the response.
        """
        priors = round(self.args.prior_share * self._group) if self.model.training else 0
        values = values.where(self._judged, torch.nan)
        return values.view(-1, self._group)[:, priors:]

    @property
    def _judged(self) -> Tensor:
        """Return which responses of all ranks `[N]` a reward function could judge; the others teach nothing."""
        return ~self._rewards.isnan().all(1)

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: int, *others: Any, **named: Any
    ) -> Any:
        """Generate as TRL does; with a `prior_share`, the first rows of every group are written by the prior."""

        def write(rows: list[int]) -> Any:
            """Return responses to some of the prompts, by whoever generates now."""
            chosen = [prompt_ids[row] for row in rows]
            return super(ResidualGRPOTrainer, self)._generate_single_turn(
                chosen, images, multimodal_fields, num_generations, *others, **named
            )[0]

        if not self.args.prior_share or not self.model.training:
            return super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, *others, **named
            )
        first = self.accelerator.process_index * len(prompt_ids)  # of this rank's rows among those of all
        priors = round(self.args.prior_share * self.num_generations)
        policys, rest = list[int](), list[int]()
        for row in range(len(prompt_ids)):
            by_policy = (first + row) % self.num_generations >= priors
            (policys if by_policy else rest).append(row)
        written = dict(zip(policys, write(policys), strict=True)) if policys else {}
        with self._as_prior():
            written |= dict(zip(rest, write(rest), strict=True)) if rest else {}
        return [written[row] for row in range(len(prompt_ids))], None

    @contextmanager
    def _as_prior(self) -> Iterator[None]:
        """Put the prior where TRL looks for what it generates with."""
        if self.ref_model is None:
            with as_prior(self.accelerator.unwrap_model(self.model)):
                yield
            return
        policy, self.model_wrapped = self.model_wrapped, self.ref_model
        try:
            yield
        finally:
            self.model_wrapped = policy

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """Reward as TRL does; the rewards of all ranks `[N, functions]` are kept for the advantages."""
        self._rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._rewards.isinf().any():
            raise NumericError("a reward is infinite, and would end the weights: return None to judge nothing")
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Do as TRL does, then give an advantage for every token `[B, T]` where TRL has one a response `[B]`."""
        self.beta = 1.0 if self.objective.reads_prior else 0.0
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        finally:
            self.beta = 0.0
        log_policy = output.get("old_per_token_logps")
        if log_policy is None and self.model.training and self.args.steps_per_generation == 1:
            output["row"] = torch.arange(len(output["advantages"]), device=output["advantages"].device)
            return output  # the loss is about to score these very rows with these very weights: no need to do it twice
        if log_policy is None:
            log_policy = output["old_per_token_logps"] = self._log_policy(output)
        output["advantages"] = self._advantages(log_policy, output.pop("ref_per_token_logps", None), _mask(output))
        return output

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return TRL's loss; advantages that wait for its log-probabilities are made on the way."""
        self._waiting = inputs if "row" in inputs else None
        try:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        finally:
            self._waiting = None

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        """Score as TRL does; where advantages wait for the loss's own log-probabilities, they are made of them here."""
        scored = super()._get_per_token_logps_and_entropies(*arguments, **named)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            order = waiting["row"].argsort()  # TRL has shuffled the rows, and a group's stand together only in order
            log_prior = waiting.get("ref_per_token_logps")
            advantages = self._advantages(
                scored[0].detach()[order], None if log_prior is None else log_prior[order], _mask(waiting)[order]
            )
            waiting["advantages"] = advantages[waiting["row"]]
        return scored

    def _advantages(self, log_policy: Tensor, log_prior: Tensor | None, mask: Tensor) -> Tensor:
        """Return advantages `[B, T]` of this rank's rows. A group may lie on several ranks: returns are gathered."""
        rewards = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1)
        first = self.accelerator.process_index * len(mask)
        own = slice(first, first + len(mask))
        mask = mask * self._judged[own].unsqueeze(1)
        parts = token_rewards(self.present_objective, rewards[own], log_policy, log_prior, mask)
        self._record(rewards, log_policy, log_prior, mask)
        self._last_omega = self.present_objective.omega if self.model.training else self._last_omega
        if self.model.training and self.args.budget is not None:
            assert log_prior is not None
            self._move_omega(self.accelerator.gather((log_prior * mask).sum(1)))
        if self._group < 2:  # evaluation with a single response: nothing to compare it with
            return torch.zeros_like(parts)
        whole = self.args.returns == "whole"
        returns = whole_returns(parts) if whole else returns_to_go(parts, self.args.gamma)
        returns, alive = (self.accelerator.pad_across_processes(each, dim=1) for each in (returns, mask))
        compared = leave_one_out(self.accelerator.gather(returns), self.accelerator.gather(alive), self._group)
        return compared[own, : mask.shape[1]]

    def _log_policy(self, output: dict[str, Any]) -> Tensor:
        """Return log policy(token) `[B, T]` as sampled; TRL leaves it out where it equals the loss's own, detached."""
        rows, args = output["completion_ids"], self.args
        log_policy: Tensor
        with torch.no_grad():
            log_policy, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([output["prompt_ids"], rows], dim=1),
                torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
                rows.size(1),
                batch_size=args.per_device_train_batch_size if self.model.training else args.per_device_eval_batch_size,
                **{name: output[name] for name in OF_SCORING if name in output},
            )
        return log_policy

    def _record(self, rewards: Tensor, log_policy: Tensor, log_prior: Tensor | None, mask: Tensor) -> None:
        """Log what add-on, prior and entropy each contributed to a response that the policy wrote, and its KL."""
        omega, entropy = self.present_objective.omega, -self.objective.alpha * (log_policy * mask).sum(1)
        parts = {"prior": torch.zeros_like(entropy), "entropy": entropy}
        if log_prior is not None:
            parts["prior"] = omega * (log_prior * mask).sum(1)
            parts["kl"] = ((log_policy - log_prior) * mask).sum(1)
        everyone = {"addon": rewards} | {name: self.accelerator.gather(each) for name, each in parts.items()}
        for name, values in everyone.items():
            self.metrics[f"residual/{name}"].append(self._policys(values).nanmean(1).nanmean().item())
        self.metrics["residual/omega"].append(omega)


def _mask(batch: dict[str, Any]) -> Tensor:
    """Return 1 at the tokens that the model wrote, not those that a tool answered."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def in_numbers(judge: Any) -> Any:
    """Return a reward function that refuses what is no number. (TRL takes NaN for None: a response is not judged.)"""
    if isinstance(judge, torch.nn.Module) or is_async_callable(judge):
        return judge

    @wraps(judge)
    def numbers(**given: Any) -> list[Any]:
        values = list(judge(**given))
        for value in values:
            if not isinstance(value, SupportsFloat | None) or (value is not None and isnan(value)):
                raise NumericError(f"a reward is {value!r}, and no number: return None to judge nothing")
        return values

    return numbers


def check_sampling(trainer: Any) -> None:
    """Raise where TRL and transformers, by all that they read, would not sample from the model itself."""
    final = dict(trainer.args.generation_kwargs or {})
    if not trainer.use_vllm:
        final |= trainer.model._prepare_generation_config(trainer.generation_config)[0].to_dict()
    for name, neutral in NEUTRAL.items():
        value = final.get(name)
        if value is not None and value != neutral:
            where = "by generation_kwargs or the model's generation config"
            raise UsageError(f"{name} is {value!r} {where}; it must be {neutral!r}, because {AS_SAMPLED}")


def check_grpo(objective: Objective, args: ResidualGRPOConfig, others: dict[str, Any]) -> None:
    """Raise where the update would not be the gradient of the objective, or a mend for sharp targets no mend."""
    require_settings(args, NEEDED)
    if args.loss_type not in COMMON_DIVISOR_LOSSES:
        losses = ", ".join(COMMON_DIVISOR_LOSSES)
        raise UsageError(f"loss_type is {args.loss_type!r}; {losses} alone divide every token by the same number")
    if args.returns not in ("onward", "whole"):
        raise UsageError(f"returns is {args.returns!r}; it must be 'onward' or 'whole'")
    if args.returns == "whole" and args.gamma != 1:
        raise UsageError(f"gamma is {args.gamma}; returns of the whole have no discount; set returns='onward'")
    if not 0 <= args.gamma <= 1:
        raise UsageError(f"gamma is {args.gamma}; it must be 0 or greater and at most 1")
    if args.budget is not None and args.omega_schedule:
        raise UsageError("both omega_schedule and budget move omega; leave out the one or the other")
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
