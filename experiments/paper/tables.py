"""The report's tables, as headings and rows of text: ours beside the paper's, from the ledger alone."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

from experiments.pages import blank_repeats
from experiments.paper import printed
from experiments.paper.claims import Finding, Verdict
from experiments.paper.results import SETTINGS, Results, Scores, describe_differences, shown_settings, total_cost
from experiments.paper.runs import ALL_VARIANTS, EXTRA_VARIANTS, OWN_TASKS, TASKS, VARIANTS
from experiments.statistics import bootstrap_interval, iqm

Rows = tuple[list[str], list[list[str]]]
NAMES = {
    "no_entropy": "No-Entropy",
    "end_entropy": "End-Entropy",
    "repeat_entropy": "Repeat-Entropy",
    "soft": "Soft",
    "soft_state_std": "Soft, std of the state",
    "prior": "Prior",
    "greedy": "Greedy",
    "kl": "KL",
    "residual": "Residual",
    "full": "Full",
}
TABLE_VARIANTS = {  # the order of the paper
    "table1": ("no_entropy", "end_entropy", "repeat_entropy", "soft"),
    "table5": ("soft", "soft_state_std"),
    "table2": ("prior", "greedy", "kl", "residual", "full"),
}
ENVIRONMENTS = {"halfcheetah": "HalfCheetah", "hopper": "Hopper", "ant": "Ant"}
PARTS = {"total_reward": "total", "basic_reward": "basic", "metric": "metric", "addon_reward": "add-on"}
NOT_MEASURED = "–"
VERDICTS = get_args(Verdict)
TABLE_TITLES = {"table1": "Table 1", "table2": "Table 2", "table5": "Table 5"}
TABLE_TITLES |= {"recommended": "what we recommend", "sensitivity": "other weights", "joints": "the joints"}


def summary(results: Results, found: Sequence[Finding]) -> Rows:
    """Return a row an environment: what the paper proposes, the other variants, and its claims."""
    headings = ["environment", "Soft, basic: paper", "ours", "Residual, total: paper", "ours"]
    headings += ["other variants with more than in the paper", *(f"claims: {name}" for name in VERDICTS)]
    rows = []
    for task, name in ENVIRONMENTS.items():
        row = [name]
        for variant in ("soft", "residual"):
            row += [number(printed.value(task, variant, main_return(variant)[0])), pooled(ours(results, task, variant))]
        others = {each: ours(results, task, each) for each in NAMES if each not in ("soft", "residual")}
        known = {each: scores.pooled[0] for each, scores in others.items() if scores is not None}
        more = sum(mean > printed.value(task, each, main_return(each)[0]) for each, mean in known.items())
        verdicts: Counter[str] = Counter(each.verdict for each in found if each.task == task)
        row += [f"{more} of {len(known)}" if known else NOT_MEASURED]
        rows.append([*row, *(str(verdicts[name]) for name in VERDICTS)])
    return headings, rows


def main_return(variant: str) -> tuple[str, str]:
    """Name the return that a variant was to raise, and what people call it."""
    part = "total_reward" if VARIANTS[variant].table == "table2" else "basic_reward"
    return part, PARTS[part]


def ours(results: Results, task: str, variant: str) -> Scores | None:
    return results.scores(task, variant, main_return(variant)[0])


def learning(results: Results) -> Rows:
    """Return Tables 1 and 5: the basic return."""
    headings = ["environment", "variant", "seeds", "average: paper", "ours", "interquartile mean"]
    headings += ["best seed: paper", "ours", "ours, sampled actions"]
    rows = []
    for task in TASKS:
        for variant in (*TABLE_VARIANTS["table1"], "soft_state_std"):
            last, sampled = (results.scores(task, variant, "basic_reward", "last", a) for a in ("mean", "sampled"))
            rows.append([
                ENVIRONMENTS[task], NAMES[variant], seeds(results, last),
                pair(printed.AVERAGE[task][variant]), pooled(last), middle(last),
                pair(printed.BEST[task][variant]), best(last), pooled(sampled),
            ])  # fmt: skip
    return headings, blank_repeats(rows)


def customizing(results: Results) -> Rows:
    """Return Table 2: the total with its interval, and the parts."""
    headings = ["environment", "policy", "seeds", "total: paper", "ours", "interquartile mean", "sampled actions"]
    headings += ["basic: paper", "ours", "metric: paper", "ours", "add-on: paper", "ours"]
    rows = []
    for task in TASKS:
        for variant in TABLE_VARIANTS["table2"]:
            found = {part: results.scores(task, variant, part) for part in PARTS}
            theirs = dict(zip(printed.PARTS, printed.CUSTOMIZED[task][variant], strict=True))
            total, sampled = found["total_reward"], results.scores(task, variant, "total_reward", "last", "sampled")
            row = [ENVIRONMENTS[task], NAMES[variant], seeds(results, total)]
            row += [pair(theirs["total_reward"]), pooled(total), middle(total), pooled(sampled)]
            for part in ("basic_reward", "metric", "addon_reward"):
                row += [pair(theirs[part]), pooled(found[part])]
            rows.append(row)
    return headings, blank_repeats(rows)


def ways(results: Results) -> Rows:
    """Return the best policies of the same runs, by the return that they were to raise. A prior is one policy."""
    headings, rows = ["environment", "variant", "return", "best policy, mean action", "sampled actions"], []
    for task in TASKS:
        for variant in [name for name in NAMES if name != "prior"]:
            part, called = main_return(variant)
            cells = [pooled(results.scores(task, variant, part, "best", action)) for action in ("mean", "sampled")]
            if cells[0] != NOT_MEASURED:
                rows.append([ENVIRONMENTS[task], NAMES[variant], called, *cells])
    return headings, blank_repeats(rows)


def claims(findings: Sequence[Finding]) -> Rows:
    headings = ["the paper says", "environment", "here", "p", "by the best policies", "by sampled actions"]
    headings += ["difference", "95 % interval", "the paper's difference"]
    rows = []
    for found in findings:
        figure = NOT_MEASURED if found.figure is None else number(found.figure)
        between = (
            NOT_MEASURED if found.low is None or found.high is None else f"{number(found.low)} to {number(found.high)}"
        )
        p = NOT_MEASURED if found.p is None else f"{found.p:.3f}"
        row = [found.claim.said, ENVIRONMENTS[found.task], found.verdict, p, *found.others, figure, between]
        rows.append([*row, number(found.printed) + ("" if found.holds_in_print else " (no)")])
    return headings, blank_repeats(rows)


def beyond(results: Results) -> Rows:
    """Return what the paper has not: whatever else is in the ledger."""
    headings, rows = ["environment", "what", "seeds", "total", "basic", "metric", "total, sampled actions"], []
    for task, entry in (TASKS | OWN_TASKS).items():
        for variant in ALL_VARIANTS if task in OWN_TASKS else EXTRA_VARIANTS:
            found = [results.scores(task, variant, part) for part in ("total_reward", "basic_reward", "metric")]
            if found[0] is not None:
                sampled = results.scores(task, variant, "total_reward", "last", "sampled")
                name = NAMES.get(variant, variant.replace("_", " "))
                many = "one policy" if found[0].one_policy else str(len(found[0].means))
                rows.append([entry.env, name, many, *map(pooled, [*found, sampled])])
    return headings, blank_repeats(rows)


def expense(results: Results) -> Rows:
    """Return what the runs took, on one core each."""
    headings = ["environment", "runs", "steps", "core-hours by the clock", "core-hours of computing"]
    headings += ["steps a second by the clock", "of computing"]
    rows = []
    for task in [*TASKS, "all"]:
        found = [row for key, row in results.rows.items() if task in ("all", key.split("/")[0]) and row.get("seconds")]
        if found:
            clock, computing, steps = total_cost(found)
            speeds = [f"{steps * 1e6 / hours / 3600:,.0f}" if hours else NOT_MEASURED for hours in (clock, computing)]
            row = [ENVIRONMENTS.get(task, task), str(len(found)), f"{steps:,.0f}M", f"{clock:.1f}", f"{computing:.1f}"]
            rows.append([*row, *speeds])
    return headings, rows


def settings(results: Results) -> Rows:
    """Return the settings of Soft, a row an environment; all other variants have the same, or `missing` says so."""
    rows = []
    for task, entry in TASKS.items():
        for row in results.of(task, "soft")[:1]:
            rows.append([ENVIRONMENTS[task], entry.env, *map(cell, shown_settings(row).values())])
    return ["environment", "id", *(name.replace("_", " ") for name in SETTINGS)], rows


def missing(results: Results) -> str:
    """Return what is not in the ledger, and what differs between runs that stand side by side, in words."""
    absent = results.missing
    count = sum(map(len, absent.values()))
    total = count + sum(len(results.of(task, variant)) for task in TASKS for variant in VARIANTS)
    said = [f"{total - count} of {total} runs are in the ledger."]
    for task in TASKS:
        parts = [
            NAMES[variant] + ("" if len(found) == results.seeds else f" (seeds {', '.join(map(str, found))})")
            for variant in NAMES
            if (found := absent.get(f"{task}/{variant}"))
        ]
        if len(parts) == len(NAMES) and not any("(" in part for part in parts):
            parts = ["everything"]
        if parts:
            said.append(f"Missing of {ENVIRONMENTS[task]}: {'; '.join(parts)}.")
    said += [f"{key} failed: {error}." for key, error in results.failed.items()]
    for table, called in TABLE_TITLES.items():
        variants = TABLE_VARIANTS.get(table, [name for name, how in EXTRA_VARIANTS.items() if how.table == table])
        if table in ("sensitivity", "joints"):  # which stand beside the prior of Table 2
            variants = ["prior", *variants]
        if differing := describe_differences(results.table(variants)):
            said.append(f"Mixed in {called}: {'; '.join(differing)}.")
    return "\n".join(f"- {sentence}" for sentence in said)


def number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}".replace("-", "−")


def pair(values: tuple[float, float]) -> str:
    return f"{number(values[0])} ± {number(values[1])}"


def cell(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def seeds(results: Results, scores: Scores | None) -> str:
    count = 0 if scores is None else len(scores.means)
    if scores is not None and scores.one_policy:
        return "one policy"
    return str(count) if count == results.seeds else f"{count} of {results.seeds}"


def pooled(scores: Scores | None) -> str:
    return NOT_MEASURED if scores is None else pair(scores.pooled)


def best(scores: Scores | None) -> str:
    return NOT_MEASURED if scores is None else pair(scores.best)


def middle(scores: Scores | None) -> str:
    """Return the interquartile mean of the seeds with its interval."""
    if scores is None or scores.one_policy:
        return NOT_MEASURED
    return f"{number(float(iqm(scores.column)))} [{bounds(scores, iqm)}]"


def bounds(scores: Scores, statistic: Callable[..., object]) -> str:
    if len(scores.seeds) < 2:
        return "one policy" if scores.one_policy else "one seed"
    low, high = bootstrap_interval(statistic, scores.column)  # type: ignore[arg-type]
    return f"{number(low)} to {number(high)}"
