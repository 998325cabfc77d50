"""The default weights of customizing, from what a nat of the prior is worth."""

from typing import Any, NamedTuple

from repolicy.plan.states import MOST_NUMBERS, SKIPPED
from repolicy.plan.worth import Worth, Worths


class Weights(NamedTuple):
    """What the two terms of the prior weigh."""

    omega: float
    states: float


def worth_in(card: dict[str, Any]) -> Worth | None:
    """What a nat of this prior is worth, where its card tells it."""
    told = card.get("nat_worth")
    return None if told is None else Worth(told["value"], told["error"], told["episodes"])


def weights_of(card: dict[str, Any], numbers: int) -> Weights | None:
    """What a nat of this prior is worth, where its card tells it well enough: at this ω′ its old reward counts once.

    A nat of a state counts as a nat of an action, unless the prior's states, of so many numbers, cannot be learned.
    """
    worth = worth_in(card)
    if worth is None or not worth.is_known:
        return None
    length = float(card.get("evaluation", {}).get("evaluation_length", 0.0))
    return Weights(worth.value, of_states(worth.value, length, numbers))


def weights_found(worths: Worths, numbers: int) -> Weights | None:
    """From what was measured: ω′ is the larger worth, for noise shall cost as much in neither reward.

    States are priced by the old reward alone, which they are to guard.
    """
    if not worths.known:
        return None
    states = worths.basic.value if worths.basic in worths.known else 0.0
    omega = max(worth.value for worth in worths.known)
    return Weights(two_digits(omega), of_states(two_digits(states), worths.length, numbers))


def wish_counts_more(worths: Worths) -> bool:
    """Whether that ω′ was measured in the add-on."""
    return max(worths.known, key=lambda worth: worth.value) is worths.addon


def two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def of_states(weight: float, length: float, numbers: int) -> float:
    """The weight, or 0 where episodes are too short to learn their states, or a state has too many numbers."""
    return weight if length >= 2 * SKIPPED and numbers <= MOST_NUMBERS else 0.0
