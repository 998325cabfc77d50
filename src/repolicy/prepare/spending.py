"""Count the environment steps that a customization takes in all, not only those that it trains on."""

import math
from typing import NamedTuple

from repolicy.envs import EPISODE_CAP, probe_env
from repolicy.prepare import states, weights
from repolicy.prepare.session import FINGERPRINT_STEPS
from repolicy.runs import Request

ENVS_PER_PROBE = 8  # training environments for each one that runs the mean action, where a limit or keep needs it
RETURN_EPISODES = 32  # episodes that measure the return of a policy


class Spending(NamedTuple):
    """Upper bounds on a run's steps by purpose; of a generative policy, on its decisions."""

    trials: int = 0  # trial rollouts, to check the add-on and to recognize a resumed run
    weights: int = 0  # measuring the worth of a nat
    free: int = 0  # evaluating a generative policy without training
    states: int = 0  # learning the prior's states
    training: int = 0
    evaluations: int = 0
    held: int = 0  # measuring limits and returns of the mean action

    def sentence(self, chunk: int = 1) -> str:
        """Return `22,752 steps of the environment in all: 2,304 to try the wish, ...`."""
        purposes = (
            "to try the wish", "to find the weights", "without training", "for the prior's states", "to train",
            "for evaluations", "to measure what is held",
        )  # fmt: skip
        parts = [f"{count:,} {purpose}" for count, purpose in zip(self, purposes, strict=True) if count]
        what = "steps of the environment" if chunk == 1 else f"decisions, of {chunk} steps of the environment each,"
        return f"{sum(self):,} {what} in all: {', '.join(parts)}"


def estimate_spending(
    request: Request, found: int = 0, length: float = EPISODE_CAP, free: int = 0, trials: int = 1
) -> Spending:
    """Return the steps of a run.

    `found` and `free` are steps that were taken already: for the weights, and without training. `trials` is the number
    of trial rollouts, and `length` the episode length where the environment has no time limit.
    """
    settings = request.settings
    longest = probe_env(request.env, settings.backend).limit or math.ceil(length)
    segments = math.ceil(settings.iterations / settings.checkpoint_every)
    episodes = settings.evaluation_episodes and max(1, settings.evaluation_episodes // settings.ranks) * settings.ranks
    held = 0
    if request.limits or settings.keep:
        probes = settings.ranks * probe_count(settings.envs // settings.ranks)
        held += probes * settings.n_steps * settings.iterations
    if settings.keep:
        held += 3 * RETURN_EPISODES * longest  # of the prior before and after the run, and of its policy
    return Spending(
        trials=weights.TRIAL_ENVS * (trials * weights.TRIAL_STEPS + FINGERPRINT_STEPS),
        weights=found,
        free=free,
        states=states.steps_to_collect(settings.steps) if request.objective.reads_states else 0,
        training=settings.iterations * settings.iteration_steps,
        evaluations=(segments + 1) * episodes * longest,
        held=held,
    )


def probe_count(envs: int) -> int:
    """Return the number of environments that run the mean action, for `envs` that train."""
    return max(1, envs // ENVS_PER_PROBE)
