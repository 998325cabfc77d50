"""Customize the shipped priors: with the paper's weights, the default's, and other ways to hold a heavy wish.

    python -m experiments.heavy --jobs 1

The ledger has one row per run. `--only` takes prefixes of keys.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from experiments import campaign
from experiments.ledger import Ledger, Row, group_by
from experiments.one import Run
from experiments.pages import blank_repeats, markdown_table, mean_and_each
from experiments.paper.runs import TASKS as PAPERS

NAT_WORTHS = Path("results/nat_worth.jsonl")


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
# Other ways to hold a heavy wish, without the price on states. They train as long as the run with the paper's ω′ 0.17.
ALTERNATIVES = {
    "omega_0.6": "--omega 0.6 --alpha 0.13472",
    "budget": "--omega auto --kl-budget 2",
    "gamma_0.6": "--omega 0.17 --alpha 0.13472 --gamma 0.6",
}
SEEDS, STEPS = 3, "1e6"


def nat_worth(prior: str) -> float:
    """Return the reward that a nat of a prior is worth, as `experiments.nat_worth` measured it."""
    return float(Ledger(NAT_WORTHS).by_key()[prior]["value"])


def make_run(
    name: str, variant: str, weights: str, seed: int, steps: str = STEPS, more: str = "", episodes: int = 100
) -> Run:
    """Return a customizing run of a task; `weights` are options, empty for the default."""
    task = TASKS[name]
    command = f"customize {task.prior} --addon {task.addon} {weights} --steps {steps} {more} --ranks 1 --seed {seed}"
    return Run(f"{name}/{variant}/{seed}", (*command.split(), "--no-report"), task.env, task.addon, episodes=episodes)


def priced_run(
    name: str, seed: int, variant: str = "states", steps: str = STEPS, more: str = "", episodes: int = 40
) -> Run:
    """Return a run whose ω′ and price on states are both the worth of a nat."""
    omega = f"{nat_worth(TASKS[name].prior):.3g}"
    return make_run(name, variant, f"--omega {omega} --states {omega}", seed, steps, more, episodes)


def paper_run(name: str, seed: int, steps: str = STEPS) -> Run:
    """Return a run with the paper's weights."""
    weights = PAPERS[TASKS[name].prior]
    return make_run(name, "paper", f"--omega {weights.omega} --alpha {weights.alpha}", seed, steps)


def runs() -> list[Run]:
    """Return all runs. Those of the heavy wish with fixed weights take five million steps, because it fails late."""
    heavy, seeds = "halfcheetah_10", range(SEEDS)
    found = [Run(f"{name}/prior/0", (), task.env, task.addon, policy=task.prior) for name, task in TASKS.items()]
    for seed in seeds:
        found += [priced_run(name, seed) for name in TASKS]
        found += [
            priced_run(heavy, seed, f"states_gamma_{gamma}", more=f"--gamma {gamma}") for gamma in ("0.9", "0.99")
        ]
        found += [priced_run(heavy, seed, "states_5e6", "5e6", episodes=100)]
        found += [make_run("ant", "third", "--omega 0.1 --states 0.1", seed, episodes=40)]  # a third of a nat's worth
    found += [priced_run("hopper", seed) for seed in range(SEEDS, 8)]  # one seed of the first three falls now and then
    found += [paper_run(heavy, 0, "5e6"), *(paper_run(name, seed) for name in ("hopper", "ant") for seed in seeds)]
    return found + [make_run(heavy, variant, weights, 0, "5e6") for variant, weights in ALTERNATIVES.items()]


def weights_of(row: Row) -> tuple[str, ...]:
    """Return the first cells of a run's line: prior and wish, ω′, price on states, discount and steps."""
    task = TASKS[row["key"].split("/")[0]]
    if "request" not in row:
        return f"{task.prior}, {task.addon}", "*the prior*", "", "", ""
    objective, settings = row["request"]["objective"], row["request"]["settings"]
    _, _, prior, _, addon, *_ = row["command"].split()
    budget, states = settings["kl_budget"], f"{objective.get('states', 0.0):.3g}"
    omega = f"{objective['omega']:.3g}" if budget is None else f"by a budget of {budget:g}"
    return f"{prior}, {addon}", omega, states, f"{settings['gamma']:g}", f"{settings['steps'] / 1e6:g}M"


def table(found: dict[str, Row]) -> str:
    """Return a table with a line for each prior and each setting of the weights: means of the last policies."""
    groups, lines = group_by(found.values(), weights_of), list[list[str]]()
    for cells in sorted(groups, key=lambda cells: (cells[0], cells[1] != "*the prior*", cells[3:], cells[2])):
        runs = [row["last"] for row in groups[cells]]
        basic, addon = (mean(run["mean"][f"{part}_reward"][0] for run in runs) for part in ("basic", "addon"))
        totals = [mean_and_each([run[action]["total_reward"][0] for run in runs]) for action in ("mean", "sampled")]
        lines.append([*cells, f"{basic:,.0f}", f"{addon:,.0f}", *totals])
    ends = ["basic", "add-on", "**total**", "total, sampled"]
    return markdown_table(["prior, add-on", "ω′", "states", "γ", "steps", *ends], blank_repeats(lines))


@campaign.program("ledger", "runs", "jobs", "ray", "only")
def main(options: campaign.Options) -> list[Run]:
    return runs()
