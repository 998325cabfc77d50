"""The dial while text is generated, between models that were trained on the toy: `python -m experiments.llm dial`."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.llm.frontier import WORLDS
from experiments.llm.records import Job, command_line, done, prepare, run_missing
from experiments.llm.toy import Toy, make_prior, measure, new_model, next_token, optimum, tables
from repolicy.errors import UsageError
from repolicy.objective import Objective, residual

KINDS = ("one anchor", "two anchors")  # between exact policies, and the second between trained ones, too


@dataclass(frozen=True)
class Dial:
    """Text of one or two trained models, mixed token by token at other omegas, against the exact optimum there.

    Example: python -m experiments.llm dial --omegas 0.2 0.3
    """

    omegas: tuple[float, ...] = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
    """Where the dial is turned to."""
    anchors: tuple[float, float] = (0.1, 0.4)
    """Omegas of the two trained models."""
    single: float = 0.2
    """Omega of the exact policy that is mixed with the prior."""
    alpha: float = 0.2
    """Weight of the policy's entropy."""
    seeds: int = 3
    """How often every model is trained."""
    steps: int = 2400
    """Online steps of a model."""
    prior_share: float = 0.25
    """Share of the responses that the prior writes while a model is trained."""
    train: bool = True
    """Run what is missing. Without it, only the table is made anew."""
    output: Path = Path("results/llm")
    """Folder of dial.jsonl and its table. Runs that have a line there are not run again."""
    priors: Path = Path("runs/llm-toy")
    """Folder of the prior, which is made where it is missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.alpha <= 0 or not self.omegas or min(*self.omegas, *self.anchors, self.single) <= 0:
            raise UsageError("alpha and every omega must be greater than 0")
        if self.seeds < 1 or self.steps < 1 or not 0 <= self.prior_share < 1:
            raise UsageError("seeds and steps must be 1 or more, and prior_share from 0 to less than 1")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        return done(turning(self), self.output / "dial.md")


def turning(options: Dial) -> list[dict[str, Any]]:
    """Run what is missing, write the table, and return the records."""
    torch.set_num_threads(1)
    common: Job = {
        "alpha": options.alpha,
        "steps": options.steps,
        "prior_share": options.prior_share,
        "omegas": list(options.omegas),
    }
    one: Job = {"kind": "one anchor", "anchors": [options.single], "seed": None, **common}
    two: Job = {"kind": "two anchors", "anchors": list(options.anchors), "seed": None, **common}
    jobs = [one, two, *({**two, "seed": seed} for seed in range(options.seeds))]
    jobs.append({"kind": "cost"})
    records = run_missing(
        jobs, options.output / "dial.jsonl", command_line(options), lambda job: run_job(job, options), options.train
    )
    (options.output / "dial.md").write_text(table(records))
    return records


def run_job(job: Job, options: Dial) -> dict[str, Any]:
    """Train the anchors; the exact distribution of what the dial writes at each omega, against the optimum there."""
    if job["kind"] == "cost":
        return {"milliseconds": cost()}
    from experiments.llm import toy_training

    toy, pretraining = WORLDS["standard"]
    folder = options.priors / "standard"
    make_prior(toy, folder, pretraining)
    objectives = [residual(omega, job["alpha"]) for omega in job["anchors"]]
    prior = tables(toy, toy_training.load(folder)[0])
    log_prior = toy.response_log_probs(prior)

    def anchor(objective: Objective) -> Any:
        if job["seed"] is None:
            return next_token(toy, optimum(objective, log_prior, toy.rewards))
        how = {name: job[name] for name in ("steps", "seed", "prior_share")}
        return tables(toy, toy_training.online_model(toy, folder, objective, **how))

    tuned = [anchor(objective) for objective in objectives]
    return {
        "after": [
            asdict(turned(toy, residual(omega, job["alpha"]), objectives, log_prior, [prior, *tuned]))
            for omega in job["omegas"]
        ],
        "best": [
            asdict(measure(toy, objective, optimum(objective, log_prior, toy.rewards), log_prior))
            for objective in (residual(omega, job["alpha"]) for omega in job["omegas"])
        ],
    }


def turned(toy: Toy, target: Objective, anchors: list[Objective], log_prior: Any, next_token: list[Any]) -> Any:
    """What the dial writes at a target, by the library's own arithmetic."""
    import warnings

    from repolicy.llm.mixing import mixed_log_probs, mixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coefficients = mixture(target, anchors)
    return measure(toy, target, toy.response_log_probs(mixed_log_probs(coefficients, next_token)), log_prior)


def cost(tokens: int = 64, rows: int = 16, rounds: int = 5) -> dict[str, float]:
    """Milliseconds a token for a batch, the kinds taking turns, the least of some rounds: of 3 layers of 128."""
    from repolicy.llm import dial

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


def table(records: list[dict[str, Any]]) -> str:
    """KL to the exact optimum: a row for each omega, a number for each seed."""
    runs = {
        f"{kind}{', exact' if exact else ', trained'}": [
            r for r in records if r["job"]["kind"] == kind and (r["job"]["seed"] is None) == exact
        ]
        for exact in (True, False)
        for kind in KINDS
    }
    first = next(r for found in runs.values() for r in found)
    names = [
        f"{kind}: {', '.join(f'{o:g}' for o in found[0]['job']['anchors'])}" for kind, found in runs.items() if found
    ]
    lines = [
        "Made by `python -m experiments.llm dial`. KL to the exact optimum, in nats; a number a seed where trained.\n",
        f"| omega | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
    ]
    for i, omega in enumerate(first["job"]["omegas"]):
        cells = [
            ", ".join(f"{max(run['after'][i]['kl'], 0.0):.3f}" for run in found) for found in runs.values() if found
        ]
        lines.append(f"| {omega:g} | {' | '.join(cells)} |")
    for r in records:
        if r["job"]["kind"] == "cost":
            lines += ["", "CPU milliseconds a token, 16 rows, one thread, 3 layers of 128:\n", "| | ms |", "|---|---|"]
            lines += [f"| {kind} | {value:.2f} |" for kind, value in r["milliseconds"].items()]
    return "\n".join(lines) + "\n"
