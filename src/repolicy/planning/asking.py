"""`repolicy.plan`: from a prior and a wish to a planner, with as many samples as this machine has time for."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from numbers import Real
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from repolicy.envs import Collector, EnvLike, Rollout, check_fit, check_plain, env_name, make_envs, probed
from repolicy.envs.addons import Addon, Wish, check_env, combined, names
from repolicy.errors import UsageError
from repolicy.objective import residual
from repolicy.planning.learned_model import LearnedModel
from repolicy.planning.planner import Planner, Search, Tally
from repolicy.planning.scoring import Score
from repolicy.planning.simulators import CannotBatchError, CopyModel, Model, MujocoModel
from repolicy.planning.value import fitted_value, rewards_of, rollouts_in
from repolicy.policies import Agent, Policy, SavedPolicy
from repolicy.prepare.beginning import open_prior
from repolicy.prepare.states import SKIPPED, check_learnable, density_in, wanted
from repolicy.prepare.weights import InEnvs
from repolicy.readers.reading import Options
from repolicy.runs import Settings, one_thread

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class Planned(Planner):
    """A planner that knows its prior's file, its task, and why its weights are what they are."""

    saved: SavedPolicy
    env: str
    addons: tuple[str, ...]
    notes: tuple[str, ...]


def plan(
    prior: Any,
    addon: Wish,
    *,
    env: EnvLike | None = None,
    omega: float | None = None,
    states: float | None = None,
    value: bool = False,
    search: Search | None = None,
    learned: bool = False,
    options: Options | None = None,
    trust: bool = False,
    say: Say = lambda sentence: None,
) -> Planned:
    """Return an agent that meets a wish without training, by simulating what it might do before each of its actions.

    Args:
        prior: a policy, its file, its run's folder, or the name of one that ships; or what `open_prior` made of it.
        addon: the wish: a name, a function, or a list of them.
        env: an id, or a function that makes one environment; by default the one that the prior's file names.
        omega: the weight of the prior; where neither this nor `states` nor `value` is given, what does best in short
            trials, else what a nat of its log-probability is worth.
        states: the price on states that the prior does not visit; the same holds.
        value: count what is still to come after a plan's end, by a value that is fitted to the prior's episodes.
        search: how plans are looked for: samples, horizon and so on.
        learned: simulate with a model that is learnt from the prior's own steps, in place of the environment's.
        options: how the prior's file is read, where that is another library's.
        trust: run code that the prior's file names.
        say: hears of what takes a while.
    """
    for what, weight in (("omega", omega), ("states", states)):
        if not isinstance(weight, Real | None):
            raise UsageError(f"{what} is {weight!r}; a planner takes a number, or finds one where it is None")
    residual(omega, states=states)  # which refuses weights that cannot be
    start = open_prior(prior, options, trust=trust)
    if start.saved is None:
        raise UsageError(f"{start.name} cannot be copied, and a planner asks its prior in every simulated step")
    policy = start.saved.policy
    choices = policy.actions.kind == "discrete"
    several = len(policy.actions.sizes) > 1
    if choices and (several or value or learned):
        what = "makes several choices at once" if several else "makes choices"
        raise UsageError(
            f"{start.name} {what}: a tree is for one choice a step, in copies, and has no use for --value or --learned"
        )
    place = start.env(trust) if env is None else env_name(env)
    wishes = names(addon)
    wish = _wish_in(place, wishes)
    search = search or Search()
    check_fit(policy, probed(place), "the prior")

    # The weights, unless they are named: by what a nat is worth, or from there by trial.
    tries = omega is None and states is None and not value and not choices
    notes = list[str]()
    if omega is None or states is None:
        task = InEnvs(start.saved.card, policy, Settings(), say, place, wishes)
        weights, _, reward = task.weights("--omega and --states")
        if weights is None:
            raise UsageError("what a nat of the prior is worth cannot be told: name --omega and --states")
        found = [f"omega is {weights.omega:.3g}"] if omega is None else []
        found += [f"states {'' if found else 'is '}{weights.states:.3g}"] if states is None else []
        omega = weights.omega if omega is None else omega
        states = weights.states if states is None else states
        notes = [f"{' and '.join(found)}, by what a nat of the prior is worth of {reward}"]
    model, note = model_of(policy, place, learned, search.seed, say)
    with one_thread():
        if states:
            check_learnable(policy)
        rollouts = rollouts_in(policy, place, search.seed) if states or tries or value else []
        density = density_in(rollouts, policy, wanted(Settings().steps)) if states else None
        score = Score(wish, omega, states, search.discount, density, None)
        if tries:
            say("trying weights of the prior in a plan, which takes a minute or two (--omega goes without)")
            score, sentence = chosen(policy, place, model, score, search, rollouts)
            notes = [sentence]
        elif value:
            score = replace(score, value=fitted_value(policy, rollouts, score, search.seed))
    if note:
        notes.append(note)
    search = search.filled(choices, score.value is not None)
    return Planned(policy, model, score, search, saved=start.saved, env=place, addons=wishes, notes=tuple(notes))


def _wish_in(env: str, wishes: tuple[str, ...]) -> Addon:
    """Return what the wishes pay; refused where none is named or a simulation cannot tell it."""
    if not wishes:
        raise UsageError("a planner needs a wish: name an add-on")
    check_env(wishes, env)
    check_plain(env, "a planner")
    wish = combined(wishes)
    if wish.with_past:
        raise UsageError(
            f"add-on {wish.with_past[0]!r} has a past, and a planner's simulations begin without one: customize with it"
        )
    return wish


def model_of(prior: Policy, env: str, learned: bool, seed: int, say: Say) -> tuple[Model, str]:
    """Return what simulates an environment, and what there is to say of it.

    It is a learned model where that is asked for, else MuJoCo in batches, else copies.
    """
    if learned:
        say("learning a model from the prior's steps, which takes up to a minute")
        model = LearnedModel(prior, env, seed)
        return model, model.note
    if prior.actions.kind == "discrete":
        return CopyModel(env, seed), ""
    try:
        return MujocoModel(env), ""
    except CannotBatchError as error:
        return CopyModel(env, seed), f"{error}: copies of it are simulated, which is slow"


# What the prior weighs in a plan -------------------------------------------------------------------------------------

# It is found by trial, since no one weight serves every robot. A judge watches some hundred steps of each candidate. It
# pays the wish, less the nats by which actions and states are less likely than the prior's own, at half of what a nat
# is worth: at the whole it is too cautious to tell the candidates for HalfCheetah apart. The best paid one is taken.
# The old reward is not asked.

ENVS, STEPS, SEED = 4, 150, 30_000  # of a trial, with a seed far from those of evaluations
SAMPLES = 32  # at most, in a trial
PRICE = 0.5  # of a nat to the judge, as a share of its worth


class Candidate(NamedTuple):
    """Shares of what a nat is worth, and whether there is a value at a plan's end."""

    omega: float
    states: float
    value: bool


CANDIDATES = (Candidate(1.0, 1.0, False), Candidate(1 / 3, 1.0, False), Candidate(1 / 3, 1 / 3, True))


def chosen(
    prior: Policy, env: str, model: Model, worth: Score, search: Search, rollouts: Sequence[Rollout]
) -> tuple[Score, str]:
    """Return the candidate that is paid best, and a sentence about it. The weights of `worth` are that of a nat."""
    judge = replace(worth, omega=PRICE * worth.omega, states=PRICE * worth.states)
    brief = replace(search, samples=min(SAMPLES, search.samples or SAMPLES))
    scores = list(candidates(prior, rollouts, worth, search.seed))
    payments = []
    for score in scores:
        planner = Planner(prior, model, score, brief.filled(False, score.value is not None))
        payments.append(paid(planner, prior, env, judge))
    best = scores[int(np.argmax(payments))]
    trials = "; ".join(f"{words(score)}: {payment:.3g}" for score, payment in zip(scores, payments, strict=True))
    return best, f"omega is {best.omega:.3g} and states {best.states:.3g}, by what trials were paid a step ({trials})"


def candidates(prior: Policy, rollouts: Sequence[Rollout], worth: Score, seed: int) -> Iterator[Score]:
    """Yield the scores to try. Those with a value are tried where episodes of the prior end early, and late enough.

    Where none ends, a value tells of no fall, and its error made plans worse that the judge found better.
    """
    for omega, states, value in CANDIDATES:
        score = replace(worth, omega=omega * worth.omega, states=states * worth.states)
        if not value:
            yield score
            continue
        with suppress(UsageError):
            yield replace(score, value=fitted_value(prior, rollouts, score, seed, of_ends=True))


def words(score: Score) -> str:
    weights = f"{score.omega:.3g} and {score.states:.3g}"
    return weights if score.value is None else f"{weights} with a value"


def paid(agent: Agent, prior: Policy, env: str, judge: Score) -> float:
    """Return what a judge pays an agent a step, in a few episodes. How these begin is not the agent's doing."""
    with closing(make_envs(env, ENVS, SEED, getattr(agent, "backend", "auto"))) as envs:
        rollout = Collector(envs, STEPS, torch.Generator(), keep_transitions=True).collect(agent, deterministic=True)
    return float(rewards_of(prior, rollout, judge)[(rollout.ages > SKIPPED) | rollout.terminated].mean())


FEW, MORE, MOST = 8, 32, 1024  # samples: the least that is taken and is measured, what is measured too, the most
DECISIONS = 5  # of each; their median counts
SHARE = 0.8  # of the time, that planning may take


def paced(made: Planned, hz: float) -> Planned:
    """Return the planner with what fits so many decisions a second."""
    with one_thread(), closing(make_envs(made.env, 1, made.search.seed, made.backend)) as envs:
        made.watch(envs)
        return replace(made, search=within(made, envs.reset(), SHARE / hz).search)


def within(planner: Planner, observations: np.ndarray, seconds: float) -> Planner:
    """Return the planner with the most samples that a decision of so many seconds has time for.

    The time grows with the samples in a straight line. Where the least do not fit, the horizon is halved.
    """
    few, more = (took(planner, observations, samples) for samples in (FEW, MORE))
    fits = FEW + math.floor((seconds - few) * (MORE - FEW) / max(more - few, 1e-9))
    if fits >= FEW:
        return replace(planner, search=replace(planner.search, samples=min(fits, MOST)))
    if planner.search.horizon == 1:
        raise UsageError(f"a decision takes {few:.2g} s with {FEW} samples of one step, and has {seconds:.2g} s")
    shorter = replace(planner.search, horizon=planner.search.horizon // 2)
    return within(replace(planner, search=shorter), observations, seconds)


def took(planner: Planner, observations: np.ndarray, samples: int) -> float:
    """Return how many seconds a decision with so many samples takes."""
    trial = replace(planner, search=replace(planner.search, samples=samples), tally=Tally())
    times = list[float]()
    for _ in range(DECISIONS):
        began = perf_counter()
        trial.actor(1, 1)(observations)
        times.append(perf_counter() - began)
    return median(times)
