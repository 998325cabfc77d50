"""As many samples as fit into the time between two decisions, as this machine has it now."""

import math
from contextlib import closing
from dataclasses import replace
from statistics import median
from time import perf_counter

import numpy as np

from repolicy.envs import make_envs
from repolicy.errors import UsageError
from repolicy.planning.asking import Planned
from repolicy.planning.planner import Planner
from repolicy.runs import one_thread

FEW, MORE, MOST = 8, 32, 1024  # samples: the least that is taken and is measured, what is measured too, the most
DECISIONS = 5  # of each; their median counts
SHARE = 0.8  # of the time, that planning may take


def paced(made: Planned, hz: float) -> Planned:
    """Return the planner with what fits so many decisions a second."""
    with one_thread(), closing(make_envs(made.env, 1, made.planner.search.seed, made.planner.backend)) as envs:
        made.planner.watch(envs)
        return replace(made, planner=within(made.planner, envs.reset(), SHARE / hz))


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
    trial, times = replace(planner, search=replace(planner.search, samples=samples)), list[float]()
    for _ in range(DECISIONS):
        began = perf_counter()
        trial.actor(1, 1)(observations)
        times.append(perf_counter() - began)
    return median(times)
