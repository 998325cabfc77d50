"""An objective whose weights are not all named yet, and the default weights."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch

from repolicy.envs import addons
from repolicy.envs.evaluation import check_fit
from repolicy.envs.making import make_envs, probed
from repolicy.envs.rollout import Collector, Rollout
from repolicy.errors import NumericError, UsageError
from repolicy.loading import without_version
from repolicy.objective import OBJECTIVES, Objective, coefficients, named
from repolicy.plan.weights import Weights, two_digits, weights_found, weights_of, wish_counts_more
from repolicy.plan.worth import sought
from repolicy.policies.file import SavedPolicy
from repolicy.policies.policy import Agent, Policy, seeded
from repolicy.runs.ranks import one_thread
from repolicy.runs.request import spec_for
from repolicy.runs.settings import Settings

# A row an environment (of any version): the temperatures of the paper.
ALPHAS = {"HalfCheetah": 0.13472, "Hopper": 0.001, "Ant": 0.0001}
SHARE = 0.01  # elsewhere, a nat of entropy in every number of the action is worth this share of the reward a step
ALPHA_SHARE = 1 / 3  # of omega, where the prior's file tells no alpha: by itself the std goes to 58 % of the prior's
UNSEEN = 0.01  # alpha where the trial steps see no reward
BUDGET = 2.0  # nats a step that a policy may drift, where nobody can tell what a nat is worth
SHARE_OF_CHOICES = 0.25  # the same for choices, as a share of what can be chosen from, in nats
MEASURED = 0.25  # of a run's steps, at most, to measure that before

ENVS, STEPS = 8, 256  # of a trial


@dataclass(frozen=True)
class Wanted:
    """An objective by its name, whose other weights are chosen as on the command line: those that are None.

    Args:
        name: of the objective, such as "residual".
        omega: a weight; "auto" follows a KL budget; with `omega_to`, the smallest of a range, which a dial then turns.
        alpha: a weight; with `alpha_to`, the smallest of a range.
        states: the price on states that are new to the prior. Where omega is one weight that you name, None is 0.
        omega_to: the largest of a range of omega; 0 where there is none.
        alpha_to: the largest of a range of alpha; 0 where there is none.
    """

    name: str
    omega: float | Literal["auto"] | None = None
    alpha: float | None = None
    states: float | None = None
    omega_to: float = 0.0
    alpha_to: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            named(self.name)  # which says so


class Chosen(NamedTuple):
    """What came of it: the objective, the settings with its budget, and a sentence for each choice."""

    objective: Objective
    settings: Settings
    notes: list[str]


def for_training(wanted: Wanted, env: str, wishes: tuple[str, ...], settings: Settings) -> Chosen:
    """The objective of training from nothing: alpha from a row of settings, else from the reward of trial steps."""

    def made(alpha: float | None) -> Objective:
        return named(
            wanted.name, omega=wanted.omega, alpha=alpha, states=wanted.states or 0.0,  # type: ignore[arg-type]
            omega_to=wanted.omega_to, alpha_to=wanted.alpha_to,
        )  # fmt: skip

    if "alpha" not in coefficients(wanted.name) or wanted.alpha is not None:
        return Chosen(made(wanted.alpha), settings, [])
    row = without_version(env)
    if row in ALPHAS:
        alpha, why = ALPHAS[row], f"the usual one for {row}"
    else:
        alpha, why = _alpha_of_reward(env, wishes if made(1.0).reads_addon else (), settings)
    return Chosen(made(alpha), settings, [f"alpha is {alpha:g}, {why}; --alpha sets another"])


def for_customizing(
    wanted: Wanted,
    prior: SavedPolicy,
    env: str,
    wishes: tuple[str, ...],
    settings: Settings,
    say: Callable[[str], None] = lambda sentence: None,
) -> Chosen:
    """The objective of customizing: omega from what a nat is worth, else by a budget; alpha from what is known.

    `say` hears of what takes a while.
    """
    budgeted, free = settings.budget is not None, "omega" in coefficients(wanted.name)
    if budgeted and (wanted.omega not in (None, "auto") or not free):
        option = "--kl-budget" if settings.kl_budget is not None else "--log-prior-budget"
        raise UsageError(f"{option} goes with --omega auto and no other --objective than residual")
    omega, states, notes, most = wanted.omega, wanted.states or 0.0, list[str](), 0.0
    if free and not budgeted:
        omega, states, notes, most = _prices(wanted, prior, env, wishes, settings, say)
        if omega == "auto":
            nats = usual_budget(prior.policy)
            settings, budgeted = replace(settings, kl_budget=nats), True
            notes.append(
                f"omega and alpha move together so that the policy drifts {nats:g} nats a step from its prior; "
                "--kl-budget sets another distance, --omega a weight"
            )
    alpha = wanted.alpha
    if alpha is None:
        alpha, why = _alpha_of_customizing(prior, omega, env, wishes, settings, most)
        notes += [f"alpha {'begins at' if budgeted else 'is'} {alpha:g}, {why}; --alpha sets another"] * bool(why)
    if budgeted and not 0.0 < alpha < math.inf:
        raise UsageError(f"alpha is {alpha:g}; where a budget moves omega and alpha it must be above 0")
    weight = alpha if budgeted else omega  # with a budget, both begin at alpha
    if weight == "auto":
        raise UsageError(f"--omega auto goes with --objective residual, not {wanted.name}")
    made = named(
        wanted.name, omega=weight, alpha=alpha, states=states, omega_to=wanted.omega_to, alpha_to=wanted.alpha_to
    )
    return Chosen(made, settings, notes)


def usual_budget(prior: Policy) -> float:
    """Nats a step that a policy may drift, where nobody can tell what a nat is worth."""
    if prior.actions.kind == "continuous":
        return BUDGET
    return two_digits(SHARE_OF_CHOICES * float(np.log(prior.actions.sizes).sum()))


class Prices(NamedTuple):
    """On actions, "auto" where it cannot be told, and on states; what is to be said; and the most that omega can be."""

    omega: float | Literal["auto"]
    states: float
    notes: list[str]
    most: float = 0.0


def _prices(
    wanted: Wanted,
    prior: SavedPolicy,
    env: str,
    wishes: tuple[str, ...],
    settings: Settings,
    say: Callable[[str], None],
) -> Prices:
    """As they are named, else what a nat of the prior is worth."""
    if wanted.omega is not None:
        if wanted.states is None and wanted.omega_to:
            return Prices(wanted.omega, *states_of_range(prior, env, wishes, settings, say))
        return Prices(wanted.omega, wanted.states or 0.0, [])
    known, most, reward = _weights(prior, env, wishes, settings, say)
    if known is None:
        if wanted.alpha_to or addons.dials(wishes):
            raise UsageError(
                "what the prior's log-probability is worth cannot be told, and beside a dial no budget can find it: "
                "name --omega, a number or a range such as 0.03..3"
            )
        note = (
            "what a nat of the prior is worth cannot be told from these episodes: does it act as it should (repolicy "
            "diagnose)?"
        )
        return Prices("auto", wanted.states or 0.0, [note], most)
    states = known.states if wanted.states is None else wanted.states
    sentence = (
        f"omega is {known.omega:.3g}, what a nat of the prior is worth of {reward}, and states {states:.3g}, the "
        "weight of its states; --omega and --states set others"
    )
    return Prices(known.omega, states, [sentence])


def states_of_range(
    prior: SavedPolicy,
    env: str,
    wishes: tuple[str, ...],
    settings: Settings,
    say: Callable[[str], None],
) -> tuple[float, list[str]]:
    """The weight of the prior's states beside several values of omega: without it, small ones stand still."""
    known, *_ = _weights(prior, env, wishes, settings, say, "--states")
    if known is None:
        return 0.0, ["what a nat of the prior is worth cannot be told, so new states have no price; --states names one"]
    return known.states, [f"states is {known.states:.3g}, the weight of the prior's states; --states sets another"]


def _weights(
    prior: SavedPolicy,
    env: str,
    wishes: tuple[str, ...],
    settings: Settings,
    say: Callable[[str], None],
    option: str = "--omega or --kl-budget",
) -> tuple[Weights | None, float, str]:
    """By the prior's card or, where that does not tell, by its episodes, unless the user names an `option`.

    And the most that a nat can be worth by these, and of which reward. A wish is measured at weight 1, so that ten
    times its weight is ten times more beside the prior.
    """
    known = weights_of(prior.card, prior.policy.observation_size)
    if known is not None:
        trained_with = prior.card.get("request", {}).get("addons")
        return known, known.omega, "the reward that it was trained with" if trained_with else "the environment's reward"
    say(
        "measuring what a nat of the prior is worth, by episodes of its mean action and of sampled ones "
        f"({option} goes without)"
    )
    with one_thread():
        found = sought(prior.policy, env, addons.at_one(wishes), int(MEASURED * settings.steps), settings.backend)
    weights = weights_found(found, prior.policy.observation_size)
    in_wish = weights is not None and wish_counts_more(found)
    reward = addons.at_one_in_words(wishes) if in_wish else "the environment's reward"
    return weights, found.most, reward


def _alpha_of_customizing(
    prior: SavedPolicy,
    omega: float | Literal["auto"] | None,
    env: str,
    wishes: tuple[str, ...],
    settings: Settings,
    most: float,
) -> tuple[float, str]:
    """The prior's own, without a note; else a third of omega; else scaled from the add-on's reward under the prior.

    But no less than the `most` that a nat can be worth: who is held too much is let go later, who is lost stays lost.
    """
    alpha = prior.card.get("request", {}).get("objective", {}).get("alpha")
    if alpha:
        return float(alpha), ""
    if omega not in (None, "auto", 0):
        third = two_digits(ALPHA_SHARE * float(omega))
        return third, f"a third of omega {omega:g}, since the prior's file does not tell its own"
    steps = trial(prior.policy, env, settings)
    rewards = addons.combined(addons.at(wishes)).reward(*steps.transitions)
    alpha, why = _scaled(rewards, prior.policy.actions.width, "add-on's reward under the prior")
    return (alpha, why) if alpha >= most else (two_digits(most), "the most that a nat of the prior can be worth")


def _alpha_of_reward(env: str, wishes: tuple[str, ...], settings: Settings) -> tuple[float, str]:
    """By the size of the reward that a new policy meets."""
    policy = seeded(spec_for(probed(env, settings.backend), settings), settings.seed)
    steps = trial(policy, env, settings)
    rewards = np.asarray(steps.basic)
    if wishes:
        rewards = rewards + addons.combined(wishes).reward(*steps.transitions)
    return _scaled(rewards, policy.actions.width, "reward in trial steps")


def _scaled(rewards: np.ndarray, numbers: int, what: str) -> tuple[float, str]:
    """A hundredth of the usual size of a reward for a nat in every number of the action, in two digits."""
    if not np.isfinite(rewards).all():
        raise NumericError(f"the {what} is not a finite number everywhere")
    size = float(np.sqrt(np.mean(rewards**2)))
    if size == 0:
        return UNSEEN, f"because the {what} was 0 throughout"
    return two_digits(SHARE * size / numbers), f"scaled from the {what} ({size:.3g} a step)"


def trial(agent: Agent, env: str, settings: Settings, steps: int = STEPS) -> Rollout:
    """Some thousand steps of an agent, to look at what they bring."""
    with closing(make_envs(env, ENVS, settings.seed, settings.backend)) as envs:
        check_fit(agent, envs, "the prior")
        return Collector(envs, steps, torch.Generator().manual_seed(0), keep_transitions=True).collect(agent)
