"""Every trajectory of a finite horizon: an expectation becomes a sum, and nothing is left to chance."""

from typing import NamedTuple

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.exact.mdp import MDP

MOST = 1_000_000  # sequences; more would fill the memory


class Trajectories(NamedTuple):
    """All N trajectories that the environment allows.

    states, actions: [N, T]; chance: [N], the environment's share of their probability, p(s₀) · Π p(s′|s, a).
    """

    states: Tensor
    actions: Tensor
    chance: Tensor

    def along(self, table: Tensor) -> Tensor:
        """Return the entries of a table [T, S, A] that each trajectory passes, [N, T]."""
        return table[torch.arange(self.states.shape[1]), self.states, self.actions]

    def probability(self, log_policy: Tensor) -> Tensor:
        """p_θ(τ) of each trajectory under a policy [T, S, A], [N]."""
        return self.chance * self.along(log_policy).sum(-1).exp()


def enumerate_trajectories(mdp: MDP) -> Trajectories:
    """Return all sequences of states and actions that can happen in `mdp`, whose horizon must be finite and short."""
    if mdp.horizon is None:
        raise UsageError("trajectories can be enumerated for a finite horizon only; this one is infinite")
    pairs = mdp.states * mdp.actions
    if pairs**mdp.horizon > MOST:
        raise UsageError(
            f"{mdp.states} states, {mdp.actions} actions and {mdp.horizon} steps make "
            f"{pairs}^{mdp.horizon} trajectories, more than {MOST:,}; shorten the horizon"
        )
    sequences = torch.cartesian_prod(*[torch.arange(pairs)] * mdp.horizon).reshape(-1, mdp.horizon)
    states, actions = sequences // mdp.actions, sequences % mdp.actions
    moves = mdp.transitions[states[:, :-1], actions[:, :-1], states[:, 1:]]
    chance = mdp.start[states[:, 0]] * moves.prod(-1)
    possible = chance > 0
    return Trajectories(states[possible], actions[possible], chance[possible])
