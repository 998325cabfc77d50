"""What answers to "which of the two is better?" tell of a wish: Bradley and Terry's model on fragments.

A fragment with the reward R, summed along it, is preferred to one with R′ with probability σ(R − R′).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from repolicy.envs import Networks
from repolicy.errors import NumericError, UsageError
from repolicy.wishes.inference import Theta

SPREADS = (0.1, 0.3, 1.0, 3.0, 10.0)  # that θ may have beforehand, where each feature's differences have the spread 1
ROUNDS, CLOSE = 100, 1e-10
FITS, RATE, DECAY = 300, 1e-2, 1e-2  # of networks
MEMBERS, HIDDEN = 5, 32  # how many there are, and the units of each


def bradley_terry(
    differences: np.ndarray, answers: np.ndarray, spread: float | None = None, names: Sequence[str] = ()
) -> Theta:
    """Return θ by differences `[P, K]` of features, left − right, and answers `[P]`: 1 left, 0 right, ½ alike.

    θ is the likeliest one, by a Gaussian of this spread around 0 and the answers, with the covariance of Laplace's
    approximation. The spread counts in units of the differences' own; by default it is one of SPREADS, nobody knows
    which, and each counts as the answers make it likely. `names` are the features'.
    """
    check(differences, answers)
    scale = np.sqrt(np.square(differences).mean(0))
    if (same := np.flatnonzero(scale == 0)).size:
        which = names[same[0]] if names else f"feature {same[0]}"
        raise UsageError(
            f"{which} is the same in both clips of all pairs, so nothing can be learnt of it: leave it out"
        )
    rows = differences / scale
    fits, evidence = zip(
        *[_fit(rows, answers, each) for each in (SPREADS if spread is None else (spread,))], strict=True
    )
    chances = np.exp(np.array(evidence) - np.logaddexp.reduce(evidence))
    values = np.stack([fit.value for fit in fits])
    value = chances @ values
    covariance = np.einsum("s,skl->kl", chances, np.stack([fit.covariance for fit in fits]))
    covariance += (chances[:, None] * (values - value)).T @ (values - value)
    return Theta(value / scale, covariance / np.outer(scale, scale))


def _fit(rows: np.ndarray, answers: np.ndarray, spread: float) -> tuple[Theta, float]:
    """Return the mode with its covariance, and how likely the answers are under this spread (its logarithm)."""
    size = rows.shape[1]
    theta, precision = np.zeros(size), np.eye(size) / spread**2

    def posterior(theta: np.ndarray) -> float:
        logits = rows @ theta
        likelihood = answers * -np.logaddexp(0, -logits) + (1 - answers) * -np.logaddexp(0, logits)
        return float(likelihood.sum() - 0.5 * theta @ precision @ theta)

    for _ in range(ROUNDS):
        chance = sigmoid(rows @ theta)
        slope = rows.T @ (answers - chance) - precision @ theta
        curvature = (rows * (chance * (1 - chance))[:, None]).T @ rows + precision
        move = np.linalg.solve(curvature, slope)
        while posterior(theta + move) < posterior(theta) and np.abs(move).max() > CLOSE:
            move /= 2
        theta = theta + move
        if np.abs(move).max() <= CLOSE:
            break
    chance = sigmoid(rows @ theta)
    curvature = (rows * (chance * (1 - chance))[:, None]).T @ rows + precision
    evidence = posterior(theta) - 0.5 * np.linalg.slogdet(curvature)[1] - size * np.log(spread)
    return Theta(theta, np.linalg.inv(curvature)), float(evidence)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * logits))


def check(differences: np.ndarray, answers: np.ndarray) -> None:
    """Raise where there is nothing to learn from."""
    if not len(answers):
        raise UsageError("no answer says which of two clips is better, or that they are alike: answer some more")
    if not np.isfinite(differences).all():
        raise NumericError(f"feature {np.argwhere(~np.isfinite(differences))[0][1]} is no finite number in a fragment")


def most_telling(differences: np.ndarray, belief: Theta, count: int) -> list[int]:
    """Return the pairs whose answers would tell most, one after the other, as if those before were answered.

    That is where the belief's probabilities differ most: chance·(1 − chance)·variance of the logit.
    """
    covariance, chosen = belief.covariance.copy(), list[int]()
    chance = sigmoid(differences @ belief.value)
    weight = chance * (1 - chance)
    for _ in range(min(count, len(differences))):
        gain = weight * np.einsum("pk,kl,pl->p", differences, covariance, differences)
        gain[chosen] = -np.inf
        best = int(gain.argmax())
        chosen.append(best)
        along = covariance @ differences[best]
        covariance -= weight[best] * np.outer(along, along) / (1 + weight[best] * differences[best] @ along)
    return chosen


# Without features: an ensemble of small networks ----------------------------------------------------------------------


def fitted_networks(left: np.ndarray, right: np.ndarray, answers: np.ndarray) -> Networks:
    """Return networks by the inputs `[P, T, I]` of both fragments, each fitted to another draw of the answers."""
    check(left.reshape(len(left), -1) - right.reshape(len(right), -1), answers)
    both = torch.from_numpy(np.stack([left, right])).float()  # [2, P, T, I]
    size = both.shape[-1]
    flat = both.reshape(-1, size)
    same = (flat == flat[0]).all(0)  # no answer tells of these inputs: they count for nothing, and not by chance
    shift, scale = torch.where(same, flat[0], flat.mean(0)), torch.where(same, 1.0, flat.std(0).clamp_min(1e-6))
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
    parts[0].data[:, same] = 0.0
    made, wanted = Networks(shift, scale, *parts), torch.from_numpy(answers).float().expand(MEMBERS, -1)
    optimizer = torch.optim.AdamW(parts, lr=RATE, weight_decay=DECAY)
    for _ in range(FITS):
        rewards = made(flat).reshape(MEMBERS, *both.shape[:3]).sum(-1)  # [E, 2, P]
        losses = nn.functional.binary_cross_entropy_with_logits(rewards[:, 0] - rewards[:, 1], wanted, reduction="none")
        optimizer.zero_grad()
        (losses * counts).mean(1).sum().backward()
        optimizer.step()
    return Networks(shift, scale, *(part.detach() for part in parts))


def as_belief(logits: np.ndarray) -> tuple[np.ndarray, Theta]:
    """Return what `most_telling` takes, of an ensemble's logits `[E, P]`: as if each network were a draw of one θ."""
    members = len(logits)
    mean = logits.mean(0)
    apart = (logits - mean) / max(members - 1, 1) ** 0.5
    rows = np.concatenate([mean[:, None], apart.T], 1)
    covariance = np.eye(1 + members)
    covariance[0, 0] = 0.0
    return rows, Theta(np.eye(1 + members)[0], covariance)
