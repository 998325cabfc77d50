"""The report: the tables of `docs/results-paper.md`, and one page that needs nothing but itself. From the ledger."""

from html import escape
from itertools import starmap
from pathlib import Path

from experiments.ledger import Ledger
from experiments.pages import Tables, fill, markdown
from experiments.paper import tables
from experiments.paper.claims import findings
from experiments.paper.curves import Curve, curve_of, drawing, picture
from experiments.paper.results import Results
from experiments.paper.runs import EVERY, OWN, STEPS, TASKS, planned
from repolicy.errors import UsageError
from repolicy.loading import read_bytes
from repolicy.policies.storage import write_bytes
from repolicy.report import page

NOTE = (
    "The last policy of each run, mean action, 100 episodes a seed. Mean ± std are over all episodes of all seeds, as "
    "in the paper; the interquartile mean is over seeds, with its 95 % stratified bootstrap interval. –: not measured."
)
CURVES = (
    "Episodes of training, with sampled actions: the interquartile mean over seeds, and its 95 % stratified bootstrap "
    "interval as a band. The add-on's part of the total is its mean of a step times the mean length of the episodes. A "
    "line that leaves the chart below has lost everything. The dips are nothing that a policy does: at each segment's "
    "start the environments begin anew, and the episodes that end first are the short ones."
)
CLAIMS = (
    "The difference is the first variant less the second (under a half: half of the first less the second), and the "
    "interval a stratified bootstrap over seeds; of a best seed, or of one seed alone, there is none. An exact "
    "permutation test with the claim's margin decides, and p is its one-sided p-value, of the smaller side: the share "
    "of the ways to deal the seeds anew that are as extreme. Above 0.05 we cannot tell. By the best policies: "
    "the verdict from each run's best checkpoint instead of its last policy. By sampled actions: from the last policy, "
    "with sampled actions instead of the mean action. As it says: whether the paper's own numbers are so. A seed is "
    "better: the probability of improvement, the share of pairs of seeds in which the first is the better one."
)
DIFFERENCES = {
    "Coefficients": "α, ω′ and the add-ons are the paper's (its Tables 3 and 4). It does not name α̂: we take α, which "
    'its KL variant implies. It does not name the "hind leg" joint, for which its prior has 0.54: we take the hind '
    "thigh (ours has 0.40).",
    "Environments": "HalfCheetah-v4, Hopper-v4 and Ant-v4 of EnvPool. The paper's gym[mujoco]-v3 with 27 numbers for "
    "Ant and a reward of three parts is today's -v4.",
    "Steps": "five million for every run. The paper names them for customizing only.",
    "Prior": "the best Soft policy of Table 1, as in the paper: of the seeds that were trained when customizing began, "
    "last or best, the one with the highest basic return by the mean action. It is kept in results/paper. Its row is "
    "measured on other episodes than those that it was chosen by.",
    "Customizing": "it begins with the prior's actor and fits the critic alone for the first 5 % of the steps, as in "
    "the paper, and keeps the discount of training. (By default customize takes 0.97.)",
    "Settings": "one row an environment, in the table below, for all of its variants; none is tuned alone. The paper's "
    "are not printed; it builds on rsl_rl, we on our own engine. Ours normalize observations, count the critic's "
    "returns in stds, bootstrap at time limits, let the learning rate fall to 0, and put the episodes of the "
    "environments out of step.",
    "Checkpoint": "the last policy of each run, because a best one is chosen by its score. The paper's Table 2 has "
    '"best-performing checkpoints"; ours are beside the last ones, and the claims are examined by both.',
    "Average and best": "the paper's best is, as far as its tables tell, its best seed. So is ours.",
    "Evaluation": "100 episodes a seed. The paper does not say whether actions are sampled; both are shown.",
}
WIDE = "<style>main { max-width: 1560px; } tbody th { white-space: normal; min-width: 12ch; }</style>"


def results_of(path: Path, seeds: int) -> Results:
    """Return the rows of the campaign's own runs, whatever else the ledger holds."""
    keys = {plan.key for plan in planned((*TASKS, *OWN, *EVERY), seeds)}
    rows = {key: row for key, row in Ledger(path).by_key().items() if key in keys}
    if not rows:
        raise UsageError(f"{path} has none of these runs: python -m experiments.paper run")
    return Results(rows, seeds)


def page_tables(results: Results) -> Tables:
    """Return what makes the tables of `docs/results-paper.md`, by their names there."""
    found = findings(results)
    return {
        "paper_summary": lambda: markdown(*tables.summary(results, found)),
        "paper_missing": lambda: tables.missing(results),
        "paper_claims": lambda: markdown(*tables.claims(found)),
        "paper_aims": lambda: markdown(*tables.aims(results)),
        "paper_table1": lambda: markdown(*tables.learning(results, "table1")),
        "paper_table5": lambda: markdown(*tables.learning(results, "table5")),
        "paper_table2": lambda: markdown(*tables.customizing(results)),
        "paper_ways": lambda: markdown(*tables.ways(results)),
        "paper_beyond": lambda: markdown(*tables.beyond(results)),
        "paper_expense": lambda: markdown(*tables.expense(results)),
        "paper_settings": lambda: markdown(*tables.settings(results)),
        "paper_differences": lambda: "\n".join(f"- **{name}**: {said}" for name, said in DIFFERENCES.items()),
    }


def write(results: Results, text: Path, html: Path) -> None:
    if "<!-- table: paper_" not in read_bytes(text).decode(errors="replace"):
        raise UsageError(
            f"{text} has no place for these tables: copy the lines <!-- table: … --> of docs/results-paper.md"
        )
    fill(text, page_tables(results))
    write_bytes(html, document(results).encode())
    picture(figures(results), text.with_name("images") / "paper.png")


def document(results: Results) -> str:
    found, drawn = findings(results), figures(results)
    lead = f"Tables 1, 2 and 5 of Residual Policy Gradient, measured again: {STEPS} steps a run, one core a run."
    absent = "".join(f"<li>{escape(line.removeprefix('- '))}</li>" for line in tables.missing(results).splitlines())
    differs = "".join(f"<li><b>{name}</b>: {escape(said)}</li>" for name, said in DIFFERENCES.items())
    parts = [
        WIDE,
        page.section("In short", page.table(*tables.summary(results, found))),
        page.section("What is here, and what is missing", f"<ul>{absent}</ul>"),
        page.section("The paper's claims", page.table(*tables.claims(found)), note=CLAIMS),
        page.section("Table 2: customizing", page.table(*tables.customizing(results)), note=NOTE),
        page.section("Table 1: entropy", page.table(*tables.learning(results, "table1")), note=NOTE),
        page.section("Table 5: the std", page.table(*tables.learning(results, "table5")), note=NOTE),
        page.section(
            "While they learned",
            f'<div class="charts pair">{"".join(starmap(drawing, drawn.items()))}</div>',
            note=CURVES,
        ),
        page.section("Beside the paper's averages", page.table(*tables.aims(results))),
        page.section("Last and best policy, mean and sampled actions", page.table(*tables.ways(results))),
        page.section("What the paper does not have", page.table(*tables.beyond(results))),
        page.section("What it took", page.table(*tables.expense(results))),
        page.section("How it is done, and where it differs from the paper", f"<ul>{differs}</ul>"),
        page.section("Settings", page.table(*tables.settings(results))),
    ]
    whole: str = page.page("The paper's tables, measured again", escape(lead), parts)
    return whole


def figures(results: Results) -> dict[str, dict[str, Curve]]:
    """Return curves by title: for each environment, those that learn the basic task, and those that customize."""
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
