"""Choose the weight of each term of the return that the user did not name."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from repolicy.envs import parse_env_name
from repolicy.errors import UsageError
from repolicy.objective import Objective
from repolicy.policies import SavedPolicy
from repolicy.prepare.weights import EnvWeightFinder, NoiseWeightFinder, WeightFinder, Weights, training_alpha
from repolicy.ranges import Range
from repolicy.runs import Settings
from repolicy.text import Say

OMEGA_ALONE = (
    "--log-prior-budget moves omega alone, so --alpha omega and --objective kl do not go with it: leave them out, or "
    "take --kl-budget, which moves both together"
)


class Decision(NamedTuple):
    """An objective whose weights are all set, the settings with its budget, and a sentence for each choice."""

    objective: Objective
    settings: Settings
    notes: list[str]
    steps: int = 0  # environment steps that it took to find the weights


def decide(
    objective: Objective,
    prior: SavedPolicy | None,
    env: str,
    wishes: tuple[str, ...],
    settings: Settings,
    say: Say = lambda sentence: None,
) -> Decision:
    """Set all weights of a run's objective that are not set yet.

    Training from nothing (`prior` is None) takes alpha from a table, else from the reward of trial steps. Customizing
    takes omega and states from what a nat of the prior is worth. Where that cannot be measured, it sets a KL budget,
    which moves omega. Alpha comes from the prior's file, else from omega. `say` is called before slow steps. Raises
    UsageError where a budget and a named weight exclude each other.
    """
    if objective.is_set:
        return Decision(objective, settings, [])
    if prior is None:
        alpha, why = training_alpha(objective, env, wishes, settings)
        unset: dict[str, Any] = {name: alpha for name in ("alpha", "bonus") if getattr(objective, name) is None}
        return Decision(replace(objective, **unset), settings, [f"alpha is {alpha:g}, {why}; --alpha sets another"])
    finder = EnvWeightFinder if parse_env_name(env).decoder is None else NoiseWeightFinder
    return decide_weights(objective, finder(prior.card, prior.policy, settings, say, env, wishes))


def decide_weights(objective: Objective, finder: WeightFinder) -> Decision:
    """Set the weights for customizing a prior; `finder` runs its episodes."""
    terms, settings = _choose_prior_terms(objective, finder), finder.settings
    omega = terms.omega
    notes = [terms.why] if terms.why else []
    if omega == "auto" and settings.budget is None:
        settings = replace(settings, kl_budget=finder.default_kl_budget())
        notes.append(
            f"omega and alpha move together so that the policy drifts {settings.kl_budget:g} nats a step from its "
            "prior; --kl-budget sets another distance, --omega a weight"
        )

    alpha = objective.alpha
    if alpha is None or (omega == "auto" and alpha == "omega"):  # a budget moves both together
        alpha, why = finder.alpha(omega, terms.max_worth)
        if why:
            begins = "begins at" if omega == "auto" and settings.log_prior_budget is None else "is"
            notes.append(f"alpha {begins} {alpha}, {why}; --alpha sets another")

    if omega == "auto":  # both weights begin at alpha
        if isinstance(alpha, Range) or not 0.0 < alpha < math.inf:
            raise UsageError(f"alpha is {alpha}; where a budget moves omega and alpha it must be one number above 0")
        omega = alpha
    objective = replace(objective, omega=omega, alpha=alpha, states=terms.states or 0.0)
    return Decision(objective, settings, notes, finder.steps_taken)


class PriorTerms(NamedTuple):
    """The weights of the prior's terms, the reason for them (empty if named), and an upper bound on a nat's worth."""

    omega: Any  # "auto" where a budget moves it
    states: float | None
    why: str = ""
    max_worth: float = 0.0


def _choose_prior_terms(objective: Objective, finder: WeightFinder) -> PriorTerms:
    """Return omega and states as the user named them, else by what a nat of the prior is worth."""
    omega, states, settings = objective.omega, objective.states, finder.settings
    if settings.budget is not None and settings.keep is None:
        if omega not in (None, "auto", "alpha"):  # with "alpha", both weights are the same, too
            option = "--kl-budget" if settings.kl_budget is not None else "--log-prior-budget"
            raise UsageError(
                f"{option} goes with --omega auto, which begins at --alpha, and no other --objective than residual: "
                "leave --omega out, or for a log-prior budget name --alpha too"
            )
        if settings.log_prior_budget is not None and (omega == "alpha" or objective.alpha == "omega"):
            raise UsageError(OMEGA_ALONE)
        return PriorTerms("auto", states)
    if settings.keep is not None and omega == "auto":
        omega = None  # a share to keep moves omega in any case, from what is chosen where none is named
    if not finder.nats_have_worth:
        return PriorTerms("auto" if omega is None else omega, states)
    if omega is None:
        return _both_by_worth(objective, finder)
    if omega == "auto" or states is not None:
        return PriorTerms(omega, states)
    return _states_by_worth(omega, finder)  # with a small omega and no price on states, a policy stands still


def _both_by_worth(objective: Objective, finder: WeightFinder) -> PriorTerms:
    """Return what a nat is worth as both weights; where that cannot be measured, return "auto" for a budget."""
    known, max_worth, reward = finder.weights("--omega")
    if known is not None:
        states, price = objective.states, "the price on states"
        if states is None:
            states, price = known.states, _describe_price(known)
        why = (
            f"omega is {known.omega:.3g}, what a nat of the prior is worth of {reward}, and states {states:.3g}, "
            f"{price}; --omega and --states set others"
        )
        return PriorTerms(known.omega, states, why, max_worth)
    if isinstance(objective.alpha, Range) or finder.has_dials:
        what = "what the prior's log-probability is worth cannot be told, and beside a dial no budget can find it"
        raise UsageError(f"{what}: name --omega, a number or a range such as 0.03..3")
    unknown = "what a nat of the prior is worth cannot be told from these episodes"
    return PriorTerms("auto", objective.states, f"{unknown}: does it act as it should{finder.hint}?", max_worth)


def _states_by_worth(omega: Any, finder: WeightFinder) -> PriorTerms:
    """Return the states' weight for a named omega; it is 0 where a nat's worth cannot be measured."""
    known, _, _ = finder.weights("--states")
    if known is None:
        unknown = "what a nat of the prior is worth cannot be told, so new states have no price; --states names one"
        return PriorTerms(omega, 0.0, unknown)
    why = f"states is {known.states:.3g}, {_describe_price(known)}; --states sets another"
    return PriorTerms(omega, known.states, why)


def _describe_price(weights: Weights) -> str:
    return f"the price on states: {weights.why_free}" if weights.why_free else "the price on states"
