"""Fit a wish to answers to "which of the two is better?", by Bradley and Terry's model on fragments of episodes.

A fragment with the sum of rewards R is preferred to one with R′ with probability σ(R − R′).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from repolicy.addons import Networks
from repolicy.errors import UsageError
from repolicy.wishes.inference import Theta

PRIOR_STDS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of θ, in units in which each feature's differences have the std 1
MAX_STEPS, TOLERANCE = 100, 1e-10  # of Newton's method
GRADIENT_STEPS, LEARNING_RATE, WEIGHT_DECAY = 300, 1e-2, 1e-2  # of the networks
MEMBERS, HIDDEN = 5, 32  # networks in the ensemble, and hidden units of each


def bradley_terry(differences: np.ndarray, answers: np.ndarray, names: Sequence[str] = ()) -> Theta:
    """Return θ given differences `[P, K]` of features, left − right, and answers `[P]`: 1 left, 0 right, ½ alike.

    θ is the mode of the posterior for a Gaussian prior around 0. Its covariance is that of Laplace's approximation.
    All PRIOR_STDS are fitted and averaged, weighted by the evidence that the answers give each. `names` are the
    features' names, for errors.
    """
    scale = np.sqrt(np.square(differences).mean(0))
    if (constant := np.flatnonzero(scale == 0)).size:
        which = names[constant[0]] if names else f"feature {constant[0]}"
        raise UsageError(
            f"{which} is the same in both clips of all pairs, so nothing can be learnt of it: leave it out"
        )
    rows = differences / scale
    fits, evidence = zip(*[fit_with_prior(rows, answers, std) for std in PRIOR_STDS], strict=True)
    # The mean and covariance of the mixture of all fits.
    probabilities = np.exp(np.array(evidence) - np.logaddexp.reduce(evidence))
    values = np.stack([fit.value for fit in fits])
    value = probabilities @ values
    covariance = np.einsum("s,skl->kl", probabilities, np.stack([fit.covariance for fit in fits]))
    covariance += (probabilities[:, None] * (values - value)).T @ (values - value)
    return Theta(value / scale, covariance / np.outer(scale, scale))


def fit_with_prior(rows: np.ndarray, answers: np.ndarray, prior_std: float) -> tuple[Theta, float]:
    """Return the posterior's mode and covariance, and the log-evidence of the answers, for one std of the prior."""
    size = rows.shape[1]
    theta, precision = np.zeros(size), np.eye(size) / prior_std**2

    def posterior(theta: np.ndarray) -> float:
        logits = rows @ theta
        likelihood = answers * -np.logaddexp(0, -logits) + (1 - answers) * -np.logaddexp(0, logits)
        return float(likelihood.sum() - 0.5 * theta @ precision @ theta)

    def curvature(probability: np.ndarray) -> np.ndarray:
        return (rows * (probability * (1 - probability))[:, None]).T @ rows + precision

    for _ in range(MAX_STEPS):
        probability = sigmoid(rows @ theta)
        slope = rows.T @ (answers - probability) - precision @ theta
        move = np.linalg.solve(curvature(probability), slope)
        while posterior(theta + move) < posterior(theta) and np.abs(move).max() > TOLERANCE:
            move /= 2
        theta = theta + move
        if np.abs(move).max() <= TOLERANCE:
            break
    at_mode = curvature(sigmoid(rows @ theta))
    evidence = posterior(theta) - 0.5 * np.linalg.slogdet(at_mode)[1] - size * np.log(prior_std)
    return Theta(theta, np.linalg.inv(at_mode)), float(evidence)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * logits))


def most_informative(differences: np.ndarray, belief: Theta, count: int) -> list[int]:
    """Return the indices of the pairs whose answers are most informative, chosen one after the other.

    The information of an answer is p·(1 − p)·(variance of the logit). Each choice assumes the earlier ones answered.
    """
    covariance, chosen = belief.covariance.copy(), list[int]()
    probability = sigmoid(differences @ belief.value)
    weight = probability * (1 - probability)
    for _ in range(min(count, len(differences))):
        gain = weight * np.einsum("pk,kl,pl->p", differences, covariance, differences)
        gain[chosen] = -np.inf
        best = int(gain.argmax())
        chosen.append(best)
        along = covariance @ differences[best]
        covariance -= weight[best] * np.outer(along, along) / (1 + weight[best] * differences[best] @ along)
    return chosen


# Without features: an ensemble of small networks ----------------------------------------------------------------------


def fit_networks(left: np.ndarray, right: np.ndarray, answers: np.ndarray) -> Networks:
    """Fit an ensemble of networks to answers on fragments with inputs `[P, T, I]`, each to a bootstrap sample."""
    both = torch.from_numpy(np.stack([left, right])).float()  # [2, P, T, I]
    size = both.shape[-1]
    flat = both.reshape(-1, size)
    # Constant inputs get no weight: the answers contain nothing about them, and random weights would stay.
    constant = (flat == flat[0]).all(0)
    shift, scale = torch.where(constant, flat[0], flat.mean(0)), torch.where(constant, 1.0, flat.std(0).clamp_min(1e-6))
    random = torch.Generator().manual_seed(0)
    counts = torch.stack([
        torch.bincount(torch.randint(len(answers), (len(answers),), generator=random), minlength=len(answers))
        for _ in range(MEMBERS)
    ]).float()  # fmt: skip
    parts = [
        nn.Parameter(torch.randn(MEMBERS, size, HIDDEN, generator=random) / size**0.5),
        nn.Parameter(torch.zeros(MEMBERS, HIDDEN)),
        nn.Parameter(torch.randn(MEMBERS, HIDDEN, generator=random) / (HIDDEN * left.shape[1]) ** 0.5),
    ]
    parts[0].data[:, constant] = 0.0
    networks, targets = Networks(shift, scale, *parts), torch.from_numpy(answers).float().expand(MEMBERS, -1)
    optimizer = torch.optim.AdamW(parts, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(GRADIENT_STEPS):
        rewards = networks(flat).reshape(MEMBERS, *both.shape[:3]).sum(-1)  # [E, 2, P]
        logits = rewards[:, 0] - rewards[:, 1]
        losses = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        optimizer.zero_grad()
        (losses * counts).mean(1).sum().backward()
        optimizer.step()
    return Networks(shift, scale, *(part.detach() for part in parts))


def as_belief(logits: np.ndarray) -> tuple[np.ndarray, Theta]:
    """Return arguments of `most_informative` for an ensemble's logits `[E, P]`: each network is a sample of θ."""
    members = len(logits)
    mean = logits.mean(0)
    deviations = (logits - mean) / max(members - 1, 1) ** 0.5
    rows = np.concatenate([mean[:, None], deviations.T], 1)
    covariance = np.eye(1 + members)
    covariance[0, 0] = 0.0
    return rows, Theta(np.eye(1 + members)[0], covariance)
