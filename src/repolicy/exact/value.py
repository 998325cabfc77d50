"""What a policy is worth: its values, its maximum-entropy return J, and the exact gradient of J.

J is computed by dynamic programming, so that it knows nothing of trajectories: the estimators of `estimators.py`, which
enumerate them, are judged against it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.exact.checks import float64
from repolicy.exact.mdp import MDP
from repolicy.objective import Objective, reformulated


class Value(NamedTuple):
    """A policy's values; of a finite horizon T with a first axis of length T, the time.

    q: [(T,) S, A], without the entropy of its own step, as Q^π in Eq. 10; v: [(T,) S], with it.
    """

    q: Tensor
    v: Tensor


def evaluate(mdp: MDP, objective: Objective, log_policy: Tensor, log_prior: Tensor | None = None) -> Value:
    """Return the values of a policy when the reward is task + omega · log prior − alpha · log policy (Eq. 13)."""
    if objective.bonus:
        raise UsageError(f"bonus is {objective.bonus}; it stands in the loss and in no return, so it has no value")
    log_policy = mdp.log_probs("log_policy", log_policy)
    reward = reformulated(
        objective, mdp.task(objective), mdp.prior(objective, log_prior), log_policy, mdp.states_reward(objective)
    )
    total = mdp.per_step("reward", reward.total)
    policy = log_policy.exp()
    if mdp.horizon is None:
        moves = torch.einsum("sa,sap->sp", policy, mdp.transitions)
        identity = torch.eye(mdp.states, dtype=torch.float64)
        v = torch.linalg.solve(identity - mdp.discount * moves, (policy * total).sum(-1))
        return Value(total - reward.entropy + mdp.discount * mdp.transitions @ v, v)
    later = [torch.zeros(mdp.states, dtype=torch.float64)]  # V after t, from the end backwards
    for t in reversed(range(mdp.horizon)):
        later.append((policy[t] * (total[t] + mdp.discount * mdp.transitions @ later[-1])).sum(-1))
    v = torch.stack(later[::-1])
    return Value(total - reward.entropy + mdp.discount * torch.einsum("sap,tp->tsa", mdp.transitions, v[1:]), v[:-1])


def expected_return(mdp: MDP, objective: Objective, log_policy: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """J, the expectation of the discounted reformulated reward (Eq. 5 with r replaced); a scalar, differentiable."""
    v = evaluate(mdp, objective, log_policy, log_prior).v
    return mdp.start @ (v if mdp.horizon is None else v[0])


def exact_gradient(mdp: MDP, objective: Objective, logits: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """∇J for the softmax policy with these logits, [S, A] or [T, S, A]; of the logits' shape."""
    logits = float64("logits", logits).requires_grad_()
    log_policy = torch.log_softmax(mdp.per_step("logits", logits), -1)
    (gradient,) = torch.autograd.grad(expected_return(mdp, objective, log_policy, log_prior), logits)
    return gradient


def state_distributions(mdp: MDP, log_policy: Tensor) -> Tensor:
    """Return where the policy is at each step of a finite horizon, [T, S]."""
    if mdp.horizon is None:
        raise UsageError("the distribution of states at each step needs a finite horizon")
    moves = torch.einsum("tsa,sap->tsp", mdp.log_probs("log_policy", log_policy).exp(), mdp.transitions)
    distributions = [mdp.start]
    for t in range(mdp.horizon - 1):
        distributions.append(distributions[-1] @ moves[t])
    return torch.stack(distributions)
