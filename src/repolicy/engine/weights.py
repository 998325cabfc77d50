"""The default weights of customizing, from what the prior's file says."""

from typing import Any, NamedTuple

from repolicy.engine.states import SKIPPED
from repolicy.engine.worth import Worth


class Weights(NamedTuple):
    """What the two terms of the prior weigh."""

    omega: float
    states: float


def weights_of(card: dict[str, Any]) -> Weights | None:
    """What a nat of this prior is worth, where its card tells it well enough: at this ω′ its old reward counts once.

    A nat of a state counts as a nat of an action, unless the prior's episodes are too short to learn its states.
    """
    if "nat_worth" not in card or not (worth := Worth(**card["nat_worth"])).is_known:
        return None
    length = float(card.get("evaluation", {}).get("evaluation_length", 0.0))
    return Weights(worth.value, worth.value if length >= 2 * SKIPPED else 0.0)
