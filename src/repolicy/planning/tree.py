"""Planning by a tree, where actions are choices: residual maximum-entropy Monte Carlo tree search.

    Q(s, a) = E[r_R + states·h(s′) + γ·V(s′)]        V(s) = α̂·log Σ_a exp((Q(s, a) + ω′·log π(a|s)) / α̂)

A new leaf is worth one rollout of the prior, whose steps pay r_R + (ω′ − α̂)·log π(a|s): what the prior itself is worth
by that objective. An action that was not tried yet has the Q with which V stays the leaf's. With the share λ an action
is drawn from the prior, and else from exp((Q + ω′·log π − V) / α̂), by which the root decides, too.
"""

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Info, Transitions, own_numbers, stacked
from repolicy.errors import UsageError
from repolicy.planning.scoring import step_rewards
from repolicy.planning.simulators import CopyModel, Simulated
from repolicy.policies.density import MOST

if TYPE_CHECKING:
    from repolicy.planning.planner import Planner

EXPLORED = 0.2  # of λ = EXPLORED·A / log(2 + N), where N is how often a node was visited
ALIKE = 2  # draws of an action that all must lead to the same, for an environment to count as one without chance

Row = tuple[np.ndarray, np.ndarray, np.ndarray, Info]  # a step as an add-on is asked about it, [1, ...] each


@dataclass(slots=True)
class Outcome:
    """Where an action led, what that paid, and in how many of its draws it did."""

    node: "Node | None"  # None: the episode ended
    reward: float
    value: float
    count: int = 1


@dataclass(slots=True)
class Node:
    """A state in the tree; arrays `[A]` are over actions."""

    state: Any  # an environment, of which copies are stepped
    observation: np.ndarray  # [1, O]
    log_prior: np.ndarray
    q: np.ndarray
    visits: np.ndarray
    outcomes: list[dict[bytes, Outcome]]


class Tree:
    """A search from one root after another in each of N environments."""

    def __init__(self, planner: "Planner", count: int) -> None:
        assert isinstance(planner.model, CopyModel)
        self.prior, self.model, self.score, self.search = planner.prior, planner.model, planner.score, planner.search
        self.alpha = self.score.omega if self.search.temperature is None else self.search.temperature
        if not self.alpha > 0.0:
            raise UsageError(f"a tree's temperature is {self.alpha:g}: name an omega or a temperature above 0")
        self.known: list[dict[bytes, Outcome]] = [{} for _ in range(count)]  # where the last action may have led
        self._random, self._chance = np.random.default_rng(self.search.seed), False
        self._normalize, self._network = self.prior.normalizer.snapshot(), self.prior.network.snapshot()
        self._paid = replace(self.score, omega=0.0)  # for a step, beside log prior

    def root(self, n: int, state: Any, observation: np.ndarray) -> Node:
        """Return where the n-th environment stands, seen as `[1, O]`, after so many simulations from there."""
        before = self.known[n].get(_key(observation, False))
        node = before.node if before is not None and before.node else self.leaf(state, observation, self.search.horizon)
        node.state = state
        for _ in range(self.search.samples):
            self.simulate(node, self.search.horizon)
        return node

    def log_policy(self, node: Node) -> np.ndarray:
        """Return the log-probabilities `[A]` to which a node's values lead."""
        return (node.q + self.score.omega * node.log_prior - self.value(node)) / self.alpha

    def value(self, node: Node) -> float:
        return self._soft(node.q + self.score.omega * node.log_prior)

    def simulate(self, node: Node, left: int) -> None:
        """Go from a node to a new leaf, with so many steps left, and take its worth into all values above it."""
        explored = min(1.0, EXPLORED * len(node.q) / math.log(2.0 + node.visits.sum()))
        action = self._drawn((1.0 - explored) * np.exp(self.log_policy(node)) + explored * np.exp(node.log_prior))
        outcome, fresh = self._led_to(node, action, left - 1)
        if outcome.node is not None:
            if not fresh and left > 1:
                self.simulate(outcome.node, left - 1)
            outcome.value = self.value(outcome.node)
        node.visits[action] += 1
        outcomes = node.outcomes[action].values()
        total = sum(each.count * (each.reward + self.score.discount * each.value) for each in outcomes)
        node.q[action] = total / sum(each.count for each in outcomes)

    def _led_to(self, node: Node, action: int, left: int) -> tuple[Outcome, bool]:
        """Return where an action leads this time, and whether that is new.

        Where there is chance it is tried each time, but for what is left of K² visits once there are K outcomes.
        """
        known, tries = node.outcomes[action], node.visits[action]
        if known and (len(known) ** 2 > tries or (tries >= ALIKE and not self._chance)):
            outcomes = list(known.values())
            return outcomes[self._drawn(np.array([outcome.count for outcome in outcomes], float))], False
        after, row = self._stepped(self.model.copied(node.state), node.observation, action)
        key = _key(after.observations, bool(after.ended[0]))
        if key in known:
            known[key].count += 1
            return known[key], False
        self._chance |= bool(known)
        reward = float(self._rewards([row])[0])
        if after.ended[0]:
            known[key] = Outcome(None, reward, self._end(reward, left))
        else:
            known[key] = Outcome(self.leaf(after.states, after.observations, left), reward, 0.0)
        return known[key], True

    def leaf(self, state: Any, observation: np.ndarray, left: int) -> Node:
        """Return a new node, with so many steps left."""
        log_prior = self._log_prior(observation)
        if self.score.value is None:
            value = self._rolled_out(state, observation, log_prior, left)
        else:
            value = float(self.score.value(observation)[0])
        q = np.full(len(log_prior), value - self._soft(self.score.omega * log_prior))
        return Node(state, observation, log_prior, q, np.zeros(len(q)), [{} for _ in q])

    def _rolled_out(self, state: Any, observation: np.ndarray, log_prior: np.ndarray, left: int) -> float:
        """Return what the prior's own steps pay from here."""
        if not left:
            return 0.0
        state, ended = self.model.copied(state), False
        rows, log_priors = list[Row](), list[float]()
        while len(rows) < left and not ended:
            action = self._drawn(np.exp(log_prior))
            after, row = self._stepped(state, observation, action)
            rows.append(row)
            log_priors.append(float(log_prior[action]))
            state, observation, ended = after.states, after.observations, bool(after.ended[0])
            log_prior = self._log_prior(observation)
        rewards = self._rewards(rows)
        discounts = self.score.discount ** np.arange(len(rows) + 1)
        value = float(discounts[:-1] @ (rewards + (self.score.omega - self.alpha) * np.array(log_priors)))
        if ended:
            value += float(discounts[-1]) * self._end(float(rewards[-1]), left - len(rows))
        return value

    def _end(self, reward: float, left: int) -> float:
        """Return what an end costs, so that it is no way out: for each step that is left, more than any would."""
        worst = min(reward, 0.0) - MOST * max(self.score.omega, self.score.states)
        return worst * float(np.sum(self.score.discount ** np.arange(left)))

    def _stepped(self, state: Any, observation: np.ndarray, action: int) -> tuple[Simulated, Row]:
        """Step a copy of an environment, in place."""
        sent = self.prior.to_environment(np.array([[action]]))
        after = self.model.advance(state, sent)
        return after, (observation, own_numbers(sent, self.prior.actions), after.observations, after.info)

    def _rewards(self, rows: list[Row]) -> np.ndarray:
        """Return what steps pay `[T]`, without log prior."""
        before, did, after, infos = zip(*rows, strict=True)
        shape = (len(rows), 1)
        steps = Transitions(np.stack(before), np.stack(did), np.stack(after), stacked(list(infos)))
        return step_rewards(self._paid, self.prior, steps, np.zeros(shape), np.zeros(shape, bool))[:, 0]

    def _log_prior(self, observation: np.ndarray) -> np.ndarray:
        logits = self._network(self._normalize(observation))[0].astype(np.float64)
        return logits - np.logaddexp.reduce(logits)

    def _soft(self, scores: np.ndarray) -> float:
        return self.alpha * float(np.logaddexp.reduce(scores / self.alpha))

    def _drawn(self, shares: np.ndarray) -> int:
        """Return one of several, with chances in proportion to shares."""
        sums = shares.cumsum()
        return min(int(np.searchsorted(sums, self._random.random() * sums[-1], side="right")), len(sums) - 1)


def _key(observation: np.ndarray, ended: bool) -> bytes:
    return observation.tobytes() + bytes([ended])


class Choosing:
    """A planner at work where actions are choices. Its memory is the tree."""

    def __init__(self, planner: "Planner", count: int, generator: torch.Generator | None) -> None:
        self.memory, self._planner, self._generator = Tree(planner, count), planner, generator
        self._planned: list[np.ndarray] = []

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        began, tree = time.perf_counter(), self.memory
        seen = np.ascontiguousarray(observations)
        roots = [tree.root(n, state, seen[n : n + 1]) for n, state in enumerate(tree.model.states(observations))]
        log_policy = np.stack([tree.log_policy(root) for root in roots])
        self._planned.append(log_policy)
        if self._generator is None:
            actions = log_policy.argmax(1)
        else:
            actions = torch.multinomial(torch.from_numpy(log_policy).exp(), 1, generator=self._generator)[:, 0].numpy()
        tree.known = [root.outcomes[action] for root, action in zip(roots, actions, strict=True)]
        usual = [root.log_prior.argmax() for root in roots]
        tally = self._planner.tally
        tally.decisions += len(roots)
        tally.seconds += time.perf_counter() - began
        tally.kept += int(np.sum(usual == actions))
        return actions[:, None]

    def begin_anew(self, ended: np.ndarray) -> None:
        for n in np.flatnonzero(ended):
            self.memory.known[n] = {}

    def log_probs(self, actions: Tensor) -> Tensor:
        return torch.from_numpy(np.stack(self._planned)).gather(-1, actions.long())[..., 0]
