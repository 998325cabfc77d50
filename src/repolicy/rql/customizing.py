"""Train and customize with Residual Q-learning: a run has a folder, and a checkpoint after each of its segments.

A checkpoint stores the networks, the optimizers and the replay buffer. Each segment makes a new environment and new
random streams from (seed, segment), so it depends only on the checkpoint before it. A run that is stopped and resumed
therefore gives bit-identical results.
"""

import hashlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import gymnasium
import torch
from torch import Tensor

from repolicy.addons import Wish, check_env
from repolicy.envs import EnvLike, make_one_env, parse_env_name, probe_env
from repolicy.errors import FileError, UsageError
from repolicy.learning.run import Callback, announce
from repolicy.learning.training import watchdog
from repolicy.objective import Objective, soft
from repolicy.policies import Policy, SavedPolicy, one_thread
from repolicy.prepare.beginning import open_prior
from repolicy.prepare.decision import Decision, decide
from repolicy.prepare.session import RequestOptions, earlier_request, resumed_objective
from repolicy.prepare.spending import describe_spending
from repolicy.prepare.states import check_learnable, fit_prior_density, steps_to_collect
from repolicy.prepare.weights import alpha_from_card
from repolicy.readers.reading import Options
from repolicy.rql.hyperparameters import CUSTOMIZING, TASKS, Settings, customize_defaults, task_of, train_defaults
from repolicy.runs import AnySettings, Result, RunFolder, SingleRank, complete_settings, polite_interrupt, versions
from repolicy.runs import Settings as EngineSettings
from repolicy.runs import request as engine
from repolicy.text import suggest

METRIC_EPISODES = 20  # latest episodes over which returns and lengths are averaged


def log_lines(steps: int, settings: AnySettings) -> int:
    """Return the number of lines of metrics after so many steps; the last line may cover fewer steps."""
    return settings.iterations if steps >= settings.steps else steps // settings.iteration_steps


class MetricsLog:
    """Writes metrics to the run's folder and to the callbacks. `step` is the callback for Stable-Baselines3."""

    def __init__(
        self, request: "Request", folder: RunFolder, callbacks: Sequence[Callback], interrupted: threading.Event
    ) -> None:
        self._request, self._folder, self._callbacks, self._interrupted = request, folder, callbacks, interrupted
        self.metrics: dict[str, float] = {}
        self.is_stopped = False
        self.segment = 0, 0  # first and last step of the segment that is running

    def begin(self, steps: int, complaints: Sequence[str], after: ExitStack) -> None:
        """Begin to log; `after` closes the callbacks, also where a later one refuses to begin."""
        settings = self._request.settings
        iterations = log_lines(steps, settings)
        self._first_step, self._start_time = steps, time.perf_counter()
        self._folder.drop_metrics_after(iterations)
        for callback in self._callbacks:
            callback.begin(self._request, iterations, settings.iterations)
            after.callback(callback.close)
        announce(self._callbacks, complaints)

    def step(self, local_variables: dict[str, Any], _: dict[str, Any]) -> bool:
        """Write metrics if they are due after a step of the environment; return whether to continue."""
        model, settings = local_variables["self"], self._request.settings
        steps, (first, end) = model.num_timesteps, self.segment
        # If a segment ends within a round of `train_every` steps, Stable-Baselines3 would complete the round.
        must_cut = steps == end and (steps - first) % settings.train_every > 0
        if steps % settings.iteration_steps and steps != settings.steps:
            return not must_cut
        self.metrics = {"iteration": math.ceil(steps / settings.iteration_steps), "steps": steps}
        episodes = list(model.ep_info_buffer)[-METRIC_EPISODES:]
        if episodes:
            self.metrics["task_return"] = sum(episode["r"] for episode in episodes) / len(episodes)
            self.metrics["episode_length"] = sum(episode["l"] for episode in episodes) / len(episodes)
        logged = model.logger.name_to_value
        self.metrics |= {name.removeprefix("train/"): v for name, v in logged.items() if name.startswith("train/")}
        seconds = time.perf_counter() - self._start_time
        self.metrics |= {"seconds": seconds, "steps_per_second": (steps - self._first_step) / seconds}
        self._folder.log(self.metrics)
        for callback in self._callbacks:
            callback.write(self.metrics)
        self.is_stopped = steps < settings.steps and self._interrupted.is_set()
        return not (self.is_stopped or must_cut)


@dataclass(frozen=True)
class Request(engine.Request):
    """Everything that determines a run of Residual Q-learning."""

    settings: Settings  # type: ignore[assignment]

    method = "Residual Q-learning"


def train(
    env: EnvLike,
    objective: Objective | None,
    out: str | Path,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    alpha: float | None = None,
    addon: Wish = (),
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    env_timeout: float | None = None,
    trust: bool = False,
) -> Result:
    """Train a policy without a prior, to serve as a prior or a baseline. The folder `out` stores all of the run.

    Without an objective it is `soft()`, or that of the resumed run. Its alpha is `alpha`, if that is named; without
    either it is the task's default. The other parameters are as in `repolicy.train`.
    """
    asked = RequestOptions.from_arguments(env, addon, objective=objective)
    if objective is not None and objective.reads_prior:
        raise UsageError("an objective with omega above 0 needs a prior: use customize")
    before = earlier_request(RunFolder(out, Request), resume, trust, asked)
    asked = asked.filled_from(before)
    objective = asked.objective or soft()
    if alpha is not None:
        objective = replace(objective, alpha=alpha)
    if objective.alpha is None:
        source = task_of(asked.env) if before is None else before.objective
        if source is None:
            raise UsageError(f"{asked.env} is no task, so it needs an --alpha{suggest(asked.env, TASKS)}")
        objective = replace(objective, alpha=source.alpha)
    defaults = train_defaults(asked.env) if before is None else cast(Settings, before.settings)
    request = _request(asked.env, objective, complete_settings(settings, defaults), asked.addons)
    return _run(request, out, None, resume, callbacks, env_timeout)


def customize(
    prior: str | Path | Policy | Result,
    objective: Objective,
    out: str | Path,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    addon: Wish = (),
    env: EnvLike | None = None,
    reading: Options | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    env_timeout: float | None = None,
    trust: bool = False,
) -> Result:
    """Give a policy a new requirement, without the reward that trained it.

    The requirement is `addon`. Without one, it is the environment's own `info["addon_reward"]`, as in the four tasks:
    omega must then be set, and alpha is by default the prior's. With an `addon`, weights that are not set are found as
    in `repolicy.customize`. The other parameters are as there, too.
    """
    folder = RunFolder(out, Request)
    folder.check_new(resume)  # before anything slow
    start = open_prior(prior, reading, trust=trust, file=folder.prior)
    if start.saved is None:
        raise UsageError(f"{start.name} cannot be copied, as Residual Q-learning needs: take `repolicy customize`")
    saved = start.saved._replace(content=start.content)
    asked = RequestOptions.from_arguments(env, addon)
    before = earlier_request(folder, resume, trust, asked, customizes=True)
    asked = asked.filled_from(before)
    env = asked.env or start.env(trust)
    if objective.reads_basic:
        raise UsageError("customizing needs an objective whose task is the add-on: residual, kl or greedy")
    is_discrete = saved.policy.actions.kind == "discrete"
    if is_discrete and objective.states is None:
        objective = replace(objective, states=0.0)
    if before is not None:
        objective = resumed_objective(objective, before, out)
    defaults = customize_defaults(env, is_discrete) if before is None else cast(Settings, before.settings)
    settings = complete_settings(settings, defaults)
    _check_trainable(objective, saved.policy, env, asked.addons, settings)
    decision = _decide_weights(objective, saved, start.name, env, asked.addons, settings, callbacks)
    notes = [*start.notes, *decision.notes]
    request = _request(env, decision.objective, settings, asked.addons, saved.content)
    if before is None:
        spending = {"to find the weights": decision.steps, "to train": settings.steps}
        if request.objective.reads_states:
            spending["for the prior's states"] = steps_to_collect(settings.steps, probe_env(request.env).limit)
        notes.append(describe_spending(spending))
    if task_of(env) is None and not is_discrete and settings.steps > CUSTOMIZING.steps:
        notes.append(f"beyond {CUSTOMIZING.steps:,} steps it may lose the old task: take `repolicy customize`")
    return _run(request, out, saved, resume, callbacks, env_timeout, notes)


def _check_trainable(
    objective: Objective, prior: Policy, env: str, addons: tuple[str, ...], settings: Settings
) -> None:
    """Raise for what cannot be trained, before weights are measured: make the algorithm with 1 for each open weight."""
    omega, alpha = (1.0 if weight is None else weight for weight in (objective.omega, objective.alpha))
    states = objective.states if prior.actions.kind == "discrete" else 0.0  # its density is measured, too
    stand_in = replace(objective, omega=omega, alpha=alpha, states=states)
    _make_algorithm(_request(env, stand_in, settings, addons), prior).env.close()


def _decide_weights(
    objective: Objective,
    saved: SavedPolicy,
    name: str,
    env: str,
    addons: tuple[str, ...],
    settings: Settings,
    callbacks: Sequence[Callback],
) -> Decision:
    """Return the objective with values for all its weights."""
    engine_settings = EngineSettings(steps=settings.steps, seed=settings.seed)
    if addons or objective.is_set:
        decision = decide(
            objective, saved, env, addons, engine_settings, lambda sentence: announce(callbacks, [sentence])
        )
        if decision.settings.budget is not None:
            raise UsageError("what a nat of the prior is worth cannot be told from its episodes: name --omega")
        return decision
    # The add-on is the environment's own, which `decide` cannot measure.
    if objective.omega is None:
        raise UsageError("objective residual needs omega; name one with --omega")
    alpha = alpha_from_card(saved.card) if objective.alpha is None else objective.alpha
    if alpha is None:
        raise UsageError(f"{name} does not tell the alpha that it was trained with; name one with --alpha")
    return Decision(replace(objective, alpha=alpha, states=objective.states or 0.0), engine_settings, [])


def _request(
    env: str, objective: Objective, settings: Settings, addons: tuple[str, ...], prior: bytes | None = None
) -> Request:
    """Return the request of a run. Without an add-on, an objective that reads one reads `info["addon_reward"]`."""
    check_env(addons, env)
    first = (settings.warmup // settings.train_every + 1) * settings.train_every  # it trains after whole rounds
    if settings.steps < first:
        problem = (
            f"the first gradient step comes after {first:,} steps, so nothing would be learned in {settings.steps:,}"
        )
        raise UsageError(f"{problem}: take more steps, or a smaller warmup and train_every")
    if settings.train_every > settings.checkpoint_every:
        segment, train_every = settings.checkpoint_every, settings.train_every
        problem = (
            f"a segment of {segment:,} steps is shorter than a round of {train_every:,}, so nothing would be learned"
        )
        raise UsageError(f"{problem}: take a larger checkpoint_every, or a smaller train_every")
    if addons and not objective.reads_addon:
        raise UsageError("a soft objective is about the environment's own reward; an add-on goes with full or greedy")
    if objective.reads_addon:
        addons = addons or ("repolicy.rql.tasks:addon",)
    checksum = hashlib.sha256(prior).hexdigest() if prior else ""
    return Request(TASKS[env].env if env in TASKS else env, objective, settings, addons, checksum)


def _run(
    request: Request,
    out: str | Path,
    prior: SavedPolicy | None,  # with the content of its file, which is copied into the folder
    resume: bool,
    callbacks: Sequence[Callback],
    env_timeout: float | None,
    notes: Sequence[str] = (),
) -> Result:
    folder = RunFolder(out, Request)
    with watchdog(env_timeout), one_thread():  # such small layers are slower on several threads
        model = _make_algorithm(request, prior.policy if prior else None)
        try:
            announce(callbacks, notes)
            package_versions = versions() | {"stable_baselines3": version("stable_baselines3")}
            with folder.locked():
                announce(callbacks, folder.begin(request, package_versions, resume, prior.content if prior else None))
                with polite_interrupt() as interrupted:
                    log = MetricsLog(request, folder, callbacks, interrupted)
                    return _train_segments(model, request, folder, log, interrupted, package_versions)
        finally:
            model.env.close()  # not the one that it was made with: each segment has its own


def _train_segments(
    model: Any,
    request: Request,
    folder: RunFolder,
    log: MetricsLog,
    interrupted: threading.Event,
    package_versions: dict[str, str],
) -> Result:
    """Train from the latest checkpoint until all segments are done or the run is interrupted."""
    settings = request.settings
    segment, complaints = _restore_latest(model, folder)
    with ExitStack() as after:
        log.begin(model.num_timesteps, complaints, after)
        while model.num_timesteps < settings.steps and not interrupted.is_set():
            if segment:  # the first segment uses the environment and the seed of the new model
                _reseed(model, request, segment)
            end = min((segment + 1) * settings.checkpoint_every, settings.steps)
            log.segment = model.num_timesteps, end
            steps = end - model.num_timesteps
            model.learn(steps, callback=log.step, log_interval=None, reset_num_timesteps=not segment)
            if log.is_stopped:
                break
            segment += 1
            card = {"request": request.as_dict(), "steps": model.num_timesteps}
            card |= {"versions": package_versions, "which": "last"}
            folder.check_exists()
            model.save(folder.policy, card)
            header = {"iteration": log_lines(model.num_timesteps, settings), "steps": model.num_timesteps}
            folder.save(segment, checkpoint_tensors(model), header)
    metrics = log.metrics or folder.last_metrics()  # where nothing was left to do
    return Result(folder.path, model.num_timesteps, model.num_timesteps >= settings.steps, metrics)


def _make_algorithm(request: Request, prior: Policy | None) -> Any:
    """Return ResidualDQN for discrete actions, ResidualSAC for continuous ones."""
    from repolicy.rql.algorithms import ResidualDQN, ResidualSAC
    from repolicy.rql.wrapping import TaskReward, spaces_of

    env = _make_env(request.env, request.addons)
    spaces_of(env)
    env.action_space.seed(request.settings.seed)
    trial = TaskReward(env, request.objective)  # one step, so that an add-on fails before the folder is created
    trial.reset(seed=request.settings.seed)
    trial.step(env.action_space.sample())
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        return ResidualDQN(env, request.objective, prior, request.settings)
    density = None
    if request.objective.reads_states:
        assert prior is not None
        check_learnable(prior)
        engine_settings = EngineSettings(steps=request.settings.steps, seed=request.settings.seed)
        engine_request = engine.Request(request.env, request.objective, engine_settings)
        density = fit_prior_density(prior, engine_request, SingleRank())
    return ResidualSAC(env, request.objective, prior, request.settings, density=density)


def _make_env(name: str, addons: tuple[str, ...]) -> gymnasium.Env[Any, Any]:
    """Make the environment of a task, of `module:callable` or of a Gymnasium id, with add-ons."""
    from repolicy.rql.wrapping import WithAddon

    if not parse_env_name(name).is_in_gymnasium:
        raise UsageError(f"there is no task or environment {name!r}{suggest(name, {*TASKS, *gymnasium.registry})}")
    env = make_one_env(name)
    return WithAddon(env, *addons) if addons else env


def _reseed(model: Any, request: Request, segment: int) -> None:
    """Replace the environment and all random streams by new ones from (seed, segment)."""
    model.env.close()
    if model.ep_info_buffer is not None:
        model.ep_info_buffer.clear()
    model.set_env(_make_env(request.env, request.addons))
    model.set_random_seed(engine.derived_seed(request.settings.seed, segment, engine.Stream.TRAINING_ENVS))


BUFFER = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def checkpoint_tensors(model: Any) -> dict[str, Tensor]:
    """Return the state on which the rest of a run depends: networks, optimizers, and the replay buffer."""
    buffer = model.replay_buffer
    tensors = {f"buffer/{name}": torch.from_numpy(getattr(buffer, name)[: buffer.size()]) for name in BUFFER}
    tensors["buffer/position"] = torch.tensor(buffer.pos)
    for part, values in model.get_parameters().items():
        if part.endswith("optimizer"):
            for index, moments in values["state"].items():
                tensors |= {f"{part}/{index}/{name}": moment for name, moment in moments.items()}
        else:
            tensors |= {f"{part}/{name}": tensor for name, tensor in values.items()}
    return tensors


def restore(model: Any, tensors: dict[str, Tensor]) -> None:
    """Load tensors of `checkpoint_tensors` into a model."""
    buffer, parts = model.replay_buffer, model.get_parameters()
    size = len(tensors["buffer/rewards"])
    for name in BUFFER:
        getattr(buffer, name)[:size] = tensors[f"buffer/{name}"].numpy()
    buffer.pos, buffer.full = int(tensors["buffer/position"]), size == buffer.buffer_size
    for name, tensor in tensors.items():
        part, *keys = name.split("/")
        if part.endswith("optimizer"):
            parts[part]["state"].setdefault(int(keys[0]), {})[keys[1]] = tensor
        elif part != "buffer":
            parts[part][keys[0]] = tensor
    model.set_parameters(parts)


def _restore_latest(model: Any, folder: RunFolder) -> tuple[int, list[str]]:
    """Load the newest intact checkpoint; return the next segment and complaints about damaged checkpoints."""
    checkpoint = folder.latest_checkpoint()
    if checkpoint is None:
        return 0, []
    tensors, header, complaints = checkpoint
    try:
        restore(model, tensors)
        model.num_timesteps = int(header["steps"])
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise FileError(f"the last checkpoint in {folder.path} is none of this run's: {error}") from None
    return int(header["segment"]), complaints
