"""A planner: an agent that chooses each action by simulating candidate plans. It needs no training.

A plan holds T deviations from the prior's actions, in units of the prior's std. Each of K candidates is the plan û plus
noise ε = B·z. Here z ~ N(0, I) is drawn at some knots in time, and B interpolates between them. A candidate with the
score S has a weight in proportion to exp(S / λ).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Backend, to_env_numbers
from repolicy.errors import UsageError, check_counts
from repolicy.planning.scoring import Score, simulated
from repolicy.planning.simulators import Model
from repolicy.planning.tree import Choosing
from repolicy.policies import ActionSpace, Gaussian, Policy, SquashedGaussian

HALVINGS = 50  # steps of the bisection, on the logarithm of the temperature


@dataclass(frozen=True)
class Search:
    """The settings of the search for a plan. A tree does not read knots, noise, share and closed."""

    samples: int = 0
    """K: the number of candidates simulated for each decision. 0 means 32, or 150 for a tree."""
    horizon: int = 0
    """T: the number of steps of a candidate. 0 means 8, or 4 with a value at the plan's end, or 50 for a tree."""
    knots: int = 4
    """The number of points in time at which noise is drawn; it is interpolated linearly in between. 0: each step."""
    noise: float = 0.5
    """The std of the noise, in units of the prior's std."""
    share: float = 0.15
    """The effective sample size, as a share of the samples. The temperature λ is chosen to reach it."""
    temperature: float | None = None
    """A fixed temperature λ instead. For a tree it is α̂, which is omega by default."""
    closed: bool = True
    """Whether a candidate deviates from the prior's action in its own simulated state, or in the state of the prior's
    own plan."""
    warm: bool = True
    """Whether the search starts from the plan of the previous step."""
    discount: float = 0.97
    """γ within a plan."""
    seed: int = 0
    """The seed of the noise."""

    def filled(self, is_discrete: bool, has_value: bool) -> "Search":
        """Return these settings with the defaults in place of each 0."""
        samples, horizon = (150, 50) if is_discrete else (32, 4 if has_value else 8)
        return replace(self, samples=self.samples or samples, horizon=self.horizon or horizon)

    def __post_init__(self) -> None:
        check_counts(2, samples=self.samples or 2)
        check_counts(horizon=self.horizon or 1)
        check_counts(0, knots=self.knots, seed=self.seed)
        for name, value in (("noise", self.noise), ("temperature", self.temperature)):
            if value is not None and not 0.0 < value < math.inf:
                raise UsageError(f"{name} is {value}; it must be above 0")
        for name, value in (("discount", self.discount), ("share", self.share)):
            if not 0.0 < value <= 1.0:
                raise UsageError(f"{name} is {value}; it must be above 0 and at most 1")


@dataclass(frozen=True)
class Candidates:
    """The simulated candidates of N decisions."""

    deviations: np.ndarray  # [N, K, T, A], deviations from the prior in units of its std; the first of the K is 0
    scores: np.ndarray  # [N, K]; −∞ where the simulation broke down
    weights: np.ndarray  # [N, K], sum to 1 over K
    spread: np.ndarray  # [N, A], the std of the prior's actions, before any tanh

    @property
    def plans(self) -> np.ndarray:
        """The weighted mean of the deviations, `[N, T, A]`."""
        return np.einsum("nk,nkta->nta", self.weights, self.deviations)


@dataclass
class Tally:
    """Sums over a planner's decisions, for its statistics."""

    decisions: int = 0
    effective: float = 0.0  # sum of effective sample sizes
    kept: int = 0  # decisions in which no candidate scored better than the prior's own plan
    failed: int = 0  # simulations that broke down

    def add(self, candidates: Candidates) -> None:
        self.decisions += len(candidates.scores)
        self.effective += float(effective(candidates.weights).sum())
        self.kept += int((candidates.scores.argmax(1) == 0).sum())
        self.failed += int(np.isneginf(candidates.scores).sum())


@dataclass(frozen=True, eq=False)
class Planner:
    """An agent that acts by the first step of the best plan it finds in simulation: Residual-MPPI with corrections.

    The first candidate is always the prior's own plan, weighted like the others. Only with a small λ is the
    resulting plan guaranteed to score no worse than it.
    """

    prior: Policy
    model: Model
    score: Score
    search: Search = field(default_factory=Search)
    tally: Tally = field(default_factory=Tally)
    _memories: dict[int, Any] = field(default_factory=dict, init=False, repr=False)  # of `act`, by the number of rows

    @property
    def observation_size(self) -> int:
        return self.prior.observation_size

    @property
    def actions(self) -> ActionSpace:
        return self.prior.actions

    def act(self, observation: np.ndarray, begins: bool | np.ndarray = False) -> np.ndarray:
        """Plan for one observation `[O]`, or for several `[N, O]`, and return the environment's action.

        A choice is a number, also where the environment takes `MultiDiscrete([4])` or `MultiBinary(1)`.

        begins: whether an episode begins with this observation, or with each of several, `[N]`. Where none begins, the
        search goes on from its plan of the call before. `watch` forgets all plans.
        """
        rows = np.atleast_2d(np.asarray(observation, np.float32))
        actor = self.actor(1, len(rows))
        if len(rows) in self._memories:
            actor.memory = self._memories[len(rows)]
        actor.reset_memory(np.full(len(rows), begins, bool))
        sent = self.to_environment(actor(rows))
        self._memories[len(rows)] = actor.memory
        if self.actions.kind == "discrete":  # one choice, which the environment may count from another number than 0
            space = getattr(self.model, "space", self.actions)
            sent = to_env_numbers(sent, space).astype(np.int64)[:, 0]
        return sent if np.ndim(observation) == 2 else sent[0]

    @property
    def backend(self) -> Backend:
        """The backend of the environments that its model can simulate."""
        return self.model.backend

    def watch(self, envs: Any) -> None:
        """Let a model that simulates in copies copy these environments."""
        self.model.watch(envs)
        self._memories.clear()

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "Planning | Choosing":
        return (Choosing if self.actions.kind == "discrete" else Planning)(self, count, generator)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        return self.prior.to_environment(actions)

    def candidates(self, observations: np.ndarray, plans: np.ndarray, draws: np.ndarray) -> Candidates:
        """Simulate and weight candidates around plans `[N, T, A]`, from standard noise `[N, K, H, A]`."""
        search = self.search
        noise = np.einsum("th,nkha->nkta", search.noise * interpolate(draws.shape[2], search.horizon), draws)
        noise[:, 0] = -plans  # the first candidate is the prior's own plan
        deviations = plans[:, None] + noise
        spread = spread_of(self.prior, observations)
        scores = simulated(self.model, self.prior, observations, deviations, spread, self.score, search.closed)
        lambda_ = search.temperature or temperature(scores, search.share * search.samples)
        return Candidates(deviations, scores, normalized(scores / lambda_), spread)


def spread_of(prior: Policy, observations: np.ndarray) -> np.ndarray:
    """Return the std `[N, A]` of the prior's actions, before any tanh."""
    with torch.no_grad():
        distribution = prior(torch.from_numpy(observations))
    return distribution.log_std.exp().expand_as(distribution.mean).numpy()


class Planning:
    """The actor of a planner with continuous actions. It remembers the previous plan and its noise stream."""

    candidates: Candidates  # of the last decision

    def __init__(self, planner: Planner, count: int, generator: torch.Generator | None) -> None:
        self._planner, self._generator = planner, generator
        self.plans = np.zeros((count, planner.search.horizon, planner.actions.width))  # in units of the prior's std
        self._random = np.random.default_rng(planner.search.seed)
        self._distributions: list[Gaussian] = []

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        prior = self._planner.prior
        mode = prior.actor(1, len(observations))(observations)
        deviations = self._deviations(observations)
        spread = self.candidates.spread
        mean = torch.from_numpy((mode + spread * deviations).astype(np.float32))
        kind = SquashedGaussian if prior.family.squashes else Gaussian
        distribution = kind(mean, torch.from_numpy(spread).log())
        self._distributions.append(distribution)
        return (mean if self._generator is None else distribution.sample(self._generator)).numpy()

    def _deviations(self, observations: np.ndarray) -> np.ndarray:
        """Return this step's deviations from the prior `[N, A]`, in units of its std, and remember the plan."""
        planner, search = self._planner, self._planner.search
        knots = min(search.knots or search.horizon, search.horizon)
        draws = self._random.standard_normal((len(observations), search.samples, knots, planner.actions.width))
        previous = self.plans if search.warm else np.zeros_like(self.plans)
        self.candidates = planner.candidates(observations, previous, draws)
        plans = self.candidates.plans
        self.plans = np.concatenate([plans[:, 1:], np.zeros_like(plans[:, :1])], axis=1)
        planner.tally.add(self.candidates)
        return plans[:, 0]

    @property
    def memory(self) -> Any:
        """What the next rollout's actor goes on with: the plans, and the noise stream."""
        return self.plans, self._random

    @memory.setter
    def memory(self, kept: Any) -> None:
        self.plans, self._random = kept

    def reset_memory(self, ended: np.ndarray) -> None:
        self.plans[ended] = 0.0

    def log_probs(self, actions: Tensor) -> Tensor:
        return torch.stack(
            [at_step.log_prob(taken) for at_step, taken in zip(self._distributions, actions, strict=True)]
        )


# The mathematics of planning by samples: noise, weights, and the temperature ------------------------------------------


def interpolate(knots: int, horizon: int) -> np.ndarray:
    """Return B `[T, H]`, which interpolates linearly between H knots, evenly spread over T steps.

    Its rows are scaled so that the noise of each step has variance 1.
    """
    times = np.linspace(0.0, horizon - 1.0, knots)
    weights = np.stack([np.interp(np.arange(horizon), times, knot) for knot in np.eye(knots)], axis=1)
    return weights / np.linalg.norm(weights, axis=1, keepdims=True)


def normalized(log_weights: np.ndarray) -> np.ndarray:
    """Return weights `[N, K]` that sum to 1 over K. If all candidates have −∞, the first one gets the whole weight."""
    largest = log_weights.max(1, keepdims=True)
    finite = np.isfinite(largest)
    weights = np.exp(log_weights - np.where(finite, largest, 0.0))
    weights[~finite[:, 0], 0] = 1.0
    return weights / weights.sum(1, keepdims=True)


def effective(weights: np.ndarray) -> np.ndarray:
    """Return the effective sample size 1/Σw² `[N]` of weights `[N, K]`: 1 if one has all, K if all are equal."""
    return 1.0 / np.square(weights).sum(1)


def temperature(scores: np.ndarray, target: float) -> np.ndarray:
    """Find by bisection λ `[N, 1]` with which scores `[N, K]` have the effective sample size `target`."""
    finite = np.isfinite(scores)
    highest = scores.max(1, keepdims=True, initial=-np.inf, where=finite)
    lowest = scores.min(1, keepdims=True, initial=np.inf, where=finite)
    spread = highest - lowest
    spread = np.where(np.isfinite(spread) & (spread > 0.0), spread, 1.0)
    low, high = spread * 1e-6, spread * 1e6
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        enough = effective(normalized(scores / middle))[:, None] >= target
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.sqrt(low * high)
