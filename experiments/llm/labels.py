"""Cross-Entropy-DPO against DPO on the toy, from few preferences to many: python -m experiments.llm labels.

N pairs are 2N responses and N judgements. `responses`: cross-entropy sees the same 2N responses, each with a label of
its own; `judgements`: it sees N of them. One judge rules all: σ of the difference of two rewards, or σ(reward − 0.5).
"""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from experiments import campaign
from experiments.ledger import Row
from experiments.llm.jobs import PRIORS, Job, job_grid, mean_and_spread, measurements
from experiments.llm.toy import labelled_pairs, labelled_responses, policy_log_probs, sample_responses
from experiments.llm.toy_training import compare_with_optimum, open_world, train_offline
from experiments.pages import markdown_table
from repolicy.objective import residual

METHODS = ("dpo", "responses", "judgements", "responses, no offset")


def run(job: Job, priors: Path) -> Row:
    """Train once, with as many steps as DPO takes in two passes over its pairs, and as many responses in each."""
    toy, folder, log_prior = open_world("standard", priors)
    objective, count, method = residual(job["omega"], job["alpha"]), job["pairs"], job["method"]
    texts = sample_responses(toy, log_prior, 2 * count, seed=300 + job["seed"])
    batch = max(4, min(64, count // 64))
    settings = {"steps": 2 * count // batch, "seed": job["seed"], "rate": job["rate"]}
    rows: list[dict[str, Any]]
    if method == "dpo":
        rows = [*labelled_pairs(texts[:count], texts[count:], seed=400 + job["seed"])]
    else:
        rows = labelled_responses(texts[:count] if method == "judgements" else texts, seed=400 + job["seed"])
        settings |= {"method": "cross_entropy", "offset": "no offset" not in method}
    model = train_offline(folder, objective, rows, batch=batch if method == "dpo" else 2 * batch, **settings)
    return compare_with_optimum(toy, objective, log_prior, policy_log_probs(toy, model))


def table(rows: list[Row]) -> str:
    """Return KL to the exact optimum: a row for each size, a column for each method."""
    lines = []
    for count in sorted({row["job"]["pairs"] for row in rows}):
        same_size = [row for row in rows if row["job"]["pairs"] == count]
        kls = [[row["after"]["kl"] for row in same_size if row["job"]["method"] == method] for method in METHODS]
        runs = "/".join(map(str, sorted({len(group) for group in kls})))
        cells = [mean_and_spread(group) if group else "" for group in kls]
        lines.append([str(count), runs, f"{same_size[0]['before']['kl']:.3f}", *cells])
    return markdown_table(["pairs", "runs", "before", *METHODS], lines)


def draw(found: campaign.Rows, file: Path) -> None:
    """Draw KL over the size of the preference set: a line of means for each method, a dot for each run."""
    rows = [*found.values()]
    figure, panel = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for method in METHODS:
        runs = [row for row in rows if row["job"]["method"] == method]
        sizes = sorted({run["job"]["pairs"] for run in runs})
        kls = {size: [run["after"]["kl"] for run in runs if run["job"]["pairs"] == size] for size in sizes}
        (line,) = panel.plot(sizes, [sum(kls[size]) / len(kls[size]) for size in sizes], label=method)
        points = [(size, kl) for size in sizes for kl in kls[size]]
        panel.plot(*zip(*points, strict=True), ".", color=line.get_color(), alpha=0.5)
    panel.axhline(rows[0]["before"]["kl"], color="black", linestyle=":", label="before training")
    panel.set(xscale="log", yscale="log", xlabel="pairs", ylabel="KL to the exact optimum, nats")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}" if axis is panel.yaxis else "")
    panel.legend(fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)


@campaign.program(
    "ledger", priors=PRIORS, pairs=(64, 256, 1024, 4096), seeds=5, omega=0.2, alpha=0.2, rate=3e-4, draw=draw
)
def main(options: campaign.Options) -> campaign.Measurements:
    common = ("omega", "alpha", "rate")
    jobs = job_grid(options, common, seed=range(options.seeds), pairs=options.pairs, method=METHODS)
    return measurements(jobs, run, options.priors)
