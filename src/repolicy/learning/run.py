"""A run: its folder and ranks, how it is interrupted, and the loop over its segments."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

import torch

from repolicy.envs import Watchdog
from repolicy.errors import RepolicyError, UsageError
from repolicy.learning.segments import Segments
from repolicy.learning.terms import dial_warnings
from repolicy.learning.worker import Worker
from repolicy.policies import add_to_card, one_thread
from repolicy.prepare.beginning import Start
from repolicy.prepare.claiming import claim_folder
from repolicy.prepare.worth import measure_worth
from repolicy.priors import ScoringPrior, prior_from_source, read_policy
from repolicy.runs import Request, Result, RunFolder, polite_interrupt, ranks, torchrun_place


class Callback(Protocol):
    """An object that follows a run; any object with these methods, or a subclass with those that it needs.

    `say` gets sentences for the user, the first ones before `begin`. `begin` gets the last finished iteration (0 in a
    new run) and the total number of iterations. `write` gets the metrics of each iteration
    (docs/reading-a-report.md). `close` is called at the end, even if the run fails after `begin`.
    """

    def begin(self, request: "Request", start: int, total: int) -> None: ...
    def write(self, metrics: dict[str, float]) -> None: ...
    def say(self, sentence: str) -> None: ...
    def close(self) -> None: ...


def run(
    request: Request,
    folder: RunFolder,
    resume: bool,
    callbacks: Sequence[Callback],
    notes: Sequence[str],
    env_timeout: float | None = None,
    start: Start | None = None,
) -> Result:
    """Claim the folder, which is locked, start the ranks, and train, until the end or until Ctrl-C or SIGTERM.

    `notes` are sentences for the callbacks; they get them once nothing more can be refused.
    """
    if torchrun_place() is not None:
        return _run_under_torchrun(request, folder, resume, callbacks, notes, start)
    ranks.check_count(request.settings.ranks)
    scoring_prior, source = (None, None) if start is None else (start.scoring_prior, start.source)
    announce(callbacks, [*notes, *claim_folder(request, folder, resume, start)])
    message = {"folder": str(folder.path), "env_timeout": env_timeout, "source": source}
    words = json.dumps(message, default=float)  # a timeout may be a number of NumPy's
    program = ["from repolicy.learning.run import run_other_rank; run_other_rank()", words]
    with polite_interrupt() as interrupted, ranks.launch_ranks(request.settings.ranks, program) as team:
        return work(request, folder, team, callbacks, interrupted, scoring_prior)


def announce(callbacks: Sequence[Callback], sentences: Sequence[str]) -> None:
    """Pass sentences to all callbacks."""
    for callback in callbacks:
        for sentence in sentences:
            callback.say(sentence)


def run_other_rank() -> None:
    """Train in the process of a rank other than the first, from the request in the folder."""
    message, place = json.loads(sys.argv[1]), map(int, sys.argv[2:])
    folder, team = RunFolder(message["folder"]), ranks.join_ranks(*place)
    request = folder.load_request()
    try:
        with Watchdog(team.index, message["env_timeout"]):
            scoring_prior = None if message["source"] is None else prior_from_source(message["source"])
            work(request, folder, team, (), threading.Event(), scoring_prior)
    except RepolicyError as error:
        sys.exit(str(error))
    os._exit(0)  # skip the interpreter's shutdown, which an environment's threads can block


# The work of one rank -------------------------------------------------------------------------------------------------


@one_thread()
def work(
    request: Request,
    folder: RunFolder,
    team: ranks.Ranks,
    callbacks: Sequence[Callback],
    interrupted: threading.Event,
    scoring_prior: ScoringPrior | None = None,
) -> Result:
    """Run the remaining segments on this rank. All ranks do so; the first one writes the logs."""
    segments = Segments(request, folder, team, scoring_prior)
    complaints, worker = segments.restore(), segments.worker
    if team.index == 0:
        folder.drop_metrics_after(worker.iteration)
    metrics: dict[str, float] = {}
    with contextlib.ExitStack() as after:
        for callback in callbacks:
            callback.begin(request, worker.iteration, request.settings.iterations)
            after.callback(callback.close)
        announce(callbacks, complaints)
        for metrics in segments.remaining(interrupted.is_set):
            if team.index == 0:
                folder.log(metrics)
            for callback in callbacks:
                callback.write(metrics)
            announce(callbacks, segments.notes)
            segments.notes.clear()
        finished = worker.iteration == request.settings.iterations
        if not metrics and worker.iteration:  # nothing was left to do
            metrics = folder.last_metrics()
        if finished and team.index == 0:
            announce(callbacks, final_sentences(worker, folder, metrics))
    if finished and team.index == 0 and not request.prior:
        store_nat_worth(request, folder)
    return Result(folder.path, worker.steps, finished, metrics)


def final_sentences(worker: Worker, folder: RunFolder, metrics: dict[str, float]) -> list[str]:
    """Return what the user should know of a run that ends: `metrics` are those of its last iteration."""
    sentences = list[str]()
    if worker.request.is_judged_by_mean:  # for a generative policy's noise, a few nats are a lot
        sentences += dial_warnings(metrics, worker.learner.policy)
    return sentences + worker.multipliers.warnings(folder.read_metrics())


def store_nat_worth(request: Request, folder: RunFolder) -> None:
    """Measure how much reward a nat of the final policy is worth, and write it into the policy's card."""
    saved = read_policy(folder.policy)
    episodes = 4 * request.settings.evaluation_episodes
    if "nat_worth" in saved.card or not episodes:
        return
    how: dict[str, Any] = {"backend": request.settings.backend, "addon_alone": not request.objective.reads_basic}
    worth = measure_worth(saved.policy, request.env, episodes, addons=request.addons, **how)
    if worth is not None:
        add_to_card(folder.policy, {"nat_worth": asdict(worth)})


def _run_under_torchrun(
    request: Request,
    folder: RunFolder,
    resume: bool,
    callbacks: Sequence[Callback],
    notes: Sequence[str],
    start: Start | None,
) -> Result:
    """Train under torchrun: every process gets here with the same request, and the first one claims the folder."""
    team = ranks.Distributed()
    try:
        request = replace(request, settings=replace(request.settings, ranks=team.count).resolved())
        with polite_interrupt() as interrupted, contextlib.ExitStack() as claim:
            refusal: RepolicyError | None = None
            if team.index == 0:
                try:
                    claim.enter_context(folder.locked())
                    announce(callbacks, [*notes, *claim_folder(request, folder, resume, start)])
                except RepolicyError as error:
                    refusal = error
            if float(team.sum(torch.tensor([0.0 if refusal is None else 1.0]))):
                raise refusal or UsageError("the first rank could not begin")
            try:
                scoring_prior = None if start is None else start.scoring_prior
                return work(request, folder, team, callbacks if team.index == 0 else (), interrupted, scoring_prior)
            except Exception as error:
                if not isinstance(error, ranks.LostError):
                    error.add_note(f"rank {team.index}")
                raise
    finally:
        team.close()
