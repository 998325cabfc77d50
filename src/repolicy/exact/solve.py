"""Soft Bellman equations, solved: the maximum-entropy optimum, and residual Q-learning in both forms of the paper.

The two forms differ in one thing, whether the prior's term stands in the reward (Eq. 4) or beside Q in the soft maximum
(Eq. 3). So they are one loop, called in two ways.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.exact.checks import check_temperature
from repolicy.exact.mdp import MDP
from repolicy.objective import Objective, soft

ROUNDING = 2e-15  # of a backup, as a share of the values


class Solution(NamedTuple):
    """A soft optimum. Of a finite horizon T every array has a first axis of length T, the time.

    q: [(T,) S, A], the form's own Q; v: [(T,) S], its soft maximum; log_policy: [(T,) S, A].
    """

    q: Tensor
    v: Tensor
    log_policy: Tensor

    @property
    def policy(self) -> Tensor:
        return self.log_policy.exp()


def soft_optimal(mdp: MDP, alpha: float) -> Solution:
    """Return the maximum-entropy optimum of the basic reward at temperature alpha: log π = (Q − V) / α."""
    check_temperature(alpha)
    return solve_augmented(mdp, soft(alpha))


def solve_residual(mdp: MDP, objective: Objective, log_prior: Tensor | None = None) -> Solution:
    """Return the optimum of an objective in the Q_R form (Eq. 3): Q holds the task's reward alone.

    Where the prior is soft-optimal for r, `q` is Q_R = Q̂ − ω·Q and the policy solves ω·r + r_R.
    """
    task, prior = _parts(mdp, objective, log_prior)
    return _soft_optimum(mdp, reward=task, beside=prior, alpha=objective.alpha)


def solve_augmented(mdp: MDP, objective: Objective, log_prior: Tensor | None = None) -> Solution:
    """Return the optimum of an objective in the augmented form (Eq. 4): the prior's term is a part of the reward.

    This is ordinary soft Q-iteration; `q` is Q^aug = Q_R + ω′·log prior. It serves every row without a bonus: `soft`
    and `full` have no prior term, `residual` and `kl` have one.
    """
    task, prior = _parts(mdp, objective, log_prior)
    return _soft_optimum(mdp, reward=task + prior, beside=torch.zeros_like(prior), alpha=objective.alpha)


def _parts(mdp: MDP, objective: Objective, log_prior: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the task's reward and ω′·log prior, each [(T,) S, A]."""
    check_temperature(objective.alpha)
    if objective.bonus:
        raise UsageError(
            f"bonus is {objective.bonus}; it stands in the loss and in no return, so nothing is its optimum"
        )
    task = mdp.task(objective)
    if (states := mdp.states_reward(objective)) is not None:
        task = task + objective.states * states
    task = mdp.per_step("reward", task)
    prior = mdp.prior(objective, log_prior)
    return task, torch.zeros_like(task) if prior is None else objective.omega * prior


def _soft_optimum(mdp: MDP, reward: Tensor, beside: Tensor, alpha: float) -> Solution:
    """Q = reward + γ E[V′], V = α log Σ exp((Q + beside) / α), to the fixed point or back through the horizon.

    The fixed point is found by Newton's method, which for these equations is soft policy iteration: V becomes the value
    of the policy that is soft-greedy for it. A dozen steps are usual; none gains less than a backup would.
    """

    def backup(reward: Tensor, beside: Tensor, next_v: Tensor) -> Solution:
        q = reward + mdp.discount * mdp.transitions @ next_v
        v = alpha * torch.logsumexp((q + beside) / alpha, -1)
        return Solution(q, v, (q + beside - v[..., None]) / alpha)

    v = torch.zeros(mdp.states, dtype=torch.float64)
    if mdp.horizon is None:
        identity = torch.eye(mdp.states, dtype=torch.float64)
        for _ in range(_backups(mdp.discount)):
            found = backup(reward, beside, v)
            moves = torch.einsum("sa,sap->sp", found.policy, mdp.transitions)
            change = torch.linalg.solve(identity - mdp.discount * moves, found.v - v)
            v = v + change
            if change.abs().max() <= ROUNDING / (1.0 - mdp.discount) * v.abs().max():
                break
        return backup(reward, beside, v)
    steps: list[Solution] = []
    for t in reversed(range(mdp.horizon)):
        steps.append(backup(reward[t], beside[t], v))
        v = steps[-1].v
    return Solution(*(torch.stack(parts[::-1]) for parts in zip(*steps, strict=True)))


def _backups(discount: float) -> int:
    """Return how many backups leave nothing of the first guess: each shrinks the error by γ, to 1e-17 at last."""
    return 1 if discount == 0 else math.ceil(math.log(1e-17) / math.log(discount))
