"""Estimate how many environment steps a customization takes in all, not only those that it trains on."""

import math

from repolicy.envs import probe_env
from repolicy.evaluation import BLOCK_STEPS, EPISODE_CAP
from repolicy.prepare import states, weights
from repolicy.prepare.claiming import COMPARED_STEPS
from repolicy.runs import Request

ENVS_PER_PROBE = 8  # training environments for each environment that measures the mean action, for limits and keep
RETURN_EPISODES = 32  # episodes that measure the return of a policy
COMPARISON_FACTOR = 4  # times the episodes of a short evaluation, for comparing an earlier policy with the last one


def estimate_spending(
    request: Request,
    weights_steps: int = 0,
    length: float = EPISODE_CAP,
    untrained_steps: int = 0,
    fitting_steps: int = 0,
) -> dict[str, int]:
    """Return about the most steps that a run takes, by purpose; of a generative policy, decisions.

    `weights_steps`, `untrained_steps` and `fitting_steps` were taken already: to find the weights, to evaluate without
    training, and to fit the actor to a prior that cannot be copied. `length` is the episode length where the
    environment has no time limit.
    """
    settings = request.settings
    limit = probe_env(request.env, settings.backend).limit
    longest = BLOCK_STEPS * math.ceil((limit or length) / BLOCK_STEPS)
    segments = math.ceil(settings.iterations / settings.checkpoint_every)
    episodes = settings.evaluated_episodes
    comparisons = 2 * COMPARISON_FACTOR if request.is_comparable else 0
    evaluations = segments + request.is_comparable  # the first policy is one that may be the result
    trials = 1 + bool(request.limits or not request.is_judged_by_mean)  # one more for limits, or a noise's normalizer
    limit_steps = 0
    if request.limits or settings.keep:
        probes = settings.ranks * probe_count(settings.envs // settings.ranks)
        limit_steps += probes * settings.n_steps * settings.iterations
    if settings.keep:
        limit_steps += RETURN_EPISODES * longest  # of the prior
    state_steps = states.steps_to_collect(settings.steps, limit) if request.objective.reads_states else 0
    return {
        "to fit the actor": fitting_steps,
        "to try the wish": weights.TRIAL_ENVS * (trials * weights.TRIAL_STEPS + COMPARED_STEPS),
        "to find the weights": weights_steps,
        "without training": untrained_steps,
        "for the prior's states": state_steps,
        "to train": settings.iterations * settings.iteration_steps,
        "for evaluations": evaluations * episodes * longest,
        "to compare an earlier policy with the last, if it seems better": comparisons * episodes * longest,
        "to measure what is held": limit_steps,
    }


def describe_spending(steps: dict[str, int], chunk: int = 1) -> str:
    """Return `22,752 steps of the environment in all: 2,304 to try the wish, ...`."""
    parts = [f"{count:,} {purpose}" for purpose, count in steps.items() if count]
    unit = "steps of the environment" if chunk == 1 else f"decisions, of {chunk} steps of the environment each,"
    return f"{sum(steps.values()):,} {unit} in all: {', '.join(parts)}"


def probe_count(envs: int) -> int:
    """Return the number of environments that measure the mean action, beside `envs` training environments."""
    return max(1, envs // ENVS_PER_PROBE)
