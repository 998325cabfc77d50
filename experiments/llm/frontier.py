"""The trade-off that omega buys on the toy, against the exact optimum: `python -m experiments.llm frontier`.

For every omega, method and seed: train, list every response, and measure the distance from the optimum, both rewards,
length and entropy. Controls: stock GRPO, RLOO, stock DPO (omega = alpha), a prior that was stopped early, and a
language in which all human text has one length.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.llm.records import Job, command_line, done, mean_and_spread, prepare, run_missing
from experiments.llm.toy import (
    Measures,
    Toy,
    labelled_pairs,
    make_prior,
    measure,
    optimum,
    policy_log_probs,
    sample_responses,
)
from repolicy.errors import UsageError
from repolicy.objective import residual

WORLDS = {"standard": (Toy(), 500), "early": (Toy(), 40), "fixed": (Toy(fixed=True), 500)}  # and steps of pretraining


@dataclass(frozen=True)
class Frontier:
    """Trade-off that omega buys on a toy whose best policy is known: trained against exact, over seeds.

    Example: python -m experiments.llm frontier --seeds 1 --omegas 0.1 0.2 0.3
    """

    omegas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)
    """Weights of the prior's log-probability."""
    alpha: float = 0.2
    """Weight of the policy's entropy."""
    seeds: int = 3
    """How often every main run is repeated."""
    steps: int = 300
    """Online steps."""
    samples: int = 64
    """Responses in an online step."""
    rate: float = 1e-3
    """Learning rate online; it falls to 0 in a line."""
    pairs: int = 8192
    """Preferences for the offline method."""
    controls: bool = True
    """Run the controls as well."""
    train: bool = True
    """Run what is missing. Without it, only the table and the picture are made anew."""
    output: Path = Path("results/llm")
    """Folder of frontier.jsonl, its table and its picture. Runs that have a line there are not run again."""
    priors: Path = Path("runs/llm-toy")
    """Folder of the priors, which are made where they are missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise UsageError(f"alpha is {self.alpha}; the optimum divides by it, so it must be greater than 0")
        if not self.omegas or min(self.omegas) < 0:
            raise UsageError("omegas must name one or more numbers, each 0 or greater")
        if min(self.seeds, self.steps, self.samples - 1, self.pairs) < 1 or self.rate <= 0:
            raise UsageError("seeds, steps and pairs must be 1 or more, samples 2 or more, rate greater than 0")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        return done(frontier(self), self.output / "frontier.md")


def frontier(options: Frontier) -> list[dict[str, Any]]:
    """Run what is missing, write the table and the picture, and return the records."""
    torch.set_num_threads(1)
    file = options.output / "frontier.jsonl"
    records = run_missing(
        frontier_jobs(options), file, command_line(options), lambda job: run_job(job, options), options.train
    )
    (options.output / "frontier.md").write_text(table(records))
    draw(records, options, options.output / "frontier.png")
    return records


def frontier_jobs(options: Frontier) -> list[Job]:
    """The two methods at every omega, seed by seed; then the controls, some of them once."""
    alpha, middle = options.alpha, [omega for omega in options.omegas if 0 < omega <= 1.5 * options.alpha + 1e-9]
    seeds = range(options.seeds)
    points = [
        ("standard", method, omega, seed)
        for seed in seeds
        for method in ("whole", "decomposed")
        for omega in options.omegas
    ]
    if options.controls:
        points += [("standard", method, alpha, seed) for seed in seeds for method in ("grpo", "rloo")]
        points += [("standard", "onward", omega, seed) for seed in seeds for omega in middle]
        once = [("early", "whole"), ("early", "decomposed"), ("fixed", "whole")]
        points += [(world, method, omega, 0) for world, method in once for omega in middle]
    return [
        {"world": world, "method": method, "omega": omega, "alpha": alpha, "seed": seed, **_size(method, options)}
        for world, method, omega, seed in points
    ]


def _size(method: str, options: Frontier) -> dict[str, Any]:
    if method == "decomposed":
        return {"pairs": options.pairs}
    return {"steps": options.steps, "samples": options.samples, "rate": options.rate}


def run_job(job: Job, options: Frontier) -> dict[str, Any]:
    """Train once; the measures of the prior (before) and of what came out, against the exact optimum."""
    from experiments.llm import toy_training

    toy, pretraining = WORLDS[job["world"]]
    folder = options.priors / job["world"]
    distance = make_prior(toy, folder, pretraining)
    objective = residual(job["omega"], job["alpha"])
    log_prior = policy_log_probs(toy, toy_training.load(folder)[0])
    if job["method"] == "decomposed":
        both = sample_responses(toy, log_prior, 2 * job["pairs"], seed=100 + job["seed"])
        pairs = labelled_pairs(both[: job["pairs"]], both[job["pairs"] :], seed=200 + job["seed"])
        trained = toy_training.offline(toy, folder, objective, pairs, seed=job["seed"])
    else:
        trained = toy_training.online(
            toy, folder, objective, job["method"], job["steps"], job["samples"], job["seed"], job["rate"]
        )
    return {
        "prior_kl": distance,
        "before": asdict(measure(toy, objective, log_prior, log_prior)),
        "after": asdict(measure(toy, objective, trained, log_prior)),
        "best": asdict(measure(toy, objective, optimum(objective, log_prior, toy.rewards), log_prior)),
    }


def table(records: list[dict[str, Any]]) -> str:
    """One row for each world, method and omega: what came out, and the exact optimum beside it."""
    columns = ["kl", "addon", "log_prior", "length", "entropy"]
    lines = [
        "Made by `python -m experiments.llm frontier`. After the slash: the exact optimum. KL, in nats, is to that.",
        "`whole` and `onward`: ResidualGRPOTrainer with returns of the whole response, and from each token onward;",
        "`decomposed`: Decomposed-DPO; `grpo` and `rloo`: TRL's own, the latter with the recipe.\n",
        "| world | method | omega | runs | KL before | KL | add-on | log prior | letters | entropy |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for record in records:
        job = record["job"]
        groups.setdefault((job["world"], job["method"], job["omega"]), []).append(record)
    for (world, method, omega), runs in sorted(groups.items(), key=lambda item: (item[0][0] != "standard", item[0])):
        cells = [mean_and_spread([run["after"][name] for run in runs]) for name in columns]
        best = [""] + [f" / {runs[0]['best'][name]:.3f}" for name in columns[1:]]
        row = [world, method, f"{omega:g}", str(len(runs)), f"{runs[0]['before']['kl']:.2f}"]
        lines.append("| " + " | ".join(row + [cell + to for cell, to in zip(cells, best, strict=True)]) + " |")
    return "\n".join(lines) + "\n"


def draw(records: list[dict[str, Any]], options: Frontier, file: Path) -> None:
    """Add-on reward, length and entropy over omega, and the trade-off itself: lines are exact, dots were trained."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from experiments.llm import toy_training

    standard = [record for record in records if record["job"]["world"] == "standard"]
    toy, pretraining = WORLDS["standard"]
    make_prior(toy, options.priors / "standard", pretraining)
    log_prior = policy_log_probs(toy, toy_training.load(options.priors / "standard")[0])
    sweep = [0.01 * i for i in range(int(100 * max(options.omegas)) + 1)]
    exact = [_best(toy, omega, options.alpha, log_prior) for omega in sweep]
    names = {"addon": "add-on reward", "length": "letters", "entropy": "entropy of a response"}
    figure, panels = plt.subplots(1, 4, figsize=(16, 3.8), layout="constrained")
    for panel, (name, label) in zip(panels, names.items(), strict=False):
        panel.plot(sweep, [getattr(point, name) for point in exact], color="black", label="exact optimum")
        panel.set(xlabel="omega", ylabel=label)
        for method in sorted({record["job"]["method"] for record in standard}):
            runs = [record for record in standard if record["job"]["method"] == method]
            x, y = [run["job"]["omega"] for run in runs], [run["after"][name] for run in runs]
            panel.plot(x, y, "o", alpha=0.6, markersize=5, label=method)
    panels[3].plot([point.log_prior for point in exact], [point.addon for point in exact], color="black")
    for method in sorted({record["job"]["method"] for record in standard}):
        runs = [record for record in standard if record["job"]["method"] == method]
        panels[3].plot([r["after"]["log_prior"] for r in runs], [r["after"]["addon"] for r in runs], "o", alpha=0.6)
    panels[3].set(xlabel="log-probability under the prior", ylabel="add-on reward", title="the frontier")
    panels[0].legend(fontsize=8)
    figure.suptitle(f"alpha = {options.alpha:g}: every number an expectation over all responses")
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _best(toy: Toy, omega: float, alpha: float, log_prior: torch.Tensor) -> Measures:
    objective = residual(omega, alpha)
    return measure(toy, objective, optimum(objective, log_prior, toy.rewards), log_prior)
