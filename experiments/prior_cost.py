"""Measure what the prior costs when customizing: its log-probabilities, its states, and a dial.

    python -m experiments.prior_cost

Four trainings take turns, iteration by iteration. Greedy needs no prior, residual its log-probabilities, and the third
also the density of its states. The fourth trains a policy for a range of omega. The CPU time is measured.
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
from repolicy.policies.policy import one_thread
from repolicy.priors.finding import find_policy
from repolicy.ranges import Range
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request


def measure(prior: str, rounds: int) -> Row:
    """Return the median seconds of an iteration, and the overheads between two trainings."""
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
            for name, worker in workers.items():
                start = time.process_time()
                worker.iterate(stop=False)
                seconds[name].append(time.process_time() - start)
    seconds = {name: each[1:] for name, each in seconds.items()}  # without the first, which warms up
    medians = {name: statistics.median(each) for name, each in seconds.items()}

    def overhead(name: str, base: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True)) - 1.0

    row: Row = {"task": prior, "seconds_an_iteration": medians, "overhead": overhead("residual", "greedy")}
    return row | {f"{name}_overhead": overhead(name, "residual") for name in ("states", "dial")}


def make_worker(prior: str, objective: Objective, path: Path) -> Worker:
    """Return a worker at the start of a run's first segment. It has no prior if the objective does not use one."""
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
