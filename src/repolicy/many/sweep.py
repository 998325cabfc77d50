"""Run the same customization at several values of ω′ in parallel, and show the trade-off between them.

Each point is a run of its own, on one core, in `OUT/omega-VALUE`. A stopped sweep can be resumed.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from repolicy.addons import Wish, combine_addons
from repolicy.addons.addon_names import dials
from repolicy.envs import EnvLike, find_session_only
from repolicy.errors import RepolicyError, UsageError, check_counts
from repolicy.evaluation import Evaluation
from repolicy.files import check_writable, write_bytes, write_json
from repolicy.loading import PYTHON
from repolicy.many import pool
from repolicy.many.pool import Job, LocalProcess, StartJob, run_jobs
from repolicy.many.sweep_folder import SweepFolder, sorted_omegas
from repolicy.many.tradeoff import Point, SweepResult, evaluate_point
from repolicy.objective import Objective, Weight
from repolicy.policies import Policy, with_torch_defaults
from repolicy.policies.storage import FORMAT
from repolicy.prepare.beginning import Start
from repolicy.prepare.checks import NO_ADDON, choose_weights, try_addon
from repolicy.prepare.generative import open_start
from repolicy.prepare.session import RequestOptions
from repolicy.priors import read_policy
from repolicy.ranges import Range
from repolicy.readers.reading import Options
from repolicy.runs import Request, Result, RunFolder, Settings, complete_settings, physical_cores
from repolicy.text import Say, default_out, format_count

EPISODES = 50  # of each evaluation


@with_torch_defaults()
def sweep(
    prior: str | Path | Result,
    addon: Wish = (),
    omegas: Collection[float] = (),
    alpha: Weight = None,
    out: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    states: float | None = None,
    env: EnvLike | None = None,
    resume: bool = False,
    trust: bool = False,
    reading: Options | None = None,
    noise: int = 0,
    chunk: int = 1,
    sparse: bool = False,
    jobs: int = 0,
    on_ray: bool = False,
    episodes: int | None = None,
    say: Say = lambda _: None,
    progress: Callable[[dict[float, float]], None] = lambda _: None,
) -> SweepResult:
    """Train every point, evaluate prior and points, write `sweep.json` into the folder `out`, and return the result.

    Each point is trained in a process of its own, which imports functions by their names. To a prior that cannot be
    copied, one policy is fitted for all points; it is evaluated as the prior.

    Args:
        prior: a policy's file, a run's folder, the name of a policy that ships, the result of a run, or `module:name`.
        addon: the wish, as in `customize`.
        omegas: the values of ω′; at 0 only `states` holds the old behavior.
        alpha: α̂, or "omega": each point's own ω′, as always for a generative policy. By default the prior's own, else
            a third of the smallest ω′ above 0.
        out: the sweep's folder; by default `runs/PRIOR-sweep`.
        settings: how to train each point, such as `{"steps": 300_000}`; the rest follows from the prior's
            shape and the steps (docs/train.md). A `Settings` is taken whole.
        states: the price on states; by default what a nat is worth in the old reward.
        env: the environment; by default the one that the prior was trained in.
        resume: continue the sweep in the folder; arguments that are left out stay as they were, but for the prior and
            `reading`, which are named as before; new values are added.
        trust: run code that the prior's file or the resumed sweep names.
        reading: options for a file of another library.
        noise: for a generative policy, the size of its noise, as in `customize`.
        chunk: for a generative policy, the number of successive actions in its output.
        sparse: accept an add-on that is constant over some thousand trial steps.
        jobs: the number of points that are trained at a time; 0 means one a core.
        on_ray: train the points as Ray tasks.
        episodes: the number of episodes in each evaluation afterwards; by default 50.
        say: is called with each message.
        progress: is called with the share of training that is done, for each ω′.
    """
    if not isinstance(prior, str | Path | Result):
        kind = type(prior).__name__
        raise UsageError(f"the prior of a sweep is a file, which each point reads, not a {kind}: save it and name it")
    check_counts(0, jobs=jobs)
    folder = SweepFolder(Path(out or default_out(prior.folder if isinstance(prior, Result) else prior, "sweep")))
    content = folder.read() if resume else {}
    episodes = content.get("episodes", EPISODES) if episodes is None else episodes
    check_counts(episodes=episodes)
    before = folder.point_request(content["request"]) if content else None
    values: list[Any] = [omegas] if isinstance(omegas, Real | str) else list(omegas)
    omegas = sorted_omegas(values or content.get("omegas", ()))
    if before is None:
        folder.check_new()  # before anything that takes a while
    check_writable(folder.content)
    options = RequestOptions.from_arguments(env, addon, sparse=sparse)
    if before is not None:
        options.require_trust(before, folder.content, trust)
        alpha = before.objective.alpha if alpha is None else alpha  # stays the same when values of omega are added
        states = before.objective.states if states is None else states
    options = options.filled_from(before)

    # Open the prior, which may name its environment and settings.
    resumed = before is not None
    start, env = open_start(prior, options.env, settings, noise, chunk, trust, folder.prior, resumed, reading)
    env = env or start.env(trust)
    defaults = start.default_settings(env, settings) if before is None else before.settings
    settings = complete_settings(settings, defaults)
    if not options.addons:  # before anything slow
        raise UsageError(f"a sweep {NO_ADDON}")
    _check_points(env, options.addons, settings, alpha)
    settings = replace(settings, ranks=1)
    starter = pool.connect_to_ray() if on_ray else LocalProcess  # before episodes are spent
    env = start.with_roles(env, settings.backend)
    with RunFolder(folder.path).locked():
        start = start.fit_clone(env, settings, folder.prior, say)  # once, and each point begins with it
        assert start.saved is not None
        smallest = next((omega for omega in omegas if omega), 0.0)
        objective = Objective("addon", smallest, alpha, states=states)
        request = Request(env, objective, settings, options.addons, sparse=options.sparse)
        alpha_is_omega = alpha == "omega" or (alpha is None and not request.is_judged_by_mean)
        shared = _choose_for_all(request, start, alpha_is_omega, say)

        # Train all points, and evaluate them.
        omegas = folder.claim(shared, omegas, start.content, episodes)
        if start.scoring_prior is not None:  # no point fits a clone of its own
            for omega in omegas:
                write_bytes(folder.run(omega).prior, start.content)
        at_once = jobs or (len(omegas) if on_ray else physical_cores())
        failed = _train(omegas, folder, shared, starter, at_once, say, progress)
        result = _evaluate_all(folder, shared, start.saved.policy, omegas, failed, episodes, say)
        write_json(folder.content, {"format": FORMAT, "episodes": episodes} | result.as_dict())
    return result


def _check_points(env: str, wishes: tuple[str, ...], settings: Settings, alpha: Weight) -> None:
    """Raise for settings that vary a weight within a point, and for what a point's process cannot import."""
    if settings.ranks > 1:
        raise UsageError(f"ranks is {settings.ranks}; a sweep trains each point on one core: leave ranks out")
    if settings.budget is not None:
        raise UsageError("a sweep compares values of omega, and a budget moves omega by itself: leave the budget out")
    if isinstance(alpha, Range):
        raise UsageError(f"alpha is {alpha}; a sweep needs one number, or omega: each point's own")
    if ranges := dials(wishes):
        raise UsageError(f"{ranges[0].name} has a range of weights; a sweep needs one weight for each add-on")
    if name := find_session_only([env, *wishes]):
        problem = f"each point of a sweep is a process of its own, which cannot import {name!r} of this Python session"
        raise UsageError(f"{problem}: write it into a file and name it as file.py:{name}")


def _choose_for_all(request: Request, start: Start, alpha_is_omega: bool, say: Say) -> dict[str, Any]:
    """Try the add-on, choose alpha and states by the smallest ω′ above 0, and return what all points share."""
    assert start.saved is not None
    notes = [*start.notes, *try_addon(start.saved.policy, request)[0]]
    request, decision = choose_weights(request, start.saved, say)
    for note in [*notes, *decision.notes]:
        say(note)
    return {
        "prior": start.command_words(),
        "env": request.env,
        "addons": list(request.addons),
        "alpha": "omega" if alpha_is_omega else request.objective.alpha,
        "states": request.objective.states,
        "settings": request.settings.as_dict(),
        "sparse": request.sparse,
    }


def _train(
    omegas: Sequence[float],
    folder: SweepFolder,
    shared: dict[str, Any],
    starter: StartJob,
    at_once: int,
    say: Say,
    progress: Callable[[dict[float, float]], None],
) -> dict[float, str]:
    """Train all points, `at_once` at a time. Returns the errors of those that failed; raises where all failed."""
    omega_of, errors = dict[Job, float](), dict[float, str]()
    for omega in omegas:
        words = [*folder.point_arguments(shared, omega), "--out", str(folder.run(omega).path.absolute())]
        program = (*PYTHON, "-m", "repolicy", *words, "--resume", "--no-report")
        omega_of[Job(f"ω′ {omega:g}", program, folder.log(omega))] = omega
    # A trained point's job only checks that environment and add-ons are what they were.
    iterations = Settings(**shared["settings"]).iterations
    trained = [omega for omega in omegas if _point_progress(folder.run(omega), iterations) == 1.0]
    count, names = len(omegas) - len(trained), " and ".join(f"ω′ {omega:g}" for omega in trained)
    sentences = [f"training {format_count(count, 'point')}, {min(at_once, count)} at a time"] if count else []
    say("; ".join([*sentences, *([f"checking {names}, trained before"] if trained else [])]))

    def on_end(job: Job, error: str) -> None:
        errors[omega_of[job]] = error
        if not error and omega_of[job] not in trained:
            say(f"{job.name} is trained")

    def on_poll() -> None:
        progress({omega: _point_progress(folder.run(omega), iterations) for omega in omegas})

    run_jobs(list(omega_of), starter, at_once, on_end=on_end, on_poll=on_poll)
    failed = {omega: errors[omega] for omega in omegas if errors[omega]}
    for omega, error in failed.items():
        say(f"ω′ {omega:g} failed: {error}")
    if len(failed) == len(omegas):
        raise RepolicyError(f"no point of the sweep could be trained: {failed[omegas[0]]}")
    return failed


def _point_progress(run: RunFolder, iterations: int) -> float:
    """Return the share of a point's training that is done, by the last line of its metrics."""
    try:
        with open(run.metrics, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            last_line = file.read().splitlines()[-1]
        return float(json.loads(last_line)["iteration"]) / iterations
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return 0.0


def _evaluate_all(
    folder: SweepFolder,
    shared: dict[str, Any],
    prior: Policy,
    omegas: Sequence[float],
    failed: dict[float, str],
    episodes: int,
    say: Say,
) -> SweepResult:
    """Evaluate the prior and all points that could be trained."""
    addon, backend = combine_addons(shared["addons"]), shared["settings"]["backend"]

    def evaluated(name: str, policy: Policy) -> tuple[Evaluation, Evaluation]:
        say(f"evaluating {name}: {format_count(episodes, 'episode')} with the mean action, {episodes} sampled")
        return evaluate_point(policy, prior, shared["env"], addon, episodes, backend)

    of_prior, points = evaluated("the prior", prior), list[Point]()
    for omega in omegas:
        if omega not in failed:
            run = folder.run(omega)
            mean, sampled = evaluated(f"ω′ {omega:g}", read_policy(run.policy).policy)
            points.append(Point(omega, run.policy, mean, sampled))
    return SweepResult(shared, folder.path, Point(math.inf, folder.prior, *of_prior), points, failed)
