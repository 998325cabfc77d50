"""Measure how often `repolicy compare` errs, and how many episodes it takes beside tests of a fixed number.

    python -m benchmarks.comparing --out results/comparing.jsonl
    python -m benchmarks.comparing --pair go1=go1_policy.onnx,runs/go1,Go1JoystickFlatTerrain-v1?observe=state

The first rows are simulated: the new policy's returns lie exactly at the margin, so each *not worse* is wrong, and so
is each *worse*. The others draw from episodes that were run, those of HalfCheetah's prior against itself, and against
itself with a share of its actions replaced at random; or those of two policies' files. In the ledger `runs/cheetah` was
made by `repolicy customize halfcheetah --addon hind_leg=10 --out runs/cheetah`.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from experiments import campaign
from experiments.ledger import Ledger
from repolicy.evaluation import evaluate
from repolicy.many.bets import is_mean_proven_positive, loss_bounds
from repolicy.many.comparing import EPISODES_PER_ROUND, compare
from repolicy.policies.policy import Actor
from repolicy.priors.opening import load_policy

MARGIN, ERROR, MOST = 0.05, 0.05, 1000
POWER = 0.95  # of the tests of a fixed number of episodes, as a share of the power of the bets
FEW = 100  # episodes of Student's test in the simulations
AT_ONCE = 500  # comparisons, for the memory's sake
Pairs = tuple[np.ndarray, np.ndarray]  # [S, N] returns of the old and the new policy


def at_margin(count: int, noise: np.random.Generator) -> dict[str, Callable[[], Pairs]]:
    """Return what draws returns `[count, MOST]` of each kind: the new mean is 1 − MARGIN of the old one, about 1."""
    shape, least = (count, MOST), 1.0 - MARGIN

    def normal(mean: float, std: float) -> np.ndarray:
        return mean + std * noise.standard_normal(shape)

    def lognormal(mean: float, width: float) -> np.ndarray:
        return mean * np.exp(width * noise.standard_normal(shape) - width**2 / 2)

    def often(share: float) -> np.ndarray:
        return (noise.random(shape) < share).astype(float)

    def won_or_lost(share: float) -> Pairs:
        won, lost = often(share), often(MARGIN * (2.0 * share - 1.0) / (2.0 * share))
        return 2.0 * won - 1.0, 2.0 * won * (1.0 - lost) - 1.0

    return {
        "normal, std 10 %": lambda: (normal(1.0, 0.1), normal(least, 0.1)),
        "normal, std 50 %": lambda: (normal(1.0, 0.5), normal(least, 0.5)),
        "lognormal": lambda: (lognormal(1.0, 1.0), lognormal(least, 1.0)),
        "lognormal losses": lambda: (np.ones(shape), 1.0 - lognormal(MARGIN, 1.0)),
        "1 in 20 falls at once": lambda: (normal(1.0, 0.02), often(least) * normal(1.0, 0.02)),
        "1 in 10 falls halfway": lambda: (normal(1.0, 0.02), normal(1.0, 0.02) * (1.0 - 0.5 * often(2 * MARGIN))),
        "tied: successes": lambda: (often(0.8), often(0.8 * least)),
        "tied: won 1 or lost 1": lambda: won_or_lost(0.8),
        "tied: always the same": lambda: (np.ones(shape), np.full(shape, least)),
        "1 in 40 loses twice the mean": lambda: (np.ones(shape), 1.0 - 2.0 * often(MARGIN / 2)),
    }


def bets(pairs: Pairs, sign: float = 1.0) -> np.ndarray:
    """Return after which episodes `[S, N]` the new policy is shown to be above the margin, or below it (sign −1)."""
    old, new = pairs
    losses = loss_bounds(old, new) + (0.0 if sign > 0 else MARGIN * abs(old))
    return is_mean_proven_positive(sign * (new - (1.0 - MARGIN) * old), losses, ERROR)


def wrong(kind: str, comparisons: int, noise: np.random.Generator) -> dict[str, Any]:
    """Return the share of comparisons that are told *not worse*, and *worse*, where the truth is at the margin."""
    found = np.zeros(3)
    for first in range(0, comparisons, AT_ONCE):
        pairs = at_margin(min(AT_ONCE, comparisons - first), noise)[kind]()
        by_student = student(pairs[1][:, :FEW] - (1.0 - MARGIN) * pairs[0][:, :FEW])
        found += [*(bets(pairs, sign)[:, -1].sum() for sign in (1.0, -1.0)), by_student.sum()]
    return dict(zip(("not_worse", "worse", "not_worse_by_student"), (found / comparisons).tolist(), strict=True))


class Unsteady:
    """A policy of whose actions a share is replaced by any other at random: broken on purpose."""

    def __init__(self, policy: Any, share: float) -> None:
        self.policy, self.share, self.actions = policy, share, policy.actions
        self.observation_size = policy.observation_size
        self.log_prob, self.to_environment = policy.log_prob, policy.to_environment
        self._noise = np.random.default_rng(1)

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> Actor:
        steady = self.policy.actor(steps, count, generator)
        noise, share = self._noise, self.share

        class Acting:
            def __call__(self, observations: np.ndarray) -> np.ndarray:
                acted = steady(observations)
                which = noise.random((count, 1)) < share
                return np.where(which, noise.uniform(-1.0, 1.0, acted.shape), acted).astype(acted.dtype)

            def log_probs(self, actions: torch.Tensor) -> torch.Tensor:
                return steady.log_probs(actions)

        return Acting()


def student(values: np.ndarray) -> np.ndarray:
    """Return whether the mean of values `[S, N]` is above 0 by Student's t, with the normal's quantile."""
    error = values.std(1, ddof=1) / np.sqrt(values.shape[1])
    above: np.ndarray = values.mean(1) > NormalDist().inv_cdf(1.0 - ERROR) * error + 1e-12
    return above


def bernstein(values: np.ndarray, largest: float) -> np.ndarray:
    """Return whether the mean of values `[S, N]`, within ±largest, is above 0 by Maurer and Pontil's bound (2009)."""
    count, likely = values.shape[1], np.log(2.0 / ERROR)
    slack = np.sqrt(2.0 * values.var(1, ddof=1) * likely / count) + 14.0 * largest * likely / (3.0 * (count - 1))
    above: np.ndarray = values.mean(1) > slack
    return above


def episodes_needed(old: np.ndarray, new: np.ndarray, sign: float, noise: np.random.Generator) -> dict[str, Any]:
    """Return how many episodes the bets took, and the fewest with which the fixed test has the power wanted."""
    drawn = noise.integers(len(old), size=(1000, MOST))
    told = bets((old[drawn], new[drawn]), sign)[:, EPISODES_PER_ROUND - 1 :: EPISODES_PER_ROUND]
    taken = np.where(told.any(1), (told.argmax(1) + 1) * EPISODES_PER_ROUND, MOST)
    values, largest = sign * (new - (1.0 - MARGIN) * old), float(max(abs(old).max(), abs(new).max()))

    def fewest(test: Callable[[np.ndarray], np.ndarray]) -> int:
        wanted = POWER * told[:, -1].mean()
        counts = range(5, 20 * MOST, 5)
        return next(n for n in counts if test(values[noise.integers(len(old), size=(400, n))]).mean() >= wanted)

    found = {"told": told[:, -1].mean(), "episodes": taken.mean(), "most": np.quantile(taken, 0.95)}
    found |= {"fixed_bounded": fewest(lambda each: bernstein(each, largest)), "fixed_student": fewest(student)}
    found |= {"old": old.mean(), "new": new.mean(), "difference_std": (new - old).std()}
    return {name: float(value) for name, value in found.items()}


def compared(old: Any, new: Any, env: str, episodes: int, noise: np.random.Generator) -> dict[str, Any]:
    """Return what `compare` tells of two policies by their return, and how many episodes that takes."""
    told = compare(old, new, env, addon=())
    pair = [evaluate(agent, env, episodes, seed=0).basic for agent in (old, new)]
    sign = 1.0 if pair[1].mean() > pair[0].mean() - MARGIN * abs(pair[0].mean()) else -1.0
    found = {"wanted": "not worse" if sign > 0 else "worse", "env": env, "drawn_from": episodes}
    found |= {"verdict": told.verdict, "rounds": told.rounds, "took": told.episodes}
    return found | episodes_needed(*pair, sign, noise)


@campaign.program(
    comparisons=10_000, episodes=200, pair={"action": "append", "help": "NAME=OLD,NEW,ENV: two policies' files"},
    only_real=False, out=Path("results/comparing.jsonl"),
)  # fmt: skip
def main(options: campaign.Options) -> None:
    ledger, noise = Ledger(options.out), np.random.default_rng(0)
    torch.set_num_threads(1)
    for name, _, files in (text.partition("=") for text in options.pair or ()):
        old, new, env = files.split(",")
        both = load_policy(old), load_policy(new)
        ledger.add(found := {"key": name} | compared(*both, env, options.episodes, noise))
        print(found, flush=True)
    if options.pair:
        return
    for kind in () if options.only_real else at_margin(1, noise):
        found = {"key": kind, "comparisons": options.comparisons} | wrong(kind, options.comparisons, noise)
        ledger.add(found)
        print(found, flush=True)
    prior, env = load_policy("halfcheetah"), "HalfCheetah-v4"
    for name, share in (("itself", 0.0), ("2 % of its actions replaced", 0.02), ("10 % of its actions replaced", 0.1)):
        new = Unsteady(prior, share) if share else prior
        ledger.add(found := {"key": f"halfcheetah: {name}"} | compared(prior, new, env, options.episodes, noise))
        print(found, flush=True)
