"""Fit a clone to a prior that cannot be copied: a policy as which the actor can start.

Some priors give mean actions, others only log-probabilities. Means are fitted by regression: first on the prior's
rollouts, then on the clone's own, in states that only its errors lead to. Where only log-probabilities are known, the
prior scores samples of the clone; no samples of the prior are needed.
"""

import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Collector, HasSpaces, Rollout, make_envs
from repolicy.errors import UsageError
from repolicy.evaluation import Evaluation, evaluate
from repolicy.policies import (
    Adam,
    Gaussian,
    Policy,
    PolicySpec,
    SavedPolicy,
    frozen,
    make_policy,
    one_thread,
    policy_bytes,
    read_card,
)
from repolicy.priors import MeanPrior, Samples, ScoredPrior, ScoringPrior, State, fit, fit_normalizer, read_policy
from repolicy.runs import Settings, Stream, derived_seed
from repolicy.text import Say, with_minus

REGRESSION_ROUNDS = 3  # the first on the prior's rollouts, the others on the clone's
FIT_EPOCHS = 30  # maximum for a round of regression
STEPS_PER_ROUND = 32_768  # environment steps; fewer where the whole run is shorter
ENVS, BLOCK = 32, 64  # environments, and steps of each in a rollout
# SCORED_*: for priors that give only log-probabilities.
SCORED_ROUNDS = 8  # more than for regression, because the clone must find the prior's states itself
SCORED_DRAWS, SCORED_MINIBATCH, SCORED_EPOCHS = 16, 128, 4
SCORED_STATES = 8_192  # states in an epoch
SCORED_RATE = 1e-3  # first learning rate; it falls to a fiftieth
COMPARISON_EPISODES = 8  # to measure how far the clone is from the prior, where a run has no evaluation
KL_WARNING = 0.5  # nats a step; beyond this distance from the prior, the user is warned
NEGATIVE_KL_WARNING = -0.1  # nats a step; an estimate this far below 0 is not due to few episodes
MAX_EPISODE_STEPS = 1_000  # in an episode of `compare_clone`


def clone(prior: ScoringPrior, env: str, settings: Settings, file: Path, say: Say) -> tuple[SavedPolicy, bytes]:
    """Fit a policy to the prior, and return it with the content of its file.

    If `file` already holds a clone, that one is returned instead; `claim_folder` sees whether it is of this prior.
    """
    if file.is_file() and "clone_of" in read_card(file):
        return read_policy(file), file.read_bytes()
    say(f"{name_of(prior)} runs as it is; a policy is fitted to it, to be the actor")
    with one_thread():  # the same bits however many threads a process has: torchrun gives each rank one
        policy, steps = fit_clone(prior, env, settings)
        kl, evaluations = compare_clone(prior, policy, env, settings)
    say(comparison_sentence(name_of(prior), kl, evaluations))
    steps += sum(each.environment_steps for each in evaluations)
    found = {"kl": kl, "episodes": len(evaluations[0].lengths), "prior": name_of(prior), "steps": steps}
    card = {"which": "clone", "clone_of": found}
    return SavedPolicy(frozen(policy), None, card), policy_bytes(policy, card)


def name_of(prior: ScoringPrior) -> str:
    return "the prior" if isinstance(prior, Policy) else prior.name


# Fitting --------------------------------------------------------------------------------------------------------------


def fit_clone(prior: ScoringPrior, env: str, settings: Settings) -> tuple[Policy, int]:
    """Fit a clone to the prior with the run's seed; return it with the number of environment steps."""
    seed = derived_seed(settings.seed, 0, Stream.CLONE)
    blocks = max(1, round(min(STEPS_PER_ROUND, settings.steps) / (ENVS * BLOCK)))
    with closing(make_envs(env, ENVS, seed, settings.backend)) as envs:
        policy = make_policy(clone_spec(prior, envs), seed)
        collector = Collector(envs, BLOCK, torch.Generator().manual_seed(seed))
        if isinstance(prior, ScoredPrior):
            rounds = SCORED_ROUNDS
            _fit_to_scores(prior, policy, collector, blocks)
        else:
            rounds = REGRESSION_ROUNDS
            _fit_to_means(prior, policy, collector, blocks)
    return policy, rounds * blocks * ENVS * BLOCK


def clone_spec(prior: ScoringPrior, spaces: HasSpaces) -> PolicySpec:
    """Return the clone's architecture."""
    width = min(256, max(64, 2 ** math.ceil(math.log2(8 * spaces.observation_size))))
    hidden = (width, width)
    if isinstance(prior, Policy):
        spec = prior.spec
        if spec.family.startswith("features"):
            raise UsageError("a policy with gSDE's std is copied, and not fitted: leave --init out")
        return PolicySpec(
            spec.observation_size, spec.actions, spec.family, hidden, "elu", min_std=0.0, clips=spec.clips
        )
    actions, std = spaces.actions, 0.5
    if isinstance(prior, MeanPrior):
        std = float(prior.std.mean())
    family = "gaussian" if actions.kind == "continuous" else "categorical"
    return PolicySpec(spaces.observation_size, actions, family, hidden, "elu", initial_std=std, min_std=0.0)


def _fit_to_means(prior: MeanPrior | Policy, policy: Policy, collector: Collector, blocks: int) -> None:
    """Fit the policy to the prior's means, first in the prior's states and then in the clone's (DAgger)."""
    if isinstance(prior, MeanPrior) and policy.log_std is not None:
        policy.log_std.data.copy_(prior.std.log().expand_as(policy.log_std))
    samples: Samples | None = None
    memory: State | None = None  # the prior's recurrent state, carried on from block to block
    for round_ in range(REGRESSION_ROUNDS):
        agent = prior if round_ == 0 else policy
        for _ in range(blocks):
            new_samples, memory = _label_rollout(prior, collector.collect(agent), memory, collector.generator)
            samples = new_samples if samples is None else samples + new_samples
        assert samples is not None
        if round_ == 0:
            initialize_from_samples(policy, samples)
        fit(policy, samples, collector.generator, max_epochs=FIT_EPOCHS)


def initialize_from_samples(policy: Policy, samples: Samples) -> None:
    """Set the normalizer to the observations' statistics, and the output bias to the mean of continuous actions."""
    fit_normalizer(policy, samples.observations)
    if policy.actions.kind == "continuous":
        policy.network.biases[-1].data[: policy.actions.width] = samples.actions.mean(0)


@torch.no_grad()
def _label_rollout(
    prior: MeanPrior | Policy, rollout: Rollout, memory: State | None, generator: torch.Generator
) -> tuple[Samples, State | None]:
    """Return the prior's actions along a rollout as regression targets, and its memory after the rollout."""
    observations, _, ended = rollout.prior_inputs
    if isinstance(prior, Policy):
        distribution = prior(observations)
    else:
        distribution, memory = prior.follow(observations, ended, memory)
    spread = None
    if isinstance(distribution, Gaussian):
        actions = distribution.mean
        spread = distribution.log_std.exp().expand_as(actions).flatten(0, 1)
    else:
        actions = distribution.sample(generator)
    return Samples(observations.flatten(0, 1), actions.flatten(0, 1), spread), memory


def _fit_to_scores(prior: ScoredPrior, policy: Policy, collector: Collector, blocks: int) -> None:
    """Minimize KL(clone ‖ prior) in the clone's states, by score-function gradients.

    The baseline of each sample is the mean of the others in its state. Where both policies agree, all samples have the
    same value, so the gradient is exactly 0 even for few samples.
    """
    stds = [] if policy.log_std is None else [policy.log_std]
    if policy.log_std is not None:
        sizes = np.subtract(policy.actions.high, policy.actions.low)
        if np.isfinite(sizes).all():  # each number of an action has a scale of its own
            policy.log_std.data.copy_(torch.from_numpy(0.25 * sizes).log())
    adam = Adam(policy.network.parameters(), SCORED_RATE, quick=stds, factor=10.0)
    generator, total = collector.generator, SCORED_ROUNDS * SCORED_EPOCHS
    for round_ in range(SCORED_ROUNDS):
        states = torch.cat([collector.collect(policy).prior_inputs[0].flatten(0, 1) for _ in range(blocks)])
        if round_ == 0:
            fit_normalizer(policy, states)
        for epoch in range(round_ * SCORED_EPOCHS, (round_ + 1) * SCORED_EPOCHS):
            adam.rate = SCORED_RATE * max(0.02, 1.0 - epoch / total)
            for rows in torch.randperm(len(states), generator=generator)[:SCORED_STATES].split(SCORED_MINIBATCH):
                adam.descend(score_loss(prior, policy, states[rows], generator))


def score_loss(prior: ScoringPrior, policy: Policy, states: Tensor, generator: torch.Generator) -> Tensor:
    """Return a loss whose expected gradient is that of KL(policy ‖ prior) in these states."""
    repeated_states = states.unsqueeze(0).expand(SCORED_DRAWS, *states.shape)
    distribution = policy(repeated_states)
    with torch.no_grad():
        actions = distribution.sample(generator)
        log_ratio = distribution.log_prob(actions) - prior.log_prob(repeated_states, actions)
        weight = (log_ratio - log_ratio.mean(0)) * (SCORED_DRAWS / (SCORED_DRAWS - 1))
    log_probs: Tensor = distribution.log_prob(actions)
    return (weight * log_probs).mean()


# Comparing clone and prior --------------------------------------------------------------------------------------------


def compare_clone(prior: ScoringPrior, policy: Policy, env: str, settings: Settings) -> tuple[float, list[Evaluation]]:
    """Return KL(clone ‖ prior) a step, in the clone's own states, and episodes of the clone and of the prior.

    Both begin alike and sample their actions. A prior that only scores actions has no episodes.
    """
    episodes = settings.evaluation_episodes or COMPARISON_EPISODES
    how: dict[str, Any] = {"seed": settings.seed, "backend": settings.backend, "longest": MAX_EPISODE_STEPS}
    agents = [agent for agent in (policy, prior) if not isinstance(agent, ScoredPrior)]
    evaluations = [evaluate(agent, env, episodes, prior=prior, deterministic=False, **how) for agent in agents]
    of_clone = evaluations[0]
    assert of_clone.log_prior is not None
    kl = float((of_clone.log_policy - of_clone.log_prior).sum() / of_clone.lengths.sum())
    return kl, evaluations


def comparison_sentence(name: str, kl: float, evaluations: list[Evaluation]) -> str:
    """Return how far the clone is from the prior of this name, and what a distance that is too large means."""
    episodes = len(evaluations[0].lengths)
    text = f"the actor is {with_minus(f'{kl:.3g}')} nats a step from {name} (KL, {episodes} episodes)"
    rewards = [each.columns["basic_reward"].describe() for each in evaluations if "basic_reward" in each.columns]
    if rewards:
        prior_reward = f" where the prior has {rewards[1]}" if len(rewards) > 1 else ""
        text += f", with a basic reward of {rewards[0]}{prior_reward} (mean ± std)"
    if kl > KL_WARNING:
        text += "; that much of the prior is lost where customizing begins, and omega pulls the actor back to it"
    if kl < NEGATIVE_KL_WARNING:
        text += (
            f"; no KL is below 0, so exp(log_prob) of {name} adds up to more than 1: each step earns omega times "
            "that much too much, which makes long episodes worth more; normalize its log_prob"
        )
    return text
