"""Whether a customized policy is better than its prior, in words and with the error of the claim.

    verdict([(prior, customized)])      # "it has 89 % of the old return and gained 1,509 of the wish; better than …"

A difference counts where chance makes one as large in at most 5 % of runs that change nothing, by Student's t. Where
several differences are told as one verdict, by each kind of action, these 5 % are divided among them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from repolicy.envs import Column, Evaluation, Limit
from repolicy.text import number


def rounded(value: float, error: float, of: float | None = None) -> str:
    """Round to the second digit of its error, to three decimals at most where they show it: 653 of 653.2 ± 84.1.

    `of` is the number that has the error, where `value` is the error itself.
    """
    size = abs(value if of is None else of)
    if not 1e-9 * size < error < math.inf:  # a smaller one is the rounding of a sum
        return number(value)
    digits = max(0, 1 - math.floor(math.log10(error)))
    enough = size >= 0.01 and error >= 0.001
    return f"{value:,.{min(digits, 3) if enough else digits}f}".replace("-", "−")


def spread(column: Column, like: float | None = None) -> str:
    """Return `mean ± std` of a quantity of each episode, with the digits of `like`; of one episode there is no std."""
    mean, like = column.mean, column.mean if like is None else like
    if len(column.values) < 2 or not math.isfinite(mean):
        return number(mean, like)
    return f"{number(mean, like)} ± {number(column.std, like)}"


ERROR = 0.05  # probability at most that a verdict claims a difference where there is none
ENOUGH = 2.0  # standard errors by which a limit is broken
DRIFT = 0.1  # nats a step from the prior, below which a policy has hardly moved
IN = {"total_reward": "in total", "basic_reward": "in the basic reward", "addon_reward": "in the wish"}


@dataclass(frozen=True)
class Difference:
    """Between the means of two sets of episodes."""

    before: float
    value: float
    error: float  # standard error of the value; not a number where a set has one episode
    freedom: int  # degrees of freedom of the error
    told: int = 1  # differences in the same verdict

    @property
    def is_real(self) -> bool:
        if self.error == 0.0:
            return self.value != 0.0
        return chance(abs(self.value) / self.error, self.freedom) < ERROR / self.told  # False where it is unknown

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
        return replace(self, value=abs(self.value))


def chance(size: float, freedom: int) -> float:
    """Return the probability that Student's t of so many degrees of freedom is beyond ±size.

    By the finite series of Abramowitz and Stegun (26.7.3 and 26.7.4).
    """
    angle, odd = math.atan(size / math.sqrt(freedom)), freedom % 2
    term = total = math.cos(angle) if odd else 1.0
    for index in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (index - 1) / index
        total += term
    inside = math.sin(angle) * total
    if odd:
        inside = 2.0 / math.pi * (angle + (inside if freedom > 1 else 0.0))
    return 1.0 - inside


def difference(before: Column, after: Column, paired: bool = False, told: int = 1) -> Difference:
    """Return how two sets of episodes, apart or in pairs, differ; `told`: how many differences a verdict tells."""
    counts = len(before.values), len(after.values)
    freedom = min(counts) - 1
    if paired and before.weights is None:
        apart = Column("", after.values - before.values).error
    else:
        errors = before.error, after.error
        apart = math.hypot(*errors)
        if apart > 0 and freedom > 0:  # Welch's
            shares = [(error / apart) ** 4 / (count - 1) for error, count in zip(errors, counts, strict=True)]
            freedom = math.floor(1.0 / sum(shares) + 1e-9)
    return Difference(before.mean, after.mean - before.mean, apart, max(freedom, 1), told)


def differences(prior: Evaluation, customized: Evaluation, told: int = 1) -> dict[str, Difference]:
    """Return that of every quantity that both evaluations know. By one seed, the episodes of both are pairs."""
    before, after = prior.columns, customized.columns
    drawn = [(each.env, each.backend, each.seed, len(each.basic)) for each in (prior, customized)]
    paired = drawn[0] == drawn[1]
    return {name: difference(before[name], after[name], paired, told) for name in before if name in after}


Pair = tuple[Evaluation, Evaluation]  # a prior's and the customized policy's, with the same kind of action


def verdict(pairs: Sequence[Pair], than: str = "its prior", keep: float | None = None) -> str:
    """Return a sentence without its full stop: what is kept and won, better or worse in total, limits, and who fell.

    What is kept and won is that of the first kind of action by which there is a difference in total. `keep` is the
    share of the old return that was to be kept.
    """
    changes = [differences(*pair, len(pairs)) for pair in pairs]
    name = _judging(changes[0])
    actions = [action(customized) for _, customized in pairs]
    parts = [_judged([each[name] for each in changes], actions, name, than)]
    if name == "total_reward":
        which = next((index for index, each in enumerate(changes) if each[name].is_real), 0)
        change = changes[which]
        words = f"it {_kept(change['basic_reward'])} and {_won(change, pairs[which][1].metric_name)}"
        if len(pairs) > 1:
            words = f"with {actions[which]} {words}"
        is_certain = change["basic_reward"].is_real or change["addon_reward"].is_real
        parts.insert(0 if is_certain else 1, words)
    elif name == "addon_reward":
        parts.append("the environment tells no basic reward, so what it cost is unknown")
    parts += [f"with {actions[0]} {sentence}" for sentence in held(pairs[0][1])]
    if keep is not None and "basic_reward" in changes[0]:
        parts.append(f"with {actions[0]} {_share_held(changes[0]['basic_reward'], keep)}")
    for (prior, customized), acted in zip(pairs, actions, strict=True):
        where = f"with {acted} " if len(pairs) > 1 else ""
        parts += [where + sentence for sentence in early(customized, prior)]
    return "; ".join(parts)


def held(evaluation: Evaluation) -> list[str]:
    """Return for each limit whether it holds, with its mean: `limit energy<=0.09 holds (0.0894 ± 0.0003)`."""
    sentences = []
    for text in evaluation.limits:
        column, limit = evaluation.columns[f"limit_{text}"], Limit.of(text)
        off = limit.excess(column.mean)
        beyond = rounded(off, column.error)
        if off > ENOUGH * column.error:
            how = f" is broken by {beyond}"
        elif off > 0:
            how = f": cannot tell, {beyond} beyond it may be chance"
        else:
            how = " holds"
        mean = f"{rounded(column.mean, column.error)} ± {rounded(column.error, column.error, of=column.mean)}"
        sentences.append(f"limit {text}{how} ({mean})")
    return sentences


def _share_held(change: Difference, keep: float) -> str:
    """Return whether a share of the old return is kept: `it keeps 0.962 ± 0.004 of the old return, and 0.95 was …`."""
    size = abs(change.before) or 1.0
    share, error = 1.0 + change.value / size, change.error / size
    how = "that holds"
    if share < keep:
        how = "too little" if keep - share > ENOUGH * error else "cannot tell, what is lacking may be chance"
    kept = f"{rounded(share, error)} ± {rounded(error, error, of=share)}"
    return f"it keeps {kept} of the old return, and {keep:g} was asked for: {how}"


def name_of_prior(card: dict[str, Any]) -> str:
    """Return what stands as the prior in a policy's file: where that could not be copied, what was fitted to it."""
    return "the clone of its prior" if "prior_is" in card else "its prior"


def advice(pairs: Sequence[Pair], drift: float, explained: float, holds: str) -> str:
    """Return what to try, from the verdict alone: empty where any kind of action shows a gain and none shows a loss.

    `drift` is how many nats a step the run ended from its prior, `explained` the share of the returns that its critic
    explained, `holds` the option that holds it to the prior, or nothing.
    """
    changes = [differences(*pair, len(pairs)) for pair in pairs]
    name = _judging(changes[0])
    real = [each[name].value for each in changes if each[name].is_real]
    if real and min(real) > 0:
        return ""
    if explained < 0.0:
        return (
            f"its critic explained nothing (explained variance {explained:.2g}): look less far ahead (--gamma 0.9), or "
            "learn from more at a time (twice the --envs and --minibatch)"
        )
    if not real and drift < DRIFT:
        less = f", or less {holds}" if holds else ""
        return f"it has hardly moved: more --steps{less}"
    if not real:
        return f"it has moved {drift:.2g} nats a step away for no certain gain: more --steps, or more episodes to tell"
    held = "a larger --omega, " if holds else ""
    return (
        f"where its steps were far fewer than the usual million: more of them (--steps); to hold it more: {held}"
        "a price on new states (--states) or a smaller --kl-budget; to see whether the prior acts as it should: "
        "repolicy diagnose"
    )


def _judging(changes: dict[str, Difference]) -> str:
    """Return which difference decides: in total, where that is known."""
    return next(name for name in (*IN, "length") if name in changes)


def basis(evaluations: Sequence[Evaluation]) -> str:
    """Return what a verdict rests on: `50 episodes each with the mean action, from the same starts`."""
    count = len(evaluations[0].basic)
    who = f"{count} episode{'s' if count > 1 else ''} each with {' and '.join(map(action, evaluations))}"
    return f"{who}, from the same starts; ± behind a difference is its standard error"


def action(evaluation: Evaluation) -> str:
    return "the mean action" if evaluation.deterministic else "sampled actions"


def early(evaluation: Evaluation, prior: Evaluation | None = None) -> list[str]:
    """Return `1 of 50 episodes ended early, at step 212`, and how many of the prior's; or nothing."""
    steps = evaluation.lengths[evaluation.terminated] if evaluation.terminated is not None else []
    if not len(steps):
        return []
    when = f"at step {min(steps):,.0f}"
    if len(steps) > 1:
        when = f"the first {when}"
    if prior is not None and prior.terminated is not None:
        when += f" (of the prior's: {prior.terminated.sum() or 'none'})"
    return [f"{len(steps)} of {len(evaluation.basic)} episodes ended early, {when}"]


def _judged(changes: Sequence[Difference], actions: Sequence[str], name: str, than: str) -> str:
    """Return `better than its prior in total: by 88 ± 24 (2 %) with the mean action, by 65 ± 30 with sampled ones`."""
    what = IN.get(name, "in steps an episode")
    words = [_one_judged(change) for change in changes]
    if len({word for word, _ in words}) == 1:
        word, detail = words[0]
        if len(words) > 1:
            detail = ", ".join(f"{each} with {action}" for (_, each), action in zip(words, actions, strict=True))
        return f"{word} {'it from' if word == 'cannot tell' else 'than'} {than} {what}: {detail}"
    each = [f"{word} with {how} ({detail})" for (word, detail), how in zip(words, actions, strict=True)]
    return f"{what}, beside {than}: {', '.join(each)}"


def _one_judged(change: Difference) -> tuple[str, str]:
    """Return the word of a comparison, and the number behind it."""
    if math.isnan(change.error):
        return "cannot tell", f"one episode each, {number(change.value, plus=True)}"
    if not change.is_real:
        return "cannot tell", f"a difference of {change} may be chance"
    return "better" if change.value > 0 else "worse", f"by {change.size}{change.share}"


def _kept(change: Difference) -> str:
    """Return `has 89 % of the old return`."""
    if change.is_real and change.before > 0:
        return f"has {f'{1.0 + change.value / change.before:.1%}'.replace('%', ' %')} of the old return"
    return _moved(change, "of the old return")


def _won(changes: dict[str, Difference], title: str) -> str:
    """Return `has a mean |θ| of 0.28 instead of 0.39`, or, of a wish without a number for people, what it gained."""
    if "metric" in changes and changes["metric"].is_real:
        before, after = changes["metric"].before, changes["metric"].before + changes["metric"].value
        return f"has a {title} of {number(after)} instead of {number(before)}"
    return _moved(changes["addon_reward"], "of the wish")


def _moved(change: Difference, what: str) -> str:
    if not change.is_real:
        return f"showed no certain change {what} ({change})"
    verb = "gained" if change.value > 0 else "lost"
    return f"{verb} {rounded(abs(change.value), change.error)} {what}"
