"""Estimate how many environment steps a customization takes in all, not only those that it trains on."""

import math
from typing import NamedTuple

from repolicy.envs import probe_env
from repolicy.evaluation import EPISODE_CAP
from repolicy.prepare import states, weights
from repolicy.prepare.claiming import FINGERPRINT_STEPS
from repolicy.runs import Request

ENVS_PER_PROBE = 8  # training environments for each environment that measures the mean action, for limits and keep
RETURN_EPISODES = 32  # episodes that measure the return of a policy


class Spending(NamedTuple):
    """Upper bounds on a run's environment steps by purpose; for a generative policy, on its decisions."""

    trials: int = 0  # trial rollouts, to check the add-on and to recognize a resumed run
    weights: int = 0  # measuring the worth of a nat
    untrained: int = 0  # evaluating a generative policy without training
    states: int = 0  # learning the prior's states
    training: int = 0
    evaluations: int = 0
    limits: int = 0  # measuring limits and returns of the mean action

    def sentence(self, chunk: int = 1) -> str:
        """Return `22,752 steps of the environment in all: 2,304 to try the wish, ...`."""
        purposes = (
            "to try the wish", "to find the weights", "without training", "for the prior's states", "to train",
            "for evaluations", "to measure what is held",
        )  # fmt: skip
        parts = [f"{count:,} {purpose}" for count, purpose in zip(self, purposes, strict=True) if count]
        unit = "steps of the environment" if chunk == 1 else f"decisions, of {chunk} steps of the environment each,"
        return f"{sum(self):,} {unit} in all: {', '.join(parts)}"


def estimate_spending(
    request: Request, weights_steps: int = 0, length: float = EPISODE_CAP, untrained_steps: int = 0, trials: int = 1
) -> Spending:
    """Return the steps of a run.

    `weights_steps` and `untrained_steps` were taken already: to find the weights, and to evaluate without training.
    `trials` is the number of trial rollouts, and `length` the episode length where the environment has no time limit.
    """
    settings = request.settings
    longest = probe_env(request.env, settings.backend).limit or math.ceil(length)
    segments = math.ceil(settings.iterations / settings.checkpoint_every)
    episodes = settings.evaluation_episodes and max(1, settings.evaluation_episodes // settings.ranks) * settings.ranks
    limit_steps = 0
    if request.limits or settings.keep:
        probes = settings.ranks * probe_count(settings.envs // settings.ranks)
        limit_steps += probes * settings.n_steps * settings.iterations
    if settings.keep:
        limit_steps += 3 * RETURN_EPISODES * longest  # of the prior before and after the run, and of its policy
    return Spending(
        trials=weights.TRIAL_ENVS * (trials * weights.TRIAL_STEPS + FINGERPRINT_STEPS),
        weights=weights_steps,
        untrained=untrained_steps,
        states=states.steps_to_collect(settings.steps) if request.objective.reads_states else 0,
        training=settings.iterations * settings.iteration_steps,
        evaluations=(segments + 1) * episodes * longest,
        limits=limit_steps,
    )


def probe_count(envs: int) -> int:
    """Return the number of environments that measure the mean action, beside `envs` training environments."""
    return max(1, envs // ENVS_PER_PROBE)
