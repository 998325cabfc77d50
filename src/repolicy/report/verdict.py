"""Judge whether a customized policy is better than its prior, in sentences with standard errors.

    verdict([(prior, customized)])      # ["it has 89 % of the old return and gained 1,509 of the wish; better than …"]

`repolicy/differences.py` says which differences are significant.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from repolicy.addons import Limit
from repolicy.differences import Difference, rounded, value_and_error
from repolicy.envs import parse_env_name
from repolicy.evaluation import ACTIONS, Evaluation, differences
from repolicy.runs import Settings
from repolicy.text import format_count, format_number, with_minus

LIMIT_ERRORS = 2.0  # a limit counts as broken from so many standard errors beyond it
FEW_STEPS = 100_000  # steps of a run, below which nothing but more of them is advised
HARDLY_MOVED_KL = 0.1  # nats per step to the prior, below which a policy has hardly moved
REWARD_WORDS = {"total_reward": "in total", "basic_reward": "in the basic reward", "addon_reward": "in the wish"}

Pair = tuple[Evaluation, Evaluation]  # the prior and the customized policy, with the same kind of action


def verdict(
    pairs: Sequence[Pair],
    prior_name: str = "its prior",
    keep: float | None = None,
    limited: int = 1,
    among: int = 1,
) -> list[str]:
    """Return the verdict as one to three sentences without their full stops.

    The first reports what was kept and gained, and whether the policy is better or worse in total. What was kept and
    gained is that of the first kind of action that has a significant difference in total. The second is about the
    limits (of so many pairs as `limited` says), and about `keep`, the share of the old return that the user asked to
    keep. The third is about the episodes that ended early. Where this is one verdict of several on a page, `among` is
    their number.
    """
    changes = [differences(*pair, len(pairs) * among) for pair in pairs]
    quantity = _deciding_quantity(changes[0])
    actions = [ACTIONS[customized.action] for _, customized in pairs]
    compared = [_compare([each[quantity] for each in changes], actions, quantity, prior_name)]
    if quantity == "total_reward":
        index = next((index for index, each in enumerate(changes) if each[quantity].is_significant), 0)
        change = changes[index]
        words = f"it {_describe_kept(change['basic_reward'])} and {_describe_gain(change, pairs[index][1].metric_name)}"
        if len(pairs) > 1:
            words = f"{actions[index]} {words}"
        is_certain = change["basic_reward"].is_significant or change["addon_reward"].is_significant
        compared.insert(0 if is_certain else 1, words)
    elif quantity == "addon_reward":
        compared.append("the environment tells no basic reward, so what it cost is unknown")
    asked = [_describe_limits(customized) for _, customized in pairs[:limited]]
    if keep is not None and "basic_reward" in changes[0]:
        asked[0].append(_describe_kept_share(pairs[0], keep))
    held = [f"{action} {'; '.join(words)}" for action, words in zip(actions, asked, strict=False) if words]
    ended = []
    for (prior, customized), action in zip(pairs, actions, strict=True):
        if words := early_ends(customized, prior):
            ended.append(f"{action} {words}" if len(pairs) > 1 else words)
    return ["; ".join(parts) for parts in (compared, held, ended) if parts]


def _describe_limits(evaluation: Evaluation) -> list[str]:
    """Return for each limit whether it holds, with its mean: `limit energy<=0.09 holds (0.0884 ± 0.0003)`."""
    described = []
    for text in evaluation.limits:
        column, limit = evaluation.columns[f"limit_{text}"], Limit.of(text)
        excess = limit.excess(column.mean)
        excess_words = rounded(excess, column.error)
        if excess > LIMIT_ERRORS * column.error:
            outcome = f" is broken by {excess_words}"
        elif excess > 0:
            outcome = f": cannot tell, {excess_words} beyond it may be chance"
        else:
            outcome = " holds" if excess < -LIMIT_ERRORS * column.error else " holds in these episodes"
        described.append(f"limit {text}{outcome} ({value_and_error(column.mean, column.error)})")
    return described


def _describe_kept_share(pair: Pair, keep: float) -> str:
    """Return whether the share was kept: `it keeps 96.2% ± 0.4% of the old return, and 95% was asked for: …`."""
    change = differences(*pair)["basic_reward"]
    size = abs(change.before) or 1.0
    share = 1.0 + change.value / size
    # Both means have errors. That of their ratio is the error of what is left beyond the ratio times the old returns.
    ratio = 1.0 + change.value / change.before if change.before else 1.0
    error = differences(replace(pair[0], basic=ratio * pair[0].basic), pair[1])["basic_reward"].error / size
    outcome = "that holds" if share - keep > LIMIT_ERRORS * error else "that holds in these episodes"
    if share < keep:
        outcome = "too little" if keep - share > LIMIT_ERRORS * error else "cannot tell, what is lacking may be chance"
    off_by = "unknown" if math.isnan(error) else f"{error:.1%}"
    kept = with_minus(f"{share:.1%} ± {off_by}")
    return f"it keeps {kept} of the old return, and {100.0 * keep:.6g}% was asked for: {outcome}"


def name_of_prior(card: dict[str, Any]) -> str:
    """Return what a policy's file holds as its prior: a clone, where the prior itself could not be copied."""
    return "the clone of its prior" if "prior_is" in card else "its prior"


def advice(pairs: Sequence[Pair], settings: Settings, prior_kl: float, hold_option: str) -> str:
    """Return what to try next; empty if some kind of action is significantly better and none is worse.

    `prior_kl` is the KL to the prior in nats per step at the end of the run. `hold_option` is the command's option that
    holds the policy to its prior (empty if there is none).
    """
    changes = [differences(*pair, len(pairs)) for pair in pairs]
    quantity = _deciding_quantity(changes[0])
    significant = [each[quantity].value for each in changes if each[quantity].is_significant]
    if significant and min(significant) > 0:
        return ""
    if settings.steps < FEW_STEPS:
        return f"more --steps: {settings.steps:,} are few beside the usual million"
    if not significant and prior_kl < HARDLY_MOVED_KL:
        return "it has hardly moved: more --steps" + (f", or less {hold_option}" if hold_option else "")
    if not significant:
        return (
            f"it has moved {prior_kl:.2g} nats a step away for no certain gain: more --steps, or more episodes to tell"
        )
    if settings.keep:
        hold = "more --steps, as --keep moves its weight slowly, or a higher price on new states (--states)"
    else:
        larger_omega = "a larger --omega, " if hold_option else ""
        budgets = "or a smaller budget (--kl-budget, --log-prior-budget)"
        hold = f"to hold it more: {larger_omega}a price on new states (--states) {budgets}"
    return f"{hold}; to see whether the prior acts as it should: repolicy diagnose"


def _deciding_quantity(changes: dict[str, Difference]) -> str:
    """Return the quantity that decides the verdict: the total reward where it is known."""
    return next(name for name in (*REWARD_WORDS, "length") if name in changes)


def basis(evaluations: Sequence[Evaluation], has_same_starts: bool = True) -> str:
    """Return the data behind a verdict: `50 episodes each with the mean action, from the same starts`."""
    episodes = format_count(len(evaluations[0].basic), "episode")
    episodes += f" each {' and '.join(ACTIONS[each.action] for each in evaluations)}"
    starts = ", from the same starts" if has_same_starts else ""
    return f"{episodes}{starts}; ± behind a difference is its standard error"


def early_ends(evaluation: Evaluation, prior: Evaluation | None = None) -> str:
    """Return `1 of 50 episodes ended early, at step 212`, with the number of the prior's; empty if none did."""
    lengths = evaluation.lengths[evaluation.terminated] if evaluation.terminated is not None else []
    if not len(lengths):
        return ""
    step = "step" if parse_env_name(evaluation.env).decoder is None else "decision"
    when = f"at {step} {min(lengths):,.0f}"
    if len(lengths) > 1:
        when = f"the first {when}"
    beside = ""
    if prior is not None and prior.terminated is not None:
        beside = f" (of the prior's: {prior.terminated.sum() or 'none'})"
    return f"{len(lengths)} of {len(evaluation.basic)} episodes ended early{beside}, {when}"


def _compare(changes: Sequence[Difference], actions: Sequence[str], quantity: str, prior_name: str) -> str:
    """Return `better than its prior in total: by 88 ± 24 (2 %) with the mean action, by 65 ± 30 with sampled ones`."""
    quantity_words = REWARD_WORDS.get(quantity, "in steps an episode")
    results = [_compare_one(change) for change in changes]
    if len({word for word, _ in results}) == 1:
        word, detail = results[0]
        if len(results) > 1:
            detail = ", ".join(f"{each} {action}" for (_, each), action in zip(results, actions, strict=True))
        return f"{word} {'it from' if word == 'cannot tell' else 'than'} {prior_name} {quantity_words}: {detail}"
    each = [f"{word} {action} ({detail})" for (word, detail), action in zip(results, actions, strict=True)]
    return f"{quantity_words}, beside {prior_name}: {', '.join(each)}"


def _compare_one(change: Difference) -> tuple[str, str]:
    """Return `better`, `worse` or `cannot tell`, and the number behind it."""
    if math.isnan(change.error):
        return "cannot tell", f"one episode each, {format_number(change.value, plus=True)}"
    if not change.is_significant:
        return "cannot tell", f"a difference of {change} may be chance"
    return "better" if change.value > 0 else "worse", f"by {change.unsigned}{change.share}"


def _describe_kept(change: Difference) -> str:
    """Return `has 89 % of the old return`."""
    if change.is_significant and change.share:
        return with_minus(f"has {100.0 * (1.0 + change.value / change.before):.1f} % of the old return")
    return _describe_change(change, "of the old return")


def _describe_gain(changes: dict[str, Difference], title: str) -> str:
    """Return `has a mean |θ| of 0.28 instead of 0.39` if the add-on has a metric, else the gained reward."""
    if "metric" in changes and changes["metric"].is_significant:
        before, change = changes["metric"].before, changes["metric"].value  # with digits that show the change
        return f"has a {title} of {format_number(before + change, change)} instead of {format_number(before, change)}"
    return _describe_change(changes["addon_reward"], "of the wish")


def _describe_change(change: Difference, of_what: str) -> str:
    if not change.is_significant:
        return f"shows no certain change {of_what} ({change})"
    verb = "gained" if change.value > 0 else "lost"
    return f"{verb} {rounded(abs(change.value), change.error)} {of_what}"
