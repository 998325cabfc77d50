"""Cross-Entropy-DPO against DPO on the toy, from few preferences to many: `python -m experiments.llm labels`.

A comparison must say what it holds equal. N pairs are 2N responses and N judgements, so there are two of them:
`responses`: cross-entropy sees the same 2N responses, each with a label of its own (2N judgements); `judgements`: it
sees N of them. One judge rules all: σ of the difference of two rewards for a pair, σ(reward − 0.5) for a label.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.llm.records import Job, command_line, done, mean_and_spread, prepare, run_missing
from experiments.llm.toy import (
    Toy,
    labelled_pairs,
    labelled_responses,
    make_prior,
    measure,
    policy_log_probs,
    sample_responses,
)
from repolicy.errors import UsageError
from repolicy.objective import residual

TOY = Toy()
METHODS = ("dpo", "responses", "judgements", "responses, no offset")


@dataclass(frozen=True)
class Labels:
    """Cross-Entropy-DPO on labels against DPO on pairs, from few preferences to many, on the toy.

    Example: python -m experiments.llm labels --pairs 64 256 --seeds 2
    """

    pairs: tuple[int, ...] = (64, 256, 1024, 4096)
    """Sizes of the preference set."""
    seeds: int = 5
    """How often every run is repeated, with other data."""
    omega: float = 0.2
    """Weight of the prior's log-probability."""
    alpha: float = 0.2
    """Weight of the policy's entropy."""
    rate: float = 3e-4
    """Learning rate; it falls to 0 in a line."""
    train: bool = True
    """Run what is missing. Without it, only the table and the picture are made anew."""
    output: Path = Path("results/llm")
    """Folder of labels.jsonl, its table and its picture. Runs that have a line there are not run again."""
    priors: Path = Path("runs/llm-toy")
    """Folder of the prior, which is made where it is missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if not self.pairs or min(self.pairs) < 8 or self.seeds < 1:
            raise UsageError("pairs must be 8 or more, and seeds 1 or more")
        if self.alpha <= 0 or self.omega < 0 or self.rate <= 0:
            raise UsageError("alpha and rate must be greater than 0, and omega 0 or greater")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        return done(labels(self), self.output / "labels.md")


def labels(options: Labels) -> list[dict[str, Any]]:
    """Run what is missing, write the table and the picture, and return the records."""
    torch.set_num_threads(1)
    jobs: list[Job] = [
        {"pairs": n, "method": m, "omega": options.omega, "alpha": options.alpha, "rate": options.rate, "seed": seed}
        for seed in range(options.seeds)
        for n in options.pairs
        for m in METHODS
    ]
    records = run_missing(
        jobs, options.output / "labels.jsonl", command_line(options), lambda job: run_job(job, options), options.train
    )
    (options.output / "labels.md").write_text(table(records))
    draw(records, options.output / "labels.png")
    return records


def run_job(job: Job, options: Labels) -> dict[str, Any]:
    """Train once, with as many steps as DPO takes in two passes over its pairs, and as many responses in each."""
    from experiments.llm import toy_training

    toy, count = TOY, job["pairs"]
    folder = options.priors / "standard"
    make_prior(toy, folder)
    objective = residual(job["omega"], job["alpha"])
    log_prior = policy_log_probs(toy, toy_training.load(folder)[0])
    texts = sample_responses(toy, log_prior, 2 * count, seed=300 + job["seed"])
    batch = max(4, min(64, count // 64))
    settings = {"steps": 2 * count // batch, "seed": job["seed"], "rate": job["rate"]}
    if job["method"] == "dpo":
        rows: list[dict[str, Any]] = list(labelled_pairs(texts[:count], texts[count:], seed=400 + job["seed"]))
        trained = toy_training.offline(toy, folder, objective, rows, batch=batch, **settings)
    else:
        rows = labelled_responses(texts[:count] if job["method"] == "judgements" else texts, seed=400 + job["seed"])
        trained = toy_training.offline(
            toy,
            folder,
            objective,
            rows,
            "cross_entropy",
            2 * batch,
            offset="no offset" not in job["method"],
            **settings,
        )
    return {
        "before": asdict(measure(toy, objective, log_prior, log_prior)),
        "after": asdict(measure(toy, objective, trained, log_prior)),
    }


def table(records: list[dict[str, Any]]) -> str:
    """KL to the exact optimum: a row for each size, a column for each method."""
    lines = [
        "Made by `python -m experiments.llm labels`. KL to the exact optimum, in nats; smaller is better.\n",
        f"| pairs | runs | before | {' | '.join(METHODS)} |",
        "|---|---|---|" + "---|" * len(METHODS),
    ]
    for count in sorted({record["job"]["pairs"] for record in records}):
        of = {m: [r for r in records if (r["job"]["pairs"], r["job"]["method"]) == (count, m)] for m in METHODS}
        runs = "/".join(str(number) for number in sorted({len(group) for group in of.values()}))
        before = next(r for r in records if r["job"]["pairs"] == count)["before"]["kl"]
        cells = [mean_and_spread([r["after"]["kl"] for r in group]) if group else "" for group in of.values()]
        lines.append(f"| {count} | {runs} | {before:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(records: list[dict[str, Any]], file: Path) -> None:
    """KL over the size of the preference set: a line of means for each method, a dot for each run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for method in METHODS:
        runs = [record for record in records if record["job"]["method"] == method]
        sizes = sorted({run["job"]["pairs"] for run in runs})
        of = {size: [run["after"]["kl"] for run in runs if run["job"]["pairs"] == size] for size in sizes}
        (line,) = panel.plot(sizes, [sum(of[size]) / len(of[size]) for size in sizes], label=method)
        points = [(size, kl) for size in sizes for kl in of[size]]
        panel.plot(*zip(*points, strict=True), ".", color=line.get_color(), alpha=0.5)
    if records:
        panel.axhline(records[0]["before"]["kl"], color="black", linestyle=":", label="before training")
    panel.set(xscale="log", yscale="log", xlabel="pairs", ylabel="KL to the exact optimum, nats")
    panel.legend(fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)
