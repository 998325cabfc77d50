"""Which policy a run hands out: the last one, unless an earlier one is clearly better by the run's own objective."""

from typing import NamedTuple

from repolicy.policies.policy import Policy
from repolicy.runs.doubts import Standing

CAREFUL = 4  # times the episodes of a short evaluation, over which an earlier policy is compared with the last one


class Candidate(NamedTuple):
    """The policy with the highest objective in the short evaluations so far; at a run's end it may be handed out."""

    policy: Policy
    steps: int
    evaluation: dict[str, float]


def clearly_better(gain: Standing, longer: float) -> bool:
    """Say whether an earlier policy is to be handed out instead of the last one.

    `gain` is by how much its objective of an episode is higher, `longer` by how much its episodes are longer, over
    episodes of both with the same starts. Where steps cost, an early fall raises the sum of an episode. A sum that is
    higher in episodes that are not shorter is higher at whatever price the steps have that an early end leaves out.
    """
    return gain.mean > 2.0 * gain.error and longer >= 0.0
