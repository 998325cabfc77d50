"""Whether a run gains anything: where it began, where it stands, and what to try where it only drifts."""

import math
from dataclasses import dataclass

from repolicy.loading import figures

PATIENCE = 0.5  # share of the steps before a run is doubted
DRIFT = 0.1  # nats a step from the prior, below which a policy has hardly moved


@dataclass(frozen=True)
class Standing:
    """What a policy brings an episode, with the standard error of that."""

    mean: float
    error: float

    @classmethod
    def of(cls, total: float, squares: float, count: float) -> "Standing":
        mean = total / count
        return cls(mean, math.sqrt(max(squares / count - mean * mean, 0.0) / max(count - 1.0, 1.0)))

    def beats(self, other: "Standing") -> bool:
        """By more than the error of the difference."""
        return self.mean - other.mean > math.hypot(self.error, other.error)

    def __str__(self) -> str:
        return f"{figures(self.mean, 4)} ± {figures(self.error, 2)}"


def doubt(
    start: Standing, now: Standing, drift: float, explained: float, share: float, what: str, less: str = "--omega"
) -> str:
    """A sentence for a run that drifts from its prior and gains nothing, and what to try; else empty.

    `what` is what the two stand for; `share` is how much of the run is done; `less` is what holds the policy.
    """
    if share < PATIENCE or now.beats(start):
        return ""
    stands = f"after {share:.0%} of the steps {what} is {now}, not clearly more than the prior's {start}"
    if explained < 0.0:
        return (
            f"{stands}, and the critic explains nothing (explained variance {explained:.2g}): look less far ahead "
            "(--gamma 0.9), or learn from more at a time (twice the --envs and --minibatch)"
        )
    if drift < DRIFT:
        lighter = f" or less {less}" if less else ""
        return f"{stands}, and the policy has hardly moved: more weight for the add-on (--addon NAME=10){lighter}"
    return (
        f"{stands}, though the policy has moved {drift:.2g} nats a step away: take smaller steps (--desired-kl 0.003) "
        "and more --steps, or give the add-on more weight (--addon NAME=10)"
    )
