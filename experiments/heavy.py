"""The priors that ship and their wishes: with the paper's weights, with the default's, and with what else holds a wish.

    python -m experiments.heavy --jobs 1

A line of the ledger a run. `--only` takes the beginnings of keys.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from experiments import campaign
from experiments.one import Run
from experiments.pages import each_and_mean, markdown
from experiments.paper.runs import TASKS as PAPERS
from repolicy.many.ledger import Row

WORTH = Path("results/nat_worth.json")


@dataclass(frozen=True)
class Task:
    """A prior and a wish."""

    prior: str
    env: str
    addon: str
    steps: str = "1e6"


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
SEEDS = 3


def worth(prior: str) -> float:
    """What a nat of it is worth, as `experiments.nat_worth` measured it."""
    return float(json.loads(WORTH.read_text())[prior]["value"])


def priced(name: str, seed: int, steps: str = "", more: str = "") -> Run:
    """ω′ is what a nat is worth, and so is the price on states."""
    task = TASKS[name]
    omega = worth(task.prior)
    words = ["customize", task.prior, "--addon", task.addon, "--omega", f"{omega:.3g}", "--states", f"{omega:.3g}"]
    words += ["--steps", steps or task.steps, *more.split(), "--ranks", "1", "--seed", str(seed), "--no-report"]
    what = "_".join(filter(None, ["states", steps, more.replace("--", "").replace(" ", "_")]))
    return Run(f"{name}/{what}/{seed}", tuple(words), task.env, task.addon, episodes=100 if steps == "5e6" else 40)


def prior(name: str) -> Run:
    return Run(f"{name}/prior/0", (), TASKS[name].env, TASKS[name].addon, policy=TASKS[name].prior)


def default(name: str, steps: str, seed: int) -> Run:
    """What the command line does with no other option."""
    task = TASKS[name]
    words = ("customize", task.prior, "--addon", task.addon, "--steps", steps, "--ranks", "1", "--seed", str(seed))
    return Run(f"{name}/default_{steps}/{seed}", (*words, "--no-report"), task.env, task.addon)


def plain(name: str, variant: str, weights: str, seed: int) -> Run:
    """The paper's objective with weights that are named; a heavy wish for five million steps, as it goes wrong late."""
    task = TASKS[name]
    words = ["customize", task.prior, "--addon", task.addon, *weights.split()]
    words += ["--steps", "5e6" if name == "halfcheetah_10" else task.steps, "--ranks", "1", "--seed", str(seed)]
    return Run(f"{name}/{variant}/{seed}", (*words, "--no-report"), task.env, task.addon)


def papers(name: str, seed: int) -> Run:
    weights = PAPERS[TASKS[name].prior]
    return plain(name, "paper", f"--omega {weights.omega} --alpha {weights.alpha}", seed)


def runs() -> list[Run]:
    found = [prior(name) for name in TASKS] + [default("halfcheetah_10", "3e5", seed) for seed in range(SEEDS)]
    for seed in range(SEEDS):
        found += [priced(name, seed) for name in TASKS]
        found += [priced("halfcheetah_10", seed, more=f"--gamma {gamma}") for gamma in ("0.9", "0.99")]
        found += [priced("halfcheetah_10", seed, steps="5e6")]
    found += [papers("halfcheetah_10", 0), *(papers(name, seed) for name in ("hopper", "ant") for seed in range(SEEDS))]
    return found + [plain("halfcheetah_10", variant, weights, 0) for variant, weights in HOLDS.items()]


def table(found: dict[str, Row]) -> str:
    """Each prior, and a row a setting of the weights: means over seeds, the last policies."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for key, row in found.items():
        if "request" not in row:  # the prior itself
            task = TASKS[key.split("/")[0]]
            groups[f"{task.prior}, {task.addon}", "*the prior*", "", "", ""] = [row]
            continue
        words, objective, settings = row["command"].split(), row["request"]["objective"], row["request"]["settings"]
        budget = settings["kl_budget"]
        omega = f"{objective['omega']:.3g}" if budget is None else f"by a budget of {budget:g}"
        weights = omega, f"{objective.get('states', 0.0):.3g}"
        group = (f"{words[2]}, {words[4]}", *weights, f"{settings['gamma']:g}", f"{settings['steps'] / 1e6:g}M")
        groups.setdefault(group, []).append(row)
    lines = []
    for what in sorted(groups, key=lambda what: (what[0], what[1] != "*the prior*", what[3:], what[2])):
        runs = [row["last"] for row in groups[what]]
        basic, addon = (mean(run["mean"][f"{part}_reward"][0] for run in runs) for part in ("basic", "addon"))
        totals = [each_and_mean([run[action]["total_reward"][0] for run in runs]) for action in ("mean", "sampled")]
        lines.append([*what, f"{basic:,.0f}", f"{addon:,.0f}", *totals])
    ends = ["basic", "add-on", "**total**", "total, sampled"]
    return markdown(["prior, add-on", "ω′", "states", "γ", "steps", *ends], lines)


def main() -> None:
    parser = campaign.parser("heavy", __doc__)
    parser.add_argument("--only", nargs="*", default=[""])
    options = parser.parse_args()
    campaign.fill([run for run in runs() if run.key.startswith(tuple(options.only))], options)


if __name__ == "__main__":
    campaign.run_main(main)
