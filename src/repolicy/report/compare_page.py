"""The page of a comparison of two policies: the sentences and tables that the terminal shows, and films."""

from collections.abc import Callable
from html import escape
from pathlib import Path

from repolicy.many.varying import Place, VariedComparison
from repolicy.policies.storage import is_repolicy_file
from repolicy.priors import is_plan
from repolicy.report import page
from repolicy.report.movie import Shot, file_of
from repolicy.report.run_page import filmed
from repolicy.text import capitalized


def write_compare_report(
    around: VariedComparison, old: str, new: str, folder: Path, say: Callable[[str], None] = lambda _: None
) -> Path:
    """Write `report.html`: the verdict, the map of what was varied, the table, and both policies at the worst place."""
    worst = around.worst
    pictures, complaint = _films(worst, (old, new), say)
    whose = zip(pictures, ((f"old: {old}", "prior"), (f"new: {new}", "customized")), strict=True)
    figures = [page.film(picture, f"{name}, mean action", kind) for picture, (name, kind) in whose]
    verdict, *rest = around.sentences
    where = f"at {worst.words}" if worst.options else ""
    parts = [
        page.verdict(verdict, ". ".join(map(capitalized, rest))),
        *([page.section("Where it was tried", _map(around))] if len(around.places) > 1 else []),
        page.section(f"Every quantity {where}".strip(), *(page.table(*each) for each in around.tables[-2:])),
        page.section(f"How they move {where}".strip(), page.films(figures, complaint), note="From the same start."),
    ]
    lead = f"{escape(new)} in the place of {escape(old)}"
    title = f"{worst.found.env.partition('?')[0]}: is it safe to swap in?"
    return page.write(folder / "report.html", title, lead, parts)


def _map(around: VariedComparison) -> str:
    """Return the places as a table; of two options, with a column for each value of the second."""
    names = [*around.places[0].options]
    if len(names) == 1:
        return page.table(*around.table)
    down, across = (list(dict.fromkeys(place.options[name] for place in around.places)) for name in names)
    at = {tuple(place.options.values()): place for place in around.places}

    def told(place: Place) -> str:
        return f"{place.found.verdict}, {0.0 - place.most_lost.loss:+.1%}".replace("-", "−")

    rows = [[f"{names[0]} = {one:g}", *(told(at[one, two]) for two in across)] for one in down]
    return page.table(["", *(f"{names[1]} = {two:g}" for two in across)], rows)


def _films(place: Place, policies: tuple[str, ...], say: Callable[[str], None]) -> tuple[list[bytes], str]:
    files = [file_of(policy) for policy in policies if ":" not in policy]
    if len(files) < 2 or not all(is_plan(file) or is_repolicy_file(file) for file in files):
        return [b"", b""], "a policy that is no file of Repolicy's is filmed by repolicy render"
    return filmed([Shot(str(file), place.found.env, seed=place.found.seed) for file in files], say)
