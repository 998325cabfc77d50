"""What each term of the return weighs, where the user names no weight."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from repolicy.envs import Collector, Rollout, addons, check_fit, decoder, make_envs, probed
from repolicy.errors import NumericError, UsageError
from repolicy.loading import without_version
from repolicy.objective import Objective, Weight
from repolicy.policies import Agent, Policy, SavedPolicy, seeded
from repolicy.prepare.states import MOST_NUMBERS, SKIPPED
from repolicy.prepare.worth import EPISODES, LONGEST, Worth, Worths, sought
from repolicy.ranges import Range
from repolicy.runs import Settings, one_thread, spec_for

# A row an environment (of any version): the temperatures of the paper.
ALPHAS = {"HalfCheetah": 0.13472, "Hopper": 0.001, "Ant": 0.0001}
SHARE = 0.01  # elsewhere, a nat of entropy in every number of the action is worth this share of the reward a step
ALPHA_SHARE = 1 / 3  # of omega, where the prior's file tells no alpha: by itself the std goes to 58 % of the prior's
UNSEEN = 0.01  # alpha where the trial steps see no reward
BUDGET = 2.0  # nats a step that a policy may drift, where nobody can tell what a nat is worth
SHARE_OF_CHOICES = 0.25  # the same for choices, as a share of what can be chosen from, in nats
BUDGET_OF_NOISE = 5.0  # nats an episode that the noise of a generative policy may drift
MEASURED = 0.25  # share of a run's steps that measuring a nat may take
FEWEST = 8  # episodes of each kind that it takes in any case

ENVS, STEPS = 8, 256  # of a trial

Say = Callable[[str], None]


class Decision(NamedTuple):
    """An objective whose weights are all set, the settings with its budget, and a sentence for each choice."""

    objective: Objective
    settings: Settings
    notes: list[str]
    steps: int = 0  # of the environment, that it took to find them


def decide(
    objective: Objective,
    prior: SavedPolicy | None,
    env: str,
    wishes: tuple[str, ...],
    settings: Settings,
    say: Say = lambda sentence: None,
) -> Decision:
    """Return a run's objective with all its weights: each that is not set yet is set to the usual one.

    Training from nothing (`prior` is None) takes alpha from a row of settings, else from the reward of trial steps.
    Customizing takes omega and states from what a nat of the prior is worth, else holds a budget; and alpha from the
    prior's file, else from omega. `say` hears of what takes a while. Raises UsageError where a budget and a named
    weight exclude each other.
    """
    if objective.is_set:
        return Decision(objective, settings, [])
    if prior is None:
        alpha, why = alpha_of_training(objective, env, wishes, settings)
        unset: dict[str, Any] = {name: alpha for name in ("alpha", "bonus") if getattr(objective, name) is None}
        return Decision(replace(objective, **unset), settings, [f"alpha is {alpha:g}, {why}; --alpha sets another"])
    return decided(objective, Weighing(prior, env, wishes, settings, say))


def decided(objective: Objective, task: "Weighing") -> Decision:
    """Return the same for a policy that is customized, wherever its episodes run."""
    prior, wishes, settings = task.prior, task.wishes, task.settings
    omega, states, notes, most = objective.omega, objective.states, list[str](), 0.0
    if settings.budget is not None and settings.keep is None:
        if omega not in (None, "auto"):
            option = "--kl-budget" if settings.kl_budget is not None else "--log-prior-budget"
            raise UsageError(f"{option} goes with --omega auto and no other --objective than residual")
        omega = "auto"
    elif omega is None and task.acts_by_noise:
        omega = "auto"
    elif omega is None:
        known, most, reward = task.weights("--omega")
        if known is None and (isinstance(objective.alpha, Range) or addons.dials(wishes)):
            what = "what the prior's log-probability is worth cannot be told, and beside a dial no budget can find it"
            raise UsageError(f"{what}: name --omega, a number or a range such as 0.03..3")
        if known is None:
            omega = "auto"
            unknown = "what a nat of the prior is worth cannot be told from these episodes"
            notes.append(f"{unknown}: does it act as it should{task.hint}?")
        else:
            omega, states = known.omega, known.states if states is None else states
            notes.append(
                f"omega is {omega:.3g}, what a nat of the prior is worth of {reward}, and states {states:.3g}, the "
                "weight of its states; --omega and --states set others"
            )
    elif omega != "auto" and states is None and not task.acts_by_noise:  # small omegas alone would stand still
        known, _, _ = task.weights("--states")
        states = 0.0 if known is None else known.states
        notes.append(
            "what a nat of the prior is worth cannot be told, so new states have no price; --states names one"
            if known is None
            else f"states is {states:.3g}, the weight of the prior's states; --states sets another"
        )
    if omega == "auto" and settings.budget is None:
        usual = task.budget_of_noise() if task.acts_by_noise else usual_budget(prior.policy)
        settings = replace(settings, kl_budget=usual)
        notes.append(
            f"omega and alpha move together so that the policy drifts {settings.kl_budget:g} nats a step from its "
            "prior; --kl-budget sets another distance, --omega a weight"
        )
    alpha = None if (omega, objective.alpha) == ("auto", "omega") else objective.alpha  # which move together anyway
    if alpha is None:
        alpha, why = task.alpha_of_customizing(omega, most)
        begins = "begins at" if omega == "auto" else "is"
        notes += [f"alpha {begins} {alpha}, {why}; --alpha sets another"] * bool(why)
    if omega == "auto":  # both weights begin at alpha
        if isinstance(alpha, Range) or not 0.0 < alpha < math.inf:
            raise UsageError(f"alpha is {alpha}; where a budget moves omega and alpha it must be one number above 0")
        omega = alpha
    return Decision(replace(objective, omega=omega, alpha=alpha, states=states or 0.0), settings, notes, task.taken)


def usual_budget(prior: Policy) -> float:
    """Return the nats a step that a policy may drift, where nobody can tell what a nat is worth."""
    if prior.actions.kind == "continuous":
        return BUDGET
    return two_digits(SHARE_OF_CHOICES * float(np.log(prior.actions.sizes).sum()))


@dataclass
class Weighing:
    """What the weights of a policy that is customized are found for."""

    prior: SavedPolicy
    env: str
    wishes: tuple[str, ...]
    settings: Settings
    say: Say
    taken: int = 0  # steps of the environment until now
    hint: ClassVar[str] = " (repolicy diagnose)"  # how to see whether the prior acts as it should

    def weights(self, unless: str) -> "tuple[Weights | None, float, str]":
        """Return the weights by the prior's card or, where that does not tell, by its episodes.

        And the most that a nat can be worth by these, and of which reward. A wish is measured at weight 1, so that ten
        times its weight is ten times more beside the prior. `unless` names the option that goes without measuring.
        """
        card, policy = self.prior.card, self.prior.policy
        known = weights_of(card, policy.observation_size)
        if known is not None:
            trained_with = card.get("request", {}).get("addons")
            whose = "the reward that it was trained with" if trained_with else "the environment's reward"
            return known, known.omega, whose
        how = "by episodes of its mean action and of sampled ones"
        self.say(f"measuring what a nat of the prior is worth, {how} ({unless} goes without)")
        found = self.worths()
        self.taken += found.steps
        weights = weights_found(found, policy.observation_size)
        in_wish = weights is not None and max(found.known, key=lambda worth: worth.value) is found.addon
        return weights, found.most, self.wish if in_wish else "the environment's reward"

    @property
    def wish(self) -> str:
        return addons.at_one_in_words(self.wishes)

    def worths(self) -> Worths:
        """Return what a nat is worth by episodes of the prior."""
        longest = int(MEASURED * self.settings.steps)
        episodes = max(FEWEST, min(EPISODES, longest // (2 * LONGEST)))
        with one_thread():
            policy, wishes = self.prior.policy, addons.at_one(self.wishes)
            return sought(policy, self.env, wishes, longest, self.settings.backend, episodes)

    def paid(self) -> np.ndarray:
        """Return what the wish pays in some steps of the prior, `[T, N]`."""
        return self.tried.of_decisions(addons.combined(addons.at(self.wishes)).reward(self.tried.transitions))

    @cached_property
    def tried(self) -> Rollout:
        """Some steps of the prior."""
        self.taken += ENVS * STEPS
        return trial(self.prior.policy, self.env, self.settings)

    def alpha_of_customizing(self, omega: Any, most: float) -> tuple[Weight, str]:
        """Return the prior's own alpha, without a reason; else a third of omega; else one by the wish's reward.

        But no less than the `most` that a nat can be worth: who is held too much is let go later, who is lost stays
        lost.
        """
        if (known := alpha_in(self.prior.card)) is not None:
            return known, ""
        if omega not in ("auto", "alpha", 0):
            if self.acts_by_noise:
                return "omega", "since N(0, I) is what entropy is measured from, too"
            least = omega.low if isinstance(omega, Range) else omega
            third = two_digits(ALPHA_SHARE * least)
            return third, f"a third of omega {least:g}, since the prior's file does not tell its own"
        if self.acts_by_noise and (spread := self.spread()) > 0.0:
            alpha = two_digits(spread / math.sqrt(2.0 * BUDGET_OF_NOISE))
            return alpha, f"at which {BUDGET_OF_NOISE:g} nats buy what the wish varies by in an episode ({spread:.3g})"
        alpha, why = _scaled(self.paid(), self.prior.policy.actions.width, "add-on's reward under the prior")
        return (alpha, why) if alpha >= most else (two_digits(most), "the most that a nat of the prior can be worth")

    @property
    def acts_by_noise(self) -> bool:
        """Whether the prior is a generative policy, whose likeliest action is no better than the others."""
        return decoder(self.env) is not None

    def spread(self) -> float:
        """Return the std of what the wish pays in an episode of the prior, or in `STEPS` steps where none ends.

        To weigh episodes by exp(R / α) costs Var(R) / (2·α²) nats, as long as these are few.
        """
        paid = self.paid()
        running, sums = np.zeros(paid.shape[1]), list[float]()
        for rewards, ended in zip(paid, self.tried.terminated | self.tried.truncated, strict=True):
            running += rewards
            sums += running[ended].tolist()
            running[ended] = 0.0
        return float(np.std(sums if len(sums) > 1 else running))

    def budget_of_noise(self) -> float:
        """Return the nats a decision at which an episode has spent those that a generative policy may drift."""
        lengths = self.tried.episodes.lengths
        return two_digits(BUDGET_OF_NOISE / (float(np.mean(lengths)) if lengths else STEPS))


def alpha_of_training(objective: Objective, env: str, wishes: tuple[str, ...], settings: Settings) -> tuple[float, str]:
    """Return the row of the environment, else an alpha by the size of the reward that a new policy meets."""
    row = without_version(env)
    if row in ALPHAS:
        return ALPHAS[row], f"the usual one for {row}"
    policy = seeded(spec_for(probed(env, settings.backend), settings), settings.seed)
    steps = trial(policy, env, settings)
    rewards = np.asarray(steps.basic)
    if objective.reads_addon and wishes:
        rewards = rewards + addons.combined(wishes).reward(steps.transitions)
    return _scaled(rewards, policy.actions.width, "reward in trial steps")


def _scaled(rewards: np.ndarray, numbers: int, what: str) -> tuple[float, str]:
    """Return a hundredth of the usual size of a reward for a nat in every number of the action, in two digits."""
    if not np.isfinite(rewards).all():
        raise NumericError(f"the {what} is not a finite number everywhere")
    size = float(np.sqrt(np.mean(rewards**2)))
    if size == 0:
        return UNSEEN, f"because the {what} was 0 throughout"
    return two_digits(SHARE * size / numbers), f"scaled from the {what} ({size:.3g} a step)"


def trial(agent: Agent, env: str, settings: Settings, steps: int = STEPS) -> Rollout:
    """Return some thousand steps of an agent, to look at what they bring."""
    with closing(make_envs(env, ENVS, settings.seed, settings.backend)) as envs:
        check_fit(agent, envs, "the prior")
        return Collector(envs, steps, torch.Generator().manual_seed(0), keep_transitions=True).collect(agent)


# From what a nat is worth ---------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """What the two terms of the prior weigh."""

    omega: float
    states: float


def alpha_in(card: dict[str, Any]) -> float | None:
    """Return the alpha that a prior was trained with, where its card tells one above 0."""
    alpha = card.get("request", {}).get("objective", {}).get("alpha")
    return float(alpha) if alpha and isinstance(alpha, int | float) else None


def worth_in(card: dict[str, Any]) -> Worth | None:
    """Return what a nat of this prior is worth, where its card tells it."""
    told = card.get("nat_worth")
    return None if told is None else Worth(told["value"], told["error"], told["episodes"])


def weights_of(card: dict[str, Any], numbers: int) -> Weights | None:
    """Return the weights by a prior's card, where it tells well enough what a nat is worth: its old reward counts once.

    A nat of a state counts as a nat of an action, unless the prior's states, of so many numbers, cannot be learned.
    """
    worth = worth_in(card)
    if worth is None or not worth.is_known:
        return None
    length = float(card.get("evaluation", {}).get("evaluation_length", 0.0))
    return Weights(worth.value, of_states(worth.value, length, numbers))


def weights_found(worths: Worths, numbers: int) -> Weights | None:
    """Return the weights by what was measured: ω′ is the larger worth, for noise shall cost as much in neither reward.

    States are priced by the old reward alone, which they are to guard.
    """
    if not worths.known:
        return None
    states = worths.basic.value if worths.basic in worths.known else 0.0
    omega = max(worth.value for worth in worths.known)
    return Weights(two_digits(omega), of_states(two_digits(states), worths.length, numbers))


def two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def of_states(weight: float, length: float, numbers: int) -> float:
    """Return the weight, or 0 where episodes are too short to learn their states, or a state has too many numbers."""
    return weight if length >= 2 * SKIPPED and numbers <= MOST_NUMBERS else 0.0
