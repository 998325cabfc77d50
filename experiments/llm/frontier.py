"""Measure the trade-off over omega on the toy against the exact optimum: python -m experiments.llm frontier.

Controls: stock GRPO, RLOO, stock DPO (omega = alpha), a prior that was stopped early, and a language in which all human
text has one length.
"""

from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from experiments import campaign
from experiments.ledger import Row, group_by
from experiments.llm.jobs import PRIORS, Job, kl_cell, measurements
from experiments.llm.toy import labelled_pairs, measure, optimum, policy_log_probs, sample_responses
from experiments.llm.toy_training import compare_with_optimum, open_world, run_online, train_offline
from experiments.pages import markdown_table
from repolicy.objective import residual

COLUMNS = {"addon": "add-on", "log_prior": "log prior", "length": "letters", "entropy": "entropy"}
METHODS = {"whole": "online, whole", "onward": "online, onward", "decomposed": "offline"}
DOTS = METHODS | {"grpo": "stock GRPO", "rloo": "RLOO recipe"}
CONTROLS = (
    ("stock GRPO, beta = 0.2", "standard", "grpo"),
    ("RLOO recipe", "standard", "rloo"),
    ("stock DPO (omega = alpha)", "standard", "decomposed"),
    ("prior stopped early, online", "early", "whole"),
    ("prior stopped early, offline", "early", "decomposed"),
    ("text of one length, online", "fixed", "whole"),
)


def jobs(settings: Any) -> list[Job]:
    """Return jobs of the two methods at every omega; then the controls, some of them once."""
    alpha, seeds = settings.alpha, range(settings.seeds)
    middle = [omega for omega in settings.omegas if 0 < omega <= 1.5 * alpha + 1e-9]
    points = [*product(["standard"], ("whole", "decomposed"), settings.omegas, seeds)]
    if settings.controls:
        points += product(["standard"], ("grpo", "rloo"), [alpha], seeds)
        points += product(["standard"], ["onward"], middle, seeds)
        points += product(["early"], ("whole", "decomposed"), middle, [0])
        points += product(["fixed"], ["whole"], middle, [0])
    found: list[Job] = []
    for world, method, omega, seed in points:
        names = ("pairs",) if method == "decomposed" else ("steps", "samples", "rate")
        size = {name: getattr(settings, name) for name in names}
        found.append({"world": world, "method": method, "omega": omega, "alpha": alpha, "seed": seed, **size})
    return found


def run(job: Job, priors: Path) -> Row:
    """Train once; the measures of the prior, of what came out and of the exact optimum."""
    if job["method"] != "decomposed":
        return run_online(job, priors)
    toy, folder, log_prior = open_world(job["world"], priors)
    objective, seed = residual(job["omega"], job["alpha"]), job["seed"]
    both = sample_responses(toy, log_prior, 2 * job["pairs"], seed=100 + seed)
    pairs = labelled_pairs(both[: job["pairs"]], both[job["pairs"] :], seed=200 + seed)
    model = train_offline(folder, objective, pairs, seed=seed)
    return compare_with_optimum(toy, objective, log_prior, policy_log_probs(toy, model))


def table(rows: list[Row]) -> str:
    """Return three tables: the exact optimum at each omega, and KL to it of the methods and of the controls."""
    methods = group_by(rows, lambda row: (row["job"]["world"], row["job"]["method"]))
    found = {method: group_by(of, lambda row: row["job"]["omega"]) for method, of in methods.items()}
    best, distances, controls = list[list[str]](), list[list[str]](), list[list[str]]()
    for omega, runs in found["standard", "whole"].items():
        best.append([f"{omega:g}", *(f"{runs[0]['best'][name]:.2f}" for name in COLUMNS)])
        kls = [kl_cell(found.get(("standard", method), {}).get(omega, [])) for method in METHODS]
        distances.append([f"{omega:g}", f"{runs[0]['before']['kl']:.2f}", *kls])
    for what, world, method in CONTROLS:
        for omega, runs in found.get((world, method), {}).items():
            if (world, method) != ("standard", "decomposed") or omega == runs[0]["job"]["alpha"]:
                controls.append([what, f"{omega:g}", f"{runs[0]['before']['kl']:.2f}", kl_cell(runs)])
    heads = ["omega", *COLUMNS.values()], ["omega", "before", *METHODS.values()], ["control", "omega", "before", "KL"]
    return "\n\n".join(map(markdown_table, heads, (best, distances, controls)))


def draw(rows: campaign.Rows, file: Path) -> None:
    """Draw add-on reward, length and entropy over omega, and the trade-off: lines are exact, dots were trained."""
    standard = [row for row in rows.values() if row["job"]["world"] == "standard"]
    alpha, most = standard[0]["job"]["alpha"], max(row["job"]["omega"] for row in standard)
    toy, _, log_prior = open_world("standard", PRIORS)
    objectives = [residual(0.01 * i, alpha) for i in range(int(100 * most) + 1)]
    best = [measure(toy, each, optimum(each, log_prior, toy.rewards), log_prior) for each in objectives]
    of = dict(sorted(group_by(standard, lambda row: row["job"]["method"]).items()))
    names = {"addon": "add-on reward", "length": "letters", "entropy": "entropy of a response, nats"}
    figure, grid = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    panels = grid.ravel()
    for panel, (name, label) in zip(panels, names.items(), strict=False):
        omegas, values = [each.omega for each in objectives], [getattr(at, name) for at in best]
        panel.plot(omegas, values, "k", label="exact optimum")
        panel.set(xlabel="omega", ylabel=label)
        for method, runs in of.items():
            x, y = [run["job"]["omega"] for run in runs], [run["after"][name] for run in runs]
            panel.plot(x, y, "o", alpha=0.6, markersize=5, label=DOTS[method])
    panels[3].plot([at.log_prior for at in best], [at.addon for at in best], color="black")
    for runs in of.values():
        panels[3].plot([r["after"]["log_prior"] for r in runs], [r["after"]["addon"] for r in runs], "o", alpha=0.6)
    panels[3].set(xlabel="log-probability under the prior, nats", ylabel="add-on reward", title="the frontier")
    panels[0].legend(fontsize=8)
    figure.suptitle(f"alpha = {alpha:g}: every number an expectation over all responses")
    figure.savefig(file, dpi=110)
    plt.close(figure)


@campaign.program(
    "ledger", priors=PRIORS, omegas=(0.0, 0.1, 0.2, 0.3, 0.4, 0.6), alpha=0.2, seeds=3, steps=300, samples=64,
    rate=1e-3, pairs=8192, controls=True, draw=draw,
)  # fmt: skip
def main(options: campaign.Options) -> campaign.Measurements:
    return measurements(jobs(options), run, options.priors)
