"""The loop, and the two ways into it: `train()` from nothing and `customize()` from a prior.

A run is a chain of segments, and each segment is a pure function of the checkpoint before it: at a segment's start the
environments and every random stream are made anew from (seed, segment, rank), in an uninterrupted run as much as in a
resumed one. So whenever a run is killed, resuming it ends in the bits it would have ended in anyway.
"""

import platform
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from repolicy import addons, envs, ppo, ranks
from repolicy.checkpoint import RunFolder, load_policy, read_policy, save_policy, write
from repolicy.envs import Envs
from repolicy.errors import NumericError, RepolicyError, UsageError
from repolicy.evaluation import check_fit, run_episodes
from repolicy.network import Mlp
from repolicy.objective import Objective, reformulated, task_reward
from repolicy.policy import Family, Policy, PolicySpec, frozen, moments
from repolicy.rollout import Collector, Rollout
from repolicy.settings import Settings, defaults


class Watcher(Protocol):
    """Whoever wants to know how a run is doing."""

    def begin(self, request: "Request", start: int, total: int) -> None: ...
    def write(self, metrics: dict[str, float]) -> None: ...
    def say(self, sentence: str) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Request:
    """What a run is asked for: all that its result depends on."""

    env: str
    objective: Objective
    settings: Settings
    addons: tuple[str, ...] = ()
    prior: str = ""  # the checksum of the prior's file, a copy of which lies in the run's folder

    def as_dict(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "objective": self.objective.as_dict(),
            "settings": self.settings.as_dict(),
            "addons": list(self.addons),
            "prior": self.prior,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Request":
        settings = values["settings"] | {"hidden": tuple(values["settings"]["hidden"])}
        return cls(
            values["env"],
            Objective(**values["objective"]),
            Settings(**settings),
            tuple(values["addons"]),
            values["prior"],
        )


@dataclass(frozen=True)
class Result:
    """What a run ended in."""

    folder: Path
    steps: int
    finished: bool
    metrics: dict[str, float]  # of the last iteration

    @property
    def policy(self) -> Policy:
        """The policy at the end of the last segment."""
        return load_policy(RunFolder(self.folder).last_policy)

    @property
    def best(self) -> Policy:
        """The policy of the segment with the highest return of the run's own objective."""
        return load_policy(RunFolder(self.folder).best_policy)


def train(
    env: str,
    objective: Objective,
    out: str | Path,
    settings: Settings | None = None,
    *,
    addon: Sequence[str] = (),
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
) -> Result:
    """Train a policy from nothing. The folder `out` holds everything of the run; with `resume` it goes on there."""
    settings = (settings or defaults(env)).resolved()
    if objective.reads_prior:
        raise UsageError("an objective with omega above 0 needs a prior: use customize")
    return run(Request(env, objective, settings, tuple(addon)), RunFolder(out), resume, watchers)


def run(request: Request, folder: RunFolder, resume: bool, watchers: Sequence[Watcher]) -> Result:
    """Everything before and after the work itself: the folder, the ranks, Ctrl-C."""
    check(request)
    if ranks.under_torchrun():
        return _run_as_one_of_many(request, folder, resume, watchers)
    with folder.locked():
        folder.begin(request.as_dict(), versions(), resume)
        program = ["from repolicy.training import follow; follow()", str(folder.path)]
        with _polite_interrupt() as interrupted, ranks.launched(request.settings.ranks, program) as team:
            return work(request, folder, team, watchers, interrupted)


def check(request: Request) -> None:
    """Refuse early what cannot work, before anything is written."""
    if request.objective.reads_addon and not request.addons:
        raise UsageError(f"an objective whose task is {request.objective.task!r} needs an add-on: --addon NAME")
    if request.addons and not request.objective.reads_addon:
        raise UsageError("this objective's task is the basic reward alone, so an add-on has no effect: leave it out")
    addons.combined(request.addons)
    probe = envs.make(request.env, 1, 0, request.settings.backend)
    probe.close()
    spec_for(probe, request.settings)


def spec_for(batch: Envs, settings: Settings) -> PolicySpec:
    """The shape of a new policy for these environments."""
    family: Family = "categorical" if batch.actions.kind == "discrete" else "gaussian"
    return PolicySpec(
        observation_size=batch.observation_size,
        actions=batch.actions,
        family=family if settings.family == "auto" else settings.family,
        hidden=settings.hidden,
        activation=settings.activation,
        initial_std=settings.initial_std,
        min_std=settings.min_std,
    )


def follow() -> None:
    """What every rank but the first runs: the same work, from the request in the folder."""
    import sys

    folder, index, count, descriptor = RunFolder(sys.argv[1]), *map(int, sys.argv[2:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when to stop, and says so through the sums
    values = folder.request()
    assert values is not None
    try:
        work(Request.from_dict(values), folder, ranks.joined(index, count, descriptor), (), threading.Event())
    except RepolicyError as error:
        sys.exit(str(error))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("repolicy", "torch", "numpy", "envpool", "gymnasium", "mujoco"):
        try:
            found[name] = version(name)
        except ImportError:
            found[name] = "not installed"
    return found


# The work of one rank -------------------------------------------------------------------------------------------------


def work(
    request: Request, folder: RunFolder, team: ranks.Ranks, watchers: Sequence[Watcher], interrupted: threading.Event
) -> Result:
    """All segments that are still to do. Every rank runs this; the first one writes."""
    ranks.use_one_thread()
    settings = request.settings
    worker = Worker(request, folder, team)
    chief = team.index == 0
    segment, complaints = worker.restore()
    started = time.perf_counter()
    for watcher in watchers:
        watcher.begin(request, worker.iteration, settings.iterations)
        for complaint in complaints:
            watcher.say(complaint)
    if chief:
        folder.forget_after(worker.iteration)
    metrics: dict[str, float] = {}
    while worker.iteration < settings.iterations:
        worker.begin_segment(segment)
        end = min(worker.iteration + settings.segment, settings.iterations)
        while worker.iteration < end:
            try:
                metrics = worker.iterate(interrupted.is_set())
            except NumericError as error:
                raise NumericError(f"{error}; {worker.leave_evidence()}") from None
            if metrics.pop("stop"):
                worker.envs.close()
                return Result(folder.path, worker.steps, False, metrics)
            if worker.iteration == end:
                metrics |= worker.end_segment(segment)
            metrics["seconds"] = time.perf_counter() - started
            for watcher in watchers:
                watcher.write(metrics)
        segment += 1
        if chief:
            worker.save(segment)
    return Result(folder.path, worker.steps, True, metrics)


class Worker:
    """One rank's state: what it learns, and where its environments stand."""

    def __init__(self, request: Request, folder: RunFolder, team: ranks.Ranks) -> None:
        self.request, self.folder, self.team = request, folder, team
        self.settings, self.objective = request.settings, request.objective
        self.addon = addons.combined(request.addons) if request.objective.reads_addon else None
        self.prior = read_policy(folder.prior).policy if request.prior else None
        self.iteration = 0
        self.best = -np.inf
        self.returns = ReturnScale(self.settings.gamma)
        self._evidence: dict[str, Tensor] = {}
        torch.manual_seed(self.settings.seed)  # initial weights: the same on every rank
        if self.prior is None:
            probe = envs.make(request.env, 1, 0, self.settings.backend)
            probe.close()
            policy = Policy(spec_for(probe, self.settings))
        else:
            policy = frozen(self.prior).requires_grad_(True)
        critic = Mlp(policy.spec.observation_size, self.settings.hidden, 1, self.settings.activation)
        self.learner = ppo.Learner(policy, critic, self.settings.learning_rate)

    @property
    def steps(self) -> int:
        return self.iteration * self.settings.iteration_steps

    @property
    def fits_normaliser(self) -> bool:
        return self.prior is None and self.settings.normalise_observations

    # A segment --------------------------------------------------------------------------------------------------------

    def begin_segment(self, segment: int) -> None:
        """Environments and random streams, all from (seed, segment, rank)."""
        share = self.settings.envs // self.team.count
        self.stream = torch.Generator().manual_seed(derived_seed(self.settings.seed, segment, 1 + self.team.index))
        seed = derived_seed(self.settings.seed, segment, 0) + self.team.index * share
        self.envs = envs.make(self.request.env, share, seed, self.settings.backend)
        if self.prior is not None:
            check_fit(self.prior, self.envs, "the prior")
        self.collector = Collector(
            self.envs, self.settings.horizon, self.stream, keep_transitions=self.addon is not None
        )
        self.returns.begin(share)

    def end_segment(self, segment: int) -> dict[str, float]:
        """A short evaluation, shared out over the ranks, and the policies it leads to."""
        self.envs.close()
        episodes = max(1, self.settings.evaluation_episodes // self.team.count)
        seed = derived_seed(self.settings.seed, segment, 1000)
        batch = envs.make(self.request.env, episodes, seed + self.team.index * episodes, self.settings.backend)
        found = run_episodes(
            self.learner.policy,
            batch,
            episodes,
            addon=self.addon,
            prior=self.prior,
            stochastic=True,
            seed=seed + self.team.index,
        )
        batch.close()
        task = task_reward(self.objective, found.basic, found.addon)
        parts = reformulated(self.objective, task, found.log_prior, found.log_policy)  # it is linear: sums in, sums out
        sums = [len(task), parts.total.sum(), parts.task.sum(), found.basic.sum(), found.lengths.sum()]
        if found.addon is not None:
            sums.append(found.addon.sum())
        count, *totals = self.team.sum(torch.tensor(sums, dtype=torch.float64)).tolist()
        names = ["evaluation_objective", "evaluation_task", "evaluation_basic", "evaluation_length", "evaluation_addon"]
        metrics = {name: total / count for name, total in zip(names, totals, strict=False)}
        better = metrics["evaluation_objective"] > self.best
        self.best = max(self.best, metrics["evaluation_objective"])
        if self.team.index == 0:
            card = self.card(metrics)
            save_policy(self.folder.last_policy, self.learner.policy, card | {"which": "last"}, self.prior)
            if better:
                save_policy(self.folder.best_policy, self.learner.policy, card | {"which": "best"}, self.prior)
        return metrics | {"best": self.best}

    def card(self, metrics: dict[str, float]) -> dict[str, Any]:
        """The story that a policy's file tells."""
        return {"request": self.request.as_dict(), "steps": self.steps, "evaluation": metrics, "versions": versions()}

    # An iteration -----------------------------------------------------------------------------------------------------

    def iterate(self, stop: bool) -> dict[str, float]:
        """Collect, score, update. The ranks meet twice, apart from the minibatches."""
        settings, learner = self.settings, self.learner
        began = time.perf_counter()
        rollout = self.collector.collect(learner.policy)
        collected = time.perf_counter()
        self.iteration += 1

        log_policy, log_prior, values, next_values = self.score(rollout)
        reward = self.reward(rollout, log_policy, log_prior)
        terminated, ended = (
            torch.from_numpy(rollout.terminated),
            torch.from_numpy(rollout.terminated | rollout.truncated),
        )
        summary = self.exchange(rollout, reward, log_policy, log_prior, ended, stop)

        scaled = (reward.total / self.returns.std if settings.scale_rewards else reward.total).float()
        gains = ppo.advantages(scaled, values, next_values, terminated, ended, settings.gamma, settings.lam)
        targets = gains + values
        batch = ppo.Batch(
            rollout.inputs[:-1].flatten(0, 1),
            rollout.actions.flatten(0, 1),
            log_policy.flatten(),
            self.normalised(gains).flatten(),
            targets.flatten(),
        )
        self._evidence = {
            "inputs": batch.inputs,
            "actions": batch.actions,
            "log_probs": batch.log_probs,
            "rewards": reward.total,
        }
        if settings.schedule == "linear":
            learner.learning_rate = settings.learning_rate * (1.0 - (self.iteration - 1) / settings.iterations)
        fit_actor = self.iteration > settings.critic_warmup * settings.iterations
        report = ppo.update(
            learner, batch, settings, self.stream, self.team.sum, self.team.count, self.objective.bonus, fit_actor
        )
        if self.fits_normaliser:
            learner.policy.normaliser.update(summary.observations)
        now = time.perf_counter()
        return summary.metrics | {
            "iteration": self.iteration,
            "steps": self.steps,
            "steps_per_second": settings.iteration_steps / (now - began),
            "share_physics": rollout.physics_seconds / (now - began),
            "share_policy": rollout.policy_seconds / (now - began),
            "share_update": (now - collected) / (now - began),
            "policy_loss": report.policy_loss,
            "value_loss": report.value_loss,
            "explained_variance": 1.0 - float((targets - values).var() / targets.var().clamp_min(1e-12)),
            "entropy": report.entropy,
            "kl": report.kl,
            "clipped": report.clipped,
            "gradient_norm": report.gradient_norm,
            "learning_rate": report.learning_rate,
            "epochs": report.epochs,
        }

    @torch.no_grad()
    def score(self, rollout: Rollout) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """log π, log prior, V(s_t) and V(s_{t+1}), each `[T, N]`, for the whole rollout at once."""
        learner = self.learner
        log_policy = learner.policy.distribution(rollout.inputs[:-1]).log_prob(rollout.actions)
        log_prior = None
        if self.prior is not None:
            log_prior = self.prior.log_prob(torch.from_numpy(rollout.observations[:-1]), rollout.actions)
        values = learner.values(rollout.inputs)
        next_values = values[1:].clone()
        if len(rollout.cut):
            ends = learner.policy.normaliser(torch.from_numpy(rollout.cut_observations))
            next_values[rollout.cut[:, 0], rollout.cut[:, 1]] = learner.values(ends)
        return log_policy, log_prior, values[:-1], next_values

    def reward(self, rollout: Rollout, log_policy: Tensor, log_prior: Tensor | None) -> Any:
        """The reformulated reward of a rollout, in float64, with every part checked."""
        addon_reward = None
        if self.addon is not None:
            assert rollout.next_observations is not None
            arguments = rollout.observations[:-1], rollout.actions.numpy(), rollout.next_observations, rollout.info
            addon_reward = torch.from_numpy(self.addon.reward(*arguments))
        task = task_reward(self.objective, torch.from_numpy(rollout.basic), addon_reward)
        parts = reformulated(
            self.objective, task, None if log_prior is None else log_prior.double(), log_policy.double()
        )
        for name, part in (
            ("reward", parts.task),
            ("prior's log-probability", parts.prior),
            ("policy's log-probability", parts.entropy),
        ):
            if not bool(torch.isfinite(part).all()):
                t, n = np.argwhere(~torch.isfinite(part).numpy())[0]
                raise NumericError(
                    f"the {name} is not finite (environment {n}, step {t} of iteration {self.iteration})"
                )
        return parts

    def exchange(
        self, rollout: Rollout, reward: Any, log_policy: Tensor, log_prior: Tensor | None, ended: Tensor, stop: bool
    ) -> "Summary":
        """One sum over the ranks of all that they need to know of each other's rollouts."""
        discounted = self.returns.follow(reward.total, ended)
        values = {
            "reward_task": reward.task.sum(),
            "reward_prior": reward.prior.sum(),
            "reward_entropy": reward.entropy.sum(),
            "reward_total": reward.total.sum(),
            "log_policy": log_policy.double().sum(),
            "log_prior": log_prior.double().sum() if log_prior is not None else 0.0,
            "basic_return": sum(rollout.episodes.returns),
            "episode_length": sum(rollout.episodes.lengths),
            "episodes": len(rollout.episodes.lengths),
            "stop": float(stop),
        }
        seen = moments(rollout.observations[:-1])
        packed = torch.cat(
            [torch.tensor([float(value) for value in values.values()], dtype=torch.float64), discounted, seen.flatten()]
        )
        self.team.sum(packed)
        sums = dict(zip(values, packed.tolist(), strict=False))
        self.returns.update(packed[len(values) : len(values) + 3])
        episodes, samples = sums["episodes"], self.settings.iteration_steps
        metrics = {
            name: total / (samples if name.startswith(("reward", "log")) else max(episodes, 1.0))
            for name, total in sums.items()
        } | {"episodes": episodes, "stop": sums["stop"], "return_scale": self.returns.std}
        if not episodes:
            del metrics["basic_return"], metrics["episode_length"]
        if log_prior is None:
            del metrics["log_prior"]
        return Summary(metrics, packed[len(values) + 3 :].reshape(3, -1))

    def normalised(self, gains: Tensor) -> Tensor:
        """Advantages with mean 0 and variance 1 over all ranks."""
        if not self.settings.normalise_advantages:
            return gains
        exact = gains.double()
        sums = torch.stack([torch.tensor(float(exact.numel()), dtype=torch.float64), exact.sum(), exact.square().sum()])
        count, total, squares = self.team.sum(sums).tolist()
        mean = total / count
        std = max(squares / count - mean * mean, 0.0) ** 0.5
        return (gains - mean) / (std + 1e-8)

    # On disk ----------------------------------------------------------------------------------------------------------

    def save(self, segment: int) -> None:
        state = self.learner.state() | {
            f"normaliser.{name}": value for name, value in self.learner.policy.normaliser.state_dict().items()
        }
        state["returns"] = self.returns.statistics
        self.folder.save(segment, state, {"iteration": self.iteration, "steps": self.steps, "best": self.best})

    def restore(self) -> tuple[int, list[str]]:
        """Take up the newest whole checkpoint. Returns the segment to begin with, and what was wrong with others."""
        found = self.folder.latest()
        if found is None:
            return 0, []
        state, story, complaints = found
        self.learner.restore(state)
        normaliser = {
            name.removeprefix("normaliser."): value for name, value in state.items() if name.startswith("normaliser.")
        }
        self.learner.policy.normaliser.load_state_dict(normaliser)
        self.returns.statistics = state["returns"]
        self.iteration, self.best = story["iteration"], story["best"]
        return story["segment"], complaints

    def leave_evidence(self) -> str:
        """Write what the failure happened on, and say how to see it again."""
        path = self.folder.path / f"failure-rank{self.team.index}.safetensors"
        story = {"request": self.request.as_dict(), "iteration": self.iteration}
        write(path, "failure", self._evidence | {"parameters": self.learner.parameters}, story)
        return f"the batch is in {path}; to see it fail again, resume the run: segments repeat to the bit"


@dataclass(frozen=True)
class Summary:
    """What all ranks together saw in an iteration."""

    metrics: dict[str, float]
    observations: Tensor  # [3, O] sums for the normaliser


class ReturnScale:
    """The running std of the discounted return of the reformulated reward."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.statistics = torch.tensor([1e-4, 0.0, 1.0], dtype=torch.float64)  # count, mean, variance

    @property
    def std(self) -> float:
        return float((self.statistics[2] + 1e-8).sqrt())

    def begin(self, count: int) -> None:
        self._running = torch.zeros(count, dtype=torch.float64)

    def follow(self, rewards: Tensor, ended: Tensor) -> Tensor:
        """Run the discounted returns on over rewards `[T, N]`. Returns (count, sum, sum of squares) of all of them."""
        kept = self.gamma * (~ended).double()
        seen = torch.empty_like(rewards)
        running = self._running
        for t in range(len(rewards)):
            seen[t] = running + rewards[t]
            running = seen[t] * kept[t]
        self._running = running
        return torch.stack([torch.tensor(float(seen.numel()), dtype=torch.float64), seen.sum(), seen.square().sum()])

    def update(self, sums: Tensor) -> None:
        count, mean, var = self.statistics
        new_mean = sums[1] / sums[0]
        new_var = (sums[2] / sums[0] - new_mean.square()).clamp_min(0.0)
        total, delta = count + sums[0], new_mean - mean
        var = (var * count + new_var * sums[0] + delta.square() * count * sums[0] / total) / total
        self.statistics = torch.stack([total, mean + delta * sums[0] / total, var])


def derived_seed(seed: int, segment: int, stream: int) -> int:
    """An independent seed for each (seed, segment, stream)."""
    return int(np.random.SeedSequence([seed, segment, stream]).generate_state(1)[0] >> 2)


class _polite_interrupt:  # noqa: N801
    """The first Ctrl-C asks the run to stop after its iteration; the second one stops it at once."""

    def __enter__(self) -> threading.Event:
        self._event = threading.Event()
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self._event

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_: object) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()


def _run_as_one_of_many(request: Request, folder: RunFolder, resume: bool, watchers: Sequence[Watcher]) -> Result:
    """Under torchrun: every process comes here with the same request; the first one claims the folder."""
    team = ranks.Distributed()
    request = replace(request, settings=replace(request.settings, ranks=team.count).resolved())
    if team.index > 0:
        team.sum(torch.zeros(1))
        return work(request, folder, team, (), threading.Event())
    with folder.locked():
        folder.begin(request.as_dict(), versions(), resume)
        team.sum(torch.zeros(1))
        with _polite_interrupt() as interrupted:
            return work(request, folder, team, watchers, interrupted)
