"""The report of `repolicy learn-wish`: how often the person acted, the wish of each round, and its effect."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from repolicy.addons import Features, LearntWish
from repolicy.report import charts, page
from repolicy.wishes.record import Record


def write_rounds(
    out: Path, features: str, records: Sequence[Record], wishes: Sequence[LearntWish | None], rate: float
) -> Path:
    """Write the report of all rounds so far into the folder, and return its path.

    `records` and `wishes` have one entry per round: the record, and the wish of the policy that acted in it. The wish
    is None in the first round, whose policy is the prior.
    """
    shares = [record.rate for record in records]
    until = 4.0 * math.ceil((len(shares) - 1) / 4)  # a multiple of 4, so that the ticks are integers
    title = "your share of the steps, by round"
    curve = charts.curve(title, [*range(len(shares))], shares, until, levels={"enough": rate})
    drawn = charts.chart_grid([curve]) if curve else ""
    rows = [
        [
            f"round {number}",
            f"{each.rate:.1%} ± {each.rate_error:.1%}",
            f"{each.person.sum():,}",
            f"{len(each.person):,}",
        ]
        for number, each in enumerate(records)
    ]
    parts = [
        page.section("How often you acted", page.table(["", "your share", "your steps", "steps"], rows), drawn),
        page.section("What the wish is", thetas(wishes), note="θ of each feature ± its error, by round."),
        page.section("What was done", histograms(features, records), note=STEPS_NOTE),
    ]
    lead = f"{records[0].env}: a wish learnt from take-overs in {len(records)} rounds."
    return page.write(out / "report.html", "What you wish", lead, parts)


STEPS_NOTE = (
    "Each feature in the steps in which the prior acted, in yours of all rounds, and in those of the last policy."
)


def thetas(wishes: Sequence[LearntWish | None]) -> str:
    """Return a table of θ: one row per feature, one column per round."""
    learnt = [(number, wish) for number, wish in enumerate(wishes) if wish is not None]
    if not learnt:
        return "<p>Nothing is learnt yet.</p>"
    rows = []
    for index, name in enumerate(learnt[0][1].names):
        values = [(wish.theta[index], wish.covariance[index, index] ** 0.5) for _, wish in learnt]
        rows.append(
            [name, *(f"{charts.short_number(value)} ± {charts.short_number(error, 2)}" for value, error in values)]
        )
    return page.table(["feature", *(f"round {number}" for number, _ in learnt)], rows)


def histograms(features: str, records: Sequence[Record]) -> str:
    """Return histograms of each feature over the steps of the prior, the person and the last policy."""
    described = Features.of(features)
    series = {"prior": described(*_steps(records[0], ~records[0].person), {})}
    yours = [described(*_steps(record, record.person), {}) for record in records if record.person.any()]
    if yours:
        series["you"] = np.concatenate(yours)
    if len(records) > 1:
        series["customized"] = described(*_steps(records[-1], ~records[-1].person), {})
    series = {name: values for name, values in series.items() if len(values)}
    sizes = (records[0].observation.shape[1], records[0].action.shape[1])
    names = described.names(len(next(iter(series.values()))[0]), sizes)
    drawn = [
        charts.histogram({who: values[:, index] for who, values in series.items()}, name)
        for index, name in enumerate(names)
    ]
    return charts.chart_grid(drawn)


def _steps(record: Record, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return record.observation[mask], record.action[mask], record.next[mask]
