"""Planning by a tree, where actions are choices: residual maximum-entropy Monte Carlo tree search.

    Q(s, a) = E[r_R + states·h(s′) + γ·V(s′)]        V(s) = α̂·log Σ_a exp((Q(s, a) + ω′·log π(a|s)) / α̂)

A new leaf gets its value from one rollout of the prior, whose steps are rewarded with r_R + (ω′ − α̂)·log π(a|s): the
value of the prior itself under that objective. An action that was not tried yet has the Q that leaves the leaf's V as
it is. With probability λ the search draws an action from the prior, and otherwise from exp((Q + ω′·log π − V) / α̂).
The root chooses its action by the latter, too.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Transitions, stack_infos, to_env_numbers
from repolicy.errors import UsageError
from repolicy.planning.scoring import step_rewards
from repolicy.planning.simulators import CopyModel, Simulated

if TYPE_CHECKING:
    from repolicy.planning.planner import Planner

EXPLORATION = 0.2  # λ = EXPLORATION·A / log(2 + N) after N visits of a node
DETERMINISTIC_AFTER = 2  # draws of one action with equal outcomes, after which an environment counts as deterministic


@dataclass(slots=True)
class Outcome:
    """One outcome of an action: the next node, the reward, and the number of draws that led there."""

    node: "Node | None"  # None: the episode ended
    reward: float
    value: float
    count: int = 1


@dataclass(slots=True)
class Node:
    """A state in the tree. Arrays `[A]` have one number per action."""

    state: Any  # an environment, of which copies are stepped
    observation: np.ndarray  # [1, O]
    log_prior: np.ndarray
    q: np.ndarray
    visits: np.ndarray
    outcomes: list[dict[bytes, Outcome]]


class Tree:
    """A search tree for each of N environments. The subtree of the chosen action is reused in the next step."""

    def __init__(self, planner: "Planner", count: int) -> None:
        assert isinstance(planner.model, CopyModel)
        self.prior, self.model, self.score, self.search = planner.prior, planner.model, planner.score, planner.search
        self.alpha = self.score.omega if self.search.temperature is None else self.search.temperature
        if not self.alpha > 0.0:
            raise UsageError(f"a tree's temperature is {self.alpha:g}: name an omega or a temperature above 0")
        # The outcomes of the last action in each environment.
        self.last_outcomes: list[dict[bytes, Outcome]] = [{} for _ in range(count)]
        self._random, self._is_stochastic = np.random.default_rng(self.search.seed), False
        self._lowest_reward = 0.0  # of all steps so far, or 0
        self._normalize, self._network = self.prior.normalizer.snapshot(), self.prior.network.snapshot()
        self._score_without_prior = replace(self.score, omega=0.0)

    def root(self, n: int, state: Any, observation: np.ndarray) -> Node:
        """Return the node of the n-th environment's state, observed as `[1, O]`, after `samples` simulations."""
        outcome = self.last_outcomes[n].get(_key(observation, False)) if self.search.warm else None
        node = (outcome and outcome.node) or self.leaf(state, observation, self.search.horizon)
        node.state = state
        for _ in range(self.search.samples):
            self.simulate(node, self.search.horizon)
        return node

    def log_policy(self, node: Node) -> np.ndarray:
        """Return the soft-optimal log-probabilities `[A]` given a node's values."""
        return (node.q + self.score.omega * node.log_prior - self.value(node)) / self.alpha

    def value(self, node: Node) -> float:
        return self._soft(node.q + self.score.omega * node.log_prior)

    def simulate(self, node: Node, left: int) -> None:
        """Descend from a node to a new leaf, at most `left` steps deep, and update the values on the way."""
        exploration = min(1.0, EXPLORATION * len(node.q) / math.log(2.0 + node.visits.sum()))
        action = self._sample(
            (1.0 - exploration) * np.exp(self.log_policy(node)) + exploration * np.exp(node.log_prior)
        )
        outcome, is_new = self._expand(node, action, left - 1)
        if outcome.node is None:  # anew: more steps are left below it now than where the tree's root was deeper
            outcome.value = self._end_value(left - 1)
        else:
            if not is_new and left > 1:
                self.simulate(outcome.node, left - 1)
            outcome.value = self.value(outcome.node)
        node.visits[action] += 1
        outcomes = node.outcomes[action].values()
        total = sum(each.count * (each.reward + self.score.discount * each.value) for each in outcomes)
        node.q[action] = total / sum(each.count for each in outcomes)

    def _expand(self, node: Node, action: int, left: int) -> tuple[Outcome, bool]:
        """Return an outcome of an action, and whether it is new.

        In a stochastic environment the action is simulated anew once its visits reach K², for K known outcomes.
        Otherwise a known outcome is drawn.
        """
        known, tries = node.outcomes[action], node.visits[action]
        if known and (len(known) ** 2 > tries or (tries >= DETERMINISTIC_AFTER and not self._is_stochastic)):
            outcomes = list(known.values())
            return outcomes[self._sample(np.array([outcome.count for outcome in outcomes], float))], False
        after, row = self._stepped(self.model.copied(node.state), node.observation, action)
        key = _key(after.observations, bool(after.ended[0]))
        if key in known:
            known[key].count += 1
            return known[key], False
        self._is_stochastic |= bool(known)
        reward = float(self._rewards([row])[0])
        leaf = None if after.ended[0] else self.leaf(after.states[0], after.observations, left)
        known[key] = Outcome(leaf, reward, 0.0)
        return known[key], True

    def leaf(self, state: Any, observation: np.ndarray, left: int) -> Node:
        """Return a new node, at most `left` steps before the horizon."""
        log_prior = self._log_prior(observation)
        if self.score.value is None:
            value = self._rollout_value(state, observation, log_prior, left)
        else:
            value = float(self.score.value(observation)[0])
        q = np.full(len(log_prior), value - self._soft(self.score.omega * log_prior))
        return Node(state, observation, log_prior, q, np.zeros(len(q)), [{} for _ in q])

    def _rollout_value(self, state: Any, observation: np.ndarray, log_prior: np.ndarray, left: int) -> float:
        """Return the discounted reward of one rollout of the prior from here."""
        if not left:
            return 0.0
        state, ended = self.model.copied(state), False
        rows, log_priors = list[Transitions](), list[float]()
        while len(rows) < left and not ended:
            action = self._sample(np.exp(log_prior))
            after, row = self._stepped(state, observation, action)
            rows.append(row)
            log_priors.append(float(log_prior[action]))
            state, observation, ended = after.states[0], after.observations, bool(after.ended[0])
            log_prior = self._log_prior(observation)
        rewards = self._rewards(rows)
        discounts = self.score.discount ** np.arange(len(rows) + 1)
        value = float(discounts[:-1] @ (rewards + (self.score.omega - self.alpha) * np.array(log_priors)))
        if ended:
            value += float(discounts[-1]) * self._end_value(left - len(rows))
        return value

    def _end_value(self, left: int) -> float:
        """Return the value of an end: lower than that of any `left` steps, so that a plan gains nothing by ending.

        Where nearly all of the prior's episodes end by themselves, it is 0: an end may be the goal.
        """
        worst = 0.0 if self.score.may_end else self._lowest_reward - self.score.end_cost
        return worst * float(np.sum(self.score.discount ** np.arange(left)))

    def _stepped(self, state: Any, observation: np.ndarray, action: int) -> tuple[Simulated, Transitions]:
        """Step a copy of an environment, in place."""
        sent = self.prior.to_environment(np.array([[action]]))
        after = self.model.advance([state], sent)
        numbers = to_env_numbers(sent, self.model.space)  # a prior's file may not tell where choices start
        return after, Transitions(observation, numbers, after.observations, after.info)

    def _rewards(self, rows: list[Transitions]) -> np.ndarray:
        """Return the rewards of steps `[T]`, without log prior."""
        shape = (len(rows), 1)
        observations, actions, after = (np.stack(parts) for parts in zip(*(row[:3] for row in rows), strict=True))
        steps = Transitions(observations, actions, after, stack_infos([row.info for row in rows]))
        rewards = step_rewards(self._score_without_prior, steps, np.zeros(shape), np.zeros(shape, bool))[:, 0]
        self._lowest_reward = min(self._lowest_reward, float(rewards.min()))
        return rewards

    def _log_prior(self, observation: np.ndarray) -> np.ndarray:
        logits = self._network(self._normalize(observation))[0].astype(np.float64)
        return logits - np.logaddexp.reduce(logits)

    def _soft(self, scores: np.ndarray) -> float:
        return self.alpha * float(np.logaddexp.reduce(scores / self.alpha))

    def _sample(self, weights: np.ndarray) -> int:
        """Draw an index with probabilities in proportion to `weights`."""
        sums = weights.cumsum()
        return min(int(np.searchsorted(sums, self._random.random() * sums[-1], side="right")), len(sums) - 1)


def _key(observation: np.ndarray, ended: bool) -> bytes:
    return observation.tobytes() + bytes([ended])


class Choosing:
    """The actor of a planner with discrete actions. Its memory is the tree."""

    def __init__(self, planner: "Planner", count: int, generator: torch.Generator | None) -> None:
        self.memory, self._planner, self._generator = Tree(planner, count), planner, generator
        self._log_policies: list[np.ndarray] = []

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        tree = self.memory
        rows = np.ascontiguousarray(observations)
        roots = [tree.root(n, state, rows[n : n + 1]) for n, state in enumerate(tree.model.states(observations))]
        log_policy = np.stack([tree.log_policy(root) for root in roots])
        self._log_policies.append(log_policy)
        if self._generator is None:
            actions = log_policy.argmax(1)
        else:
            actions = torch.multinomial(torch.from_numpy(log_policy).exp(), 1, generator=self._generator)[:, 0].numpy()
        tree.last_outcomes = [root.outcomes[action] for root, action in zip(roots, actions, strict=True)]
        of_prior = [root.log_prior.argmax() for root in roots]
        tally = self._planner.tally
        tally.decisions += len(roots)
        tally.kept += int(np.sum(of_prior == actions))
        return actions[:, None]

    def reset_memory(self, ended: np.ndarray) -> None:
        for n in np.flatnonzero(ended):
            self.memory.last_outcomes[n] = {}

    def log_probs(self, actions: Tensor) -> Tensor:
        return torch.from_numpy(np.stack(self._log_policies)).gather(-1, actions.long())[..., 0]
