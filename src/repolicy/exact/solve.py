"""Solve soft Bellman equations: the maximum-entropy optimum, and residual Q-learning in both forms of the paper.

The two forms differ in one thing, whether the prior's term stands in the reward (Eq. 4) or beside Q in the soft maximum
(Eq. 3). So they are one loop, called in two ways.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.exact.mdp import MDP, check_temperature, float64
from repolicy.objective import Objective, reformulated, soft

ROUNDING = 2e-15  # relative rounding error of a backup


class Solution(NamedTuple):
    """A soft optimum. With a finite horizon T, every array has a first axis of length T, the time.

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
    task = mdp.task(objective)
    check_temperature(objective.alpha)
    _check_no_bonus(objective)
    if (states := mdp.states_reward(objective)) is not None:
        task = task + objective.states * states
    task = mdp.per_step("reward", task)
    prior = mdp.prior(objective, log_prior)
    return task, torch.zeros_like(task) if prior is None else objective.omega * prior


def _check_no_bonus(objective: Objective) -> None:
    if objective.bonus:
        raise UsageError(f"bonus is {objective.bonus}; it stands in the loss and in no return")


def _soft_optimum(mdp: MDP, reward: Tensor, beside: Tensor, alpha: float) -> Solution:
    """Solve Q = reward + γ E[V′], V = α log Σ exp((Q + beside) / α), to the fixed point or back through the horizon.

    The fixed point is found by Newton's method, which for these equations is soft policy iteration: V becomes the value
    of the policy that is soft-greedy for it. It usually takes a dozen steps; each gains at least as much as a backup.
    """

    def backup(reward: Tensor, beside: Tensor, next_v: Tensor) -> Solution:
        q = reward + mdp.discount * mdp.transitions @ next_v
        logits = (q + beside) / alpha
        return Solution(q, alpha * torch.logsumexp(logits, -1), torch.log_softmax(logits, -1))

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
    """Return the number of backups that shrink the error of the first guess to 1e-17; each shrinks it by γ."""
    return 1 if discount == 0 else math.ceil(math.log(1e-17) / math.log(discount))


# All trajectories of a finite horizon, so that expectations are exact sums --------------------------------------------


MAX_SEQUENCES = 1_000_000  # more would fill the memory


class Trajectories(NamedTuple):
    """All N trajectories that can happen.

    states, actions: [N, T]; chance: [N], the environment's factor of their probability, p(s₀) · Π p(s′|s, a).
    """

    states: Tensor
    actions: Tensor
    chance: Tensor

    def along(self, table: Tensor) -> Tensor:
        """Return the entries of a table [T, S, A] along each trajectory, [N, T]."""
        return table[torch.arange(self.states.shape[1]), self.states, self.actions]

    def probability(self, log_policy: Tensor) -> Tensor:
        """Return p_θ(τ) [N] of each trajectory under a policy [T, S, A]."""
        return self.chance * self.along(log_policy).sum(-1).exp()


def enumerate_trajectories(mdp: MDP) -> Trajectories:
    """Return all sequences of states and actions that can happen in `mdp`, whose horizon must be finite and short."""
    pairs = mdp.states * mdp.actions
    if mdp.horizon is None or pairs**mdp.horizon > MAX_SEQUENCES:
        raise UsageError(f"more than {MAX_SEQUENCES:,} trajectories cannot be enumerated: shorten the horizon")
    sequences = torch.cartesian_prod(*[torch.arange(pairs)] * mdp.horizon).reshape(-1, mdp.horizon)
    states, actions = sequences // mdp.actions, sequences % mdp.actions
    moves = mdp.transitions[states[:, :-1], actions[:, :-1], states[:, 1:]]
    chance = mdp.start[states[:, 0]] * moves.prod(-1)
    possible = chance > 0
    return Trajectories(states[possible], actions[possible], chance[possible])


# A policy's values, its maximum-entropy return J, and the exact gradient of J -----------------------------------------


class Value(NamedTuple):
    """A policy's values; with a finite horizon T they have a first axis of length T, the time.

    q: [(T,) S, A], without the entropy of its own step, as Q^π in Eq. 10; v: [(T,) S], with it.
    """

    q: Tensor
    v: Tensor


def evaluate(mdp: MDP, objective: Objective, log_policy: Tensor, log_prior: Tensor | None = None) -> Value:
    """Return the values of a policy when the reward is task + omega · log prior − alpha · log policy (Eq. 13)."""
    _check_no_bonus(objective)
    log_policy = mdp.log_probs("log_policy", log_policy)
    reward = reformulated(
        objective, mdp.task(objective), mdp.prior(objective, log_prior), log_policy, mdp.states_reward(objective)
    )
    before = mdp.per_step("reward", reward.task + reward.prior + reward.states)  # without the step's own entropy
    policy = log_policy.exp()
    # The entropy of an action with probability 0 is 0, though its log-probability is infinite.
    total = torch.where(policy > 0, mdp.per_step("reward", reward.total), 0.0)
    if mdp.horizon is None:
        moves = torch.einsum("sa,sap->sp", policy, mdp.transitions)
        identity = torch.eye(mdp.states, dtype=torch.float64)
        v = torch.linalg.solve(identity - mdp.discount * moves, (policy * total).sum(-1))
        return Value(before + mdp.discount * mdp.transitions @ v, v)
    later = [torch.zeros(mdp.states, dtype=torch.float64)]  # V after t, from the end backwards
    for t in reversed(range(mdp.horizon)):
        later.append((policy[t] * (total[t] + mdp.discount * mdp.transitions @ later[-1])).sum(-1))
    v = torch.stack(later[::-1])
    return Value(before + mdp.discount * torch.einsum("sap,tp->tsa", mdp.transitions, v[1:]), v[:-1])


def expected_return(mdp: MDP, objective: Objective, log_policy: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """Return J, the expectation of the discounted reformulated reward (Eq. 5); a differentiable scalar."""
    v = evaluate(mdp, objective, log_policy, log_prior).v
    return mdp.start @ (v if mdp.horizon is None else v[0])


def exact_gradient(mdp: MDP, objective: Objective, logits: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """Return ∇J for the softmax policy with these logits, [S, A] or [T, S, A]; it has the logits' shape."""
    logits = float64("logits", logits).requires_grad_()
    log_policy = torch.log_softmax(mdp.per_step("logits", logits), -1)
    (gradient,) = torch.autograd.grad(expected_return(mdp, objective, log_policy, log_prior), logits)
    return gradient
