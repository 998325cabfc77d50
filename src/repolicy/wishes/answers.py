"""Answers as a browser saves them, a JSON line each, and the wish that they tell."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from repolicy.envs import Features, LearntWish, Networks
from repolicy.errors import FileError, UsageError
from repolicy.loading import counted, printable, read_bytes
from repolicy.policies.storage import check_shape
from repolicy.wishes.pairs import Pairs
from repolicy.wishes.preferences import bradley_terry, fitted_networks

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
