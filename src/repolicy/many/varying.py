"""Compare two policies at several values of an environment's options, not only in the environment of training.

    compare_around("theirs.zip", "runs/mine", "HalfCheetah-v5", vary=["reset_noise_scale=0.1..0.5"])

An option is a keyword of the environment's constructor or, as `reset.NAME`, of its resets. A place is a combination of
option values. The error is divided among the places, so that a *worse* at any of them is wrong no more often than in
one comparison.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from repolicy.envs import RESET_PREFIX, EnvLike, parse_env_name, with_option
from repolicy.errors import UsageError
from repolicy.many.bets import VERDICT_ORDER, Verdict
from repolicy.many.comparing import Comparison, QuantityComparison, Table, compare, format_comparison, open_policies
from repolicy.policies import Agent
from repolicy.ranges import Range
from repolicy.readers.reading import Options

VALUES_PER_OPTION, MAX_OPTIONS = 5, 2


def parse_variation(text: str) -> tuple[str, list[float]]:
    """Return the option of `NAME=LOW..HIGH`, and equidistant values from one end to the other.

    They are rounded to integers where both ends are integers and the steps are 1 or more: an option may be a count.
    """
    name, _, ends = text.partition("=")
    try:
        limits = Range.of(ends)
    except ValueError:
        limits = None
    is_name = name.removeprefix(RESET_PREFIX).isidentifier()
    if not (is_name and isinstance(limits, Range) and -math.inf < limits.low < limits.high < math.inf):
        rule = "it must be an option and a range of numbers that ends above where it begins, NAME=LOW..HIGH"
        raise UsageError(f"--vary is {text!r}; {rule}")
    step = (limits.high - limits.low) / (VALUES_PER_OPTION - 1)
    values = [float(f"{limits.low + index * step:.6g}") for index in range(VALUES_PER_OPTION)]
    if step >= 1.0 and limits.low.is_integer() and limits.high.is_integer():
        values = [float(round(value)) for value in values]
    return name, values


@dataclass(frozen=True)
class Place:
    """A combination of option values, and the comparison in the environment that has them."""

    options: dict[str, float]
    comparison: Comparison

    @property
    def label(self) -> str:
        return ", ".join(f"{name} = {value:g}" for name, value in self.options.items()) or "as it is"

    @property
    def worst_row(self) -> QuantityComparison:
        """The deciding quantity with the worst verdict; among those, the one with the largest loss."""
        return max(self.comparison.deciding_rows, key=lambda row: (-VERDICT_ORDER.index(row.verdict), row.loss))


@dataclass(frozen=True, repr=False)
class VariedComparison:
    """The comparisons at all places."""

    places: list[Place]

    @property
    def verdict(self) -> Verdict:
        return self.worst.comparison.verdict

    @property
    def worst(self) -> Place:
        """The place with the worst verdict; among those, the one with the largest loss."""
        ranks = [(VERDICT_ORDER.index(place.comparison.verdict), -place.worst_row.loss) for place in self.places]
        return self.places[ranks.index(min(ranks))]

    @property
    def sentences(self) -> list[str]:
        """The verdict at the worst place, and its conditions."""
        worst, count = self.worst, len(self.places)
        if count == 1:
            return worst.comparison.sentences()
        verdicts = [place.comparison.verdict for place in self.places]
        counts = ", ".join(f"{verdict} at {verdicts.count(verdict)}" for verdict in sorted({*verdicts}))
        lines = worst.comparison.sentences(f" at the worst of {count} places, {worst.label}", count)
        lines.append(f"of the places: {counts}")
        if all(place.comparison.rows == worst.comparison.rows for place in self.places):
            lines.append("nothing differs between the places: does the environment read what is varied?")
        return lines

    @property
    def tables(self) -> list[Table]:
        """The table of places, if there are several, and the tables of the worst place."""
        tables = self.worst.comparison.tables
        return [self.table, *tables] if len(self.places) > 1 else tables

    @property
    def table(self) -> Table:
        """A row for each place, with the quantity that is worst there."""
        worst = [(place.label, place.comparison.verdict, place.worst_row.cells) for place in self.places]
        rows = [[label, verdict, title, *numbers] for label, verdict, (title, _, *numbers) in worst]
        return ["place", "verdict", "what", *self.worst.comparison.headings], rows

    def __repr__(self) -> str:
        return format_comparison(self.sentences, self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparisons as JSON content."""
        places = [{"options": place.options} | place.comparison.as_dict() for place in self.places]
        return {"verdict": self.verdict, "worst": self.worst.options, "places": places}


def compare_around(
    old: Agent | str | Path,
    new: Agent | str | Path,
    env: EnvLike | None = None,
    not_worse: str | float = "5%",
    *,
    vary: str | Sequence[str] = (),
    error: float = 0.05,
    progress: Callable[[str, int], None] | None = None,
    options: Options | None = None,
    new_options: Options | None = None,
    trust: bool = False,
    **others: Any,
) -> VariedComparison:
    """Compare two policies at each place of a grid of the environment's options; without `vary`, once.

    Args:
        vary: options of the environment and their ranges, such as "reset_noise_scale=0.1..0.5"; two at most.
        error: the largest probability of a wrong *worse* at any place.
        progress: is called with the place as text, and the number of episodes that are done there.
        others: the other arguments are those of `compare`.
    """
    vary = [vary] if isinstance(vary, str) else vary
    axes = dict(map(parse_variation, vary))
    if len(axes) > MAX_OPTIONS or len(axes) < len(vary):
        raise UsageError(f"--vary takes one or two options, each once; got {', '.join(vary)}")
    sides, name = open_policies(old, new, env, options, new_options, trust)
    parsed = parse_env_name(name)
    if taken := axes.keys() & {*parsed.options, *(RESET_PREFIX + key for key in parsed.reset_options)}:
        raise UsageError(f"environment {name!r} sets {min(taken)} itself: leave it out there, or do not vary it")
    places = []
    for values in product(*axes.values()):
        place_options = dict(zip(axes, values, strict=True))
        text = "&".join(f"{key}={value:g}" for key, value in place_options.items())
        place_env = with_option(name, text) if text else name
        comparison = compare(
            *sides, place_env, not_worse, error=error / VALUES_PER_OPTION ** len(axes),
            progress=None if progress is None else partial(progress, text), trust=trust, **others,
        )  # fmt: skip
        places.append(Place(place_options, comparison))
    return VariedComparison(places)
