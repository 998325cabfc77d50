"""The tables of `docs/results-paper.md`, with our numbers beside the paper's."""

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from experiments.pages import Tables, blank_repeats, markdown_table
from experiments.paper import printed
from experiments.paper.claims import Finding, Verdict, examine_all
from experiments.paper.results import SETTINGS, Results, Scores, describe_differences, shown_settings, total_cost
from experiments.paper.runs import ALL_VARIANTS, EXTRA_VARIANTS, OWN_TASKS, TASKS, VARIANTS
from experiments.statistics import bootstrap_interval, iqm
from repolicy.text import with_minus

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
TABLE_VARIANTS = {  # in the paper's order
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


def page_tables(results: Results) -> Tables:
    """Return the functions that write the tables of `docs/results-paper.md`, by the tables' names there."""
    findings = examine_all(results)
    return {
        "paper_summary": lambda: summary(results, findings),
        "paper_missing": lambda: missing(results),
        "paper_claims": lambda: claims(findings),
        "paper_table1": lambda: learning(results),
        "paper_table2": lambda: customizing(results),
        "paper_ways": lambda: best_policies(results),
        "paper_beyond": lambda: extra_variants(results),
        "paper_expense": lambda: expense(results),
        "paper_settings": lambda: settings(results),
    }


def summary(results: Results, findings: Sequence[Finding]) -> str:
    """Return one line per environment: the paper's methods, the other variants, and the number of claims that hold."""
    headings = ["environment", "Soft, basic: paper", "ours", "Residual, total: paper", "ours"]
    headings += ["other variants with more than in the paper", *(f"claims: {name}" for name in VERDICTS)]
    rows = []
    for task, name in ENVIRONMENTS.items():
        row = [name]
        for variant in ("soft", "residual"):
            row.append(format_number(printed.value(task, variant, main_return(variant)[0])))
            row.append(format_pooled(main_scores(results, task, variant)))
        others = {each: main_scores(results, task, each) for each in NAMES if each not in ("soft", "residual")}
        means = {each: scores.pooled[0] for each, scores in others.items() if scores is not None}
        more = sum(mean > printed.value(task, each, main_return(each)[0]) for each, mean in means.items())
        verdicts: Counter[str] = Counter(finding.verdict for finding in findings if finding.task == task)
        row += [f"{more} of {len(means)}" if means else NOT_MEASURED]
        rows.append([*row, *(str(verdicts[name]) for name in VERDICTS)])
    return markdown_table(headings, rows)


def main_return(variant: str) -> tuple[str, str]:
    """Return the key and the name of the return that a variant is trained to raise."""
    part = "total_reward" if VARIANTS[variant].table == "table2" else "basic_reward"
    return part, PARTS[part]


def main_scores(results: Results, task: str, variant: str) -> Scores | None:
    """Return the scores of the return that a variant is trained to raise."""
    return results.scores(task, variant, main_return(variant)[0])


def learning(results: Results) -> str:
    """Return Tables 1 and 5: the basic return."""
    headings = ["environment", "variant", "seeds", "average: paper", "ours", "interquartile mean"]
    headings += ["best seed: paper", "ours", "ours, sampled actions"]
    rows = []
    for task in TASKS:
        for variant in (*TABLE_VARIANTS["table1"], "soft_state_std"):
            last, sampled = (results.scores(task, variant, "basic_reward", "last", a) for a in ("mean", "sampled"))
            rows.append([
                ENVIRONMENTS[task], NAMES[variant], format_seeds(results, last),
                format_mean_std(printed.AVERAGE[task][variant]), format_pooled(last), format_iqm(last),
                format_mean_std(printed.BEST[task][variant]), format_best(last), format_pooled(sampled),
            ])  # fmt: skip
    return markdown_table(headings, blank_repeats(rows))


def customizing(results: Results) -> str:
    """Return Table 2: the total with its interval, and its parts."""
    headings = ["environment", "policy", "seeds", "total: paper", "ours", "interquartile mean", "sampled actions"]
    headings += ["basic: paper", "ours", "metric: paper", "ours", "add-on: paper", "ours"]
    rows = []
    for task in TASKS:
        for variant in TABLE_VARIANTS["table2"]:
            scores = {part: results.scores(task, variant, part) for part in PARTS}
            paper = dict(zip(printed.PARTS, printed.CUSTOMIZED[task][variant], strict=True))
            total, sampled = scores["total_reward"], results.scores(task, variant, "total_reward", "last", "sampled")
            row = [ENVIRONMENTS[task], NAMES[variant], format_seeds(results, total)]
            row += [format_mean_std(paper["total_reward"]), format_pooled(total)]
            row += [format_iqm(total), format_pooled(sampled)]
            for part in ("basic_reward", "metric", "addon_reward"):
                row += [format_mean_std(paper[part]), format_pooled(scores[part])]
            rows.append(row)
    return markdown_table(headings, blank_repeats(rows))


def best_policies(results: Results) -> str:
    """Return the best policies of the runs, by the return that they were trained to raise."""
    headings, rows = ["environment", "variant", "return", "best policy, mean action", "sampled actions"], []
    for task in TASKS:
        for variant in [name for name in NAMES if name != "prior"]:  # a prior has one policy
            part, label = main_return(variant)
            scores = [results.scores(task, variant, part, "best", action) for action in ("mean", "sampled")]
            cells = [*map(format_pooled, scores)]
            if cells[0] != NOT_MEASURED:
                rows.append([ENVIRONMENTS[task], NAMES[variant], label, *cells])
    return markdown_table(headings, blank_repeats(rows))


def claims(findings: Sequence[Finding]) -> str:
    """Return one line per claim and environment."""
    headings = ["the paper says", "environment", "here", "p", "by the best policies", "by sampled actions"]
    headings += ["difference", "95 % interval", "the paper's difference"]
    rows = []
    for found in findings:
        difference = NOT_MEASURED if found.difference is None else format_number(found.difference)
        interval = NOT_MEASURED
        if found.low is not None and found.high is not None:
            interval = f"{format_number(found.low)} to {format_number(found.high)}"
        p = NOT_MEASURED if found.p is None else f"{found.p:.3f}"
        row = [found.claim.text, ENVIRONMENTS[found.task], found.verdict, p, *found.others, difference, interval]
        rows.append([*row, format_number(found.printed) + ("" if found.holds_in_print else " (no)")])
    return markdown_table(headings, blank_repeats(rows))


def extra_variants(results: Results) -> str:
    """Return the variants and environments of the ledger that the paper does not have."""
    headings, rows = ["environment", "what", "seeds", "total", "basic", "metric", "total, sampled actions"], []
    for task, entry in (TASKS | OWN_TASKS).items():
        for variant in ALL_VARIANTS if task in OWN_TASKS else EXTRA_VARIANTS:
            scores = [results.scores(task, variant, part) for part in ("total_reward", "basic_reward", "metric")]
            if scores[0] is not None:
                sampled = results.scores(task, variant, "total_reward", "last", "sampled")
                name = NAMES.get(variant, variant.replace("_", " "))
                count = "one policy" if scores[0].one_policy else str(len(scores[0].means))
                rows.append([entry.env, name, count, *map(format_pooled, [*scores, sampled])])
    return markdown_table(headings, blank_repeats(rows))


def expense(results: Results) -> str:
    """Return the core-hours of the runs and their speed, with one core per run."""
    headings = ["environment", "runs", "steps", "core-hours by the clock", "core-hours of computing"]
    headings += ["steps a second by the clock", "of computing"]
    rows = []
    for task in [*TASKS, "all"]:
        runs = [row for key, row in results.rows.items() if task in ("all", key.split("/")[0]) and row.get("seconds")]
        if runs:
            clock, computing, steps = total_cost(runs)
            speeds = [f"{steps * 1e6 / hours / 3600:,.0f}" if hours else NOT_MEASURED for hours in (clock, computing)]
            row = [ENVIRONMENTS.get(task, task), str(len(runs)), f"{steps:,.0f}M", f"{clock:.1f}", f"{computing:.1f}"]
            rows.append([*row, *speeds])
    return markdown_table(headings, rows)


def settings(results: Results) -> str:
    """Return Soft's settings, one line per environment. Other variants have equal ones, or `missing` reports it."""
    rows = []
    for task, entry in TASKS.items():
        for row in results.of(task, "soft")[:1]:
            rows.append([ENVIRONMENTS[task], entry.env, *map(format_setting, shown_settings(row).values())])
    return markdown_table(["environment", "id", *(name.replace("_", " ") for name in SETTINGS)], rows)


def missing(results: Results) -> str:
    """Return sentences about the runs that the ledger lacks, and about differences between runs of one table."""
    absent = results.missing
    count = sum(map(len, absent.values()))
    total = count + sum(len(results.of(task, variant)) for task in TASKS for variant in VARIANTS)
    sentences = [f"{total - count} of {total} runs are in the ledger."]
    for task in TASKS:
        lacking = {name: absent[f"{task}/{name}"] for name in NAMES if f"{task}/{name}" in absent}
        parts = [f"{NAMES[name]} (seeds {', '.join(map(str, seeds))})" for name, seeds in lacking.items()]
        sentences += [f"Missing of {ENVIRONMENTS[task]}: {'; '.join(parts)}."] if parts else []
    for table, title in TABLE_TITLES.items():
        extra = [name for name, variant in EXTRA_VARIANTS.items() if variant.table == table]
        variants = TABLE_VARIANTS.get(table, extra)
        if table in ("sensitivity", "joints"):  # they are compared with the prior of Table 2
            variants = ["prior", *variants]
        if differing := describe_differences(results.table(variants)):
            sentences.append(f"Mixed in {title}: {'; '.join(differing)}.")
    return "\n".join(f"- {sentence}" for sentence in sentences)


def format_number(value: float) -> str:
    if abs(value) >= 1e9:
        return with_minus(f"{value:.1e}").replace("e+", "e")
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return with_minus(f"{value:,.{digits}f}")


def format_mean_std(values: tuple[float, float]) -> str:
    return f"{format_number(values[0])} ± {format_number(values[1])}"


def format_setting(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def format_seeds(results: Results, scores: Scores | None) -> str:
    count = 0 if scores is None else len(scores.means)
    if scores is not None and scores.one_policy:
        return "one policy"
    return str(count) if count == results.seeds else f"{count} of {results.seeds}"


def format_pooled(scores: Scores | None) -> str:
    return NOT_MEASURED if scores is None else format_mean_std(scores.pooled)


def format_best(scores: Scores | None) -> str:
    return NOT_MEASURED if scores is None else format_mean_std(scores.best)


def format_iqm(scores: Scores | None) -> str:
    """Return the interquartile mean of the seeds with its bootstrap interval."""
    if scores is None or scores.one_policy:
        return NOT_MEASURED
    interval = "one seed"
    if len(scores.seeds) > 1:
        interval = " to ".join(map(format_number, bootstrap_interval(iqm, scores.column)))
    return f"{format_number(float(iqm(scores.column)))} [{interval}]"
