"""Print the price on standing still for ten seeds of HalfCheetah's density, to see how much it depends on the seed.

    python -m experiments.standing

A policy whose mean action is 0 stands still. Its states are priced after the first steps of an episode, which are free.
"""

from contextlib import closing

import numpy as np
import torch

from experiments import campaign
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector
from repolicy.objective import residual
from repolicy.policies.policy import Policy, one_thread
from repolicy.prepare.states import SKIPPED_STEPS, fit_prior_density
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

ENV, SEEDS, ENVS, STEPS = "HalfCheetah-v4", 10, 16, 300


@campaign.program()
def main(options: campaign.Options) -> None:
    prior = read_policy(find_policy("halfcheetah")).policy
    standing = Policy(prior.spec)
    with torch.no_grad():
        standing.network.weights[-1].zero_()
        standing.network.biases[-1].zero_()
    with one_thread():
        with closing(make_envs(ENV, ENVS, 0)) as envs:
            collector = Collector(envs, STEPS, torch.Generator())
            rollout = collector.collect(standing, deterministic=True)
        assert rollout.next_observations is not None
        priced = rollout.ages > SKIPPED_STEPS
        states = torch.from_numpy(rollout.next_observations[priced])
        prices = []
        for seed in range(SEEDS):
            request = Request(ENV, residual(0.1, 0.1, states=0.1), Settings(seed=seed))
            density = fit_prior_density(prior, request, SingleRank())
            prices.append(-float(density.familiarity(density.normalized(states)).mean()))
            print(f"seed {seed}: {prices[-1]:.1f} nats a step", flush=True)
    print(f"(most - least) / mean: {np.ptp(prices) / np.mean(prices):.2f}")
