"""A run as a chain of segments, each a pure function of the checkpoint before it.

At a segment's start the environments and every random stream are made anew from (seed, segment, rank), whether the run
was interrupted or not. So a run that was killed and resumed ends with the same bits as an uninterrupted one. A segment
ends with a short evaluation, a policy's file, and a checkpoint.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from repolicy.envs import Collector, DialedEnvs, Envs, check_fit, make_envs, parse_env_name, staggered_cuts
from repolicy.errors import FileError, NumericError, UsageError
from repolicy.evaluation import run_episodes
from repolicy.learning.multipliers import measure_prior_rewards
from repolicy.learning.terms import at_dial_middle
from repolicy.learning.worker import Worker
from repolicy.objective import reformulated, task_reward
from repolicy.policies import Policy, frozen, save_policy
from repolicy.policies.storage import write
from repolicy.prepare.spending import COMPARISON_FACTOR, probe_count
from repolicy.prepare.states import fit_prior_density
from repolicy.priors import MeanPrior, ScoringPrior, decoder_bytes, read_policy
from repolicy.runs import Estimate, Request, RunFolder, Stream, derived_seed, keep_freed_memory, ranks, versions

ENDED_EARLY = "evaluation_ended_early"


class Candidate(NamedTuple):
    """The policy with the highest objective in the short evaluations so far; the run may end with it."""

    policy: Policy
    steps: int
    evaluation: dict[str, float]


def is_clearly_better(gain: Estimate, longer: Estimate) -> bool:
    """Return whether an earlier policy should replace the last one.

    `gain` is its higher objective of an episode, `longer` its greater length, over episodes with the same starts. Where
    each step costs something, falling early raises the sum of an episode. So a policy with clearly shorter episodes
    never replaces the last one.
    """
    return gain.mean > 2.0 * gain.error and longer.mean >= -2.0 * longer.error


class Segments:
    """The chain of a run's segments, as one rank runs it."""

    def __init__(
        self, request: Request, folder: RunFolder, team: ranks.Ranks, scoring_prior: ScoringPrior | None = None
    ) -> None:
        keep_freed_memory()
        self.folder, self.team = folder, team
        saved = read_policy(folder.prior) if request.prior else None
        self.clone_of = None if saved is None else saved.card.get("clone_of")
        if saved is not None and isinstance(scoring_prior, MeanPrior):
            scoring_prior = scoring_prior.for_spaces(saved.policy.observation_size, saved.policy.actions)
        prior = None if saved is None else saved.policy
        initial_policy = read_policy(folder.init).policy if request.init else None
        self.worker = Worker(request, prior, team, scoring_prior, initial_policy)
        self.has_evaluations = request.settings.evaluation_episodes > 0
        self.segment = 0
        self.candidate: Candidate | None = None
        self.notes: list[str] = []  # sentences for the callbacks, about the segment that ended

    def remaining(self, stop: Callable[[], bool]) -> Iterator[dict[str, float]]:
        """Run the remaining iterations and yield the metrics of each, until `stop()` is true on any rank.

        The iteration that runs at that time is lost, unless it ends a segment.
        """
        worker, settings, started = self.worker, self.worker.settings, time.perf_counter()
        if worker.prior is not None and worker.iteration == 0 and self.has_evaluations and worker.request.is_comparable:
            self.update_candidate(self.evaluate())
        while worker.iteration < settings.iterations:
            end = min(worker.iteration + settings.checkpoint_every, settings.iterations)
            self.begin()
            with closing(worker):
                while worker.iteration < end:
                    metrics = self.iterate(stop())
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

    def iterate(self, stop: bool) -> dict[str, float]:
        """Run one iteration and return its metrics. If a number is not finite, write its tensors to a file."""
        worker = self.worker
        try:
            return worker.iterate(stop)
        except NumericError as error:
            path = self.folder.path / f"failure-rank{self.team.index}.safetensors"
            header = {"request": worker.request.as_dict(), "iteration": worker.iteration}
            write(path, "failure", worker.debug_tensors | {"parameters": worker.learner.parameters}, header)
            again = "to see it fail again, resume the run: segments repeat to the bit"
            raise NumericError(f"{error}; the batch is in {path}; {again}") from None

    def begin(self) -> None:
        """Make environments and random streams, all from (seed, segment, rank). The worker closes them."""
        worker, settings, index = self.worker, self.worker.settings, self.team.index
        count = settings.envs // self.team.count
        stream = torch.Generator().manual_seed(derived_seed(settings.seed, self.segment, Stream.ACTIONS + index))
        envs = self.make_rank_envs(Stream.TRAINING_ENVS, count)
        if worker.prior is not None:
            check_fit(worker.prior, envs, "the prior")
        if dials := len(worker.request.dials):
            seed = derived_seed(settings.seed, self.segment, Stream.DIAL_POSITIONS)
            envs = DialedEnvs(envs, seed, index * count, settings.envs, dials)
        deployed_collector = None
        if worker.multipliers.limits or worker.multipliers.keep:  # they are measured as the policy will be deployed
            seed = derived_seed(settings.seed, self.segment, Stream.DEPLOYED_ENVS + index)
            noise = torch.Generator().manual_seed(seed)
            deployed_envs = self.make_rank_envs(Stream.DEPLOYED_ENVS, probe_count(count))
            deployed_collector = self.make_collector(deployed_envs, noise)
        worker.begin(self.make_collector(envs, stream, dials), stream, deployed_collector)

    def make_collector(self, envs: Envs, stream: torch.Generator, dials: int = 0) -> Collector:
        """Return a collector over these environments, which draws actions from the stream."""
        cuts = staggered_cuts(envs.limit, self.team.index * envs.count, envs.count, self.team.count * envs.count)
        return Collector(envs, self.worker.settings.n_steps, stream, cuts, dials=dials)

    def make_rank_envs(self, stream: Stream, count: int) -> Envs:
        """Return this rank's environments, with seeds of their own for each `stream`."""
        settings = self.worker.settings
        seed = derived_seed(settings.seed, self.segment, stream) + self.team.index * count
        return make_envs(self.worker.request.env, count, seed, settings.backend, critic=True)

    def end(self) -> dict[str, float]:
        """Close the environments, evaluate, write the policy, and return the evaluation."""
        self.worker.close()
        evaluation = self.evaluate() if self.has_evaluations else {}
        self.store_policy(evaluation)
        return evaluation

    def update_candidate(self, evaluation: dict[str, float]) -> Candidate:
        """Return the present policy, and store it as the candidate where its objective is the highest so far.

        Objectives can be compared only if all segments have the same weights.
        """
        worker = self.worker
        last = Candidate(frozen(worker.learner.policy), worker.steps, evaluation)
        if worker.fits_normalizer:
            last.policy.normalizer.keep_constants()
        highest = -np.inf if self.candidate is None else self.candidate.evaluation["evaluation_objective"]
        if self.has_evaluations and worker.request.is_comparable and evaluation["evaluation_objective"] > highest:
            self.candidate = last
        return last

    def store_policy(self, evaluation: dict[str, float]) -> None:
        """Write the policy of a segment's end; at the run's end, the better one of two."""
        worker = self.worker
        last = self.update_candidate(evaluation)
        result = self.choose_result(last) if worker.iteration == worker.settings.iterations else last
        if result is not last:
            self.write_policy(self.folder.replaced, last, "last")
        self.write_policy(self.folder.policy, result, "last" if result is last else "earlier")

    def choose_result(self, last: Candidate) -> Candidate:
        """Return the candidate where it is clearly better than the last policy in new episodes; else the last.

        One episode tells no error, so where evaluations have no more, every run ends with its last policy.
        """
        candidate = self.candidate
        if candidate is None or candidate is last or self.worker.settings.evaluated_episodes == 1:
            return last
        # Compare both in more episodes, which differ from those in which the candidate was selected.
        both = (candidate.policy, last.policy)
        ours, theirs = (self.play(policy, COMPARISON_FACTOR, Stream.COMPARISON) for policy in both)
        gains = np.stack([ours[name] - theirs[name] for name in ("evaluation_objective", "evaluation_length")])
        sums = torch.from_numpy(np.stack([np.ones_like(gains), gains, np.square(gains)]).sum(-1))
        (count, _), totals, squares = self.team.sum(sums).tolist()
        gain, longer = (Estimate.of(total, square, count) for total, square in zip(totals, squares, strict=True))
        if not is_clearly_better(gain, longer):
            return last
        name = "what the actor began as" if self.worker.request.init else "the prior"
        if candidate.steps:
            name = f"the policy after {candidate.steps:,} steps"
        self.notes.append(
            f"{name} is handed out: its objective of an episode is above the last policy's by {gain} "
            f"({count:.0f} episodes each, from the same starts); the last policy is {self.folder.replaced}"
        )
        # The evaluation by which it was selected was the highest of several, and so is too good.
        return candidate._replace(evaluation=self.means(ours))

    def write_policy(self, path: Path, candidate: Candidate, which: str) -> None:
        worker = self.worker
        if self.team.index == 0:
            self.folder.check_exists()
            card = {"request": worker.request.as_dict(), "steps": candidate.steps, "evaluation": candidate.evaluation}
            card |= {"versions": versions(), "which": which}
            if worker.objective.alpha != worker.request.objective.alpha:  # a budget or a kept share has moved it
                card["alpha"] = worker.objective.alpha
            if self.clone_of:
                card["prior_is"] = self.clone_of
            decoder_file = decoder_bytes(parse_env_name(worker.request.env).decoder)
            save_policy(path, candidate.policy, card, worker.prior, worker.density, decoder_file)

    def evaluate(self) -> dict[str, float]:
        """Return the means of a few sampled episodes over all ranks; their seeds are the same in all segments."""
        policy, _ = at_dial_middle(self.worker.learner.policy, self.worker.objective)
        return self.means(self.play(policy, 1, Stream.EVALUATION))

    def means(self, values: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the means of episodes over all ranks, with the standard error of the objective's."""
        objectives = values["evaluation_objective"]
        sums = [float(len(objectives)), float(np.square(objectives).sum())]
        sums += [float(each.sum()) for each in values.values()]
        count, squares, *totals = self.team.sum(torch.tensor(sums, dtype=torch.float64)).tolist()
        by_name = dict(zip(values, totals, strict=True))
        means = {name: total if name == ENDED_EARLY else total / count for name, total in by_name.items()}
        error = Estimate.of(by_name["evaluation_objective"], squares, count).error if count > 1 else math.nan
        return means | {"evaluation_error": error}

    def play(self, policy: Policy, factor: int, stream: Stream) -> dict[str, np.ndarray]:
        """Run this rank's share of `factor` times the episodes of a short evaluation; return a number for each."""
        worker, settings, index = self.worker, self.worker.settings, self.team.index
        episodes = factor * max(1, settings.evaluation_episodes // self.team.count)
        seed = derived_seed(settings.seed, 0, stream)
        with closing(make_envs(worker.request.env, episodes, seed + index * episodes, settings.backend)) as envs:
            evaluation = run_episodes(
                policy, envs, episodes,
                addon=worker.terms.addon, prior=worker.scoring_prior, deterministic=False, seed=seed + index,
                familiarity=worker.familiarity_of if worker.density is not None else None,
            )  # fmt: skip
        # The reformulated reward is linear in its terms, so their sums over an episode give the episode's objective.
        _, objective = at_dial_middle(worker.learner.policy, worker.objective)
        task = task_reward(objective, evaluation.basic, evaluation.addon)
        terms = evaluation.log_prior, evaluation.log_policy, evaluation.familiarity
        parts = reformulated(objective, task, *terms)
        values = {
            "evaluation_objective": parts.total,
            "evaluation_task": parts.task,
            "evaluation_basic": evaluation.basic,
            "evaluation_addon": evaluation.addon,
            "evaluation_metric": evaluation.metric,
            "evaluation_length": evaluation.lengths,
            ENDED_EARLY: evaluation.terminated,
        }
        return {name: each for name, each in values.items() if each is not None}

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint, from which the next segment begins."""
        if self.team.index > 0:
            return
        tensors, numbers = self.worker.state()
        if self.candidate is not None:
            tensors |= {f"candidate.{name}": value for name, value in self.candidate.policy.state_dict().items()}
            numbers["candidate"] = {"steps": self.candidate.steps, "evaluation": self.candidate.evaluation}
        self.folder.save(self.segment, tensors, numbers)

    def restore(self) -> list[str]:
        """Load the newest intact checkpoint, or begin the run; return sentences for the callbacks."""
        checkpoint = self.folder.latest_checkpoint()
        if checkpoint is None:
            try:
                self.measure_prior()
            except UsageError:
                if self.team.index == 0:
                    self.folder.release()
                raise
            return []
        tensors, numbers, complaints = checkpoint
        try:
            self.worker.restore(tensors, numbers)
            self.segment = numbers["segment"]
            if "candidate" in numbers:
                policy = frozen(self.worker.learner.policy)
                policy.load_state_dict({name: tensors[f"candidate.{name}"] for name in policy.state_dict()})
                self.candidate = Candidate(policy, **numbers["candidate"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FileError(f"the last checkpoint in {self.folder.path} is none of this run's: {error}") from None
        return complaints

    def measure_prior(self) -> None:
        """Measure the prior's rewards and the density of its states, where needed."""
        worker = self.worker
        if worker.acting_prior is not None and worker.multipliers.keep:
            worker.multipliers.hold_share(*measure_prior_rewards(worker.acting_prior, worker.request, self.team))
        if worker.prior is not None and worker.objective.reads_states:
            worker.density = fit_prior_density(worker.prior, worker.request, self.team)
