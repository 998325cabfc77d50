"""Whether a customized policy is better than its prior, in words and with the error of the claim.

    verdict(prior, customized)      # "better than its prior by 653 ± 84 (18 %) in total; it lost 858 of the basic …"

A difference counts where it is larger than two standard errors of the episodes that were run.
"""

import math
from dataclasses import dataclass
from typing import Any

from repolicy.envs.evaluation import Column, Evaluation
from repolicy.report.numbers import number, rounded

ENOUGH = 2.0  # standard errors
NAMES = {"total_reward": "in total", "basic_reward": "of the basic reward", "addon_reward": "of the wish"}


@dataclass(frozen=True)
class Difference:
    """Between the means of two sets of episodes."""

    before: float
    value: float
    error: float  # standard error of the value; not a number where a set has one episode

    @property
    def is_real(self) -> bool:
        return abs(self.value) > ENOUGH * self.error  # False where the error is unknown

    @property
    def share(self) -> str:
        """` (18 %)` of the value before; nothing where that is no positive number."""
        if not self.before > 0:
            return ""
        share = abs(self.value) / self.before
        return f" ({f'{share:.0%}' if share >= 0.005 else 'under 1%'})".replace("%", " %")

    def __str__(self) -> str:
        if math.isnan(self.error):
            return f"{number(self.value)} ± unknown"
        return f"{rounded(self.value, self.error)} ± {rounded(self.error, self.error, of=self.value)}"

    @property
    def size(self) -> "Difference":
        """The same without its sign."""
        return Difference(self.before, abs(self.value), self.error)


def difference(before: Column, after: Column, paired: bool = False) -> Difference:
    """Of two sets of episodes, drawn apart from each other or in pairs."""
    apart = math.hypot(before.error, after.error)
    if paired and before.weights is None:
        apart = Column("", after.values - before.values).error
    return Difference(before.mean, after.mean - before.mean, apart)


def differences(prior: Evaluation, customized: Evaluation) -> dict[str, Difference]:
    """Of every quantity that both evaluations know. By one seed, the episodes of both began alike: they are pairs."""
    before, after = prior.columns, customized.columns
    drawn = [(each.env, each.backend, each.seed, len(each.basic)) for each in (prior, customized)]
    return {name: difference(before[name], after[name], drawn[0] == drawn[1]) for name in before if name in after}


def verdict(prior: Evaluation, customized: Evaluation, than: str = "its prior") -> str:
    """The sentence without a full stop: better, worse or neither, at what price, and how many episodes ended early."""
    changes = differences(prior, customized)
    name = _judging(changes)
    parts = [_judged(changes[name], NAMES.get(name, "steps an episode"), than)]
    if name == "total_reward":
        parts.append(_price(changes["basic_reward"], changes["addon_reward"]))
    elif name == "addon_reward":
        parts.append("the environment tells no basic reward, so what it cost is unknown")
    return "; ".join([*parts, *early(customized, prior)])


def name_of_prior(card: dict[str, Any]) -> str:
    """What stands as the prior in a policy's file: where that could not be copied, what was fitted to it."""
    return "the clone of its prior" if "prior_is" in card else "its prior"


def advice(prior: Evaluation, customized: Evaluation) -> str:
    """What to try where the customized policy is worse than its prior; else empty."""
    changes = differences(prior, customized)
    change = changes[_judging(changes)]
    if not change.is_real or change.value > 0:
        return ""
    return (
        "where its steps were far fewer than the usual million: more of them (--steps); to hold it more: a larger "
        "--omega, a price on new states (--states) or a smaller --kl-budget; to see whether the prior acts as it "
        "should: repolicy diagnose"
    )


def _judging(changes: dict[str, Difference]) -> str:
    """Which difference decides: in total, where that is known."""
    return next(name for name in (*NAMES, "length") if name in changes)


def basis(evaluation: Evaluation) -> str:
    """What a verdict rests on: `50 episodes each with the mean action, from the same starts; …`."""
    count = len(evaluation.basic)
    return (
        f"{count} episode{'s' if count > 1 else ''} each with {action(evaluation)}, from the same starts; "
        "± behind a difference is its standard error"
    )


def action(evaluation: Evaluation) -> str:
    return "sampled actions" if evaluation.stochastic else "the mean action"


def early(evaluation: Evaluation, prior: Evaluation | None = None) -> list[str]:
    """`1 of 50 episodes ended early, at step 212`, and how many of the prior's; or nothing."""
    steps = evaluation.lengths[evaluation.terminated] if evaluation.terminated is not None else []
    if not len(steps):
        return []
    when = f"{'the first ' if len(steps) > 1 else ''}at step {min(steps):,.0f}"
    before = None if prior is None or prior.terminated is None else prior.terminated.sum() or "none"
    beside = "" if before is None else f" (of the prior's: {before})"
    return [f"{len(steps)} of {len(evaluation.basic)} episodes ended early, {when}{beside}"]


def _judged(change: Difference, what: str, than: str) -> str:
    if math.isnan(change.error):
        return f"not known to be better than {than}: one episode each, {number(change.value, plus=True)} {what}"
    if not change.is_real:
        return f"no better than {than}: the difference {what} is {change}, less than two standard errors"
    return f"{'better' if change.value > 0 else 'worse'} than {than} by {change.size}{change.share} {what}"


def _price(basic: Difference, addon: Difference) -> str:
    lost, gained = (_moved(change, name) for change, name in ((basic, "basic_reward"), (addon, "addon_reward")))
    if basic.is_real and addon.is_real and basic.value < 0 < addon.value:
        return f"it {lost} to gain {gained.removeprefix('gained ')}"
    return f"it {lost} and {gained}"


def _moved(change: Difference, name: str) -> str:
    if not change.is_real:
        return f"showed no certain change {NAMES[name]} ({change})"
    return f"{'gained' if change.value > 0 else 'lost'} {rounded(abs(change.value), change.error)} {NAMES[name]}"
