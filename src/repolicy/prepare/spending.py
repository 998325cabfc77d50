"""How many steps a customization asks its environment for: not only those that it trains on."""

import math
from typing import NamedTuple

from repolicy.envs import EPISODE_CAP, probe_env
from repolicy.prepare import states, weights
from repolicy.prepare.session import FINGERPRINT_STEPS
from repolicy.runs import Request

ENVS_PER_PROBE = 8  # for so many environments that train there is one with the mean action, where something is held
RETURN_EPISODES = 32  # by which it is known what a policy earns


class Spending(NamedTuple):
    """Steps until a run ends, by what they are for, or decisions of a generative policy; episodes may take fewer."""

    trials: int = 0  # of the wish, and by which the run is known again
    weights: int = 0  # to find them, mostly by what a nat is worth
    free: int = 0  # to tell what a generative policy gives without training
    states: int = 0  # to learn the prior's states
    training: int = 0
    evaluations: int = 0  # while it trains
    held: int = 0  # to measure what is held with the mean action

    def sentence(self, chunk: int = 1) -> str:
        """Return `22,752 steps of the environment in all: 2,304 to try the wish, ...`."""
        whats = (
            *("to try the wish", "to find the weights", "without training", "for the prior's states", "to train"),
            *("for evaluations", "to measure what is held"),
        )
        parts = [f"{count:,} {what}" for count, what in zip(self, whats, strict=True) if count]
        what = "steps of the environment" if chunk == 1 else f"decisions, of {chunk} steps of the environment each,"
        return f"{sum(self):,} {what} in all: {', '.join(parts)}"


def estimate_spending(
    request: Request, found: int = 0, length: float = EPISODE_CAP, free: int = 0, trials: int = 1
) -> Spending:
    """Return what a run is going to take.

    `found` and `free` are the steps that were taken for the weights and without training, `trials` how often some
    steps of the prior were, and `length` those of an episode whose time limit is not told.
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
    """Return in how many environments the mean action is measured, beside so many that train."""
    return max(1, envs // ENVS_PER_PROBE)
