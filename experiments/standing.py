"""How much does the price on standing still depend on the seed of its fit? Printed, for ten seeds of HalfCheetah.

    python -m experiments.standing

A policy whose mean action is 0 stands from the first steps on. Its states are priced after those that cost nothing.
"""

from contextlib import closing

import numpy as np
import torch

from experiments import campaign
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector
from repolicy.objective import residual
from repolicy.policies.policy import Policy
from repolicy.prepare.states import SKIPPED_STEPS, familiarity, fit_prior_density
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.runs.ranks import SingleRank, one_thread
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

ENV, SEEDS, ENVS, STEPS = "HalfCheetah-v4", 10, 16, 300


@campaign.program()
def main(options: campaign.Options) -> None:
    prior = read_policy(find_policy("halfcheetah")).policy
    stands = Policy(prior.spec)
    with torch.no_grad():
        stands.network.weights[-1].zero_()
        stands.network.biases[-1].zero_()
    with one_thread():
        with closing(make_envs(ENV, ENVS, 0)) as envs:
            seen = Collector(envs, STEPS, torch.Generator(), keep_transitions=True).collect(stands, deterministic=True)
        assert seen.next_observations is not None
        late = seen.ages > SKIPPED_STEPS
        prices = []
        for seed in range(SEEDS):
            request = Request(ENV, residual(0.1, 0.1, states=0.1), Settings(seed=seed))
            states, ages = torch.from_numpy(seen.next_observations[late]), torch.from_numpy(seen.ages[late])
            found = familiarity(fit_prior_density(prior, request, SingleRank()), prior.normalizer, states, ages)
            prices.append(-float(found.mean()))
            print(f"seed {seed}: {prices[-1]:.1f} nats a step", flush=True)
    print(f"(most - least) / mean: {np.ptp(prices) / np.mean(prices):.2f}")
