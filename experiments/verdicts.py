"""Measure how often a report's verdict is wrong about a run that changed nothing, on simulated episodes.

    python -m experiments.verdicts

Prior and customized policy draw their returns from one distribution, and their wishes from another, so each *better*
and each *worse* is wrong. With shared starts, an episode's start adds the same amount to both policies' returns.
"""

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np

from experiments import campaign
from experiments.ledger import Row
from repolicy.evaluation import Evaluation, differences
from repolicy.report.verdict import Pair, advice, verdict
from repolicy.runs import Settings

Draw = Callable[[np.random.Generator, int], np.ndarray]
KINDS: dict[str, Draw] = {
    "normal": lambda noise, count: 100.0 + 20.0 * noise.standard_normal(count),
    "lognormal": lambda noise, count: np.exp(noise.standard_normal(count)),
    "1 in 10 falls": lambda noise, count: 100.0 * (noise.random(count) > 0.1) + noise.standard_normal(count),
    "tied: successes": lambda noise, count: (noise.random(count) < 0.5).astype(float),
}
EPISODES = (10, 50)  # as for a dial's position, and as for a run's report
STARTS, RUNS = ("shared", "apart"), 2000


def null_run(kind: str, episodes: int, starts: str, noise: np.random.Generator) -> list[Pair]:
    """Return simulated episodes of prior and policy that are alike, with the mean action and with sampled actions."""

    def draw(seed: int, start: np.ndarray, is_mean: bool) -> Evaluation:
        basic, wish = (KINDS[kind](noise, episodes) for _ in range(2))
        lengths, terminated = np.full(episodes, 1000.0), np.zeros(episodes, bool)
        return Evaluation(
            "simulated", "gymnasium", is_mean, seed, basic + start, 0.1 * wish, None, lengths, lengths, None,
            terminated=terminated,
        )  # fmt: skip

    pairs = []
    for is_mean in (True, False):
        start = KINDS[kind](noise, episodes) * (starts == "shared")
        pairs.append((draw(0, start, is_mean), draw(0 if starts == "shared" else 1, start, is_mean)))
    return pairs


def measure_error_rates(kind: str, episodes: int, starts: str, runs: int, noise: np.random.Generator) -> Row:
    """Return the share of null runs whose verdict is *better* or *worse*, and of verdicts that contradict their hint.

    For comparison, it also returns the share of wrong verdicts of a test with two standard errors.
    """
    false, by_two, contradicted = 0, 0, 0
    for _ in range(runs):
        pairs = null_run(kind, episodes, starts, noise)
        sentences, hint = verdict(pairs), advice(pairs, Settings(), 1.0, "--omega")
        claims = [word for word in ("better", "worse") if word in sentences[0]]
        false += bool(claims)
        changes = [differences(*pair)["total_reward"] for pair in pairs]
        by_two += any(abs(change.value) > 2.0 * change.error for change in changes)
        contradicted += (claims == ["better"]) == bool(hint) or ("no certain gain" in hint) == bool(claims)
    counts = {"false": false, "false_by_two_errors": by_two, "contradicted": contradicted}
    return {"runs": runs, **{name: count / runs for name, count in counts.items()}}


@campaign.program("ledger")
def main(options: campaign.Options) -> campaign.Measurements:
    return {
        f"{kind}, {episodes} episodes, starts {starts}": partial(
            measure_error_rates, kind, episodes, starts, RUNS, np.random.default_rng(0)
        )
        for kind, episodes, starts in product(KINDS, EPISODES, STARTS)
    }
