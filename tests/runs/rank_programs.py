"""What each rank does in the tests of ranks."""

import hashlib
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs.rollout import Episodes, Rollout
from repolicy.learning import ppo
from repolicy.learning.multipliers import Multipliers
from repolicy.learning.terms import FixedTerms
from repolicy.learning.worker import Worker
from repolicy.objective import no_entropy, residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.network import Mlp
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.prepare import states
from repolicy.priors.kinds import Scorer
from repolicy.runs import ranks
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

TIME, ENVS, SIZE = 8, 32, 4
ALONE = Lock()  # who draws from torch's own random stream, which all threads share


# Sums -----------------------------------------------------------------------------------------------------------------
def put_up(index: int, turn: int, size: int, dtype: torch.dtype) -> Tensor:
    """What rank `index` adds in its `turn`-th sum: whole numbers, so that every order of adding is exact."""
    generator = torch.Generator().manual_seed(1000 * index + turn)
    return torch.randint(-1000, 1000, (size,), generator=generator).to(dtype)


def add_up(team: ranks.Ranks, sizes: list[int]) -> list[Tensor]:
    """Many sums one after the other, of different sizes and both precisions."""
    found = []
    for turn, size in enumerate(sizes):
        tensor = put_up(team.index, turn, size, (torch.float32, torch.float64)[turn % 2])
        found.append(team.sum(tensor))
        assert found[-1] is tensor
    return found


def fingerprint(tensors: list[Tensor]) -> Tensor:
    """48 bits of the bits, as a number."""
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).digest()
    return torch.tensor([float(int.from_bytes(digest[:6], "big"))], dtype=torch.float64)


def add_up_and_compare(team: ranks.Ranks, sizes: list[int]) -> tuple[list[Tensor], list[float]]:
    """The sums, and every rank's fingerprint of them."""
    found = add_up(team, sizes)
    prints = torch.zeros(team.count, dtype=torch.float64)
    prints[team.index] = fingerprint(found)[0]
    return found, team.sum(prints).tolist()


# One gradient step on data that the ranks share -----------------------------------------------------------------------
def small_policy() -> Policy:
    torch.manual_seed(0)
    return Policy(PolicySpec(SIZE, ActionSpace("continuous", (2,), (-1.0,) * 2, (1.0,) * 2), hidden=(16,)))


def one_step(team: ranks.Ranks) -> dict[str, Any]:
    """The same 8 × 32 samples whatever the number of ranks; each takes its share of the environments."""
    with ALONE:
        policy = small_policy()
        learner = ppo.Learner(policy, Mlp(SIZE, (16,), 1), 1e-3)
        observations = torch.randn(TIME, ENVS, SIZE) * 3.0 + 1.0
        with torch.no_grad():
            distribution = policy(observations)
            actions = distribution.sample()
            log_probs = distribution.log_prob(actions) + 0.1 * torch.randn(TIME, ENVS)
        gains, returns = torch.randn(TIME, ENVS) * 5.0 + 2.0, torch.randn(TIME, ENVS, 1)

    share = ENVS // team.count
    mine = slice(team.index * share, (team.index + 1) * share)
    settings = Settings(max_gradient_norm=1e9)
    terms: Any = FixedTerms(Request("any", no_entropy(), settings))
    credit = terms.normalized(None, gains[:, mine], returns[:, mine], team)
    learner.critic.rescale(*learner.return_scale.update(credit.target_sums))
    batch = ppo.Batch(
        observations[:, mine].flatten(0, 1),
        actions[:, mine].flatten(0, 1),
        log_probs[:, mine].flatten(),
        credit.advantages.flatten(),
        learner.return_scale.apply(returns[:, mine]).flatten(0, 1),
    )
    learner.differentiate(batch, settings, bonus=0.05)
    report = learner.step(settings.max_gradient_norm, team, fit_actor=True)
    seen = team.sum(moment_sums(np.ascontiguousarray(observations[:, mine].numpy())))
    return {
        "gradient": learner.gradient[: len(learner.parameters)].clone(),
        "parameters": learner.parameters.detach().clone(),
        "report": torch.tensor(report),
        "moments": seen,
    }


# The same with a price on states that the prior does not know --------------------------------------------------------
def shared_rollout(policy: Policy, mine: slice) -> Rollout:
    """Some environments' share of one and the same 8 × 32 steps."""
    random = torch.Generator().manual_seed(1)
    observations = 3.0 * torch.randn(TIME + 1, ENVS, SIZE, generator=random)
    actions = torch.randn(TIME, ENVS, 2, generator=random)
    ends = np.zeros((TIME, ENVS), bool)
    seen, done, ends = observations[:, mine].contiguous(), actions[:, mine].contiguous(), ends[:, mine]
    return Rollout(
        seen.numpy(), SIZE, done, done.numpy(), policy.log_prob(seen[:-1], done), ends.astype(float), ends, ends,
        np.full(ends.shape, 1_000),
        np.zeros((0, 2), np.int64), np.zeros((0, SIZE), np.float32), seen[1:].numpy(), [], Episodes(), 0.0, 0.0,
    )  # fmt: skip


def step_with_states(team: ranks.Ranks) -> dict[str, Any]:
    """A density that the first rank fits, and one gradient step with it through scores and reward."""
    with ALONE:
        policy, critic = small_policy(), Mlp(SIZE, (16,), 1)
        prior = frozen(policy)
    generator = torch.Generator().manual_seed(2)
    states.visited_states = lambda rollouts, many: (*torch.randn(2, 500, SIZE, generator=generator), 700)
    made: Any = Worker.__new__(Worker)
    made.critic_size = 0  # it sees what the policy sees
    made.settings = Settings(ranks=1, envs=ENVS, n_steps=TIME, minibatch=ENVS * TIME)
    made.objective, made.team, made.iteration = residual(0.3, 0.1, states=0.4), team, 1
    made.request = Request("Pendulum-v1", made.objective, made.settings)
    made.prior = made.scoring_prior = prior
    made.scorer = Scorer(prior)
    made.density = states.fit_prior_density(made.prior, made.request, team)
    made.learner = ppo.Learner(policy, critic, 1e-3)
    made.multipliers, made.deployed_rollout = Multipliers(made.request), None
    made.terms = FixedTerms(made.request)
    made.terms.addon = SimpleNamespace(reward=lambda steps: -np.abs(steps.next_observations[..., 0]))
    count = ENVS // team.count
    share = slice(team.index * count, (team.index + 1) * count)
    batch, metrics = made.prepare_batch(shared_rollout(policy, share), False)
    made.learner.differentiate(batch, made.settings, bonus=0.0)
    made.learner.step(1e9, team, fit_actor=True)
    prints = torch.zeros(team.count, dtype=torch.float64)
    prints[team.index] = fingerprint(list(made.density.tensors().values()))[0]
    return {
        "gradient": made.learner.gradient[: len(made.learner.parameters)].clone(),
        "reward": metrics["reward_states"],
        "densities": team.sum(prints).tolist(),
    }
