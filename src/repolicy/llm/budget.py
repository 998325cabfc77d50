"""Omega from a budget: how many nats less likely, to the prior, a response may be on average than the prior's own.

    E_policy[log prior]  ≥  E_prior[log prior] − budget

Omega is the multiplier of this constraint at a fixed alpha, and more omega means a likelier response, always. (KL from
the prior has its least value at some omega in between, so that it names two.) At the optimum the expectation changes
with omega by the variance of log prior over alpha, so a share of a Newton step is known from the responses.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from repolicy.errors import UsageError, check_counts
from repolicy.llm.identity import Remembered, require_settings
from repolicy.llm.mixing import SAMPLING, Beside
from repolicy.llm.models import new_tokens, prompt_tensors
from repolicy.llm.rloo import prior_reward, prompt_ids, response_log_probs, rloo_settings
from repolicy.objective import Objective

LEAST_VARIANCE = 0.1  # nats², in place of a smaller variance of log prior: a policy that says one thing has none
KEPT = 0.95  # of what earlier steps told of the variance, at each step
KNOWN = 10  # degrees of freedom with which a variance is known well enough to divide by
AT_ONCE = 256  # responses that the prior writes at once


def move_omega(
    values: dict[str, float], alpha: float, log_prior: Tensor, budget: float, rate: float, state: Any
) -> float:
    """Move `values["omega"]` by a share of a Newton step, which falls to 0 in a line; return what is spent.

    `log_prior` is of responses `[prompts, responses]`; what is not a number does not count. The variance is that of
    earlier steps: among the same responses a low mean comes with a large variance, so omega would rise by too little.
    """
    means = log_prior.double().nanmean(1, keepdim=True)
    spent = values["own"] - means.nanmean().item()
    squares, degrees = values.get("squares", 0.0), values.get("degrees", 0.0)
    if degrees >= KNOWN:
        share = rate * (1 - state.global_step / max(state.max_steps, 1))
        newton = alpha * (spent - budget) / max(squares / degrees, LEAST_VARIANCE)
        values["omega"] = max(0.0, values["omega"] + share * newton)
    values["squares"] = KEPT * squares + (log_prior - means).square().nansum().item()
    values["degrees"] = KEPT * degrees + (~log_prior.isnan()).sum(1).sub(1).clamp(min=0).sum().item()
    return spent


def check_budget(budget: float, rate: float, objective: Objective) -> None:
    """Raise where a budget, its rate or where it starts cannot be."""
    if not 0 < budget < math.inf:
        raise UsageError(f"budget is {budget}; it is in nats, greater than 0 and finite")
    if not 0 < rate <= 1:
        raise UsageError(f"budget_rate is {rate}; it is the share of a step, above 0 and at most 1")
    if not objective.omega or not objective.alpha:
        raise UsageError("with a budget, omega is where the search for omega starts: omega and alpha must be above 0")


def own_log_prior(
    prior: Beside, tokenizer: Any, prompts: list[Any], samples: int, tokens: int, template: dict[str, Any] | None = None
) -> float:
    """Return E_prior[log prior] over responses that the prior writes to prompts of all the data. Random streams stay.

    `template` is the trainer's chat_template_kwargs.
    """
    rows = [prompts[i * len(prompts) // samples] for i in range(samples)]
    values: list[float] = []
    with torch.random.fork_rng(), prior.adapter():
        torch.manual_seed(0)  # the same on every rank
        for start in range(0, samples, AT_ONCE):
            part = rows[start : start + AT_ONCE]
            ids, attention = (x.to(prior.model.device) for x in prompt_tensors(tokenizer, part, template))
            written = new_tokens(prior.model, tokenizer, ids, attention, tokens, **SAMPLING)
            texts = [(prompt_ids(tokenizer, prompt, template), row) for prompt, row in zip(part, written, strict=True)]
            values += response_log_probs(prior.model, texts)
    return sum(values) / len(values)


class PriorBudget(TrainerCallback):  # type: ignore[misc]
    """The budget for TRL's own RLOOTrainer: a reward function and a callback in one, and its `memory` another callback.

    budget = PriorBudget(prior, tokenizer, residual(0.2, 0.2), nats=2.0)
    args = RLOOConfig(output_dir="out", **rloo_settings(residual(0.2, 0.2), budget=True))
    trainer = RLOOTrainer(model, [addon, budget], args, train_dataset=prompts, callbacks=budget.callbacks)
    """

    __name__ = "log_prior"  # TRL logs a reward function under it

    def __init__(
        self, prior: Any, tokenizer: Any, objective: Objective, nats: float, rate: float = 0.02, samples: int = 1024
    ) -> None:
        self.needed = rloo_settings(objective, budget=True)
        check_budget(nats, rate, objective)
        check_counts(samples=samples)
        self.prior, self.tokenizer, self.objective = prior, tokenizer, objective
        self.nats, self.rate, self.samples = nats, rate, samples
        self.log_prior = prior_reward(prior, tokenizer)
        self.memory = Remembered({"budget": nats, "alpha": objective.alpha}, {"omega": objective.omega})
        self.callbacks = [self.memory, self]
        self.group: int | None = None  # of responses to a prompt; known when training begins

    @property
    def omega(self) -> float:
        return self.memory.values["omega"]

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Resume, or draw the prior's own responses, before the first step."""
        if args.restore_callback_states_from_checkpoint:
            raise UsageError("leave restore_callback_states_from_checkpoint out: the budget restores itself")
        remedy = "take the settings from rloo_settings(objective, budget=True), with the budget as the last reward"
        for name, value in self.needed.items():
            if name != "reward_weights":
                require_settings(args, {name: (value, f"the objective would be another: {remedy}")})
        weights = args.reward_weights
        if weights is not None and weights[-1] != 1:
            raise UsageError(f"reward_weights ends in {weights[-1]:g}, and a budget weights itself by omega: {remedy}")
        self.group = args.num_generations
        self.memory.resume(state)
        if "own" not in self.memory.values:
            prompts = list(train_dataloader.dataset["prompt"])
            tokens = args.max_completion_length
            self.memory.values["own"] = own_log_prior(
                Beside(self.prior), self.tokenizer, prompts, self.samples, tokens, args.chat_template_kwargs
            )

    def __call__(self, prompts: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        """Return (omega − alpha) · log prior of each response; RLOO's own KL, weighted alpha, has the rest."""
        values = self.log_prior(prompts=prompts, completion_ids=completion_ids, **columns)
        weighted = [(self.omega - self.objective.alpha) * value for value in values]
        trainer = columns["log_extra"].__self__
        if not trainer.model.training:
            return weighted
        if self.group is None:
            raise UsageError("the budget was not told that training began: give the trainer callbacks=budget.callbacks")
        mine = torch.tensor(values, device=trainer.accelerator.device)  # NCCL sends no CPU tensor
        everyone = trainer.accelerator.gather(mine).cpu().view(-1, self.group)
        columns["log_metric"]("budget/omega", self.omega)
        alpha, state = self.objective.alpha, columns["trainer_state"]
        spent = move_omega(self.memory.values, alpha, everyone, self.nats, self.rate, state)
        columns["log_metric"]("budget/spent", spent)
        return weighted
