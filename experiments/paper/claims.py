"""The claims of the paper's text about its tables, and tests of them on our own runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from experiments.paper import printed
from experiments.paper.results import Results, Scores
from experiments.statistics import bootstrap_interval, mean, permutation_p_value

Verdict = Literal["holds here", "does not", "cannot tell", "not measured yet"]
Way = tuple[str, str]  # which policy of a run, and which action
MAIN: Way = ("last", "mean")
OTHERS: tuple[Way, ...] = (("best", "mean"), ("last", "sampled"))
ERROR = 0.05  # probability of each of the two wrong verdicts if there is no difference
HALF = 0.5  # a policy has failed if it has less than this share


@dataclass(frozen=True)
class Claim:
    """In each task, share · left − right is above −margin · |right|."""

    text: str
    left: str  # variants
    right: str
    part: str  # the quantity that is compared
    tasks: tuple[str, ...]
    margin: float = 0.0  # 0: better; 0.1: as good, up to a tenth
    share: float = 1.0
    whose: Literal["average", "best seed"] = "average"


ALL = ("halfcheetah", "hopper", "ant")
SOFT = "Soft is as good as {}, or better (up to 5 %)"
NEAR = "the best seed {} comes near Soft's best (up to 10 %)"
OTHER_ENTROPIES = {"no_entropy": "No-Entropy", "end_entropy": "End-Entropy", "repeat_entropy": "Repeat-Entropy"}
WITH = {"no_entropy": "without entropy", "end_entropy": "of End-Entropy", "repeat_entropy": "of Repeat-Entropy"}
CLAIMS = (
    *(
        Claim(SOFT.format(name), "soft", variant, "basic_reward", ALL, margin=0.05)
        for variant, name in OTHER_ENTROPIES.items()
    ),
    Claim(
        "Repeat-Entropy fails where Soft learns (under a half of it)",
        "soft", "repeat_entropy", "basic_reward", ("halfcheetah",), share=HALF,
    ),
    *(
        Claim(NEAR.format(what), variant, "soft", "basic_reward", ALL, margin=0.1, whose="best seed")
        for variant, what in WITH.items()
    ),
    Claim("a global std beats one that depends on the state", "soft", "soft_state_std", "basic_reward", ALL),
    Claim(
        "a global std beats it in the best seed too", "soft", "soft_state_std", "basic_reward", ALL, whose="best seed"
    ),
    Claim("Residual gains on the prior's add-on reward", "residual", "prior", "addon_reward", ALL),
    Claim(
        "Residual's total is above its prior's (Table 2; not in the text)",
        "residual", "prior", "total_reward", ("halfcheetah", "ant"),
    ),
    Claim(
        "Residual's total is comparable with Full's (up to 10 %)",
        "residual", "full", "total_reward", ("halfcheetah", "ant"), margin=0.1,
    ),
    *(
        Claim(f"Full is the upper bound: its total is above {name}'s", "full", variant, "total_reward", ALL)
        for name, variant in (("Residual", "residual"), ("KL", "kl"), ("Greedy", "greedy"))
    ),
    Claim("Greedy's total is below Residual's", "residual", "greedy", "total_reward", ALL),
    Claim("Greedy struggles to keep the basic return: below its prior's", "prior", "greedy", "basic_reward", ALL),
    Claim(
        "Greedy fails where the reward has a charge on actions (under a half of the basic return is left)",
        "prior", "greedy", "basic_reward", ("halfcheetah",), share=HALF,
    ),
    Claim("KL's total is below Residual's", "residual", "kl", "total_reward", ALL),
    Claim("KL's total is below Greedy's", "greedy", "kl", "total_reward", ("ant",)),
    Claim("customizing costs total: Residual is below its prior", "prior", "residual", "total_reward", ("hopper",)),
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """The result of testing a claim in one environment."""

    claim: Claim
    task: str
    verdict: Verdict
    others: tuple[Verdict, ...]  # for each of OTHERS
    printed: float  # share · left − right in the paper
    holds_in_print: bool  # whether the paper's own numbers agree with the claim
    p: float | None = None  # of the verdict
    difference: float | None = None  # share · left − right
    low: float | None = None
    high: float | None = None


def examine_all(results: Results, claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    return [examine(results, claim, task) for claim in claims for task in claim.tasks]


def examine(results: Results, claim: Claim, task: str) -> Finding:
    """Test a claim on our runs. Return verdicts for all ways, and for the main way the difference and its interval."""
    best = claim.whose == "best seed"
    paper_left, paper_right = (printed.value(task, name, claim.part, best) for name in (claim.left, claim.right))
    paper_left *= claim.share
    in_print = paper_left - paper_right, paper_left > paper_right - claim.margin * abs(paper_right)
    (verdict, p), *others = (judge(*compared_scores(results, claim, task, way), claim) for way in (MAIN, *OTHERS))
    left, right = compared_scores(results, claim, task, MAIN)
    finding = Finding(claim, task, verdict, tuple(other for other, _ in others), *in_print, p)
    if left is None or right is None:
        return finding
    left_seeds, right_seeds = (scores[:, None] for scores in (claim.share * left.seeds, right.seeds))
    several = min((len(each.seeds) for each in (left, right) if not each.one_policy), default=1) > 1
    has_interval = several and not best  # a bootstrap never exceeds the best seed, so it has no interval for it
    low, high = None, None
    if has_interval:
        low, high = bootstrap_interval(lambda x, y: mean(x) - mean(y), left_seeds, right_seeds)
    statistic = seed_statistic(claim)
    difference = float(statistic(left_seeds[:, 0]) - statistic(right_seeds[:, 0]))
    return replace(finding, difference=difference, low=low, high=high)


def compared_scores(results: Results, claim: Claim, task: str, way: Way) -> tuple[Scores | None, Scores | None]:
    """Return the scores of both sides of a claim."""
    return results.scores(task, claim.left, claim.part, *way), results.scores(task, claim.right, claim.part, *way)


def judge(left: Scores | None, right: Scores | None, claim: Claim) -> tuple[Verdict, float | None]:
    """Return the verdict and the p-value of the one-sided permutation test, in the direction with the smaller one."""
    if left is None or right is None:
        return "not measured yet", None
    statistic = seed_statistic(claim)

    def gap(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        return np.asarray(statistic(ours) - statistic(theirs))

    ours, bound = claim.share * left.seeds, right.seeds - claim.margin * abs(statistic(right.seeds))
    known = left.one_policy or right.one_policy
    p = min(permutation_p_value(gap, ours, bound, known), permutation_p_value(gap, bound, ours, known))
    if p > ERROR:
        return "cannot tell", p
    return "holds here" if gap(ours, bound) > 0 else "does not", p


def seed_statistic(claim: Claim) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that reduces seeds `[..., S]` to the number that a claim is about."""
    reduce = np.max if claim.whose == "best seed" else np.mean
    return lambda seeds: np.asarray(reduce(seeds, axis=-1))
