"""A planner: an agent that looks for its actions in simulation, and needs no training."""

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Backend
from repolicy.errors import UsageError, check_counts
from repolicy.planning.sampling import BASES, Base, between, correction, effective, normalized, temperature
from repolicy.planning.scoring import Score, simulated
from repolicy.planning.simulators import Model
from repolicy.planning.tree import Choosing
from repolicy.policies import ActionSpace, Gaussian, Policy, SquashedGaussian


@dataclass(frozen=True)
class Search:
    """How plans are looked for."""

    samples: int = 0
    """How many candidates are simulated for a decision: K. 0: 32, or 150 for a tree."""
    horizon: int = 0
    """How many steps each of them has: T. 0: 8, 4 where a value tells of what follows, or 50 for a tree."""
    knots: int = 4
    """At how many points in time noise is drawn; it goes in straight lines in between. 0: at each step."""
    noise: float = 0.5
    """The noise's std, in units of the prior's."""
    share: float = 0.15
    """The effective sample size that sets the temperature λ, as a share of the samples."""
    temperature: float | None = None
    """λ itself, in place of that; of a tree α̂, which is omega by default."""
    base: Base = "nominal"
    """What candidates are spread around before their scores count: nominal or uniform."""
    closed: bool = True
    """Candidates deviate from what the prior does in their own simulated states; else in those of its own plan."""
    warm: bool = True
    """Go on from the plan of the step before."""
    discount: float = 0.97
    """γ of the plan."""
    seed: int = 0
    """Of the noise."""

    def filled(self, choices: bool, value: bool) -> "Search":
        """Return the same with numbers in place of 0."""
        samples, horizon = (150, 50) if choices else (32, 4 if value else 8)
        return replace(self, samples=self.samples or samples, horizon=self.horizon or horizon)

    def __post_init__(self) -> None:
        check_counts(2, samples=self.samples or 2)
        check_counts(horizon=self.horizon or 1)
        check_counts(0, knots=self.knots, seed=self.seed)
        for name, value in (("noise", self.noise), ("temperature", self.temperature)):
            if value is not None and not 0.0 < value < math.inf:
                raise UsageError(f"{name} is {value}; it must be above 0")
        if self.base not in BASES:
            raise UsageError(f"there is no base {self.base!r}; choose from {', '.join(BASES)}")
        for name, value in (("discount", self.discount), ("share", self.share)):
            if not 0.0 < value <= 1.0:
                raise UsageError(f"{name} is {value}; it must be above 0 and at most 1")


@dataclass(frozen=True)
class Look:
    """Candidates for N decisions."""

    candidates: np.ndarray  # [N, K, T, A] deviations from the prior, in its stds; the first of each K is 0
    scores: np.ndarray  # [N, K]; −∞ where the simulation broke down
    weights: np.ndarray  # [N, K]

    @property
    def plans(self) -> np.ndarray:
        """The candidates' weighted mean `[N, T, A]`."""
        return np.einsum("nk,nkta->nta", self.weights, self.candidates)


@dataclass
class Tally:
    """What a planner's decisions were like, summed up."""

    decisions: int = 0
    seconds: float = 0.0
    effective: float = 0.0
    kept: int = 0  # in how many of them no candidate was better than the prior's own plan
    failed: int = 0  # simulations that broke down

    @property
    def rate(self) -> float:
        """Decisions a second."""
        return self.decisions / self.seconds if self.seconds else 0.0

    def add(self, found: Look, seconds: float) -> None:
        self.decisions += len(found.scores)
        self.seconds += seconds
        self.effective += float(effective(found.weights).sum())
        self.kept += int((found.scores.argmax(1) == 0).sum())
        self.failed += int(np.isneginf(found.scores).sum())


@dataclass
class Memory:
    """What is remembered from one decision to the next."""

    plans: np.ndarray  # [N, T, A], in units of the prior's std
    random: np.random.Generator


@dataclass(frozen=True, eq=False)
class Planner:
    """An agent whose action is the beginning of the best plan that it finds in simulation: Residual-MPPI, mended.

    The first candidate is always what the prior itself would do. It is weighed like the others: only where λ is small
    can a plan be no worse than it by its own score.
    """

    prior: Policy
    model: Model
    score: Score
    search: Search = field(default_factory=Search)
    tally: Tally = field(default_factory=Tally)

    @property
    def observation_size(self) -> int:
        return self.prior.observation_size

    @property
    def actions(self) -> ActionSpace:
        return self.prior.actions

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Return the action for one observation `[O]`, as the environment takes it, planned anew."""
        rows = np.atleast_2d(np.asarray(observation, np.float32))
        sent = self.to_environment(self.actor(1, len(rows))(rows))
        return sent if np.ndim(observation) == 2 else sent[0]

    @property
    def backend(self) -> Backend:
        """Whose environments its model knows."""
        return self.model.backend

    def watch(self, envs: Any) -> None:
        """Plan in copies of these environments, where its model is made of copies."""
        self.model.watch(envs)

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "Planning | Choosing":
        return (Choosing if self.actions.kind == "discrete" else Planning)(self, count, generator)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        return self.prior.to_environment(actions)

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π of actions around what is planned anew for each observation, with the prior's std."""
        flat = observations.reshape(-1, observations.shape[-1])
        acting = self.actor(1, len(flat))
        acting(flat.numpy())
        return acting.log_probs(actions.reshape(1, len(flat), -1)).reshape(actions.shape[:-1])

    def look(self, observations: np.ndarray, plans: np.ndarray, draws: np.ndarray) -> Look:
        """Return what candidates around plans `[N, T, A]` are like, by draws `[N, K, H, A]` of standard noise."""
        search = self.search
        lines = search.noise * between(draws.shape[2], search.horizon)
        noise = np.einsum("th,nkha->nkta", lines, draws)
        noise[:, 0] = -plans  # what the prior itself would do always competes, and counts by the draw it would be
        first = np.einsum("ht,nta->nha", np.linalg.pinv(lines), noise[:, 0])[:, None]
        candidates = plans[:, None] + noise
        spread = spread_of(self.prior, observations)
        scores, slopes = simulated(self.model, self.prior, observations, candidates, spread, self.score, search.closed)
        corrected = correction(np.concatenate([first, draws[:, 1:]], axis=1), slopes, search.base)
        heat: float | np.ndarray
        if search.temperature is None:
            heat = temperature(scores, corrected, search.share * search.samples)
        else:
            heat = search.temperature
        return Look(candidates, scores, normalized(scores / heat + corrected))


def spread_of(prior: Policy, observations: np.ndarray) -> np.ndarray:
    """Return the std `[N, A]` of a prior in its states."""
    with torch.no_grad():
        distribution = prior(torch.from_numpy(observations))
    return distribution.log_std.exp().expand_as(distribution.mean).numpy()


class Planning:
    """A planner at work. Its memory is the plan of the step before, and the stream of its noise."""

    found: Look  # what the last decision was made of

    def __init__(self, planner: Planner, count: int, generator: torch.Generator | None) -> None:
        self._planner, self._generator = planner, generator
        search = planner.search
        plans = np.zeros((count, search.horizon, planner.actions.width))
        self.memory = Memory(plans, np.random.default_rng(search.seed))
        self._planned: list[Gaussian] = []

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        prior = self._planner.prior
        mode = prior.actor(1, len(observations))(observations)
        spread = spread_of(prior, observations)
        mean = torch.from_numpy((mode + spread * self._decided(observations)).astype(np.float32))
        kind = SquashedGaussian if prior.family.squashes else Gaussian
        distribution = kind(mean, torch.from_numpy(spread).log())
        self._planned.append(distribution)
        actions = mean if self._generator is None else distribution.sample(self._generator)
        return actions.numpy()

    def _decided(self, observations: np.ndarray) -> np.ndarray:
        """Return how far from the prior to act `[N, A]`, in its stds, and remember the plan."""
        began, planner, memory = time.perf_counter(), self._planner, self.memory
        search = planner.search
        knots = min(search.knots or search.horizon, search.horizon)
        draws = memory.random.standard_normal((len(observations), search.samples, knots, planner.actions.width))
        self.found = planner.look(observations, memory.plans if search.warm else np.zeros_like(memory.plans), draws)
        plans = self.found.plans
        memory.plans = np.concatenate([plans[:, 1:], np.zeros_like(plans[:, :1])], axis=1)
        planner.tally.add(self.found, time.perf_counter() - began)
        return plans[:, 0]

    def begin_anew(self, ended: np.ndarray) -> None:
        self.memory.plans[ended] = 0.0

    def log_probs(self, actions: Tensor) -> Tensor:
        return torch.stack([each.log_prob(taken) for each, taken in zip(self._planned, actions, strict=True)])
