"""The dial while text is generated, between models trained on the toy: python -m experiments.llm dial.

Text of one or two trained models is mixed token by token at other omegas, and compared with the exact optimum there.
"""

import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments import campaign
from experiments.ledger import Row, group_by
from experiments.llm.jobs import PRIORS, Job, measurements
from experiments.llm.toy import Toy, new_model, next_token, optimum, tables
from experiments.llm.toy_training import compare_with_optimum, load, open_world, train_online
from experiments.pages import markdown_table
from repolicy.llm import dial
from repolicy.llm.mixing import mixed_log_probs, mixture
from repolicy.objective import Objective, residual

KINDS = ("one anchor", "two anchors")  # between exact policies, and the second between trained ones, too


def run(job: Job, priors: Path) -> Row:
    """Train the anchors; the exact distribution of what the dial writes at each omega, against the optimum there."""
    if job["kind"] == "cost":
        return {"milliseconds": token_milliseconds()}
    toy, folder, log_prior = open_world("standard", priors)

    def anchor(objective: Objective) -> Tensor:
        if job["seed"] is None:
            return next_token(toy, optimum(objective, log_prior, toy.rewards))
        how = {name: job[name] for name in ("steps", "seed", "prior_share")}
        return tables(toy, train_online(folder, objective, length=toy.length, **how)[0])

    anchors, targets = ([residual(omega, job["alpha"]) for omega in job[name]] for name in ("anchors", "omegas"))
    next_tokens = [tables(toy, load(folder)[0]), *map(anchor, anchors)]
    policies = [dialed_log_probs(toy, target, anchors, next_tokens) for target in targets]
    pairs = zip(targets, policies, strict=True)
    found = [compare_with_optimum(toy, target, log_prior, policy) for target, policy in pairs]
    return {name: [each[name] for each in found] for name in ("after", "best")}


def dialed_log_probs(toy: Toy, target: Objective, anchors: list[Objective], next_tokens: list[Tensor]) -> Tensor:
    """Return log p(response) `[N]` of what the dial writes at a target, by the library's own arithmetic."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a target beyond the anchors, which is measured too
        coefficients = mixture(anchors, target.omega, target.alpha)
    return toy.response_log_probs(mixed_log_probs(coefficients, next_tokens))


def token_milliseconds(tokens: int = 64, rows: int = 16, rounds: int = 5) -> dict[str, float]:
    """Return milliseconds a token for a batch, the kinds taking turns, the least of some rounds: of 3 layers of 128."""
    models = [new_model("abcde", tokens + 2, hidden=128, layers=3, seed=seed).eval() for seed in range(3)]
    one, two = (models[1], residual(0.1, 0.2)), (models[2], residual(0.4, 0.2))
    ids = torch.zeros(rows, 1, dtype=torch.long)
    kinds: dict[str, Any] = {
        "no dial": lambda settings: models[1].generate(ids, do_sample=True, **settings),
        "one anchor and the prior": lambda settings: dial(models[0], one, omega=0.2).generate(ids, **settings),
        "two anchors": lambda settings: dial(models[0], one, two, omega=0.2).generate(ids, **settings),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, generate in kinds.items():
            started = time.process_time()
            generate({"max_new_tokens": tokens, "eos_token_id": -1, "pad_token_id": 0})
            times[kind].append(1000 * (time.process_time() - started) / tokens)
    return {kind: round(min(values), 2) for kind, values in times.items()}


def table(rows: list[Row]) -> str:
    """Return KL to the exact optimum: a row for each omega, a number for each seed; and what a token costs."""
    dialled = (row for row in rows if row["job"]["kind"] != "cost")
    groups = group_by(dialled, lambda row: (row["job"]["seed"] is not None, KINDS.index(row["job"]["kind"])))
    found = dict(sorted(groups.items()))
    headings = ["omega"]
    for (trained, kind), runs in found.items():
        anchors = ", ".join(f"{omega:g}" for omega in runs[0]["job"]["anchors"])
        headings.append(f"{KINDS[kind]}, {'trained' if trained else 'exact'}: {anchors}")
    lines = []
    for i, omega in enumerate(next(iter(found.values()))[0]["job"]["omegas"]):
        each = [", ".join(f"{max(run['after'][i]['kl'], 0.0):.3f}" for run in runs) for runs in found.values()]
        lines.append([f"{omega:g}", *each])
    text = markdown_table(headings, lines)
    for row in rows:
        if row["job"]["kind"] == "cost":
            text += "\n\nCPU milliseconds a token, 16 rows, one thread, 3 layers of 128:\n\n| | ms |\n|---|---|\n"
            text += "\n".join(f"| {kind} | {value:.2f} |" for kind, value in row["milliseconds"].items())
    return text


@campaign.program(
    "ledger", priors=PRIORS, omegas=(0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4), anchors=(0.1, 0.4), single=0.2, alpha=0.2,
    seeds=3, steps=2400, prior_share=0.25,
)  # fmt: skip
def main(options: campaign.Options) -> campaign.Measurements:
    common = {name: getattr(options, name) for name in ("alpha", "steps", "prior_share")}
    common |= {"omegas": list(options.omegas), "seed": None}
    one = {"kind": "one anchor", "anchors": [options.single], **common}
    two = {"kind": "two anchors", "anchors": list(options.anchors), **common}
    jobs = [one, two, *({**two, "seed": seed} for seed in range(options.seeds)), {"kind": "cost"}]
    return measurements(jobs, run, options.priors)
