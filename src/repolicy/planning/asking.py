"""`repolicy.plan`: make a planner from a prior and a wish, and choose its weights and its number of samples."""

import math
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from numbers import Real
from statistics import median
from time import perf_counter
from timeit import repeat
from typing import Any

import numpy as np
import torch

from repolicy.addons import Addon, Wish, check_env, combine_addons
from repolicy.addons.addon_names import wishes_of
from repolicy.envs import (
    Collector,
    EnvLike,
    Rollout,
    check_fit,
    check_plain,
    env_name,
    make_envs,
    match_observation,
    parse_env_name,
    probe_env,
)
from repolicy.errors import UsageError
from repolicy.objective import residual
from repolicy.planning.learned_model import LearnedModel
from repolicy.planning.planner import Planner, Search, Tally
from repolicy.planning.scoring import Score
from repolicy.planning.simulators import CannotBatchError, CopyModel, Model, MujocoModel
from repolicy.planning.value import fitted_value, may_end, rewards_of, rollouts_in
from repolicy.policies import Agent, Policy, SavedPolicy, one_thread, with_torch_defaults
from repolicy.prepare.beginning import open_prior
from repolicy.prepare.states import SKIPPED_STEPS, check_learnable, density_of_rollouts, observation_count
from repolicy.prepare.weights import EnvWeightFinder
from repolicy.readers.reading import Options
from repolicy.runs import Settings
from repolicy.text import Say, format_number

FEW_STEPS = 1  # of a run before which the fewest states of a prior are collected


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Planned(Planner):
    """A planner with its prior's file, its task, and notes that explain its weights."""

    saved: SavedPolicy
    env: str
    addons: tuple[str, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Planner in {self.env} for {' + '.join(self.addons)}: {'; '.join(self.notes)}"


@with_torch_defaults()
def plan(
    prior: Any,
    addon: Wish,
    *,
    env: EnvLike | None = None,
    omega: float | None = None,
    states: float | None = None,
    value: bool | None = None,
    search: Search | None = None,
    learned: bool = False,
    options: Options | None = None,
    trust: bool = False,
    say: Say = lambda sentence: None,
) -> Planned:
    """Return an agent that fulfills a wish without training: it simulates candidate plans before each action.

    Args:
        prior: a policy, its file, its run's folder, the name of a shipped one, or a result of `open_prior`.
        addon: the wish: a name, a function, or a list of them.
        env: an id, or a function that makes one environment; by default the one named in the prior's file.
        omega: the weight of the prior. If neither `omega` nor `states` is given, nor `value` true, short trials choose
            the weights. Otherwise, and for choices, the default is what a nat of the prior's log-probability is worth.
        states: the weight of the price on states that the prior does not visit. The default is chosen like `omega`.
        value: add a value at a plan's end, which is fitted to the prior's episodes. The default is what trials choose.
        search: the settings of the search: samples, horizon and so on.
        learned: simulate with a model learned from the prior's own steps instead of the environment's simulator.
        options: how to read the prior's file, if it is another library's.
        trust: run code that the prior's file names.
        say: is called with a message before each long stage.
    """
    for what, weight in (("omega", omega), ("states", states)):
        if not isinstance(weight, Real | None):
            raise UsageError(f"{what} is {weight!r}; a planner takes a number, or finds one where it is None")
    residual(omega, states=states)  # raises for weights out of range
    start = open_prior(prior, options, trust=trust)
    if start.saved is None:
        raise UsageError(f"{start.name} cannot be copied, and a planner asks its prior in every simulated step")
    policy = start.saved.policy
    is_discrete = policy.actions.kind == "discrete"
    if is_discrete:
        _check_tree(start.name, policy, bool(value), learned)
    place = start.env(trust) if env is None else env_name(env)
    wishes = wishes_of(addon)
    wish = _wish_in(place, wishes)
    search = search or Search()
    place = match_observation(place, policy)
    check_fit(policy, probe_env(place), "the prior")
    if not learned:
        parse_env_name(place).check_copyable(": add --learned")

    # Weights that are not named come from what a nat is worth, and from trials around it.
    runs_trials = omega is None and states is None and not value and not is_discrete
    notes = list[str]()
    if omega is None or states is None:
        omega, states, weights_note = _fill_weights(start.saved, place, wishes, omega, states, say)
        notes = [weights_note]
    model = model_of(policy, place, learned, search.seed, say)
    with one_thread():
        if states:
            check_learnable(policy)
        reads_states = bool(states or runs_trials or value)  # otherwise only whether its episodes end by themselves
        rollouts = rollouts_in(policy, place, search.seed, Settings().steps if reads_states else FEW_STEPS)
        density = density_of_rollouts(rollouts, policy, observation_count(Settings().steps)) if states else None
        score = Score(wish, omega, states, search.discount, density, None, may_end(rollouts))
        if runs_trials:
            say("trying weights of the prior in a plan, which takes a minute or two (--omega goes without)")
            score, trials_note = best_of_trials(policy, place, model, score, search, rollouts, value is None)
            notes = [trials_note]
        elif value:
            score = replace(score, value=fitted_value(policy, rollouts, score, search.seed))
    if model.note:
        notes.append(model.note)
    search = search.filled(is_discrete, score.value is not None)
    return Planned(policy, model, score, search, saved=start.saved, env=place, addons=wishes, notes=tuple(notes))


def _check_tree(name: str, prior: Policy, value: bool, learned: bool) -> None:
    """Raise UsageError if a tree, which plans for discrete actions, cannot plan for this prior with these options."""
    makes_several = len(prior.actions.sizes) > 1
    if makes_several or value or learned:
        what = "makes several choices at once" if makes_several else "makes choices"
        raise UsageError(
            f"{name} {what}: a tree is for one choice a step, in copies, and has no use for --value or --learned"
        )


def _fill_weights(
    saved: SavedPolicy, env: str, wishes: tuple[str, ...], omega: float | None, states: float | None, say: Say
) -> tuple[float, float, str]:
    """Return omega and states, by what a nat of the prior is worth where they are None; and a note about these."""
    finder = EnvWeightFinder(saved.card, saved.policy, Settings(), say, env, wishes)
    missing = " and ".join(name for name, weight in (("--omega", omega), ("--states", states)) if weight is None)
    weights, _, reward = finder.weights(missing)
    unknown = "what a nat of the prior is worth cannot be told from its episodes"
    if weights is None and omega is not None:  # as where one customizes
        return omega, 0.0, f"{unknown}, so new states have no price; --states names one"
    if weights is None:
        raise UsageError(f"{unknown}: name {missing}, or see whether it acts as it should{finder.hint}")
    found = [f"omega is {weights.omega:.3g}"] if omega is None else []
    if states is None:
        found.append(f"states {'' if found else 'is '}{weights.states:.3g}")
    why_free = f": {weights.why_free}" if states is None and weights.why_free else ""
    omega = weights.omega if omega is None else omega
    states = weights.states if states is None else states
    return omega, states, f"{' and '.join(found)}, by what a nat of the prior is worth of {reward}{why_free}"


def _wish_in(env: str, wishes: tuple[str, ...]) -> Addon:
    """Return the add-on of the wishes. Raise UsageError if there is none or a simulation cannot compute it."""
    if not wishes:
        raise UsageError("a planner needs a wish: name an add-on")
    check_env(wishes, env)
    check_plain(env, "a planner")
    wish = combine_addons(wishes)
    if wish.stateful_names:
        what = f"add-on {wish.stateful_names[0]!r} has a past"
        raise UsageError(f"{what}, and a planner's simulations begin without one: customize with it")
    return wish


def model_of(prior: Policy, env: str, learned: bool, seed: int, say: Say) -> Model:
    """Return the simulator of an environment: a learned model if `learned`, else MuJoCo in batches, or else copies."""
    if learned:
        say("learning a model from the prior's steps, which takes up to a minute")
        return LearnedModel(prior, env, seed)
    if prior.actions.kind == "discrete":
        return CopyModel(env, seed)
    try:
        return MujocoModel(env)
    except CannotBatchError as error:
        return CopyModel(env, seed, f"{error}: copies of it are simulated, which is slow")


# Trials that choose the weights ---------------------------------------------------------------------------------------

# No single weight suits every robot, so a few candidates act for some hundred steps each. The reward of a trial is the
# wish plus the log-ratio of actions and the familiarity of states, both with PRICE times what a nat is worth.
# With the full weight this reward was too cautious to separate the candidates for HalfCheetah. The candidate with the
# highest mean reward is taken. The old reward is not used.

ENVS, STEPS, SEED = 4, 150, 30_000  # of a trial, with a seed far from those of evaluations
SAMPLES = 32  # at most, in a trial
PRICE = 0.5  # the weights in the trial's reward, as a share of what a nat is worth


# omega and states as shares of what a nat is worth, and whether there is a value at a plan's end
CANDIDATES = ((1.0, 1.0, False), (1 / 3, 1.0, False), (1 / 3, 1 / 3, True))


def best_of_trials(
    prior: Policy,
    env: str,
    model: Model,
    worth: Score,
    search: Search,
    rollouts: Sequence[Rollout],
    may_have_value: bool,
) -> tuple[Score, str]:
    """Try all candidates; return the best one and a sentence about it. `worth` has the weights that a nat is worth."""
    judge = replace(worth, omega=PRICE * worth.omega, states=PRICE * worth.states)
    brief = replace(search, samples=min(SAMPLES, search.samples or SAMPLES))
    scores = candidates(prior, rollouts if may_have_value else [], worth, search.seed)
    planners = (Planner(prior, model, score, brief.filled(False, score.value is not None)) for score in scores)
    rewards = [mean_reward(planner, prior, env, judge) for planner in planners]
    best = scores[int(np.argmax(rewards))]
    size = max(map(abs, rewards))
    trials = "; ".join(
        f"{_describe_weights(score)}: {format_number(reward, size)}"
        for score, reward in zip(scores, rewards, strict=True)
    )
    found = f"omega is {best.omega:.3g} and states {best.states:.3g}"
    return best, f"{found}: of the weights tried, these earned most a step ({trials})"


def _describe_weights(score: Score) -> str:
    return f"omega {score.omega:.3g}, states {score.states:.3g}{', with a value' if score.value else ''}"


def candidates(prior: Policy, rollouts: Sequence[Rollout], worth: Score, seed: int) -> list[Score]:
    """Return the scores to try. One with a value is tried only if episodes in `rollouts` end early, but not too early.

    If no episode ends, the value knows of no fall, and its errors made plans worse although the trials preferred them.
    """
    scores, ends_early = list[Score](), any(rollout.terminated.any() for rollout in rollouts)
    for omega, states, value in CANDIDATES:
        score = replace(worth, omega=omega * worth.omega, states=states * worth.states)
        if not value:
            scores.append(score)
        elif ends_early:
            with suppress(UsageError):
                scores.append(replace(score, value=fitted_value(prior, rollouts, score, seed)))
    return scores


def mean_reward(agent: Agent, prior: Policy, env: str, judge: Score) -> float:
    """Return the mean reward per step in a few episodes, without their first steps, which no agent controls."""
    with closing(make_envs(env, ENVS, SEED, getattr(agent, "backend", "auto"))) as envs:
        rollout = Collector(envs, STEPS, torch.Generator()).collect(agent, deterministic=True)
    late = rollout.ages > SKIPPED_STEPS  # where no episode is as long, all steps count
    return float(rewards_of(prior, rollout, judge)[late | rollout.terminated | (not late.any())].mean())


FEW, MORE, MOST = 8, 32, 1024  # samples: FEW and MORE are timed; the result is FEW to MOST
DECISIONS = 5  # timed decisions, of which the median counts
SHARE = 0.8  # of a time step that planning may take


def paced(made: Planned, hz: float) -> Planned:
    """Return the planner with the number of samples that allows `hz` decisions per second."""
    with one_thread(), closing(make_envs(made.env, 1, made.search.seed, made.backend)) as envs:
        made.watch(envs)
        return replace(made, search=fit_to_time(made, envs.reset(), SHARE / hz).search)


def decisions_per_second(made: Planned) -> float:
    """Return how many decisions per second the planner makes for one robot; several at once take less time for each."""
    with one_thread(), closing(make_envs(made.env, 1, made.search.seed, made.backend)) as envs:
        made.watch(envs)
        return 1.0 / decision_seconds(made, envs.reset(), made.search.samples)


def fit_to_time(planner: Planner, observations: np.ndarray, seconds: float) -> Planner:
    """Return the planner with the most samples whose decision takes at most `seconds`.

    The time grows linearly with the number of samples. If FEW samples take too long, the horizon is halved.
    """
    few, more = (decision_seconds(planner, observations, samples) for samples in (FEW, MORE))
    fits = FEW + math.floor((seconds - few) * (MORE - FEW) / max(more - few, 1e-9))
    if fits >= FEW:
        return replace(planner, search=replace(planner.search, samples=min(fits, MOST)))
    if planner.search.horizon == 1:
        raise UsageError(f"a decision takes {few:.2g} s with {FEW} samples of one step, and has {seconds:.2g} s")
    shorter = replace(planner.search, horizon=planner.search.horizon // 2)
    return fit_to_time(replace(planner, search=shorter), observations, seconds)


def decision_seconds(planner: Planner, observations: np.ndarray, samples: int) -> float:
    """Return the median time of a decision with so many samples."""
    trial = replace(planner, search=replace(planner.search, samples=samples), tally=Tally())
    return median(repeat(lambda: trial.actor(1, 1)(observations), timer=perf_counter, repeat=DECISIONS, number=1))
