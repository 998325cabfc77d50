"""How many steps a customization asks its environment for: not only those that it trains on."""

import math
from contextlib import closing
from typing import NamedTuple

from repolicy.envs.evaluation import LONGEST
from repolicy.envs.making import make_envs
from repolicy.prepare import states, weights
from repolicy.prepare.session import KEPT
from repolicy.runs.request import Request


class Spending(NamedTuple):
    """Steps of the environment until a run ends, by what they are for; episodes that end early take fewer."""

    trials: int  # of the wish, and by which the run is known again
    worth: int  # to measure what a nat is worth
    states: int  # to learn the prior's states
    training: int
    evaluations: int  # while it trains

    @property
    def sentence(self) -> str:
        """`22,752 steps of the environment in all: 2,304 to try the wish, ...`."""
        whats = ("to try the wish", "to measure a nat", "for the prior's states", "to train", "for evaluations")
        parts = [f"{count:,} {what}" for count, what in zip(self, whats, strict=True) if count]
        return f"{sum(self):,} steps of the environment in all: {', '.join(parts)}"


def spending(request: Request, worth: int = 0, length: float = LONGEST) -> Spending:
    """Return what a run is going to take.

    `worth` are the steps that were taken for that, `length` those of an episode whose time limit is not told.
    """
    settings = request.settings
    with closing(make_envs(request.env, 1, 0, settings.backend)) as envs:
        longest = envs.limit or math.ceil(length)
    segments = math.ceil(settings.iterations / settings.checkpoint_every)
    episodes = settings.evaluation_episodes and max(1, settings.evaluation_episodes // settings.ranks) * settings.ranks
    observations = states.wanted(settings.steps) if request.objective.reads_states else 0
    return Spending(
        trials=weights.ENVS * (weights.STEPS + KEPT),
        worth=worth,
        states=observations + observations // states.EACH * states.SKIPPED,
        training=settings.iterations * settings.iteration_steps,
        evaluations=(segments + 1) * episodes * longest,
    )
