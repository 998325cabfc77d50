"""Check a request before a run begins: try the add-ons under the prior, and refuse what cannot work."""

from dataclasses import replace

import numpy as np

from repolicy.addons import addon_names, check_env, combine_addons, parse_limits
from repolicy.envs import probe_env, with_option
from repolicy.errors import UsageError
from repolicy.objective import Objective
from repolicy.policies import Policy, SavedPolicy
from repolicy.prepare.decision import OMEGA_ALONE, Decision, decide
from repolicy.prepare.states import check_learnable
from repolicy.prepare.weights import collect_trial
from repolicy.runs import ACTOR_SETTINGS, BUDGETS, Request, Settings, check_dials, refuse_for_choices, spec_for
from repolicy.text import Say, with_minus

WEAK_SHARE = 0.1  # share of a nat; what outweighs less than that moves a policy by 0.001 nats a step at most
NO_ADDON = (
    "needs an add-on, the new requirement: --addon NAME, or file.py:function for one of your own "
    "(repolicy addons lists those that ship)"
)


def unused_settings(settings: Settings) -> list[str]:
    """Return a note on actor settings that customizing does not use."""
    named = [name for name in ACTOR_SETTINGS if getattr(settings, name) != getattr(Settings, name)]
    return [f"{' and '.join(named)} changed nothing: the actor begins as its prior"] if named else []


def try_addon(prior: Policy, request: Request) -> tuple[list[str], float]:
    """Run the prior for trial steps, check shape and values of each add-on and limit, and return notes on them.

    Returned, too, is by how much the add-ons' weighted sum varies from step to step: the sum of their ranges.
    """
    env, limits = request.env, parse_limits(request.limits, request.env)
    rollout = collect_trial(prior, env, request.settings)
    held = rollout  # limits hold the mean action
    if limits and request.is_judged_by_mean:
        held = collect_trial(prior, env, request.settings, deterministic=True)
    means = {limit: limit.values(held).mean() for limit in limits}
    notes = [f"limit {limit}: {with_minus(f'{mean:.3g}')} a step under the prior" for limit, mean in means.items()]
    if request.settings.keep is not None:
        if not np.isfinite(rollout.basic).all():
            raise UsageError(f"--keep needs the environment's own reward, and {env} does not tell it")
        notes.append(
            "the environment's own reward is read to tell what share of it is kept; the policy never learns from it"
        )
    varies_by = 0.0
    for name in addon_names.with_weights(request.addons):
        addon = combine_addons([name])
        reward = addon.reward(rollout.transitions)
        if addon.metric is not None:
            addon.metric_values(rollout.transitions)
        if reward.min() == reward.max() and not request.sparse:
            why = "if it is meant to be that rare, add --sparse" if any(addon.weights) else "its weight is 0"
            if any(addon.weights) and not reward.any() and (option := addon_names.enabling_option(name)):
                why = f"{env} counts it with the weight 0, so name it as {with_option(env, option)}"
            same = f"gave the same reward, {with_minus(f'{reward.min():g}')}, in all of {reward.size:,} trial steps"
            raise UsageError(f"add-on {name!r} {same}; {why}")
        varies_by += float(reward.max() - reward.min())
        ends = f"{reward.min():.3g} to {reward.max():.3g}, mean {reward.mean():.3g}"
        notes.append(f"add-on {name}: {with_minus(ends)} a step under the prior")
    return notes, varies_by


def describe_weak_wish(varies_by: float, request: Request) -> list[str]:
    """Return a note where the wish, which varies by so much a step, cannot outweigh the prior; `omega` is set."""
    omega, settings = request.objective.omega, request.settings
    is_moved = settings.budget is not None or settings.keep is not None
    if is_moved or not isinstance(omega, float) or not 0.0 < varies_by < WEAK_SHARE * omega * (1.0 - settings.gamma):
        return []
    worth = f"it varies by {varies_by:.2g} a step, and a nat away from the prior costs {omega:.3g}"
    return [f"the wish weighs too little to change anything: {worth}; give it a larger weight, --addon NAME=WEIGHT"]


def choose_weights(request: Request, prior: SavedPolicy, say: Say) -> tuple[Request, Decision]:
    """Choose the weights of a customization, check its request, and return it with the decision on the weights."""
    check_dials(request)  # before episodes are spent on the weights
    decision = decide(request.objective, prior, request.env, request.addons, request.settings, say)
    request = replace(request, objective=decision.objective, settings=decision.settings)
    if not request.objective.reads_addon:
        raise UsageError("customizing needs an objective whose task is the add-on: residual, kl or greedy")
    check_request(request)
    if request.objective.reads_states:
        check_learnable(prior.policy)
    return request, decision


def check_moved_alone(objective: Objective, settings: Settings) -> None:
    """Raise where a new run is to move omega alone, and both weights are named as one, such as by `kl`."""
    if settings.log_prior_budget is not None and objective.is_set and objective.omega == objective.alpha:
        raise UsageError(OMEGA_ALONE)


def check_steps(settings: Settings) -> None:
    """Raise where a run would end before its first update."""
    if settings.steps < settings.iteration_steps:
        few = f"steps is {settings.steps:,}, and one update takes {settings.iteration_steps:,}"
        raise UsageError(f"{few}: name that many at least, or fewer --envs or --n-steps")


def check_request(request: Request) -> None:
    """Raise UsageError for what cannot work, before anything is written."""
    if request.objective.reads_addon and not request.addons:
        raise UsageError(f"this {NO_ADDON}")
    if request.addons and not request.objective.reads_addon:
        raise UsageError("this objective's task is the basic reward alone, so an add-on has no effect: leave it out")
    check_dials(request)
    check_wish(request.addons, request.env)
    settings, objective = request.settings, request.objective
    spec = spec_for(probe_env(request.env, settings.backend, critic=True), settings)
    if spec.actions.kind == "discrete" and not request.prior:
        refuse_for_choices(settings, "initial_std", "min_std")
    budgets = [name for name in BUDGETS if getattr(settings, name) is not None]
    if budgets and not request.prior:
        raise UsageError(f"{budgets[0]} holds a policy to its prior, and there is none: it goes with customize")
    check_budget(objective, settings)
    if settings.keep is not None and not objective.omega > 0:
        raise UsageError("keep moves omega, from a value above 0 on: it goes not with greedy")


def check_budget(objective: Objective, settings: Settings) -> None:
    """Raise where the budget could not be reached from these weights.

    While both weights grow and omega / alpha stays at c, the policy tends to prior^c, however large they are.
    """
    if settings.kl_budget is not None and not 0 < objective.omega == objective.alpha:
        raise UsageError(
            "a KL budget moves omega and alpha together, from one value above 0 on: name one number for both, or none"
        )
    if settings.log_prior_budget is not None and not (objective.omega > 0 and objective.alpha > 0):
        raise UsageError(
            "a log-prior budget moves omega from a value above 0 on, at a fixed alpha above 0: name such, or none"
        )


def check_wish(wishes: tuple[str, ...], env: str) -> None:
    """Raise where an add-on does not exist, or is not made for this environment."""
    combine_addons(addon_names.with_weights(wishes))
    check_env(wishes, env)
