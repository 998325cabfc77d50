"""What customizing reaches with few steps of the environment, all of them counted. A line of the ledger a run.

    python -m experiments.few_steps --jobs 1
    python -m experiments.few_steps --picture docs/images/few-steps.png     # of what is in the ledger

`rule` is the default, `large` the settings of a million steps whatever the budget is, `sac` is `rql customize`.
`--only` takes the beginnings of keys.
"""

from itertools import product
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt

from experiments import campaign
from experiments.heavy import SEEDS, TASKS, made
from experiments.ledger import Ledger, Row, group_by
from experiments.one import Run
from experiments.pages import markdown_table
from repolicy.prepare import states
from repolicy.prepare.defaults import customize_defaults
from repolicy.prepare.spending import estimate_spending
from repolicy.priors.finding import find_policy
from repolicy.runs.request import Request

NAMES = ("halfcheetah_10", "ant", "hopper")
STEPS = ("1e4", "3e4", "1e5", "3e5")
FEWEST, ITS = "3e3", NAMES[0]  # of one prior alone
PRIORS = Path("results/heavy.jsonl")  # which has each prior's own row
EPISODES = 20


def large(name: str, steps: str) -> str:
    """Return the options that give a run of so many steps the settings of a million."""
    prior = find_policy(TASKS[name].prior)
    ours, theirs = (customize_defaults(prior, each).as_dict() for each in (int(float(steps)), 1_000_000))
    named = [key for key in ours if ours[key] != theirs[key] and key != "steps"]
    return " ".join(f"--{key.replace('_', '-')} {theirs[key]}" for key in named)


def runs() -> list[Run]:
    """Return all runs, a seed after the other, and the fewest steps first."""
    found = []
    for seed, steps, name in product(range(SEEDS), STEPS, NAMES):
        found += [made(name, f"rule/{steps}", "", seed, steps, episodes=EPISODES)]
        found += [made(name, f"large/{steps}", "", seed, steps, large(name, steps), EPISODES)]
    found += [made(ITS, f"rule/{FEWEST}", "", seed, FEWEST, episodes=EPISODES) for seed in range(SEEDS)]
    found += [by_sac(ITS, FEWEST, seed) for seed in range(SEEDS)]
    third = "--omega 0.1 --states 0.1"  # of what a nat of Ant's prior is worth
    for steps, seed in product(STEPS[:3], range(SEEDS)):
        found.append(made("ant", f"third/{steps}", third, seed, steps, episodes=EPISODES))
    return [*found, *(by_sac(*each) for each in product(NAMES, STEPS[:2], range(SEEDS)))]


def by_sac(name: str, steps: str, seed: int) -> Run:
    """Return the run of `ResidualSAC`, which begins as the prior, too."""
    task = TASKS[name]
    words = f"rql customize {task.prior} --addon {task.addon} --steps {steps} --seed {seed}"
    return Run(f"{name}/sac/{steps}/{seed}", tuple(words.split()), task.env, task.addon, episodes=EPISODES)


def way_of(row: Row) -> tuple[str, ...]:
    return tuple(row["key"].split("/")[:3])  # task, way and number of steps


def totals(runs: list[Row], action: str) -> list[float]:
    return [row["last"][action]["total_reward"][0] for row in runs]


def table(found: dict[str, Row], longest: dict[str, list[Row]]) -> str:
    """Return a row a task and number of steps, up to the longest runs that are known; the first is the prior's own."""
    known, priors, lines = group_by(found.values(), way_of), Ledger(PRIORS).by_key(), list[list[str]]()
    for name in NAMES:
        task = TASKS[name]
        lines.append([f"{task.prior}, `{task.addon}`", "prior", "", both([priors[f"{name}/prior/0"]]), "", ""])
        for steps in (FEWEST, *STEPS):
            if ours := known.get((name, "rule", steps)):
                cells = [f"{float(steps):,.0f}", f"{in_all(ours[0]):,}", both(ours)]
                others = [both(known.get((name, way, steps), [])) for way in ("sac", "large")]
                lines.append(["", *cells, *others])
        lines.append(["", f"{longest[name][0]['request']['settings']['steps']:,}", "", both(longest[name]), "", ""])
    headings = ["prior, wish", "steps", "in all", "total (sampled)", "`rql customize`", "updates of a million"]
    return markdown_table(headings, lines)


def both(runs: list[Row]) -> str:
    """Return the means over runs of the totals: by the mean action and, in brackets, sampled."""
    return "{:,.0f} ({:,.0f})".format(*(mean(totals(runs, action)) for action in ("mean", "sampled"))) if runs else ""


def in_all(row: Row) -> int:
    """Return the steps of the environment that such a run takes."""
    if row["request"].get("method") == "Residual Q-learning":  # the weights stand in the priors' files
        steps = int(row["request"]["settings"]["steps"])
        return steps + states.steps_to_collect(steps)
    return sum(estimate_spending(Request.from_dict(row["request"])))


def picture(found: dict[str, Row], path: Path) -> None:
    """Draw the total against all steps of the environment."""
    known, priors = group_by(found.values(), way_of), Ledger(PRIORS).by_key()
    figure, axes = plt.subplots(1, len(NAMES), figsize=(11, 3.4), layout="constrained")
    for name, axis in zip(NAMES, axes, strict=True):
        for action, style in (("mean", "-o"), ("sampled", "--o")):
            color = {"rule": "C0", "sac": "C2", "large": "C1"}
            for way, label in (("rule", "by default"), ("sac", "rql customize"), ("large", "updates of a million")):
                curve = [known[name, way, steps] for steps in (FEWEST, *STEPS) if (name, way, steps) in known]
                places, heights = [in_all(each[0]) for each in curve], [mean(totals(each, action)) for each in curve]
                named = label if action == "mean" else f"{label}, sampled"
                axis.plot(places, heights, style, color=color[way], markersize=3, label=named)
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


@campaign.program("ledger", "runs", "jobs", "ray", "only", draw=picture)
def main(options: campaign.Options) -> list[Run]:
    return runs()
