"""What answers to "which of the two is better?" tell of a wish: Bradley and Terry's model on fragments.

A fragment with the reward R, summed along it, is preferred to one with R′ with probability σ(R − R′). The answers are
read as a browser saves them, a JSON line each.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from repolicy.envs import Features, LearntWish, Networks
from repolicy.errors import FileError, NumericError, UsageError
from repolicy.loading import counted, printable, read_bytes
from repolicy.policies.storage import check_shape
from repolicy.wishes.inference import Theta
from repolicy.wishes.pairs import Pairs

SPREADS = (0.1, 0.3, 1.0, 3.0, 10.0)  # that θ may have beforehand, where each feature's differences have the spread 1
ROUNDS, CLOSE = 100, 1e-10
FITS, RATE, DECAY = 300, 1e-2, 1e-2  # of networks
MEMBERS, HIDDEN = 5, 32  # how many there are, and the units of each


def bradley_terry(differences: np.ndarray, answers: np.ndarray, spread: float | None = None) -> Theta:
    """Return θ by differences `[P, K]` of features, left − right, and answers `[P]`: 1 left, 0 right, ½ alike.

    θ is the likeliest one, by a Gaussian of this spread around 0 and the answers, with the covariance of Laplace's
    approximation. The spread counts in units of the differences' own; by default it makes the answers likeliest.
    """
    check(differences, answers)
    scale = np.sqrt(np.square(differences).mean(0))
    if (same := np.flatnonzero(scale == 0)).size:
        raise UsageError(f"feature {same[0]} is the same in both clips of all pairs, so nothing can be learnt of it")
    rows = differences / scale
    spreads = SPREADS if spread is None else (spread,)
    fits = [_fit(rows, answers, each) for each in spreads]
    theta, covariance, _ = max(fits, key=lambda fit: fit[2])
    return Theta(theta / scale, covariance / np.outer(scale, scale))


def _fit(rows: np.ndarray, answers: np.ndarray, spread: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the mode, its covariance, and how likely the answers are under this spread (its logarithm)."""
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
    return theta, np.linalg.inv(curvature), float(evidence)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    found: np.ndarray = 0.5 * (1 + np.tanh(0.5 * logits))
    return found


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
        told = weight * np.einsum("pk,kl,pl->p", differences, covariance, differences)
        told[chosen] = -np.inf
        best = int(told.argmax())
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
    shift, scale = flat.mean(0), flat.std(0).clamp_min(1e-6)
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


MEANS = {"left": 1.0, "right": 0.0, "alike": 0.5, "unknown": None}


def read_answers(path: Path, pages: Sequence[Pairs]) -> dict[tuple[int, int], float | None]:
    """Return answers by (page, pair), where pages count in the order of `pages`; of one given twice, the last."""
    places, found = {page.page: index for index, page in enumerate(pages)}, dict[tuple[int, int], float | None]()
    for number, line in enumerate(read_bytes(path).decode(errors="replace").splitlines(), 1):
        where = f"{path}, line {number}"
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise FileError(f"{where} is no answer as the page saves it: {printable(line, 60)}") from None
        check_shape(answer, {"page": str, "pair": int, "answer": str}, where)
        if answer["page"] not in places:
            raise UsageError(
                f"{where} answers a page that is none of those given; name the folder that `repolicy ask` wrote for it "
                "with --asked"
            )
        place = places[answer["page"]]
        if answer["answer"] not in MEANS or not 0 <= answer["pair"] < len(pages[place].seeds):
            raise FileError(f"{where} is no answer to a pair of that page")
        found[place, answer["pair"]] = MEANS[answer["answer"]]
    return found


def learnt(pages: Sequence[Pairs], answers: dict[tuple[int, int], float | None], features: str = "") -> LearntWish:
    """Return the wish that answers tell: θ of features or, where none are named, an ensemble of small networks."""
    if not pages:
        raise UsageError("answers need the folder that `repolicy ask` wrote: name it with --asked")
    if len({(page.env, page.after.shape[2:]) for page in pages}) > 1:
        raise UsageError("the pages are of several environments, or their clips differ in length: learn from one kind")
    known = {key: value for key, value in answers.items() if value is not None}
    values = np.array([*known.values()])
    source, first = f"{counted(len(known), 'answer')} on pairs of clips", pages[0]
    where = (first.env, first.policy, source, (first.observations.shape[-1], first.actions.shape[-1]))

    def told(arrays: Sequence[np.ndarray]) -> np.ndarray:
        rows = [arrays[page][pair] for page, pair in known]
        return np.stack(rows) if rows else np.empty((0, *arrays[0].shape[1:]))

    if not features:
        inputs = told([page.inputs for page in pages])
        made = fitted_networks(inputs[:, 0], inputs[:, 1], values)
        centre = made(torch.from_numpy(inputs).reshape(-1, inputs.shape[-1])).mean(1)
        return LearntWish(*where, None, networks=_centred(made, centre))
    described = Features.of(features)
    sums = told([page.features(described) for page in pages])
    theta = bradley_terry(sums[:, 0] - sums[:, 1], values)
    names = described.names(len(theta.value), where[-1])
    return LearntWish(*where, described, names, theta.value, theta.covariance)


def _centred(made: Networks, centre: torch.Tensor) -> Networks:
    """Return networks whose mean reward over the clips is 0: answers tell nothing of a reward for each step alike.

    A unit whose input is always 1 takes it off.
    """
    members, size, _ = made.first.shape
    first = torch.cat([made.first, torch.zeros(members, size, 1)], 2)
    bias = torch.cat([made.bias, torch.full((members, 1), 20.0)], 1)  # tanh(20) is 1
    return Networks(made.shift, made.scale, first, bias, torch.cat([made.second, -centre[:, None]], 1))


def spread_a_step(pages: Sequence[Pairs], wish: LearntWish) -> float:
    """Return the standard deviation of a wish's reward over the steps of the clips."""
    rewards = [wish(*page.steps, {}) for page in pages]
    return float(np.concatenate(rewards).std())
