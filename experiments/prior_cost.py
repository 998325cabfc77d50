"""What the prior costs while customizing, iteration by iteration in turns: its log-probabilities, its states, a dial.

    python -m experiments.prior_cost

Greedy asks the prior for nothing, residual for its log-probabilities, and the third for the density of its states as
well. The fourth trains a policy for a range of omega. Measured is the processor time of this process.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments import campaign
from experiments.ledger import Row
from experiments.paper.runs import TASKS, fixed_settings
from repolicy.learning.segments import Segments
from repolicy.learning.worker import Worker
from repolicy.objective import Objective, greedy, residual
from repolicy.priors.finding import find_policy
from repolicy.ranges import Range
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank, one_thread
from repolicy.runs.request import Request


def measure(prior: str, rounds: int) -> Row:
    alpha, omega = float(TASKS[prior].alpha), float(TASKS[prior].omega)
    objectives = {
        "dial": residual(Range(omega, 10 * omega), alpha, states=0.0),
        "states": residual(omega, alpha, states=omega),
        "residual": residual(omega, alpha),
        "greedy": greedy(alpha),
    }
    with tempfile.TemporaryDirectory() as path:
        workers = {name: make_worker(prior, objective, Path(path, name)) for name, objective in objectives.items()}
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(rounds + 1):
            for name, made in workers.items():
                began = time.process_time()
                made.iterate(stop=False)
                seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(found[1:]) for name, found in seconds.items()}

    def overhead(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[one][1:], seconds[other][1:], strict=True)) - 1.0

    row: Row = {"task": prior, "seconds_an_iteration": medians, "overhead": overhead("residual", "greedy")}
    return row | {f"{name}_overhead": overhead(name, "residual") for name in ("states", "dial")}


def make_worker(prior: str, objective: Objective, path: Path) -> Worker:
    """Return a worker at the start of a run's first segment, with or without a prior in sight."""
    task, folder = TASKS[prior], RunFolder(path)
    request = Request(task.env, objective, replace(fixed_settings(task.env), ranks=1), (task.addon,), prior="shipped")
    folder.begin(request, {}, resume=False, prior=find_policy(prior).read_bytes())
    segments = Segments(request, folder, SingleRank())
    if not objective.reads_prior:
        segments.worker.prior = None
    segments.measure_prior()
    segments.begin()
    return segments.worker


@campaign.program("ledger", rounds=40)
def main(options: campaign.Options) -> None:
    with one_thread():
        campaign.measure_missing(options.ledger, {name: partial(measure, name, options.rounds) for name in TASKS})
