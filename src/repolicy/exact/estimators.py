"""The expectation of every policy-gradient estimator of the paper's Section 3.1, over all trajectories.

One function, `estimator_gradient`, serves them all, since they differ only in their row: `no_entropy`, `end_entropy`
(Eq. 7), `repeat_entropy`, `soft` (Eq. 6), `residual`, ... The others are the forms in which the paper rewrites it.

Every function takes a softmax policy's logits, [S, A] or [T, S, A], and returns a gradient of their shape. The paper
drops the γ^t before each step's term; `restore_discount=True` puts it back.
"""

from collections.abc import Callable

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

    def weight(trajectories: Trajectories, log_policy: Tensor) -> Tensor:
        return _to_go(mdp.discount, _rewards(mdp, objective, trajectories, log_policy, log_prior))

    return _gradient(mdp, logits, weight, restore_discount, objective.bonus)


def delta_gradient(
    mdp: MDP, objective: Objective, logits: Tensor, log_prior: Tensor | None = None, *, restore_discount: bool = False
) -> Tensor:
    """Return the same with the bonus inside the return, as −bonus · δ(t′, t) · log π(a_t′|s_t′) (Eq. 8 and 9)."""

    def weight(trajectories: Trajectories, log_policy: Tensor) -> Tensor:
        to_go = _to_go(mdp.discount, _rewards(mdp, objective, trajectories, log_policy, log_prior))
        return to_go - objective.bonus * trajectories.along(log_policy)

    return _gradient(mdp, logits, weight, restore_discount)


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
    table = mdp.per_step("weight", weight).detach()
    return _gradient(mdp, logits, lambda trajectories, _: trajectories.along(table), restore_discount)


# What they share ------------------------------------------------------------------------------------------------------


def _gradient(
    mdp: MDP,
    logits: Tensor,
    weight: Callable[[Trajectories, Tensor], Tensor],
    restore_discount: bool,
    bonus: float = 0.0,
) -> Tensor:
    """Return E[Σ_t ∇log π(a_t|s_t) · weight + bonus · ∇H]; `weight` gives [N, T], of a policy without a gradient."""
    logits = _leaf(logits)
    trajectories = enumerate_trajectories(mdp)
    log_policy = torch.log_softmax(mdp.per_step("logits", logits), -1)
    probability = trajectories.probability(log_policy.detach())[:, None]
    entropy = trajectories.along(_entropy(log_policy)[..., None].expand_as(log_policy))
    terms = trajectories.along(log_policy) * weight(trajectories, log_policy.detach()) + bonus * entropy
    (gradient,) = torch.autograd.grad((probability * _step_weights(mdp, restore_discount) * terms).sum(), logits)
    return gradient


def _rewards(
    mdp: MDP, objective: Objective, trajectories: Trajectories, log_policy: Tensor, log_prior: Tensor | None
) -> Tensor:
    """Return the reformulated reward of every step of every trajectory, [N, T]."""
    parts = (mdp.task(objective), mdp.prior(objective, log_prior), log_policy, mdp.states_reward(objective))
    return trajectories.along(mdp.per_step("reward", reformulated(objective, *parts).total))


def _to_go(discount: float, rewards: Tensor) -> Tensor:
    """Return Σ_{t′≥t} γ^{t′−t} reward_{t′}, [N, T]."""
    total = torch.zeros_like(rewards[:, 0])
    steps = []
    for t in reversed(range(rewards.shape[1])):
        total = rewards[:, t] + discount * total
        steps.append(total)
    return torch.stack(steps[::-1], -1)


def _step_weights(mdp: MDP, restore_discount: bool) -> Tensor:
    """Return what stands before each step's term, [T]: γ^t, or the paper's 1."""
    steps = torch.arange(mdp.horizon or 0, dtype=torch.float64)
    return mdp.discount**steps if restore_discount else torch.ones_like(steps)


def _entropy(log_policy: Tensor) -> Tensor:
    return -(log_policy.exp() * log_policy).sum(-1)


def _log_policy(mdp: MDP, logits: Tensor) -> Tensor:
    return torch.log_softmax(mdp.per_step("logits", logits), -1).detach()


def _leaf(logits: Tensor) -> Tensor:
    return float64("logits", logits).requires_grad_()
