"""What a comparison of two policies says: its sentences and tables, on the terminal and as a page with films."""

import math
from collections.abc import Callable
from html import escape
from pathlib import Path

from repolicy.loading import capitalized, counted
from repolicy.many.comparing import Compared, Comparison
from repolicy.many.varying import Around, Place
from repolicy.policies.storage import is_own
from repolicy.priors import is_plan
from repolicy.report import page
from repolicy.report.movie import Shot, file_of
from repolicy.report.run_page import filmed
from repolicy.report.verdict import number

ACTIONS = {"mean": "with the mean action", "sampled": "with sampled actions"}
Table = tuple[list[str], list[list[str]]]


def sentences(around: Around) -> list[str]:
    """Return the verdict, and what it rests on."""
    place, count = around.worst, len(around.places)
    found, (deciding, *_) = place.found, [*place.found.rows]
    starts = "from the same starts" if found.is_paired else "from starts of their own, as the environment has no seed"
    judges = " and ".join(row.title for row in found.deciding if row.verdict == found.verdict)
    where = f" at the worst of {count} places, {place.words}" if count > 1 else ""
    error = found.error * count
    lines = [
        f"{found.verdict}{where}, {ACTIONS[deciding]}, by {judges}; the margin is {found.margin}",
        f"{counted(found.episodes, 'episode')} each in {found.env} ({found.backend}), {starts}, in "
        f"{counted(found.rounds, 'round')}; a verdict is wrong with a probability of at most "
        f"{100 * error:.3g}%, but for losses that are rare and larger than all that were seen",
    ]
    verdicts = [each.found.verdict for each in around.places]
    shares = ", ".join(f"{verdict} at {verdicts.count(verdict)}" for verdict in dict.fromkeys(sorted(verdicts)))
    flat = ["nothing differs between the places: does the environment read what is varied?"] * around.is_flat
    return lines if count == 1 else [*lines, f"of the places: {shares}", *flat]


def tables(around: Around) -> list[Table]:
    """Return the places, where there are several; and the table of each kind of action at the worst of them."""
    found = [] if len(around.places) == 1 else [places(around)]
    return [*found, *(_by_action(around.worst.found, action) for action in around.worst.found.rows)]


def places(around: Around) -> Table:
    """Return a row for each place, of the quantity that loses most there."""
    rows = [[place.words, *cells(place.most_lost)[:-1], place.found.verdict] for place in around.places]
    return ["place", "what", "old", "new", "difference", "interval", "verdict"], rows


def _by_action(found: Comparison, action: str) -> Table:
    headings = ["old", "new", "difference", f"{100 - 200 * found.error:.6g}% interval", "verdict"]
    return [ACTIONS[action], *headings], [cells(row) for row in found.rows[action]]


def cells(row: Compared) -> list[str]:
    """Return one row of the table."""
    if row.name == "ended_early":
        shares = [f"{each:.1%}".replace("-", "−") for each in (row.old, row.new, row.new - row.old, row.low, row.high)]
    else:
        shares = [number(row.old), number(row.new), number(row.new - row.old, plus=True)]
        shares += [number(each, plus=True) for each in (row.low, row.high)]
    old, new, difference, low, high = shares
    interval = f"{low} to {high}" if math.isfinite(row.high - row.low) else "unknown"
    return [row.title, old, new, difference, interval, row.verdict]


# The page -------------------------------------------------------------------------------------------------------------


def write_compare_report(
    around: Around, old: str, new: str, folder: Path, say: Callable[[str], None] = lambda _: None
) -> Path:
    """Write `report.html`: the verdict, the map of what was varied, the table, and both policies at the worst place."""
    worst = around.worst
    pictures, complaint = _films(worst, (old, new), say)
    figures = [
        page.film(picture, f"{name}, mean action", kind)
        for picture, name, kind in zip(pictures, (f"old: {old}", f"new: {new}"), ("prior", "customized"), strict=True)
    ]
    verdict, *rest = sentences(around)
    where = f"at {worst.words}" if worst.options else ""
    parts = [
        page.verdict(verdict, ". ".join(map(capitalized, rest))),
        *([page.section("Where it was tried", _map(around))] if len(around.places) > 1 else []),
        page.section(f"Every quantity {where}".strip(), *(page.table(*each) for each in tables(around)[-2:])),
        page.section(f"How they move {where}".strip(), page.films(figures, complaint), note="From the same start."),
    ]
    lead = f"{escape(new)} in the place of {escape(old)}"
    title = f"{worst.found.env.partition('?')[0]}: is it safe to swap in?"
    return page.write(folder / "report.html", title, lead, parts)


def _map(around: Around) -> str:
    """Return the places as a table; of two options, with a column for each value of the second."""
    names = [*around.places[0].options]
    if len(names) == 1:
        return page.table(*places(around))
    down, across = (list(dict.fromkeys(place.options[name] for place in around.places)) for name in names)
    at = {tuple(place.options.values()): place for place in around.places}

    def told(place: Place) -> str:
        return f"{place.found.verdict}, {0.0 - place.most_lost.loss:+.1%}".replace("-", "−")

    rows = [[f"{names[0]} = {one:g}", *(told(at[one, two]) for two in across)] for one in down]
    return page.table(["", *(f"{names[1]} = {two:g}" for two in across)], rows)


def _films(place: Place, policies: tuple[str, ...], say: Callable[[str], None]) -> tuple[list[bytes | None], str]:
    files = [file_of(policy) for policy in policies if ":" not in policy]
    if len(files) < 2 or not all(is_plan(file) or is_own(file) for file in files):
        return [None, None], "a policy that is no file of Repolicy's is filmed by repolicy render"
    return filmed([Shot(str(file), place.found.env, seed=place.found.seed) for file in files], say)
