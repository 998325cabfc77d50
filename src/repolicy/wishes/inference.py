"""Maximum-entropy inference of a wish θ·f(s, a, s′), with the prior's log-likelihood as the rest of the reward (MEReQ).

A policy that is soft-optimal for ω′·log prior + θ·f at temperature α makes a trajectory τ as likely as exp(θ·f(τ)/α)
times what does not depend on θ, where f(τ) is the sum of the features along it and the environment repeats itself. So
from the trajectories of the optimum for one θ, those of another one follow by weights, and the likelihood of a person's
trajectories is concave in θ. Where chance moves the environment the weights are not exact, but the gradient at the
policy's own θ is, and so is the θ at which it is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repolicy.errors import NumericError, UsageError

ROUNDS, CLOSE = 50, 1e-10  # Newton's steps at most; the change, in units of the features' spread, that ends them
UNITS, FAR, SHRINKS = 200, 5.0, 1e-2  # of the regression on starts: tanh units, stds to look at, ridge
RIDGE = 1e-9  # of the largest curvature: what no trajectory tells apart stays as it is


@dataclass(frozen=True)
class Theta:
    """What was inferred of a wish with K features."""

    value: np.ndarray  # [K]
    covariance: np.ndarray  # [K, K]

    @property
    def error(self) -> np.ndarray:
        """The standard errors `[K]`."""
        return np.sqrt(np.diag(self.covariance))


def gradient(person: np.ndarray, policy: np.ndarray, alpha: float) -> np.ndarray:
    """Return ∂/∂θ of the mean log-likelihood of a person's trajectories: the mean features `[K]` of both, compared."""
    return (person - policy) / alpha


def weights(features: np.ndarray, step: np.ndarray, alpha: float, chances: np.ndarray) -> np.ndarray:
    """Return how likely trajectories `[N]` of features `[N, K]` are once θ has moved by a step `[K]`."""
    logits = features @ step / alpha + np.log(chances)
    likely: np.ndarray = np.exp(logits - logits.max())
    return likely / likely.sum()


def inferred(
    person: np.ndarray,
    policy: np.ndarray,
    alpha: float,
    theta: np.ndarray | None = None,
    chances: tuple[np.ndarray, np.ndarray] | None = None,
    groups: tuple[np.ndarray, np.ndarray] | None = None,
    least: float = 0.1,
) -> Theta:
    """Return the θ under which a person's trajectories are likeliest.

    Args:
        person: features `[M, K]` of their trajectories, summed along each.
        policy: features `[N, K]` of trajectories as long, of the policy that is optimal for `theta`.
        alpha: the temperature α̂ of that policy.
        theta: the wish that it has now, `[K]`; by default none, and the policy is the prior.
        chances: how likely each trajectory is, `[M]` and `[N]`; by default all are alike.
        groups: which group each is of, by its number, `[M]` and `[N]`: what came in a row is alike, so groups and not
            trajectories are independent in the standard errors. By default each is one by itself.
        least: stop where less than this share of the policy's trajectories counts, and go on from a policy for the θ
            that was reached.
    """
    scale = spreads(person, policy)
    if chances is None:
        chances = (np.full(len(person), 1 / len(person)), np.full(len(policy), 1 / len(policy)))
    person_chances, policy_chances = chances
    person_groups, policy_groups = groups or (np.arange(len(person)), np.arange(len(policy)))
    person, policy = person / scale, policy / scale
    goal, step = person_chances @ person, np.zeros(len(scale))
    for _ in range(ROUNDS):
        now, curvature = moments(policy, weights(policy, step, alpha, policy_chances))
        damping = RIDGE * max(np.diag(curvature).max(), 1e-12) * np.eye(len(curvature))  # so that it can be inverted
        move = np.linalg.solve((curvature + damping) / alpha**2, gradient(goal, now, alpha))
        spread = np.sqrt(max(move @ curvature @ move, 1e-300))
        move *= min(1.0, alpha / spread)  # at most one standard deviation at a time
        while np.abs(move).max() > CLOSE:
            if share(weights(policy, step + move, alpha, policy_chances), policy_chances) >= least:
                break
            move /= 2
        if np.abs(move).max() <= CLOSE:
            break
        step = step + move
    weighed = weights(policy, step, alpha, policy_chances)
    _, curvature = moments(policy, weighed)
    noise = _noise(person, person_chances, person_groups) + _noise(policy, weighed, policy_groups)
    inverse = np.linalg.pinv(curvature, rcond=1e-8, hermitian=True) * alpha
    covariance = inverse @ noise @ inverse
    before = np.zeros(len(scale)) if theta is None else theta
    return Theta(before + step / scale, covariance / np.outer(scale, scale))


def beyond_start(
    person: tuple[np.ndarray, np.ndarray], policy: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return features `[M, K]` and `[N, K]` less what the policy has on average from the same starts `[·, O]`.

    Trajectories are weighed among those from one start: a person takes over in bad states, for which they are not to
    blame, and what differs by where a gait begins is nobody's choice. The mean is a ridge regression on random tanh
    features of the start, for each half of the policy's trajectories fitted to the other half.
    """
    sums, starts = policy
    random = np.random.default_rng(0)
    mean, scale = starts.mean(0), starts.std(0) + 1e-6
    inner = random.normal(size=(starts.shape[1], UNITS)) / starts.shape[1] ** 0.5
    shift = random.normal(size=UNITS)

    def inputs(some_starts: np.ndarray) -> np.ndarray:
        near = np.clip((some_starts - mean) / scale, -FAR, FAR)
        return np.concatenate([np.ones((len(near), 1)), near, np.tanh(near @ inner + shift)], 1)

    level = sums.mean(0)
    sums = sums - level  # else the ridge would shrink it
    rows = inputs(starts)

    def fitted(some: np.ndarray) -> np.ndarray:
        ridge = SHRINKS * len(rows[some]) * np.eye(rows.shape[1])
        return np.linalg.solve(rows[some].T @ rows[some] + ridge, rows[some].T @ sums[some])

    even = np.arange(len(starts)) % 2 == 0
    by_even, by_odd = fitted(even), fitted(~even)
    policy_left = np.where(even[:, None], sums - rows @ by_odd, sums - rows @ by_even)
    person_left = person[0] - level - inputs(person[1]) @ (by_even + by_odd) / 2
    return person_left, policy_left


def moments(features: np.ndarray, chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean `[K]` and covariance `[K, K]` of features `[N, K]`."""
    mean = chances @ features
    apart = features - mean
    return mean, (apart * chances[:, None]).T @ apart


def _noise(features: np.ndarray, chances: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the covariance `[K, K]` of a weighted mean, by what each group adds to it."""
    apart = (features - chances @ features) * chances[:, None]
    known, each = np.unique(groups, return_inverse=True)
    sums = np.stack([np.bincount(each, column) for column in apart.T], 1)
    return np.asarray(sums.T @ sums) * len(known) / max(len(known) - 1, 1)


def share(weighed: np.ndarray, before: np.ndarray) -> float:
    """Return the effective number of trajectories by their weights, as a share of what it was before."""
    return float((before @ before) / (weighed @ weighed))


def spreads(person: np.ndarray, policy: np.ndarray, names: Sequence[str] = ()) -> np.ndarray:
    """Return how far each feature varies `[K]`, or raise where they are too few, no numbers, or always the same."""
    for features, whose in ((person, "the person"), (policy, "the policy")):
        if len(features) < 2:
            raise UsageError(f"{whose} has {len(features)} trajectories, and it takes two or more: record more")
        if not np.isfinite(features).all():
            row, column = np.argwhere(~np.isfinite(features))[0]
            raise NumericError(f"feature {column} of {whose} is {features[row, column]} in trajectory {row}")
    scale: np.ndarray = np.maximum(policy.std(0), person.std(0))
    if (constant := np.flatnonzero(scale <= 1e-12 * np.abs(policy).max(0))).size:
        which = names[constant[0]] if names else f"feature {constant[0]}"
        raise UsageError(f"{which} is the same everywhere, so nothing can be inferred: leave it out")
    return scale
