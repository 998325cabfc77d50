"""A worker at its first iteration, without a run around it."""

from pathlib import Path

import numpy as np
from shaken import shaken
from tiny_envs import tiny
from torch import Tensor

from repolicy.envs.making import make_envs
from repolicy.learning.segments import Segments
from repolicy.learning.worker import Worker
from repolicy.objective import Objective
from repolicy.policies.file import save_policy
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request, spec_for
from repolicy.runs.settings import Settings

SETTINGS = Settings(ranks=1, envs=4, n_steps=13, minibatch=16, epochs=2, hidden=(8,), gamma=0.9, steps=10_000)


def worker(
    tmp_path: Path, env: str, objective: Objective, prior: bool = False, settings: Settings = SETTINGS
) -> Worker:
    return segments(tmp_path, env, objective, prior, settings).worker


def segments(
    tmp_path: Path, env: str, objective: Objective, prior: bool = False, settings: Settings = SETTINGS
) -> Segments:
    """A worker at the start of its first segment, whose critic is not flat and whose normalizer has seen something."""
    folder = RunFolder(tmp_path / "run")
    if prior:
        policy = shaken(Policy(spec_for(make_envs(tiny(env), 1, 0), settings)))
        policy.normalizer.update(seen(policy.spec.observation_size))
        save_policy(folder.prior, policy, {})
    addons = (tiny("stay_near"),) if objective.reads_addon else ()
    made = Segments(
        Request(tiny(env), objective, settings, addons, "a checksum" if prior else ""), folder, SingleRank()
    )
    if not prior:
        made.worker.learner.policy.normalizer.update(seen(made.worker.learner.policy.spec.observation_size))
    made.begin()
    return made


def seen(size: int) -> Tensor:
    return moment_sums(np.random.default_rng(0).normal(1.0, 3.0, (100, size)).astype(np.float32))
