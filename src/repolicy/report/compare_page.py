"""Write the page of a comparison of two policies: the terminal's sentences and tables, and films."""

from html import escape
from pathlib import Path

from repolicy.many.varying import Place, VariedComparison
from repolicy.policies.storage import is_repolicy_file
from repolicy.priors import is_code, is_plan
from repolicy.report import page
from repolicy.report.movie import Shot, policy_path
from repolicy.report.pieces import films_for_page
from repolicy.text import Say, capitalize, format_number, with_minus

ANSWERS = {"better": "yes", "not worse": "yes", "cannot tell": "not shown", "worse": "no"}
VERDICT_WORDS = (
    "Better: the new mean is higher. Not worse: it is higher than the old mean minus the margin. Worse: it is lower "
    "than that. Cannot tell: none of these is shown; more --episodes may show one. The first table decides, without "
    "its lengths and early ends. The interval is that of the difference."
)


def write_compare_report(
    around: VariedComparison, old: str, new: str, folder: Path, say: Say = lambda _: None, trust: bool = False
) -> Path:
    """Write `report.html`: the verdict, the table of varied options, all quantities, and films at the worst place.

    `trust` is whether to run code that a policy's file names.
    """
    worst = around.worst
    (old_film, new_film), complaint = _film(worst, (old, new), say, trust)
    figures = [page.film(old_film, f"old: {old}, mean action", "prior")]
    figures.append(page.film(new_film, f"new: {new}, mean action", "customized"))
    verdict, *rest = around.sentences
    where = f"at {worst.label}" if worst.options else ""
    parts = [
        page.words(),
        page.verdict([f"{ANSWERS[around.verdict]}: {verdict}"], ". ".join(map(capitalize, rest))),
        *([page.section("Where it was tried", _places_table(around))] if len(around.places) > 1 else []),
        page.section(
            f"Every quantity {where}".strip(), *(page.table(*each) for each in around.tables[-2:]), note=VERDICT_WORDS
        ),
        page.section(f"How they move {where}".strip(), page.films(figures, complaint), note="From the same start."),
    ]
    title = f"{worst.comparison.env.partition('?')[0]}: may it take the old one's place?"
    return page.write(folder / "report.html", title, f"{escape(new)} in the place of {escape(old)}", parts)


def _places_table(around: VariedComparison) -> str:
    """Return the places as a table; if two options were varied, with a column for each value of the second."""
    names = [*around.places[0].options]
    if len(names) == 1:
        return page.table(*around.table)
    rows_of, columns_of = (list(dict.fromkeys(place.options[name] for place in around.places)) for name in names)
    cells = {}
    for place in around.places:
        row = place.worst_row
        change = with_minus(f"{0.0 - row.loss:+.1%}") if row.old else format_number(row.new, plus=True)
        cells[tuple(place.options.values())] = f"{place.comparison.verdict}, {change}"
    rows = [[f"{names[0]} = {one:g}", *(cells[one, two] for two in columns_of)] for one in rows_of]
    return page.table(["", *(f"{names[1]} = {two:g}" for two in columns_of)], rows)


def _film(place: Place, policies: tuple[str, ...], say: Say, trust: bool) -> tuple[list[bytes], str]:
    files = [policy_path(policy) for policy in policies if not is_code(policy)]
    if len(files) < 2 or not all(is_plan(file) or is_repolicy_file(file) for file in files):
        return [b"", b""], "a policy that is no file of Repolicy's is filmed by repolicy render"
    env, seed = place.comparison.env, place.comparison.seed
    return films_for_page([Shot(str(file), env, seed=seed, trust=trust) for file in files], say)
