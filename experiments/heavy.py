"""The priors that ship and their wishes: with the paper's weights, with the default's, and with what else holds a wish.

    python -m experiments.heavy --jobs 1

A line of the ledger a run. `--only` takes the beginnings of keys.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from experiments import campaign
from experiments.ledger import Ledger, Row, group_by
from experiments.one import Run
from experiments.pages import blank_repeats, markdown_table, mean_and_each
from experiments.paper.runs import TASKS as PAPERS

WORTH = Path("results/nat_worth.jsonl")


@dataclass(frozen=True)
class Task:
    """A prior and a wish."""

    prior: str
    env: str
    addon: str


TASKS = {
    "halfcheetah_10": Task("halfcheetah", "HalfCheetah-v4", "hind_leg=10"),
    "halfcheetah": Task("halfcheetah", "HalfCheetah-v4", "hind_leg"),
    "ant": Task("ant", "Ant-v4", "sideways"),
    "hopper": Task("hopper", "Hopper-v4", "height"),
    # the wishes of Residual-MPPI
    "mppi_front_foot": Task("halfcheetah", "HalfCheetah-v4", "mppi_front_foot"),
    "mppi_height": Task("hopper", "Hopper-v4", "mppi_height"),
    "mppi_sideways": Task("ant", "Ant-v4", "mppi_sideways"),
}
# What else holds a heavy wish, without the price on states: beside the paper's ω′ 0.17, for as many steps.
HOLDS = {
    "omega_0.6": "--omega 0.6 --alpha 0.13472",
    "budget": "--omega auto --kl-budget 2",
    "gamma_0.6": "--omega 0.17 --alpha 0.13472 --gamma 0.6",
}
SEEDS, STEPS = 3, "1e6"


def worth(prior: str) -> float:
    """Return what a nat of it is worth, as `experiments.nat_worth` measured it."""
    return float(Ledger(WORTH).by_key()[prior]["value"])


def made(
    name: str, variant: str, weights: str, seed: int, steps: str = STEPS, more: str = "", episodes: int = 100
) -> Run:
    """Return a customizing run of a task, with weights that are named, or none."""
    task = TASKS[name]
    words = f"customize {task.prior} --addon {task.addon} {weights} --steps {steps} {more} --ranks 1 --seed {seed}"
    return Run(f"{name}/{variant}/{seed}", (*words.split(), "--no-report"), task.env, task.addon, episodes=episodes)


def priced(
    name: str, seed: int, variant: str = "states", steps: str = STEPS, more: str = "", episodes: int = 40
) -> Run:
    """Return a run in which ω′ is what a nat is worth, and so is the price on states."""
    omega = f"{worth(TASKS[name].prior):.3g}"
    return made(name, variant, f"--omega {omega} --states {omega}", seed, steps, more, episodes)


def papers(name: str, seed: int, steps: str = STEPS) -> Run:
    """Return a run with the paper's weights."""
    weights = PAPERS[TASKS[name].prior]
    return made(name, "paper", f"--omega {weights.omega} --alpha {weights.alpha}", seed, steps)


def runs() -> list[Run]:
    """Return all runs; a heavy wish with weights that are named for five million steps, as it goes wrong late."""
    heavy, seeds = "halfcheetah_10", range(SEEDS)
    found = [Run(f"{name}/prior/0", (), task.env, task.addon, policy=task.prior) for name, task in TASKS.items()]
    for seed in seeds:
        found += [priced(name, seed) for name in TASKS]
        found += [priced(heavy, seed, f"states_gamma_{gamma}", more=f"--gamma {gamma}") for gamma in ("0.9", "0.99")]
        found += [priced(heavy, seed, "states_5e6", "5e6", episodes=100)]
        found += [made("ant", "third", "--omega 0.1 --states 0.1", seed, episodes=40)]  # of what a nat is worth
    found += [papers(heavy, 0, "5e6"), *(papers(name, seed) for name in ("hopper", "ant") for seed in seeds)]
    return found + [made(heavy, variant, weights, 0, "5e6") for variant, weights in HOLDS.items()]


def setting_of(row: Row) -> tuple[str, ...]:
    """Return the prior and the wish of a run, and its weights, discount and steps."""
    task = TASKS[row["key"].split("/")[0]]
    if "request" not in row:
        return f"{task.prior}, {task.addon}", "*the prior*", "", "", ""
    words, objective, settings = row["command"].split(), row["request"]["objective"], row["request"]["settings"]
    budget, states = settings["kl_budget"], f"{objective.get('states', 0.0):.3g}"
    omega = f"{objective['omega']:.3g}" if budget is None else f"by a budget of {budget:g}"
    return f"{words[2]}, {words[4]}", omega, states, f"{settings['gamma']:g}", f"{settings['steps'] / 1e6:g}M"


def table(found: dict[str, Row]) -> str:
    """Return each prior, and a row a setting of the weights: means over seeds, the last policies."""
    groups, lines = group_by(found.values(), setting_of), list[list[str]]()
    for what in sorted(groups, key=lambda what: (what[0], what[1] != "*the prior*", what[3:], what[2])):
        runs = [row["last"] for row in groups[what]]
        basic, addon = (mean(run["mean"][f"{part}_reward"][0] for run in runs) for part in ("basic", "addon"))
        totals = [mean_and_each([run[action]["total_reward"][0] for run in runs]) for action in ("mean", "sampled")]
        lines.append([*what, f"{basic:,.0f}", f"{addon:,.0f}", *totals])
    ends = ["basic", "add-on", "**total**", "total, sampled"]
    return markdown_table(["prior, add-on", "ω′", "states", "γ", "steps", *ends], blank_repeats(lines))


@campaign.program("ledger", "runs", "jobs", "ray", "only")
def main(options: campaign.Options) -> list[Run]:
    return runs()
