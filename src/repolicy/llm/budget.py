"""Omega from a budget of nats: bound how much less likely, under the prior, the policy's responses are on average.

    E_policy[log prior]  ≥  E_prior[log prior] − budget

Omega is the multiplier of this constraint at a fixed alpha. A larger omega always means likelier responses, so one
omega meets the budget. (KL from the prior is not monotonic in omega, so two could meet a KL budget.) At the optimum,
the derivative of the expectation by omega is the variance of log prior over alpha, so responses give a Newton step.
"""

import math
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from repolicy.errors import UsageError, check_counts
from repolicy.llm.mixing import SAMPLING, ModelView, sample
from repolicy.llm.mixins import Memory
from repolicy.llm.requirements import require_settings
from repolicy.llm.rloo import prior_reward, prompt_ids, response_log_probs, rloo_settings
from repolicy.objective import Objective

MIN_VARIANCE = 0.1  # nats², lower bound of the variance of log prior, which is 0 for a deterministic policy
DECAY = 0.95  # of the variance statistics, per step
MIN_DEGREES = 10  # degrees of freedom of the variance from which on omega moves
BATCH = 256  # responses that the prior writes in one batch


def move_omega(
    values: dict[str, float], alpha: float, log_prior: Tensor, budget: float, rate: float, state: Any
) -> float:
    """Move `values["omega"]` by a fraction of a Newton step, and return the nats that the policy spends.

    log_prior: of responses `[prompts, responses]`; NaN entries do not count. `rate` decays linearly to 0 over the run.
    The variance is that of earlier steps: in one batch a low mean comes with a large variance, which would bias omega
    downwards.
    """
    means = log_prior.double().nanmean(1, keepdim=True)
    spent = values["own"] - means.nanmean().item()  # "own" is the prior's mean, E_prior[log prior]
    squares, degrees = values.get("squares", 0.0), values.get("degrees", 0.0)
    if degrees >= MIN_DEGREES:
        fraction = rate * (1 - state.global_step / max(state.max_steps, 1))
        newton = alpha * (spent - budget) / max(squares / degrees, MIN_VARIANCE)
        values["omega"] = max(0.0, values["omega"] + fraction * newton)
    values["squares"] = DECAY * squares + (log_prior - means).square().nansum().item()
    values["degrees"] = DECAY * degrees + (~log_prior.isnan()).sum(1).sub(1).clamp(min=0).sum().item()
    return spent


def check_budget(budget: float, objective: Objective) -> None:
    """Raise if the budget or the initial objective is invalid."""
    if not 0 < budget < math.inf:
        raise UsageError(f"budget is {budget}; it is in nats, greater than 0 and finite")
    if not objective.omega or not objective.alpha:
        raise UsageError("with a budget, omega is where the search for omega starts: omega and alpha must be above 0")


def spread_prompts(dataset: Any, samples: int) -> list[Any]:
    """Return prompts spread over a whole dataset; of a streamed one the first, again and again if there are fewer."""
    if not hasattr(dataset, "__len__"):
        return [row["prompt"] for row in islice(cycle(dataset), samples)]
    return [dataset[i * len(dataset) // samples]["prompt"] for i in range(samples)]


def prior_mean_log_prob(
    prior: ModelView, tokenizer: Any, dataset: Any, samples: int, tokens: int, template: Any = None
) -> float:
    """Estimate E_prior[log prior] from `samples` responses of the prior, to prompts of the dataset.

    It is off by about the std of their log-probabilities over √samples. The random streams of training are not
    advanced. `template` is the trainer's chat_template_kwargs.
    """
    chosen = [prompt_ids(tokenizer, prompt, template) for prompt in spread_prompts(dataset, samples)]
    with torch.random.fork_rng(), prior.adapter():
        torch.manual_seed(0)  # on every rank, so that all get one estimate
        responses = sample(prior.model, tokenizer, chosen, tokens, BATCH, **SAMPLING)
        values = response_log_probs(prior.model, list(zip(chosen, responses, strict=True)))
    return sum(values) / len(values)


class PriorBudget(Memory):
    """A budget for TRL's own RLOOTrainer. It is a reward function, and a callback that checkpoints store."""

    __name__ = "log_prior"  # the name under which TRL logs this reward function

    def __init__(
        self, prior: Any, tokenizer: Any, objective: Objective, nats: float, rate: float = 0.02, samples: int = 1024
    ) -> None:
        self.required_settings = rloo_settings(objective, budget=True)
        check_budget(nats, objective)
        check_counts(samples=samples)
        super().__init__({"budget": nats, "alpha": objective.alpha}, {"omega": objective.omega})
        self.prior, self.tokenizer, self.objective = prior, tokenizer, objective
        self.nats, self.rate, self.samples = nats, rate, samples
        self.log_prior = prior_reward(prior, tokenizer)
        self.group_size: int | None = None  # responses per prompt; known when training begins

    @property
    def callbacks(self) -> list[TrainerCallback]:
        return [self]

    @property
    def omega(self) -> float:
        return self.values["omega"]

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Check the settings, then estimate the prior's mean log-probability unless a checkpoint had it."""
        super().on_train_begin(args, state, control)
        remedy = "take the settings from rloo_settings(objective, budget=True), with the budget as the last reward"
        for name, value in self.required_settings.items():
            if name != "reward_weights":
                require_settings(args, {name: (value, f"the objective would be another: {remedy}")})
        weights = args.reward_weights
        if weights is not None and weights[-1] != 1:
            raise UsageError(f"reward_weights ends in {weights[-1]:g}, and a budget weights itself by omega: {remedy}")
        self.group_size = args.num_generations
        if self.prior.device.type == "cpu":
            self.prior.to(args.device)
        if "own" not in self.values:
            dataset, tokens = train_dataloader.dataset, args.max_completion_length
            self.values["own"] = prior_mean_log_prob(
                ModelView(self.prior), self.tokenizer, dataset, self.samples, tokens, args.chat_template_kwargs
            )

    def __call__(self, prompts: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        """Return (omega − alpha) · log prior of each response, as RLOO's KL term adds alpha · log prior; move omega."""
        values = self.log_prior(prompts=prompts, completion_ids=completion_ids, **columns)
        weighted = [(self.omega - self.objective.alpha) * value for value in values]
        trainer = columns["log_extra"].__self__
        if not trainer.model.training:
            return weighted
        if self.group_size is None:
            raise UsageError("the budget was not told that training began: give the trainer callbacks=budget.callbacks")
        local = torch.tensor(values, device=trainer.accelerator.device)  # NCCL cannot gather CPU tensors
        gathered = trainer.accelerator.gather(local).cpu().view(-1, self.group_size)
        columns["log_metric"]("budget/omega", self.omega)
        alpha, state = self.objective.alpha, columns["trainer_state"]
        spent = move_omega(self.values, alpha, gathered, self.nats, self.rate, state)
        columns["log_metric"]("budget/spent", spent)
        return weighted
