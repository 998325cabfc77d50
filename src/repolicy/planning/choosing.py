"""What the prior weighs in a plan, found by trial, since no one weight serves every robot.

A judge watches some hundred steps of each candidate. It pays the wish, less the nats by which actions and states are
less likely than the prior's own, at half of what a nat is worth: at the whole it is too cautious to tell the candidates
for HalfCheetah apart. The best paid one is taken. The old reward is not asked.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector, Rollout
from repolicy.errors import UsageError
from repolicy.planning.model import Model
from repolicy.planning.planner import Planner, Search
from repolicy.planning.scoring import Score
from repolicy.planning.value import fitted_value, rewards_of
from repolicy.policies.policy import Agent, Policy
from repolicy.prepare.states import SKIPPED

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
    tried = replace(search, samples=min(SAMPLES, search.samples or SAMPLES))
    scores = list(candidates(prior, rollouts, worth, search.seed))
    judge = replace(worth, omega=PRICE * worth.omega, states=PRICE * worth.states)
    planners = [Planner(prior, model, score, tried.filled(False, score.value is not None)) for score in scores]
    payments = [paid(planner, prior, env, judge) for planner in planners]
    score = scores[int(np.argmax(payments))]
    told = "; ".join(f"{words(each)}: {payment:.3g}" for each, payment in zip(scores, payments, strict=True))
    return score, f"omega is {score.omega:.3g} and states {score.states:.3g}, by what trials were paid a step ({told})"


def candidates(prior: Policy, rollouts: Sequence[Rollout], worth: Score, seed: int) -> Iterator[Score]:
    """Yield the scores to try. Those with a value are tried where episodes of the prior end early, and late enough.

    Where none ends, a value tells of no fall, and its error made plans worse that the judge found better.
    """
    for omega, states, value in CANDIDATES:
        score = replace(worth, omega=omega * worth.omega, states=states * worth.states)
        with contextlib.suppress(UsageError):
            yield replace(score, value=fitted_value(prior, rollouts, score, seed, of_ends=True) if value else None)


def words(score: Score) -> str:
    return f"{score.omega:.3g} and {score.states:.3g}" + " with a value" * (score.value is not None)


def paid(agent: Agent, prior: Policy, env: str, judge: Score) -> float:
    """Return what a judge pays an agent a step, in a few episodes. How these begin is not the agent's doing."""
    with contextlib.closing(make_envs(env, ENVS, SEED, getattr(agent, "backend", "auto"))) as envs:
        collector = Collector(envs, STEPS, torch.Generator(), keep_transitions=True)
        rollout = collector.collect(agent, deterministic=True)
    return float(rewards_of(prior, rollout, judge)[(rollout.ages > SKIPPED) | rollout.terminated].mean())
