"""Weights for a prior and a wish: by what a nat of the prior is worth, by what the wish pays, by the prior's card."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from repolicy.envs import Collector, Rollout, addons, check_fit, make_envs, probe_env
from repolicy.errors import NumericError
from repolicy.objective import Objective, Weight, task_reward
from repolicy.policies import ActionSpace, Agent, Policy, make_policy
from repolicy.prepare.states import MAX_STATE_SIZE, SKIPPED_STEPS
from repolicy.prepare.worth import MAX_EPISODE_STEPS, WORTH_EPISODES, Worth, Worths, measure_worths
from repolicy.ranges import Range
from repolicy.runs import Settings, one_thread, spec_for
from repolicy.text import without_version

# A row an environment (of any version): the temperatures of the paper.
ALPHAS = {"HalfCheetah": 0.13472, "Hopper": 0.001, "Ant": 0.0001}
ALPHA_PER_REWARD = (
    0.01  # elsewhere, a nat of entropy in every number of the action is worth this share of the reward a step
)
ALPHA_PER_OMEGA = (
    1 / 3
)  # of omega, where the prior's file tells no alpha: by itself the std goes to 58 % of the prior's
ALPHA_WITHOUT_REWARD = 0.01  # alpha where the trial steps see no reward
DEFAULT_KL_BUDGET = 2.0  # nats a step that a policy may drift, where nobody can tell what a nat is worth
DISCRETE_BUDGET_SHARE = 0.25  # the same for choices, as a share of what can be chosen from, in nats
NOISE_BUDGET = 5.0  # nats an episode that the noise of a generative policy may drift
MEASURING_SHARE = 0.25  # share of a run's steps that measuring a nat may take
MIN_EPISODES = 8  # episodes of each kind that it takes in any case

TRIAL_ENVS, TRIAL_STEPS = 8, 256  # of a trial

Say = Callable[[str], None]


class Shape(Protocol):
    """What weights depend on of a policy, beside its card."""

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...


def default_kl_budget(prior: Shape) -> float:
    """Return the nats a step that a policy may drift, where nobody can tell what a nat is worth."""
    if prior.actions.kind == "continuous":
        return DEFAULT_KL_BUDGET
    return two_digits(DISCRETE_BUDGET_SHARE * float(np.log(prior.actions.sizes).sum()))


@dataclass
class WeightFinder(ABC):
    """A prior that is customized, for which weights are found; who runs its episodes says what they tell."""

    card: dict[str, Any]
    prior: Shape
    settings: Settings
    say: Say
    taken: int = field(default=0, init=False)  # steps of the environment until now
    hint: ClassVar[str] = ""  # how to see whether the prior acts as it should
    nats_have_worth: ClassVar[bool] = True

    @property
    @abstractmethod
    def wish(self) -> str:
        """What to call the add-on, in a sentence."""

    @property
    def has_dials(self) -> bool:
        """Whether an add-on has a range of weights."""
        return False

    @abstractmethod
    def worths(self) -> Worths:
        """Return what a nat is worth by episodes of the prior."""

    @abstractmethod
    def paid(self) -> np.ndarray:
        """Return what the wish pays in some steps of the prior."""

    def default_kl_budget(self) -> float:
        return default_kl_budget(self.prior)

    def weights(self, unless: str) -> "tuple[Weights | None, float, str]":
        """Return the weights by the prior's card or, where that does not tell, by its episodes.

        And the most that a nat can be worth by these, and of which reward. A wish is measured at weight 1, so that ten
        times its weight is ten times more beside the prior; one that weighs less, at its own weight. `unless` names the
        option that goes without measuring.
        """
        numbers = self.prior.observation_size
        known = weights_from_card(self.card, numbers)
        if known is not None:
            trained_with = self.card.get("request", {}).get("addons")
            whose = "the reward that it was trained with" if trained_with else "the environment's reward"
            return known, known.omega, whose
        how = f"by episodes with its mean action and with sampled ones; with {unless} named, this is not needed"
        self.say(f"measuring what a nat of the prior is worth, {how}")
        found = self.worths()
        self.taken += found.steps
        weights = weights_from_worths(found, numbers)
        in_wish = weights is not None and max(found.known, key=lambda worth: worth.value) is found.addon
        return weights, found.most, self.wish if in_wish else "the environment's reward"

    def alpha(self, omega: Any, most: float) -> tuple[Weight, str]:
        """Return the prior's own alpha, without a reason; else one by omega; else one by the wish's reward."""
        known = alpha_from_card(self.card)
        if known is not None:
            return known, ""
        if omega in ("auto", "alpha", 0):
            return self.alpha_alone(most)
        return self.alpha_beside(omega)

    def alpha_beside(self, omega: float | Range) -> tuple[Weight, str]:
        """Return a third of omega."""
        least = omega.low if isinstance(omega, Range) else omega
        third = two_digits(ALPHA_PER_OMEGA * least)
        return third, f"a third of omega {least:g}, since the prior's file does not tell its own"

    def alpha_alone(self, most: float) -> tuple[Weight, str]:
        """Return an alpha by the wish's reward, but no less than the `most` that a nat of the prior can be worth.

        Who is held too much is let go later, who is lost stays lost.
        """
        alpha, why = _alpha_for_rewards(self.paid(), self.prior.actions.width, "add-on's reward under the prior")
        if alpha < most:
            return two_digits(most), "the most that a nat of the prior can be worth"
        return alpha, why


@dataclass
class EnvWeightFinder(WeightFinder):
    """The same, by episodes in the engine's environments."""

    prior: Policy
    env: str
    wishes: tuple[str, ...]
    hint = " (repolicy diagnose)"

    @property
    def wish(self) -> str:
        return addons.describe_clipped_weights(self.wishes)

    @property
    def has_dials(self) -> bool:
        return bool(addons.dials(self.wishes))

    def worths(self) -> Worths:
        longest = int(MEASURING_SHARE * self.settings.steps)
        episodes = max(MIN_EPISODES, min(WORTH_EPISODES, longest // (2 * MAX_EPISODE_STEPS)))
        with one_thread():
            wishes = addons.with_clipped_weights(self.wishes)
            return measure_worths(self.prior, self.env, wishes, longest, self.settings.backend, episodes)

    def paid(self) -> np.ndarray:
        """Return what the wish pays in some steps of the prior, `[T, N]`."""
        return self.tried.per_decision(
            addons.combine_addons(addons.with_weights(self.wishes)).reward(self.tried.transitions)
        )

    @cached_property
    def tried(self) -> Rollout:
        """Some steps of the prior."""
        self.taken += TRIAL_ENVS * TRIAL_STEPS
        return collect_trial(self.prior, self.env, self.settings)


class NoiseWeightFinder(EnvWeightFinder):
    """The same of a generative policy, which acts through its noise: its likeliest action is no better than others."""

    nats_have_worth = False

    def default_kl_budget(self) -> float:
        """Return the nats a decision at which an episode has spent those that a generative policy may drift."""
        lengths, limit = self.tried.episodes.lengths, probe_env(self.env, self.settings.backend).limit or math.inf
        if len(lengths) < 2 * TRIAL_ENVS:  # those that ended so soon are the short ones
            length = min(limit, self.tried.ages.size / max(1, len(lengths)))
        else:
            length = float(np.mean(lengths))
        return two_digits(NOISE_BUDGET / length)

    def alpha_beside(self, omega: float | Range) -> tuple[Weight, str]:
        return "omega", "since N(0, I) is what entropy is measured from, too"

    def alpha_alone(self, most: float) -> tuple[Weight, str]:
        """Return the alpha at which the nats of an episode buy what the wish varies by, where it varies."""
        spread = self.spread()
        if not spread > 0.0:
            return super().alpha_alone(most)
        alpha = two_digits(spread / math.sqrt(2.0 * NOISE_BUDGET))
        return alpha, f"at which {NOISE_BUDGET:g} nats buy what the wish varies by in a trial episode ({spread:.3g})"

    def spread(self) -> float:
        """Return the std of what the wish pays in an episode of the prior, or in `STEPS` steps where few end.

        To weigh episodes by exp(R / α) costs Var(R) / (2·α²) nats, as long as these are few.
        """
        paid = self.paid()
        running, sums = np.zeros(paid.shape[1]), list[float]()
        for rewards, ended in zip(paid, self.tried.terminated | self.tried.truncated, strict=True):
            running += rewards
            sums += running[ended].tolist()
            running[ended] = 0.0
        return float(np.std(sums if len(sums) >= TRIAL_ENVS else paid.sum(0)))


# From trial steps -----------------------------------------------------------------------------------------------------


def training_alpha(objective: Objective, env: str, wishes: tuple[str, ...], settings: Settings) -> tuple[float, str]:
    """Return the row of the environment, else an alpha by the size of the reward that a new policy meets."""
    row = without_version(env)
    if row in ALPHAS:
        return ALPHAS[row], f"the usual one for {row}"
    policy = make_policy(spec_for(probe_env(env, settings.backend), settings), settings.seed)
    steps = collect_trial(policy, env, settings)
    rewards = steps.basic
    if objective.reads_addon and wishes:
        wished = steps.per_decision(addons.combine_addons(wishes).reward(steps.transitions))
        rewards = task_reward(objective, rewards, wished)
    return _alpha_for_rewards(rewards, policy.actions.width, "reward in trial steps")


def _alpha_for_rewards(rewards: np.ndarray, numbers: int, what: str) -> tuple[float, str]:
    """Return a hundredth of the usual size of a reward for a nat in every number of the action, in two digits."""
    if not np.isfinite(rewards).all():
        raise NumericError(f"the {what} is not a finite number everywhere")
    size = float(np.sqrt(np.mean(rewards**2)))
    if size == 0:
        return ALPHA_WITHOUT_REWARD, f"because the {what} was 0 throughout"
    return two_digits(ALPHA_PER_REWARD * size / numbers), f"scaled from the {what} ({size:.3g} a step)"


def collect_trial(agent: Agent, env: str, settings: Settings, steps: int = TRIAL_STEPS) -> Rollout:
    """Return some thousand steps of an agent, to look at what they bring."""
    with closing(make_envs(env, TRIAL_ENVS, settings.seed, settings.backend)) as envs:
        check_fit(agent, envs, "the prior")
        return Collector(envs, steps, torch.Generator().manual_seed(0), keep_transitions=True).collect(agent)


# From what a nat is worth ---------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """What the two terms of the prior weigh."""

    omega: float
    states: float


def alpha_from_card(card: dict[str, Any]) -> float | None:
    """Return the alpha that a prior was trained with, where its card tells one above 0."""
    alpha = card.get("request", {}).get("objective", {}).get("alpha")
    return float(alpha) if alpha and isinstance(alpha, int | float) else None


def worth_from_card(card: dict[str, Any]) -> Worth | None:
    """Return what a nat of this prior is worth, where its card tells it."""
    told = card.get("nat_worth")
    return None if told is None else Worth(told["value"], told["error"], told["episodes"])


def weights_from_card(card: dict[str, Any], numbers: int) -> Weights | None:
    """Return the weights by a prior's card, where it tells well enough what a nat is worth: its old reward counts once.

    A nat of a state counts as a nat of an action, unless the prior's states, of so many numbers, cannot be learned.
    """
    worth = worth_from_card(card)
    if worth is None or not worth.is_known:
        return None
    length = float(card.get("evaluation", {}).get("evaluation_length", 0.0))
    return Weights(worth.value, states_weight(worth.value, length, numbers))


def weights_from_worths(worths: Worths, numbers: int) -> Weights | None:
    """Return the weights by what was measured: ω′ is the larger worth, for noise shall cost as much in neither reward.

    States are priced by the old reward alone, which they are to guard.
    """
    if not worths.known:
        return None
    states = worths.basic.value if worths.basic in worths.known else 0.0
    omega = max(worth.value for worth in worths.known)
    return Weights(two_digits(omega), states_weight(two_digits(states), worths.length, numbers))


def two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def states_weight(weight: float, length: float, numbers: int) -> float:
    """Return the weight, or 0 where episodes are too short to learn their states, or a state has too many numbers."""
    return weight if length >= 2 * SKIPPED_STEPS and numbers <= MAX_STATE_SIZE else 0.0
