"""Policies that are compared, and the points of a sweep."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tiny_envs import tiny

from repolicy.many.pool import Job
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.kinds import MeanPrior

GOOD, BAD = (MeanPrior(lambda seen, gain=gain: gain * seen, 0.1) for gain in (-0.9, 0.9))
QUADRATIC = tiny("LinearQuadratic")


def constant(action: float) -> Policy:
    """A policy whose mean action is always this one; its samples are close to it."""
    policy = Policy(PolicySpec(2, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(2,), initial_std=0.01))
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1].fill_(action)
    return policy


def a_file(place: Path, env: str | None = QUADRATIC, size: int = 1, seed: int = 0, **request: Sequence[str]) -> str:
    """Save a policy, and return its path."""
    torch.manual_seed(seed)
    policy = Policy(PolicySpec(size, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(4,)))
    save_policy(place, policy, {} if env is None else {"request": {"env": env, **request}})
    return str(place)


def point_jobs_replaced(monkeypatch: pytest.MonkeyPatch, each: Callable[[Job], str | None]) -> list[int]:
    """Do this with each point's job in place of its training, and return a list of how many were at work at once."""
    counts = list[int]()

    def work(jobs: list[Job], start: object, at_once: int, on_end: Callable[[Job, str], None], on_poll: object) -> None:
        counts.append(at_once)
        for job in jobs:
            on_end(job, each(job) or "")

    monkeypatch.setattr("repolicy.many.sweep.run_jobs", work)
    return counts
