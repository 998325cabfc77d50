"""Compare two policies also in environments with other options than the old policy was trained with.

    compare_around("theirs.zip", "runs/mine", "HalfCheetah-v5", vary=["reset_noise_scale=0.1..0.5"])

An option is a keyword of the environment's constructor or, as `reset.NAME`, of its resets. The error is divided among
the places, so that a *worse* at any of them is wrong no more often than in one comparison.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from repolicy.envs import RESET_PREFIX, EnvLike, parse_env_name, reset_options
from repolicy.errors import UsageError
from repolicy.many.bets import VERDICT_ORDER, Verdict
from repolicy.many.comparing import Comparison, QuantityComparison, Table, compare, format_comparison, open_policies
from repolicy.policies import Agent
from repolicy.ranges import Range

VALUES_PER_OPTION, MAX_OPTIONS = 5, 2


def parse_variation(text: str) -> tuple[str, list[float]]:
    """Return the option of `NAME=LOW..HIGH`, and equidistant values from one end to the other.

    They are rounded to integers where both ends are integers and the steps are 1 or more: an option may be a count.
    """
    name, equals, ends = text.partition("=")
    try:
        found = Range.of(ends) if equals and name.removeprefix(RESET_PREFIX).isidentifier() else None
    except ValueError:
        found = None
    if not (isinstance(found, Range) and -float("inf") < found.low < found.high < float("inf")):
        wanted = "it must be an option and a range of numbers that ends above where it begins, NAME=LOW..HIGH"
        raise UsageError(f"--vary is {text!r}; {wanted}")
    step = (found.high - found.low) / (VALUES_PER_OPTION - 1)
    values = [float(f"{found.low + index * step:.6g}") for index in range(VALUES_PER_OPTION)]
    if step >= 1.0 and found.low.is_integer() and found.high.is_integer():
        values = [float(round(value)) for value in values]
    return name, values


@dataclass(frozen=True)
class Place:
    """A set of option values, and the comparison in the environment that has them."""

    options: dict[str, float]
    found: Comparison

    @property
    def words(self) -> str:
        return ", ".join(f"{name} = {value:g}" for name, value in self.options.items()) or "as it is"

    @property
    def most_lost(self) -> QuantityComparison:
        """The decisive quantity with the largest loss."""
        return max(self.found.deciding, key=lambda row: row.loss)


@dataclass(frozen=True)
class VariedComparison:
    """The comparisons at all places."""

    places: list[Place]

    @property
    def verdict(self) -> Verdict:
        return self.worst.found.verdict

    @property
    def is_flat(self) -> bool:
        """Whether no place differs from another."""
        return all(place.found.rows == self.places[0].found.rows for place in self.places)

    @property
    def worst(self) -> Place:
        """The place with the worst verdict; among those, the one with the largest loss."""
        return min(self.places, key=lambda place: (VERDICT_ORDER.index(place.found.verdict), -place.most_lost.loss))

    @property
    def sentences(self) -> list[str]:
        """The verdict at the worst place, and its conditions."""
        place, count = self.worst, len(self.places)
        if count == 1:
            return place.found.sentences()
        verdicts = [each.found.verdict for each in self.places]
        shares = ", ".join(f"{verdict} at {verdicts.count(verdict)}" for verdict in sorted({*verdicts}))
        lines = place.found.sentences(f" at the worst of {count} places, {place.words}", count)
        lines.append(f"of the places: {shares}")
        if self.is_flat:
            lines.append("nothing differs between the places: does the environment read what is varied?")
        return lines

    @property
    def tables(self) -> list[Table]:
        """The table of places, if there are several, and the tables of the worst place."""
        tables = self.worst.found.tables
        return [self.table, *tables] if len(self.places) > 1 else tables

    @property
    def table(self) -> Table:
        """A row for each place, with the quantity of the largest loss there."""
        rows = [[place.words, *place.most_lost.cells[:-1], place.found.verdict] for place in self.places]
        return ["place", "what", "old", "new", "difference", "interval", "verdict"], rows

    def __str__(self) -> str:
        return format_comparison(self.sentences, self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparisons as JSON content."""
        places = [{"options": place.options} | place.found.as_dict() for place in self.places]
        return {"verdict": self.verdict, "worst": self.worst.options, "places": places}


def compare_around(
    old: Agent | str | Path,
    new: Agent | str | Path,
    env: EnvLike | None = None,
    not_worse: str | float = "5%",
    *,
    vary: Sequence[str] = (),
    error: float = 0.05,
    progress: Callable[[str, int], None] | None = None,
    **options: Any,
) -> VariedComparison:
    """Compare two policies at each place of a grid of options; without options, once. Other arguments: see `compare`.

    Args:
        vary: options of the environment and their ranges, such as "reset_noise_scale=0.1..0.5"; two at most.
        error: the largest probability of a wrong *worse* at any place.
        progress: is called with the place in words and the number of episodes that are done there.
        options: other arguments of `compare`.
    """
    axes = dict(map(parse_variation, vary))
    if len(axes) > MAX_OPTIONS or len(axes) < len(vary):
        raise UsageError(f"--vary takes one or two options, each once; got {', '.join(vary)}")
    sides, name = open_policies(old, new, env, **options)
    if taken := axes.keys() & {*parse_env_name(name)[1], *(RESET_PREFIX + key for key in reset_options(name))}:
        raise UsageError(f"environment {name!r} sets {min(taken)} itself: leave it out there, or do not vary it")
    places = []
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        words = "&".join(f"{key}={value:g}" for key, value in chosen.items())
        place = name
        if words:
            place += ("&" if "?" in name else "?") + words
        found = compare(
            *sides, place, not_worse, error=error / VALUES_PER_OPTION ** len(axes),
            progress=None if progress is None else partial(progress, words), **options,
        )  # fmt: skip
        places.append(Place(chosen, found))
    return VariedComparison(places)
