"""Maximum-entropy inference of a wish θ·f(s, a, s′), with the prior's log-likelihood as the rest of the reward (MEReQ).

Let f(τ) be the sum of the features along a trajectory τ. In a deterministic environment, a policy that is soft-optimal
for ω′·log prior + θ·f at temperature α gives τ a probability in proportion to exp(θ·f(τ)/α), times a factor that does
not depend on θ. So trajectories of the optimum for one θ can be reweighted to those of another, and the likelihood of a
person's trajectories is concave in θ. In a stochastic environment the weights are not exact. The gradient at the
policy's own θ still is, and so is the θ at which it is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repolicy.differences import Difference
from repolicy.errors import UsageError

# Newton's method: the largest number of steps, and the change, in units of the features' std, that ends it.
MAX_STEPS, TOLERANCE = 50, 1e-10
# The least effective share of the policy's trajectories. θ stops before it would fall below this; the next inference
# continues with trajectories of a policy for the θ reached.
MIN_SHARE = 0.1
# The regression on starts: the number of tanh units, the clipping of inputs in stds, and the ridge.
UNITS, MAX_INPUT, START_RIDGE = 200, 5.0, 1e-2
# The damping, as a share of the largest curvature. Directions that the trajectories do not determine stay as they are.
DAMPING = 1e-9


@dataclass(frozen=True)
class Theta:
    """An estimate of a wish with K features."""

    value: np.ndarray  # [K]
    covariance: np.ndarray  # [K, K]
    groups: int = 0  # the number of independent groups behind the covariance; 0: it is no estimate from groups
    is_cut: bool = False  # whether θ stopped before its maximum, where it left what the policy's trajectories can tell

    @property
    def error(self) -> np.ndarray:
        """The standard errors `[K]`."""
        return np.sqrt(np.diag(self.covariance))


def gradient(person: np.ndarray, policy: np.ndarray, alpha: float) -> np.ndarray:
    """Return ∂/∂θ of the mean log-likelihood of a person's trajectories, from the mean features `[K]` of both."""
    return (person - policy) / alpha


def reweighted(features: np.ndarray, step: np.ndarray, alpha: float, probabilities: np.ndarray) -> np.ndarray:
    """Return the probabilities `[N]` of trajectories with features `[N, K]` after θ has moved by a step `[K]`."""
    logits = features @ step / alpha + np.log(probabilities)
    unnormalized: np.ndarray = np.exp(logits - logits.max())
    return unnormalized / unnormalized.sum()


def infer_theta(
    person: np.ndarray,
    policy: np.ndarray,
    alpha: float,
    theta: np.ndarray | None = None,
    probabilities: tuple[np.ndarray, np.ndarray] | None = None,
    groups: tuple[np.ndarray, np.ndarray] | None = None,
) -> Theta:
    """Return the maximum-likelihood θ of a person's trajectories.

    Args:
        person: features `[M, K]` of their trajectories, summed along each.
        policy: features `[N, K]` of trajectories of the same length, by the policy that is optimal for `theta`.
        alpha: the temperature α̂ of that policy.
        theta: the wish of that policy, `[K]`. None for the prior.
        probabilities: of each trajectory, `[M]` and `[N]`. By default they are equal.
        groups: the number of each trajectory's group, `[M]` and `[N]`. Successive trajectories are correlated, so the
            standard errors take groups, not trajectories, as independent. By default each is a group of its own.
    """
    scale = feature_stds(person, policy)
    if probabilities is None:
        probabilities = (np.full(len(person), 1 / len(person)), np.full(len(policy), 1 / len(policy)))
    person_weights, policy_weights = probabilities
    person_groups, policy_groups = groups or (np.arange(len(person)), np.arange(len(policy)))
    person, policy = person / scale, policy / scale
    target, step = person_weights @ person, np.zeros(len(scale))
    for _ in range(MAX_STEPS):
        mean, curvature = moments(policy, reweighted(policy, step, alpha, policy_weights))
        damping = DAMPING * max(np.diag(curvature).max(), 1e-12) * np.eye(len(curvature))
        move = np.linalg.solve((curvature + damping) / alpha**2, gradient(target, mean, alpha))
        spread = np.sqrt(max(move @ curvature @ move, 1e-300))
        move *= min(1.0, alpha / spread)  # at most one standard deviation at a time
        is_cut = False
        while np.abs(move).max() > TOLERANCE:
            if effective_share(reweighted(policy, step + move, alpha, policy_weights), policy_weights) >= MIN_SHARE:
                break
            move, is_cut = move / 2, True
        if np.abs(move).max() <= TOLERANCE:
            break
        step = step + move
    final_weights = reweighted(policy, step, alpha, policy_weights)
    _, curvature = moments(policy, final_weights)
    noise = noise_of_mean(person, person_weights, person_groups)
    noise = noise + noise_of_mean(policy, final_weights, policy_groups)
    inverse = np.linalg.pinv(curvature, rcond=1e-8, hermitian=True) * alpha
    covariance = inverse @ noise @ inverse
    start = np.zeros(len(scale)) if theta is None else theta
    groups_count = min(len(np.unique(each)) for each in (person_groups, policy_groups))
    return Theta(start + step / scale, covariance / np.outer(scale, scale), groups_count, is_cut)


def minus_expected(
    person: tuple[np.ndarray, np.ndarray], policy: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return features `[M, K]` and `[N, K]` minus the policy's expected features from the same starts `[·, O]`.

    Trajectories must be compared with others from the same start. A person takes over in bad states, which they did not
    choose, and the phase of a gait at the start is nobody's choice either. The expectation is a ridge regression on
    random tanh features of the start. For each half of the policy's trajectories it is fitted to the other half.
    """
    sums, starts = policy
    random = np.random.default_rng(0)
    mean, scale = starts.mean(0), starts.std(0) + 1e-6
    inner = random.normal(size=(starts.shape[1], UNITS)) / starts.shape[1] ** 0.5
    shift = random.normal(size=UNITS)

    def inputs(some_starts: np.ndarray) -> np.ndarray:
        normalized = np.clip((some_starts - mean) / scale, -MAX_INPUT, MAX_INPUT)
        return np.concatenate([np.ones((len(normalized), 1)), normalized, np.tanh(normalized @ inner + shift)], 1)

    level = sums.mean(0)
    sums = sums - level  # otherwise the ridge would shrink the mean
    rows = inputs(starts)

    def fit(subset: np.ndarray) -> np.ndarray:
        some = rows[subset]
        ridge = START_RIDGE * len(some) * np.eye(rows.shape[1])
        return np.linalg.solve(some.T @ some + ridge, some.T @ sums[subset])

    even = np.arange(len(starts)) % 2 == 0
    by_even, by_odd = fit(even), fit(~even)
    policy_rest = np.where(even[:, None], sums - rows @ by_odd, sums - rows @ by_even)
    person_rest = person[0] - level - inputs(person[1]) @ (by_even + by_odd) / 2
    return person_rest, policy_rest


def moments(features: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted mean `[K]` and covariance `[K, K]` of features `[N, K]`; the weights `[N]` sum to 1."""
    mean = weights @ features
    centered = features - mean
    return mean, (centered * weights[:, None]).T @ centered


def noise_of_mean(features: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the covariance `[K, K]` of the weighted mean of features `[N, K]`, with independent groups."""
    centered = (features - weights @ features) * weights[:, None]
    numbers, members = np.unique(groups, return_inverse=True)
    sums = np.stack([np.bincount(members, column) for column in centered.T], 1)
    return np.asarray(sums.T @ sums) * len(numbers) / max(len(numbers) - 1, 1)


def may_be_chance(theta: np.ndarray, errors: np.ndarray, groups: int) -> bool:
    """Return whether over 5 % of records without a wish have some θ as large as the largest here, in its error.

    groups: the number of independent groups of trajectories from which the errors were estimated.
    """
    degrees = max(groups - 1, 1)
    differences = (Difference(0.0, *pair, degrees, len(theta)) for pair in zip(theta, errors, strict=True))
    return not any(each.is_significant for each in differences)


def effective_share(weights: np.ndarray, before: np.ndarray) -> float:
    """Return the effective sample size of weights `[N]`, as a share of that of the weights before."""
    return float((before @ before) / (weights @ weights))


def feature_stds(person: np.ndarray, policy: np.ndarray, names: Sequence[str] = ()) -> np.ndarray:
    """Return the std of each feature `[K]`, the larger of both. Raise for too few or constant features."""
    for features, whose in ((person, "the person"), (policy, "the policy")):
        if len(features) < 2:
            raise UsageError(f"{whose} has {len(features)} trajectories, and it takes two or more: record more")
    scale: np.ndarray = np.maximum(policy.std(0), person.std(0))
    if (constant := np.flatnonzero(scale <= 1e-12 * np.abs(policy).max(0))).size:
        which = names[constant[0]] if names else f"feature {constant[0]}"
        raise UsageError(f"{which} is the same everywhere, so nothing can be inferred: leave it out")
    return scale
