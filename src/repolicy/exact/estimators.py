"""The expectation of every policy-gradient estimator of the paper's Section 3.1, over all trajectories.

`estimator_gradient` serves them all, since they differ only in their objective: `no_entropy`, `end_entropy` (Eq. 7),
`repeat_entropy`, `soft` (Eq. 6), `residual`, ... The other functions are forms into which the paper rewrites it.

Every function takes a softmax policy's logits, [S, A] or [T, S, A], and returns a gradient of their shape. The paper
drops the γ^t before each step's term; `restore_discount=True` puts it back.
"""

import torch
from torch import Tensor

from repolicy.exact.mdp import MDP, float64
from repolicy.exact.solve import Trajectories, enumerate_trajectories, evaluate
from repolicy.objective import Objective, reformulated


def estimator_gradient(
    mdp: MDP, objective: Objective, logits: Tensor, log_prior: Tensor | None = None, *, restore_discount: bool = False
) -> Tensor:
    """Return E[Σ_t ∇log π(a_t|s_t) · Σ_{t′≥t} γ^{t′−t} reward_{t′} + bonus · ∇H(π(·|s_t))], as a training loop does.

    The reward is the reformulated one of `objective`, taken as a number: no gradient passes through it (Eq. 6). The
    bonus is a term of the loss, with the sign that raises the entropy.
    """
    trajectories = enumerate_trajectories(mdp)
    weight = _returns(mdp, objective, trajectories, _log_policy(mdp, logits), log_prior)
    return _gradient(mdp, logits, trajectories, weight, restore_discount, objective.bonus)


def delta_gradient(
    mdp: MDP, objective: Objective, logits: Tensor, log_prior: Tensor | None = None, *, restore_discount: bool = False
) -> Tensor:
    """Return the estimator with the bonus inside the return, as −bonus · δ(t′, t) · log π(a_t′|s_t′) (Eq. 8 and 9)."""
    trajectories = enumerate_trajectories(mdp)
    log_policy = _log_policy(mdp, logits)
    weight = _returns(mdp, objective, trajectories, log_policy, log_prior)
    weight = weight - objective.bonus * trajectories.along(log_policy)
    return _gradient(mdp, logits, trajectories, weight, restore_discount)


def constant_gradient(
    mdp: MDP,
    objective: Objective,
    logits: Tensor,
    log_prior: Tensor | None = None,
    *,
    constant: float = 1.0,
    restore_discount: bool = False,
) -> Tensor:
    """Return E[Σ_t ∇log π(a_t|s_t) · (Q^π(s_t, a_t) − alpha · log π(a_t|s_t) − constant)]; with 1 it is Eq. 10."""
    log_policy = _log_policy(mdp, logits)
    weight = evaluate(mdp, objective, log_policy, log_prior).q - objective.alpha * log_policy - constant
    return score_gradient(mdp, logits, weight, restore_discount=restore_discount)


def advantage_gradient(
    mdp: MDP, objective: Objective, logits: Tensor, log_prior: Tensor | None = None, *, restore_discount: bool = False
) -> Tensor:
    """Return E[Σ_t ∇log π(a_t|s_t) · A(s_t, a_t)], with the advantage of the reformulated reward (Eq. 11 to 13)."""
    log_policy = _log_policy(mdp, logits)
    q, v = evaluate(mdp, objective, log_policy, log_prior)
    weight = q - objective.alpha * log_policy - v[..., None]
    return score_gradient(mdp, logits, weight, restore_discount=restore_discount)


def score_gradient(mdp: MDP, logits: Tensor, weight: Tensor, *, restore_discount: bool = False) -> Tensor:
    """Return E[Σ_t ∇log π(a_t|s_t) · weight(s_t, a_t)] for any table of weights, [S, A] or [T, S, A]."""
    trajectories = enumerate_trajectories(mdp)
    weight = trajectories.along(mdp.per_step("weight", weight).detach())
    return _gradient(mdp, logits, trajectories, weight, restore_discount)


# Shared helpers -------------------------------------------------------------------------------------------------------


def _gradient(
    mdp: MDP, logits: Tensor, trajectories: Trajectories, weight: Tensor, restore_discount: bool, bonus: float = 0.0
) -> Tensor:
    """Return E[Σ_t ∇log π(a_t|s_t) · weight + bonus · ∇H] for a weight of every step of every trajectory, [N, T]."""
    logits = float64("logits", logits).requires_grad_()
    log_policy = torch.log_softmax(mdp.per_step("logits", logits), -1)
    probability = trajectories.probability(log_policy.detach())[:, None]
    entropy = -(log_policy.exp() * log_policy).sum(-1, keepdim=True).expand_as(log_policy)
    terms = trajectories.along(log_policy) * weight + bonus * trajectories.along(entropy)
    steps = torch.arange(weight.shape[1], dtype=torch.float64)
    discounts = mdp.discount**steps if restore_discount else torch.ones_like(steps)
    (gradient,) = torch.autograd.grad((probability * discounts * terms).sum(), logits)
    return gradient


def _returns(
    mdp: MDP, objective: Objective, trajectories: Trajectories, log_policy: Tensor, log_prior: Tensor | None
) -> Tensor:
    """Return Σ_{t′≥t} γ^{t′−t} reward_{t′} of every step of every trajectory, [N, T], by the reformulated reward."""
    parts = (mdp.task(objective), mdp.prior(objective, log_prior), log_policy, mdp.states_reward(objective))
    rewards = trajectories.along(mdp.per_step("reward", reformulated(objective, *parts).total))
    total = torch.zeros_like(rewards[:, 0])
    to_go = []
    for t in reversed(range(rewards.shape[1])):
        total = rewards[:, t] + mdp.discount * total
        to_go.append(total)
    return torch.stack(to_go[::-1], -1)


def _log_policy(mdp: MDP, logits: Tensor) -> Tensor:
    return torch.log_softmax(mdp.per_step("logits", logits), -1).detach()
