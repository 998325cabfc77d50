"""Weights for a prior and a wish: by what a nat of the prior is worth, by what the wish pays, by the prior's card."""

import math
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from repolicy.addons import addon_names, combine_addons
from repolicy.envs import Collector, Rollout, check_fit, make_envs, probe_env
from repolicy.errors import NumericError
from repolicy.objective import Objective, Weight, task_reward
from repolicy.policies import ActionSpace, Agent, Policy, make_policy
from repolicy.prepare.states import MAX_STATE_SIZE, SKIPPED_STEPS
from repolicy.prepare.worth import MAX_EPISODE_STEPS, WORTH_EPISODES, Worth, Worths, measure_worths
from repolicy.ranges import Range
from repolicy.runs import Settings, spec_for
from repolicy.text import Say, strip_version

# The temperatures of the paper, by environment (of any version).
ALPHAS = {"HalfCheetah": 0.13472, "Hopper": 0.001, "Ant": 0.0001}
# In other environments, one nat of entropy in every number of the action is worth this share of a step's reward.
ALPHA_PER_REWARD = 0.01
# Used where the prior's file has no alpha. Without a wish, the std then falls to 58 % of the prior's.
ALPHA_PER_OMEGA = 1 / 3
ALPHA_WITHOUT_REWARD = 0.01  # used where all rewards in the trial steps are 0
# A KL budget's weights grow by e² until the budget is spent (2 is `MAX_VIOLATION`), so they begin at this share of what
# a nat is worth. From far less they come too late: shipped Ant's α of 0.0001 let it drift 6 to 8 nats away, not 2.
FIRST_OF_BUDGET = math.exp(-2.0)
MOST_OF_A_NAT = "the most that a nat of the prior can be worth"
DEFAULT_KL_BUDGET = 2.0  # nats a step, used where the worth of a nat cannot be measured
DISCRETE_BUDGET_SHARE = 0.25  # the same for discrete actions, as a share of their largest entropy
NOISE_BUDGET = 5.0  # nats an episode, for the noise of a generative policy
MEASURING_SHARE = 0.25  # largest share of a run's steps that is spent on measuring the worth of a nat
MIN_EPISODES = 8  # episodes of each kind in a measurement, also in a short run

TRIAL_ENVS, TRIAL_STEPS = 8, 256


class Shape(Protocol):
    """The parts of a policy that its weights depend on, beside its card."""

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...


def default_kl_budget(prior: Shape) -> float:
    """Return the KL budget in nats a step for a prior whose nats have no measurable worth."""
    if prior.actions.kind == "continuous":
        return DEFAULT_KL_BUDGET
    return two_digits(DISCRETE_BUDGET_SHARE * float(np.log(prior.actions.sizes).sum()))


@dataclass
class WeightFinder(ABC):
    """Chooses the weights for customizing a prior. Subclasses run the prior's episodes where their environments are."""

    card: dict[str, Any]
    prior: Shape
    settings: Settings
    say: Say
    steps_taken: int = field(default=0, init=False)  # environment steps that this finder has run so far
    hint: ClassVar[str] = ""  # tells the user how to check that the prior acts well
    nats_have_worth: ClassVar[bool] = True
    if_scaled: ClassVar[str] = (
        ""  # what to do where the environment may pay in other units than the prior was trained with
    )

    @property
    @abstractmethod
    def wish(self) -> str:
        """The name of the add-on in messages."""

    @property
    def has_dials(self) -> bool:
        """Whether an add-on has a range of weights."""
        return False

    @abstractmethod
    def measure_worths(self) -> Worths:
        """Run episodes of the prior and return what a nat is worth in them."""

    @abstractmethod
    def addon_rewards(self) -> np.ndarray:
        """Return the add-on's rewards in some steps of the prior."""

    def default_kl_budget(self) -> float:
        return default_kl_budget(self.prior)

    def weights(self, option: str) -> "tuple[Weights | None, float, str]":
        """Return the weights, an upper bound on the worth of a nat, and the name of the reward it was measured in.

        They come from the prior's card or, where it does not have them, from episodes. `option` names the option that
        makes measuring unnecessary. A wish is measured at weight 1, so that ten times its weight counts ten times as
        much against the prior; a wish of a smaller weight is measured at its own.
        """
        state_size = self.prior.observation_size
        known = weights_from_card(self.card, state_size)
        if known is not None:
            has_addons = self.card.get("request", {}).get("addons")
            its_own = f"the reward that it was trained with{self.if_scaled}"
            return known, known.omega, its_own if has_addons or self.if_scaled else "the environment's reward"
        how = f"by episodes with its mean action and with sampled ones; with {option} named, this is not needed"
        self.say(f"measuring what a nat of the prior is worth, {how}")
        worths = self.measure_worths()
        self.steps_taken += worths.steps
        weights = weights_from_worths(worths, state_size)
        in_wish = weights is not None and max(worths.known, key=lambda worth: worth.value) is worths.addon
        return weights, worths.max_worth, self.wish if in_wish else "the environment's reward"

    def alpha(self, omega: Any, max_worth: float) -> tuple[Weight, str]:
        """Return alpha and the reason for it: the prior's own (no reason), else by omega, else by the wish's reward.

        A KL budget moves both weights together from here, so there alpha is not less than what a nat's worth tells:
        a part of it where it is known, else `max_worth`, the most that it can be.
        """
        known = alpha_from_card(self.card)
        if known is not None:
            worth = worth_from_card(self.card)
            moves_both = omega == "auto" and self.settings.log_prior_budget is None and self.nats_have_worth
            least, why = max_worth, MOST_OF_A_NAT
            if worth is not None and worth.is_known:
                least = FIRST_OF_BUDGET * worth.value
                why = "at which a nat costs what it is worth once the budget is spent"
            if moves_both and least > known:
                return two_digits(least), why
            return known, ""
        if omega in ("auto", "alpha", 0):
            return self.alpha_from_addon(max_worth, drift_costs=omega != 0)
        return self.alpha_from_omega(omega)

    def alpha_from_omega(self, omega: float | Range) -> tuple[Weight, str]:
        low = omega.low if isinstance(omega, Range) else omega
        third = two_digits(ALPHA_PER_OMEGA * low)
        return third, f"a third of omega {low:g}, since the prior's file does not tell its own"

    def alpha_from_addon(self, max_worth: float, *, drift_costs: bool) -> tuple[Weight, str]:
        """Return an alpha scaled from the add-on's reward, but at least `max_worth`, the most a nat can be worth.

        An alpha that is too large only slows the policy down; one that is too small lets it lose its behavior for good.
        """
        rewards, action_size = self.addon_rewards(), self.prior.actions.width
        alpha, why = _alpha_for_rewards(rewards, action_size, "add-on's reward under the prior")
        if alpha < max_worth or (max_worth > 0 and not rewards.any()):
            return two_digits(max_worth), MOST_OF_A_NAT
        return alpha, why


@dataclass
class EnvWeightFinder(WeightFinder):
    """Finds weights by episodes in the engine's own environments."""

    prior: Policy
    env: str
    wishes: tuple[str, ...]
    hint = " (repolicy diagnose)"

    @property
    def wish(self) -> str:
        return addon_names.describe_clipped_weights(self.wishes)

    @property
    def has_dials(self) -> bool:
        return bool(addon_names.dials(self.wishes))

    def measure_worths(self) -> Worths:
        max_steps = int(MEASURING_SHARE * self.settings.steps)
        episodes = max(MIN_EPISODES, min(WORTH_EPISODES, max_steps // (2 * MAX_EPISODE_STEPS)))
        wishes = addon_names.with_clipped_weights(self.wishes)
        return measure_worths(self.prior, self.env, wishes, max_steps, self.settings.backend, episodes)

    def addon_rewards(self) -> np.ndarray:
        """Return the add-on's rewards in the trial steps, `[T, N]`."""
        rollout = self.trial_rollout
        addon = combine_addons(addon_names.with_weights(self.wishes))
        return rollout.per_decision(addon.reward(rollout.transitions))

    @cached_property
    def trial_rollout(self) -> Rollout:
        self.steps_taken += TRIAL_ENVS * TRIAL_STEPS
        return collect_trial(self.prior, self.env, self.settings)


class NoiseWeightFinder(EnvWeightFinder):
    """Finds weights for a generative policy, whose action is its noise.

    Its most likely noise acts no better than any other, so nats have no worth and budgets count a whole episode's nats.
    """

    nats_have_worth = False

    def default_kl_budget(self) -> float:
        """Return the nats a decision that add up to `NOISE_BUDGET` over an episode."""
        rollout = self.trial_rollout
        lengths, limit = rollout.episodes.lengths, probe_env(self.env, self.settings.backend).limit or math.inf
        if len(lengths) < 2 * TRIAL_ENVS:  # few episodes ended in the trial: these are the short ones
            length = min(limit, rollout.ages.size / max(1, len(lengths)))
        else:
            length = float(np.mean(lengths))
        return two_digits(NOISE_BUDGET / length)

    def alpha_from_omega(self, omega: float | Range) -> tuple[Weight, str]:
        return "omega", "since N(0, I) is what entropy is measured from, too"

    def alpha_from_addon(self, max_worth: float, *, drift_costs: bool) -> tuple[Weight, str]:
        """Return the alpha at which an episode's budget of nats pays for the spread of the add-on's return."""
        spread = self.return_std()
        if not (drift_costs and spread > 0.0):  # where drift is free, so much for entropy outweighs the wish
            return super().alpha_from_addon(max_worth, drift_costs=drift_costs)
        alpha = two_digits(spread / math.sqrt(2.0 * NOISE_BUDGET))
        return alpha, f"at which {NOISE_BUDGET:g} nats buy what the wish varies by in a trial episode ({spread:.3g})"

    def return_std(self) -> float:
        """Return the std of the add-on's return in the trial episodes, or over all trial steps where few episodes end.

        To weigh episodes by exp(R / α) costs Var(R) / (2·α²) nats, as long as these are few.
        """
        rewards = self.addon_rewards()
        running, returns = np.zeros(rewards.shape[1]), list[float]()
        for row, ended in zip(rewards, self.trial_rollout.terminated | self.trial_rollout.truncated, strict=True):
            running += row
            returns += running[ended].tolist()
            running[ended] = 0.0
        return float(np.std(returns if len(returns) >= TRIAL_ENVS else rewards.sum(0)))


# From trial steps -----------------------------------------------------------------------------------------------------


def untrained_policy(env: str, settings: Settings) -> Policy:
    """Return the policy that training from nothing begins with."""
    return make_policy(spec_for(probe_env(env, settings.backend), settings), settings.seed)


def training_alpha(objective: Objective, env: str, wishes: tuple[str, ...], settings: Settings) -> tuple[float, str]:
    """Return alpha for training from nothing: the environment's entry in `ALPHAS`, else scaled from trial rewards."""
    name = strip_version(env)
    if name in ALPHAS:
        return ALPHAS[name], f"the usual one for {name}"
    policy = untrained_policy(env, settings)
    if objective.alpha is not None and settings.normalize_advantages:  # a bonus alone, whatever the reward's size
        return two_digits(ALPHA_PER_REWARD / policy.actions.width), "for a loss with standardized advantages"
    steps = collect_trial(policy, env, settings)
    rewards = steps.basic
    if objective.reads_addon and wishes:
        wished = steps.per_decision(combine_addons(wishes).reward(steps.transitions))
        rewards = task_reward(objective, rewards, wished)
    return _alpha_for_rewards(rewards, policy.actions.width, "reward in trial steps")


def _alpha_for_rewards(rewards: np.ndarray, action_size: int, what: str) -> tuple[float, str]:
    """Return alpha and its reason: `ALPHA_PER_REWARD` of the rewards' RMS, divided by `action_size`."""
    if not np.isfinite(rewards).all():
        raise NumericError(f"the {what} is not a finite number everywhere")
    size = float(np.sqrt(np.mean(rewards**2)))
    if size == 0:
        return ALPHA_WITHOUT_REWARD, f"because the {what} was 0 throughout and so has no unit to go by"
    return two_digits(ALPHA_PER_REWARD * size / action_size), f"scaled from the {what} ({size:.3g} a step)"


def collect_trial(
    agent: Agent, env: str, settings: Settings, steps: int = TRIAL_STEPS, *, deterministic: bool = False
) -> Rollout:
    """Collect `TRIAL_ENVS` times `steps` steps of an agent, to look at its observations and rewards."""
    with closing(make_envs(env, TRIAL_ENVS, settings.seed, settings.backend)) as envs:
        check_fit(agent, envs, "the prior")
        collector = Collector(envs, steps, torch.Generator().manual_seed(0))
        return collector.collect(agent, deterministic)


# From what a nat is worth ---------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """The weights of the prior's two terms: its actions and its states."""

    omega: float
    states: float
    why_free: str = ""  # why `states` is 0, or empty


def alpha_from_card(card: dict[str, Any]) -> float | None:
    """Return the alpha that the prior's training ended with, or None where its card has none above 0."""
    objective = card.get("request", {}).get("objective", {})
    alpha = card.get("alpha") or objective.get("alpha")
    if alpha == "omega":  # of a position on a dial
        alpha = objective.get("omega")
    return float(alpha) if alpha and isinstance(alpha, int | float) else None


def worth_from_card(card: dict[str, Any]) -> Worth | None:
    """Return what a nat of the prior is worth, or None where its card does not have it."""
    stored = card.get("nat_worth")
    return None if stored is None else Worth(stored["value"], stored["error"], stored["episodes"])


def weights_from_card(card: dict[str, Any], state_size: int) -> Weights | None:
    """Return weights at which the prior's old reward counts once, or None where its card has no significant worth.

    A nat of a state weighs as much as a nat of an action, or 0 where the states cannot be learned.
    """
    worth = worth_from_card(card)
    if worth is None or not worth.is_known:
        return None
    length = float(card.get("evaluation", {}).get("evaluation_length", 0.0))
    return _with_price(worth.value, worth.value, length, state_size)


def weights_from_worths(worths: Worths, state_size: int) -> Weights | None:
    """Return the weights by measured worths, or None where no worth is significant.

    Omega is the larger worth, so that noise costs too much in neither reward. The states' weight is the worth in the
    old reward alone, which that term is to protect.
    """
    if not worths.known:
        return None
    states = worths.basic.value if worths.basic in worths.known else 0.0
    omega = max(worth.value for worth in worths.known)
    weights = _with_price(two_digits(omega), two_digits(states), worths.length, state_size)
    return weights if worths.basic is not None else weights._replace(why_free="the old reward is not known")


def _with_price(omega: float, states: float, length: float, state_size: int) -> Weights:
    """Return the weights, with the reason where states have no price."""
    priced, why = states_weight(states, length, state_size), ""
    if not states:
        why = "what a nat is worth of the old reward is not above 0 by more than chance"
    elif not priced and state_size > MAX_STATE_SIZE:
        why = f"an observation has more than {MAX_STATE_SIZE:,} numbers"
    elif not priced:
        why = f"the prior's episodes are not known to have {2 * SKIPPED_STEPS} steps, which learning its states takes"
    return Weights(omega, priced, why)


def two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def states_weight(weight: float, length: float, state_size: int) -> float:
    """Return the weight, or 0 where episodes are too short to learn their states, or states have too many numbers."""
    return weight if length >= 2 * SKIPPED_STEPS and state_size <= MAX_STATE_SIZE else 0.0
