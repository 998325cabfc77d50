"""A run as a chain of segments, each a pure function of the checkpoint before it.

At a segment's start the environments and every random stream are made anew from (seed, segment, rank), in an
uninterrupted run as much as in a resumed one. So whenever a run is killed, resuming it ends in the bits it would have
ended in anyway. At a segment's end there are a short evaluation, a policy, and a checkpoint.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import (
    Collector,
    DialedEnvs,
    Envs,
    check_fit,
    decoder_options,
    make_envs,
    run_episodes,
    staggered_cuts,
)
from repolicy.errors import FileError, NumericError
from repolicy.learning.multipliers import earned_by_age
from repolicy.learning.worker import Worker
from repolicy.objective import reformulated, task_reward
from repolicy.policies import Policy, frozen, save_policy
from repolicy.policies.storage import write
from repolicy.prepare.spending import probe_count
from repolicy.prepare.states import fit_prior_density
from repolicy.priors import MeanPrior, ScoringPrior, decoder_bytes, read_policy
from repolicy.runs import Estimate, Request, RunFolder, derived_seed, keep_freed_memory, ranks, versions

ENDED_EARLY = "evaluation_ended_early"
CAREFUL = 4  # times the episodes of a short evaluation, over which an earlier policy is compared with the last one


class Candidate(NamedTuple):
    """The policy with the highest objective in the short evaluations so far; at a run's end it may be handed out."""

    policy: Policy
    steps: int
    evaluation: dict[str, float]


def clearly_better(gain: Estimate, longer: float) -> bool:
    """Say whether an earlier policy is to be handed out instead of the last one.

    `gain` is by how much its objective of an episode is higher, `longer` by how much its episodes are longer, over
    episodes of both with the same starts. Where steps cost, an early fall raises the sum of an episode. A sum that is
    higher in episodes that are not shorter is higher at whatever price the steps have that an early end leaves out.
    """
    return gain.mean > 2.0 * gain.error and longer >= 0.0


class Segments:
    """One rank's way through the segments of a run."""

    def __init__(
        self, request: Request, folder: RunFolder, team: ranks.Ranks, scoring_prior: ScoringPrior | None = None
    ) -> None:
        keep_freed_memory()
        self.folder, self.team = folder, team
        saved = read_policy(folder.prior) if request.prior else None
        self.clone_of = None if saved is None else saved.card.get("clone_of")
        if saved is not None and isinstance(scoring_prior, MeanPrior):
            scoring_prior = scoring_prior.for_spaces(saved.policy.observation_size, saved.policy.actions)
        first = read_policy(folder.init).policy if request.init else None
        self.worker = Worker(request, None if saved is None else saved.policy, team, scoring_prior, first)
        self.segment = 0
        self.candidate: Candidate | None = None  # to be handed out instead of the last policy
        self.notes: list[str] = []  # what is to be said of the segment that ended

    def remaining(self, stop: Callable[[], bool]) -> Iterator[dict[str, float]]:
        """Yield the metrics of every iteration that is still to do; it ends early where `stop()` says so on any rank.

        An iteration that was under way then is lost, unless it ended a segment.
        """
        worker, settings, started = self.worker, self.worker.settings, time.perf_counter()
        if worker.prior is not None and worker.iteration == 0 and self.evaluates:
            self.keep(self.evaluated(), start=True)
        while worker.iteration < settings.iterations:
            end = min(worker.iteration + settings.checkpoint_every, settings.iterations)
            self.begin()
            with closing(worker):
                while worker.iteration < end:
                    metrics = self.iterated(stop())
                    stopped = metrics.pop("stop")
                    if stopped and worker.iteration < end:
                        return
                    if worker.iteration == end:
                        metrics |= self.end()
                    yield metrics | {"seconds": time.perf_counter() - started}
            self.segment += 1
            self.save()
            if stopped:
                return

    def iterated(self, stop: bool) -> dict[str, float]:
        """Run one iteration and return its metrics. Where numbers go wrong, what it saw is left in a file."""
        worker = self.worker
        try:
            return worker.iterate(stop)
        except NumericError as error:
            path = self.folder.path / f"failure-rank{self.team.index}.safetensors"
            header = {"request": worker.request.as_dict(), "iteration": worker.iteration}
            write(path, "failure", worker.evidence | {"parameters": worker.learner.parameters}, header)
            again = "to see it fail again, resume the run: segments repeat to the bit"
            raise NumericError(f"{error}; the batch is in {path}; {again}") from None

    def begin(self) -> None:
        """Make environments and random streams, all from (seed, segment, rank). The worker closes them."""
        worker, settings, index = self.worker, self.worker.settings, self.team.index
        share = settings.envs // self.team.count
        stream = torch.Generator().manual_seed(derived_seed(settings.seed, self.segment, 1 + index))
        envs = self.environments(0, share)
        if worker.prior is not None:
            check_fit(worker.prior, envs, "the prior")
        if dials := len(worker.request.dials):
            envs = DialedEnvs(
                envs, derived_seed(settings.seed, self.segment, 10**6), index * share, settings.envs, dials
            )
        probes = None
        if worker.multipliers.measures:
            probes = self.collector(self.environments(10**7, probe_count(share)))
        worker.begin(self.collector(envs, stream), stream, probes)

    def collector(self, envs: Envs, stream: torch.Generator | None = None) -> Collector:
        """Return what acts in these environments; without a random stream, only the mean action can."""
        cuts = staggered_cuts(envs.limit, self.team.index * envs.count, envs.count, self.team.count * envs.count)
        keeps = self.worker.terms.addon is not None
        return Collector(envs, self.worker.settings.n_steps, stream or torch.Generator(), keeps, cuts)

    def environments(self, which: int, share: int) -> Envs:
        """Return this rank's share of a stream of environments."""
        settings = self.worker.settings
        seed = derived_seed(settings.seed, self.segment, which) + self.team.index * share
        return make_envs(self.worker.request.env, share, seed, settings.backend, critic=True)

    @property
    def moves(self) -> bool:
        """Whether each segment has weights of its own."""
        return self.worker.settings.budget is not None or bool(self.worker.multipliers.limits)

    def end(self) -> dict[str, float]:
        """Return a short evaluation, shared out over the ranks, and the policy that is handed out."""
        self.worker.close()
        return self.keep(self.evaluated() if self.evaluates else {})

    @property
    def evaluates(self) -> bool:
        return self.worker.settings.evaluation_episodes > 0

    def keep(self, metrics: dict[str, float], start: bool = False) -> dict[str, float]:
        """Keep the policy as a candidate where its objective is the highest so far and, but at the start, as a file."""
        worker = self.worker
        last = Candidate(frozen(worker.learner.policy), worker.steps, metrics)
        highest = -np.inf if self.candidate is None else self.candidate.evaluation["evaluation_objective"]
        comparable = not self.moves and not worker.request.dials  # one weight that stays, of each term
        if self.evaluates and comparable and metrics["evaluation_objective"] > highest:
            self.candidate = last
        if start:
            return metrics
        handed_out = self.chosen(last) if worker.iteration == worker.settings.iterations else last
        if handed_out is not last:
            self.write(self.folder.replaced, last, "last")
        self.write(self.folder.policy, handed_out, "last" if handed_out is last else "earlier")
        return metrics

    def chosen(self, last: Candidate) -> Candidate:
        """Return the candidate where it is clearly better than the last policy in new episodes; else the last."""
        found = self.candidate
        if found is None or not self.standing(found.evaluation).beats(self.standing(last.evaluation)):
            return last
        ours, others = (self.played(each.policy, CAREFUL, 2000) for each in (found, last))
        gains, longer = (ours[name] - others[name] for name in ("evaluation_objective", "evaluation_length"))
        sums = [float(len(gains)), float(gains.sum()), float(np.square(gains).sum()), float(longer.sum())]
        count, total, squares, more = self.team.sum(torch.tensor(sums, dtype=torch.float64)).tolist()
        if not clearly_better(gain := Estimate.of(total, squares, count), more):
            return last
        first = "what the actor began as" if self.worker.request.init else "the prior"
        called = f"the policy after {found.steps:,} steps" if found.steps else first
        self.notes.append(
            f"{called} is handed out: its objective of an episode is above the last policy's by {gain} "
            f"({count:.0f} episodes each, from the same starts); the last policy is {self.folder.replaced}"
        )
        return found

    def write(self, path: Path, which: Candidate, called: str) -> None:
        worker = self.worker
        if self.team.index == 0:
            self.folder.check_exists()
            card = {"request": worker.request.as_dict(), "steps": which.steps, "evaluation": which.evaluation}
            card |= {"versions": versions(), "which": called}
            if self.clone_of:
                card["prior_is"] = self.clone_of
            save_policy(
                path,
                which.policy,
                card,
                worker.prior,
                worker.density,
                decoder_bytes(decoder_options(worker.request.env)),
            )

    def standing(self, metrics: dict[str, float]) -> Estimate:
        return Estimate(metrics["evaluation_objective"], metrics["evaluation_error"])

    def evaluated(self) -> dict[str, float]:
        """Return the run's own objective and its parts over a few sampled episodes, the same in all segments."""
        totals = self.played(self.worker.shown[0], 1, 1000)
        after = totals["evaluation_objective"]
        sums = [float(len(after)), float(np.square(after).sum()), *(float(each.sum()) for each in totals.values())]
        count, squares, *summed = self.team.sum(torch.tensor(sums, dtype=torch.float64)).tolist()
        found = dict(zip(totals, summed, strict=True))
        error = Estimate.of(found["evaluation_objective"], squares, count).error
        means = {name: total if name == ENDED_EARLY else total / count for name, total in found.items()}
        return means | {"evaluation_error": error}

    def played(self, policy: Policy, times: int, stream: int) -> dict[str, np.ndarray]:
        """Return this rank's share of so many times the episodes of a short evaluation: what each of them came to."""
        worker, settings, index = self.worker, self.worker.settings, self.team.index
        objective, episodes = worker.shown[1], times * max(1, settings.evaluation_episodes // self.team.count)
        seed = derived_seed(settings.seed, 0, stream)
        with closing(make_envs(worker.request.env, episodes, seed + index * episodes, settings.backend)) as envs:
            evaluation = run_episodes(
                policy, envs, episodes,
                addon=worker.terms.addon, prior=worker.scoring_prior, deterministic=False, seed=seed + index,
                familiarity=worker.familiarity if worker.density is not None else None,
            )  # fmt: skip
        task = task_reward(objective, evaluation.basic, evaluation.addon)
        terms = evaluation.log_prior, evaluation.log_policy, evaluation.familiarity
        parts = reformulated(objective, task, *terms)  # of sums over an episode: it is linear
        found = {
            "evaluation_objective": parts.total,
            "evaluation_task": parts.task,
            "evaluation_basic": evaluation.basic,
            "evaluation_addon": evaluation.addon,
            "evaluation_metric": evaluation.metric,
            "evaluation_length": evaluation.lengths,
            ENDED_EARLY: evaluation.terminated,
        }
        return {name: values for name, values in found.items() if values is not None}

    # On disk ----------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the end of the segment before this one, from which this one begins."""
        if self.team.index > 0:
            return
        tensors, numbers = self.worker.state()
        if self.candidate is not None:
            tensors |= {f"candidate.{name}": value for name, value in self.candidate.policy.state_dict().items()}
            numbers["candidate"] = {"steps": self.candidate.steps, "evaluation": self.candidate.evaluation}
        self.folder.save(self.segment, tensors, numbers)

    def restore(self) -> list[str]:
        """Take up the newest whole checkpoint. Returns what was wrong with others."""
        if (checkpoint := self.folder.latest_checkpoint()) is None:
            return self.learn_prior()
        tensors, numbers, complaints = checkpoint
        try:
            self.take_up(tensors, numbers)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FileError(f"the last checkpoint in {self.folder.path} is none of this run's: {error}") from None
        return complaints

    def take_up(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on where a checkpoint ended."""
        self.worker.restore(tensors, numbers)
        self.segment = numbers["segment"]
        if "candidate" in numbers:
            policy = frozen(self.worker.learner.policy)
            policy.load_state_dict({name: tensors[f"candidate.{name}"] for name in policy.state_dict()})
            self.candidate = Candidate(policy, **numbers["candidate"])

    def learn_prior(self) -> list[str]:
        """Learn the prior's states and what it earns, where that is needed, once. Returns what is to be said of it."""
        worker = self.worker
        if worker.prior is not None and worker.multipliers.keep:
            worker.multipliers.prior_earns = earned_by_age(worker.prior, worker.request, self.team)
        if worker.prior is None or not worker.objective.reads_states:
            return []
        worker.density = fit_prior_density(worker.prior, worker.request, self.team)
        left_out = worker.density.left_out
        if not left_out:
            return []
        named = ", ".join(map(str, left_out[:10]))
        if len(left_out) > 10:
            named += f" and {len(left_out) - 10:,} more"
        return [f"observations that never change under the prior, left out of its states: {named}"]
