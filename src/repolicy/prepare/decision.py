"""What each term of the return weighs, where the user names no weight."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from repolicy.envs import decoder_options
from repolicy.errors import UsageError
from repolicy.objective import Objective
from repolicy.policies import SavedPolicy
from repolicy.prepare.weights import EnvWeightFinder, NoiseWeightFinder, Say, WeightFinder, training_alpha
from repolicy.ranges import Range
from repolicy.runs import Settings


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
        alpha, why = training_alpha(objective, env, wishes, settings)
        unset: dict[str, Any] = {name: alpha for name in ("alpha", "bonus") if getattr(objective, name) is None}
        return Decision(replace(objective, **unset), settings, [f"alpha is {alpha:g}, {why}; --alpha sets another"])
    kind = EnvWeightFinder if decoder_options(env) is None else NoiseWeightFinder
    return decide_weights(objective, kind(prior.card, prior.policy, settings, say, env, wishes))


def decide_weights(objective: Objective, task: WeightFinder) -> Decision:
    """Return the same for a policy that is customized, wherever its episodes run."""
    terms, settings = _choose_prior_terms(objective, task), task.settings
    omega = terms.omega
    notes = [terms.why] if terms.why else []
    if omega == "auto" and settings.budget is None:
        settings = replace(settings, kl_budget=task.default_kl_budget())
        notes.append(
            f"omega and alpha move together so that the policy drifts {settings.kl_budget:g} nats a step from its "
            "prior; --kl-budget sets another distance, --omega a weight"
        )

    alpha = objective.alpha
    if alpha is None or (omega == "auto" and alpha == "omega"):  # which move together anyway
        alpha, why = task.alpha(omega, terms.most)
        if why:
            begins = "begins at" if omega == "auto" else "is"
            notes.append(f"alpha {begins} {alpha}, {why}; --alpha sets another")

    if omega == "auto":  # both weights begin at alpha
        if isinstance(alpha, Range) or not 0.0 < alpha < math.inf:
            raise UsageError(f"alpha is {alpha}; where a budget moves omega and alpha it must be one number above 0")
        omega = alpha
    objective = replace(objective, omega=omega, alpha=alpha, states=terms.states or 0.0)
    return Decision(objective, settings, notes, task.taken)


class PriorTerms(NamedTuple):
    """What the terms of the prior weigh, why where nobody named it, and the most that a nat of it can be worth."""

    omega: Any  # "auto" where a budget moves it
    states: float | None
    why: str = ""
    most: float = 0.0


def _choose_prior_terms(objective: Objective, task: WeightFinder) -> PriorTerms:
    """Return both weights as they are named; what is not, by what a nat of the prior is worth."""
    omega, states, settings = objective.omega, objective.states, task.settings
    if settings.budget is not None and settings.keep is None:
        if omega not in (None, "auto"):
            option = "--kl-budget" if settings.kl_budget is not None else "--log-prior-budget"
            raise UsageError(f"{option} goes with --omega auto and no other --objective than residual")
        return PriorTerms("auto", states)
    if not task.nats_have_worth:
        return PriorTerms("auto" if omega is None else omega, states)
    if omega is None:
        return _both_by_worth(objective, task)
    if omega == "auto" or states is not None:
        return PriorTerms(omega, states)
    return _states_by_worth(omega, task)  # small omegas alone would stand still


def _both_by_worth(objective: Objective, task: WeightFinder) -> PriorTerms:
    """Return what a nat is worth; where that cannot be told, a budget is to move omega."""
    known, most, reward = task.weights("--omega")
    if known is not None:
        states = known.states if objective.states is None else objective.states
        why = (
            f"omega is {known.omega:.3g}, what a nat of the prior is worth of {reward}, and states {states:.3g}, the "
            "weight of its states; --omega and --states set others"
        )
        return PriorTerms(known.omega, states, why, most)
    if isinstance(objective.alpha, Range) or task.has_dials:
        what = "what the prior's log-probability is worth cannot be told, and beside a dial no budget can find it"
        raise UsageError(f"{what}: name --omega, a number or a range such as 0.03..3")
    unknown = "what a nat of the prior is worth cannot be told from these episodes"
    return PriorTerms("auto", objective.states, f"{unknown}: does it act as it should{task.hint}?", most)


def _states_by_worth(omega: Any, task: WeightFinder) -> PriorTerms:
    """Return the states' weight beside an omega that somebody named; 0 where a nat's worth cannot be told."""
    known, _, _ = task.weights("--states")
    if known is None:
        unknown = "what a nat of the prior is worth cannot be told, so new states have no price; --states names one"
        return PriorTerms(omega, 0.0, unknown)
    why = f"states is {known.states:.3g}, the weight of the prior's states; --states sets another"
    return PriorTerms(omega, known.states, why)
