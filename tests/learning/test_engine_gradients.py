"""The engine's loss at its first minibatch against the theory: the gradient of the estimator that it claims to be.

Every trajectory of a small decision process is laid out as a rollout, as often as it is likely. On that rollout the
engine's own path (scores, reformulated reward, advantages, loss, backward pass) must give the expectation that
`repolicy.exact` finds by enumeration, for every objective, whatever the critic believes.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from repolicy import objective as objectives
from repolicy.envs.rollout import Episodes, Rollout, Transitions
from repolicy.exact import MDP, estimator_gradient
from repolicy.learning.multipliers import Multipliers
from repolicy.learning.ppo import Learner
from repolicy.learning.terms import FixedTerms
from repolicy.learning.worker import Worker
from repolicy.objective import Objective
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.network import Mlp
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.kinds import Scorer
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

STEPS, GAMMA = 3, 0.8
PROBABILITIES = torch.tensor([[1, 3], [2, 2]]).double() / 4  # π(a|s)
PRIOR = torch.tensor([[0.3, 0.7], [0.9, 0.1]]).double()
# Drawing one of these tickets at random is drawing from start, π(·|s) and p(·|s, a).
START, ACTIONS = [0, 1], [[0, 1, 1, 1], [0, 0, 1, 1]]
NEXT = [[[0, 0], [1, 1]], [[0, 0], [1, 0]]]
MDP_ = MDP(
    transitions=np.array([[np.bincount(tickets, minlength=2) / 2 for tickets in row] for row in NEXT]),
    reward=torch.tensor([[1.0, -2.0], [0.5, 3.0]]),
    start=torch.tensor([0.5, 0.5]),
    discount=GAMMA,
    horizon=STEPS,
    addon=torch.tensor([[-1.0, 0.7], [2.0, -0.3]]),
    familiarity=torch.tensor([-0.4, -1.7]),
)
EIGHT = [
    objectives.no_entropy(),
    objectives.end_entropy(0.8),
    objectives.repeat_entropy(0.8),
    objectives.soft(0.8),
    objectives.greedy(0.8),
    objectives.kl(0.8),
    objectives.residual(0.9, 0.8),
    objectives.full(0.8),
]
WITH_STATES = [objectives.residual(0.9, 0.8, states=1.1), replace(objectives.greedy(0.8), states=0.7)]


def tabular(logits: Tensor) -> Policy:
    """A network whose output at state s, given as a unit vector, is logits[s]."""
    policy = Policy(PolicySpec(2, ActionSpace("discrete", (2,)), "categorical", hidden=(2,), activation="relu"))
    weights = {"weights.0": torch.eye(2), "weights.1": logits.T.float()}
    policy.network.load_state_dict(weights | {"biases.0": torch.zeros(2), "biases.1": torch.zeros(2)})
    return policy


def every_trajectory() -> tuple[np.ndarray, np.ndarray]:
    """States `[T + 1, N]` and actions `[T, N]`, each trajectory as often as it is likely."""
    states, actions = [], []
    for start, *tickets in product(range(2), *[range(4), range(2)] * STEPS):
        state, path = START[start], []
        for action_ticket, next_ticket in zip(tickets[::2], tickets[1::2], strict=True):
            action = ACTIONS[state][action_ticket]
            path.append((state, action))
            state = NEXT[state][action][next_ticket]
        states.append([*(s for s, _ in path), state])
        actions.append([a for _, a in path])
    return np.array(states).T, np.array(actions).T


def rollout(policy: Policy) -> Rollout:
    states, actions = every_trajectory()
    observations, states = np.eye(2, dtype=np.float32)[states], states[:-1]
    ends = np.zeros(states.shape, bool)
    last = ends.copy()
    last[-1] = True
    return Rollout(
        observations=observations,
        env_size=2,
        actions=torch.from_numpy(actions)[..., None],
        env_actions=actions[..., None],
        log_probs=policy.log_prob(torch.from_numpy(observations[:-1]), torch.from_numpy(actions)[..., None]),
        basic=MDP_.reward.numpy()[states, actions],
        terminated=last,
        truncated=ends,
        ages=np.full(states.shape, 1_000),  # far from how an episode begins
        cut_indices=np.zeros((0, 2), np.int64),
        cut_observations=np.zeros((0, 2), np.float32),
        next_observations=observations[1:],
        infos=[],
        episodes=Episodes(),
        physics_seconds=0.0,
        policy_seconds=0.0,
    )


class Known:
    """The familiarity of the process's states, in the place of a density."""

    usual_end = torch.zeros(())

    def familiarity(self, inputs: Tensor) -> Tensor:
        return MDP_.familiarity[inputs.argmax(-1)]

    def normalized(self, observations: Tensor) -> Tensor:
        return observations


class Table:
    """The add-on reward of the process, as the engine asks for it."""

    def reward(self, steps: Transitions) -> np.ndarray:
        return MDP_.addon.numpy()[steps.observations.argmax(-1), steps.actions[..., 0]]


def engine_gradient(objective: Objective, surrogate: Any) -> tuple[Policy, Tensor]:
    """Of the loss in the policy's parameters, at the first minibatch of a rollout that holds every trajectory."""
    policy, critic = tabular(PROBABILITIES.log()), Mlp(2, (8,), 1)
    torch.nn.init.normal_(critic.biases[-1])
    made: Any = Worker.__new__(Worker)
    made.critic_size = 0  # it sees what the policy sees
    made.settings = Settings(gamma=GAMMA, gae_lambda=1.0, normalize_advantages=False, surrogate=surrogate, epochs=1)
    made.objective, made.team, made.iteration = objective, SingleRank(), 1
    made.learner = Learner(policy, critic, 0.0)
    made.prior = tabular(PRIOR.log()) if objective.reads_prior or objective.reads_states else None
    made.scoring_prior, made.scorer = made.prior, None if made.prior is None else Scorer(made.prior)
    made.density = Known() if objective.reads_states else None
    made.multipliers, made.deployed_rollout = Multipliers(Request("", objective, made.settings)), None
    made.terms = FixedTerms(Request("", objective, made.settings))
    made.terms.addon = Table() if objective.reads_addon else None
    batch, _ = made.prepare_batch(rollout(policy), stop=False)
    made.learner.differentiate(batch, made.settings, objective.bonus)
    return policy, made.learner.gradient[: made.learner.actor_size].clone()


@pytest.mark.parametrize("surrogate", ["clipped", "vanilla"])
@pytest.mark.parametrize(
    "objective",
    EIGHT + WITH_STATES,
    ids=lambda made: f"{made.task}-{made.omega}-{made.alpha}-{made.bonus}-{made.states}",
)
def test_the_loss_has_the_gradient_of_its_estimator(
    objective: Objective, surrogate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repolicy.prepare.states.LONGEST_STAY", 1)  # the process has a last step, and no last state
    policy, found = engine_gradient(objective, surrogate)
    by_logits = estimator_gradient(MDP_, objective, PROBABILITIES.log(), PRIOR.log())
    outputs = policy.network(torch.eye(2))
    parts = torch.autograd.grad(outputs, tuple(policy.parameters()), by_logits.float())
    # The estimator is to be raised and sums over the T steps; the loss is to be lowered and is their mean.
    expected = -torch.cat([part.flatten() for part in parts]) / STEPS
    assert float(expected.abs().max()) > 0.05
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)
