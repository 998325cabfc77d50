"""Measure what customizing reaches with few environment steps, all of them counted. The ledger has one row per run.

    python -m experiments.few_steps --jobs 1
    python -m experiments.few_steps --picture docs/images/few-steps.png     # of what is in the ledger

`rule` is the default, `large` has the default settings of a million steps whatever the budget, and `sac` is
`rql customize`.
"""

from itertools import product
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt

from experiments import campaign
from experiments.heavy import SEEDS, TASKS, make_run
from experiments.ledger import Ledger, Row, group_by
from experiments.one import Run
from experiments.pages import markdown_table
from repolicy.envs.making import probe_env
from repolicy.prepare import states
from repolicy.prepare.defaults import customize_defaults
from repolicy.prepare.spending import estimate_spending
from repolicy.priors.finding import find_policy
from repolicy.runs.request import Request

NAMES = ("halfcheetah_10", "ant", "hopper")
STEPS = ("1e4", "3e4", "1e5", "3e5")
FEWEST, FEWEST_NAME = "3e3", NAMES[0]  # runs of one prior alone
PRIORS = Path("results/heavy.jsonl")  # has a row for each prior
EPISODES = 20
WAYS = (("rule", "by default", "C0"), ("sac", "rql customize", "C2"), ("large", "updates of a million", "C1"))


def settings_of_a_million(name: str, steps: str) -> str:
    """Return the options that give a short run the settings of a million steps."""
    prior = find_policy(TASKS[name].prior)
    few, million = (customize_defaults(prior, count).as_dict() for count in (int(float(steps)), 1_000_000))
    changed = [key for key in few if few[key] != million[key] and key != "steps"]
    return " ".join(f"--{key.replace('_', '-')} {million[key]}" for key in changed)


def runs() -> list[Run]:
    """Return all runs, one seed after the other, short runs first."""
    found = []
    for seed, steps, name in product(range(SEEDS), STEPS, NAMES):
        found += [make_run(name, f"rule/{steps}", "", seed, steps, episodes=EPISODES)]
        found += [make_run(name, f"large/{steps}", "", seed, steps, settings_of_a_million(name, steps), EPISODES)]
    found += [make_run(FEWEST_NAME, f"rule/{FEWEST}", "", seed, FEWEST, episodes=EPISODES) for seed in range(SEEDS)]
    found += [sac_run(FEWEST_NAME, FEWEST, seed) for seed in range(SEEDS)]
    third = "--omega 0.1 --states 0.1"  # a third of what a nat of Ant's prior is worth
    for steps, seed in product(STEPS[:3], range(SEEDS)):
        found.append(make_run("ant", f"third/{steps}", third, seed, steps, episodes=EPISODES))
    return [*found, *(sac_run(*each) for each in product(NAMES, STEPS[:2], range(SEEDS)))]


def sac_run(name: str, steps: str, seed: int) -> Run:
    """Return a run of `rql customize`, which trains ResidualSAC from the prior."""
    task = TASKS[name]
    words = f"rql customize {task.prior} --addon {task.addon} --steps {steps} --seed {seed}"
    return Run(f"{name}/sac/{steps}/{seed}", tuple(words.split()), task.env, task.addon, episodes=EPISODES)


def variant_of(row: Row) -> tuple[str, ...]:
    """Return task, way and number of steps."""
    return tuple(row["key"].split("/")[:3])


def mean_total(runs: list[Row], action: str) -> float:
    return mean(row["last"][action]["total_reward"][0] for row in runs)


def table(found: dict[str, Row], longest: dict[str, list[Row]]) -> str:
    """Return a table with a line for each task's prior, number of steps, and the longest runs, given by task."""
    known, priors, lines = group_by(found.values(), variant_of), Ledger(PRIORS).by_key(), list[list[str]]()
    for name in NAMES:
        task = TASKS[name]
        lines.append([f"{task.prior}, `{task.addon}`", "prior", "", total_cell([priors[f"{name}/prior/0"]]), "", ""])
        for steps in (FEWEST, *STEPS):
            if ours := known.get((name, "rule", steps)):
                cells = [f"{float(steps):,.0f}", f"{environment_steps(ours[0]):,}", total_cell(ours)]
                others = [total_cell(known.get((name, way, steps), [])) for way in ("sac", "large")]
                lines.append(["", *cells, *others])
        most_steps = longest[name][0]["request"]["settings"]["steps"]
        lines.append(["", f"{most_steps:,}", "", total_cell(longest[name]), "", ""])
    headings = ["prior, wish", "steps", "in all, about", "total (sampled)", "`rql customize`", "updates of a million"]
    return markdown_table(headings, lines)


def total_cell(runs: list[Row]) -> str:
    """Return the mean total of runs with the mean action and, in brackets, with sampled actions."""
    return f"{mean_total(runs, 'mean'):,.0f} ({mean_total(runs, 'sampled'):,.0f})" if runs else ""


def environment_steps(row: Row) -> int:
    """Return all environment steps of a run, with those of preparation."""
    if row["request"].get("method") == "Residual Q-learning":  # its weights are in the priors' files
        steps = int(row["request"]["settings"]["steps"])
        return steps + states.steps_to_collect(steps, probe_env(row["request"]["env"]).limit)
    return sum(estimate_spending(Request.from_dict(row["request"])).values())


def draw_totals(found: dict[str, Row], path: Path) -> None:
    """Draw the total against all steps of the environment."""
    known, priors = group_by(found.values(), variant_of), Ledger(PRIORS).by_key()
    figure, axes = plt.subplots(1, len(NAMES), figsize=(11, 3.4), layout="constrained")
    for name, axis in zip(NAMES, axes, strict=True):
        for action, style in (("mean", "-o"), ("sampled", "--o")):
            for way, label, color in WAYS:
                curve = [known[name, way, steps] for steps in (FEWEST, *STEPS) if (name, way, steps) in known]
                x, y = [environment_steps(runs[0]) for runs in curve], [mean_total(runs, action) for runs in curve]
                label = label if action == "mean" else f"{label}, sampled"
                axis.plot(x, y, style, color=color, markersize=3, label=label)
            height = priors[f"{name}/prior/0"]["last"][action]["total_reward"][0]
            axis.axhline(height, color="gray", linestyle=style[:-1], linewidth=1)
        ticks = [float(steps) for steps in (FEWEST, *STEPS)]
        title = f"{TASKS[name].prior}, {TASKS[name].addon}"
        axis.set(xscale="log", title=title, xlabel="steps of the environment, all")
        axis.set_xticks(ticks, [f"{tick / 1000:.0f}k" for tick in ticks])
        axis.minorticks_off()
    axes[0].set_ylabel("old reward + wish (gray: the prior)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=100)


@campaign.program("ledger", "runs", "jobs", "ray", "only", draw=draw_totals)
def main(options: campaign.Options) -> list[Run]:
    return runs()
