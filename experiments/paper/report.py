"""The report: the tables of `docs/paper.md`, and one page that needs nothing but itself. From the ledger alone."""

from html import escape
from itertools import starmap
from pathlib import Path

from experiments.pages import Tables, fill, markdown
from experiments.paper import tables
from experiments.paper.curves import Curve, curve_of, drawing, picture
from experiments.paper.results import Results
from experiments.paper.runs import STEPS
from repolicy.errors import UsageError
from repolicy.many.ledger import Ledger
from repolicy.policies.storage import write_bytes
from repolicy.report import page

NOTE = (
    "The last policy of each run, mean action, 100 episodes a seed. Mean ± std are over all episodes of all seeds, as "
    "in the paper; the interquartile mean is over seeds, with its 95 % stratified bootstrap interval. –: not measured."
)


CURVES = (
    "Episodes of training, with sampled actions: the interquartile mean over seeds, and its 95 % stratified bootstrap "
    "interval as a band. A line that leaves the chart below has lost everything."
)
WIDE = "<style>main { max-width: 1560px; } tbody th { white-space: normal; min-width: 12ch; }</style>"


def results_of(path: Path, seeds: int) -> Results:
    found = Results(Ledger(path).by_key(), seeds)
    if not found.rows:
        raise UsageError(f"{path} has no run yet: python -m experiments.paper run")
    return found


def page_tables(results: Results) -> Tables:
    """Those of `docs/paper.md`, by their names there."""
    return {
        "paper_summary": lambda: markdown(*tables.summary(results)),
        "paper_missing": lambda: tables.missing(results),
        "paper_claims": lambda: markdown(*tables.claims(results)),
        "paper_aims": lambda: markdown(*tables.aims(results)),
        "paper_table1": lambda: markdown(*tables.learning(results, "table1")),
        "paper_table5": lambda: markdown(*tables.learning(results, "table5")),
        "paper_table2": lambda: markdown(*tables.customizing(results)),
        "paper_ways": lambda: markdown(*tables.ways(results)),
        "paper_beyond": lambda: markdown(*tables.beyond(results)),
        "paper_expense": lambda: markdown(*tables.expense(results)),
        "paper_settings": lambda: markdown(*tables.settings()),
    }


def write(results: Results, text: Path, html: Path) -> None:
    fill(text, page_tables(results))
    write_bytes(html, document(results).encode())
    picture(figures(results), text.with_name("images") / "paper.png")


def document(results: Results) -> str:
    lead = f"Tables 1, 2 and 5 of Residual Policy Gradient, measured again: {STEPS} steps a run, one core a run."
    absent = "".join(f"<li>{escape(line.removeprefix('- '))}</li>" for line in tables.missing(results).splitlines())
    better = "The share of pairs of seeds in which the first is better is the probability of improvement."
    parts = [
        WIDE,
        page.section("In short", page.table(*tables.summary(results))),
        page.section("What is here, and what is missing", f"<ul>{absent}</ul>"),
        page.section("The paper's claims", page.table(*tables.claims(results)), note=better),
        page.section("Table 2: customizing", page.table(*tables.customizing(results)), note=NOTE),
        page.section("Table 1: entropy", page.table(*tables.learning(results, "table1")), note=NOTE),
        page.section("Table 5: the std", page.table(*tables.learning(results, "table5")), note=NOTE),
        page.section(
            "While they learned",
            f'<div class="charts pair">{"".join(starmap(drawing, figures(results).items()))}</div>',
            note=CURVES,
        ),
        page.section("Beside the paper's averages", page.table(*tables.aims(results))),
        page.section("Last and best policy, mean and sampled actions", page.table(*tables.ways(results))),
        page.section("What the paper does not have", page.table(*tables.beyond(results))),
        page.section("What it took", page.table(*tables.expense(results))),
        page.section("Settings", page.table(*tables.settings())),
    ]
    whole: str = page.page("The paper's tables, measured again", escape(lead), parts)
    return whole


def figures(results: Results) -> dict[str, dict[str, Curve]]:
    """By their titles: for each environment, those that learn the basic task, and those that customize."""
    found: dict[str, dict[str, Curve]] = {}
    for task, name in tables.ENVIRONMENTS.items():
        for part, variants in (
            ("basic", (*tables.SHOWN["table1"], "soft_state_std")),
            ("total", ("greedy", "kl", "residual", "full")),
        ):
            curves = {tables.NAMES[key]: curve_of(results, task, key, part == "total") for key in variants}
            known = {key: curve for key, curve in curves.items() if curve is not None}
            found |= {f"{name}: {part} return": known} if known else {}
    return found
