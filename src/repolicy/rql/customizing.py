"""Train and customize with Residual Q-learning: a run in a folder, and a chain of segments, as every other run is.

A segment is a function of the checkpoint before it, which holds networks, optimizers and the replay buffer: the
environment and every random stream are made anew from (seed, segment). So a run that is stopped and resumed ends in
the bits that it would have ended in anyway.
"""

import hashlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import gymnasium
import torch
from torch import Tensor

from repolicy.envs import EnvLike, check_env, critic_keys, env_from_card, is_in_gymnasium, make_one_env, observed_keys
from repolicy.errors import FileError, UsageError
from repolicy.learning.run import Callback, tell
from repolicy.learning.training import watchdog
from repolicy.objective import Objective
from repolicy.policies import Policy, SavedPolicy
from repolicy.prepare.decision import Decision, decide
from repolicy.prepare.session import RequestOptions, complete_settings, earlier_request
from repolicy.prepare.spending import Spending
from repolicy.prepare.states import check_learnable, fit_prior_density, steps_to_collect
from repolicy.prepare.weights import alpha_from_card
from repolicy.priors import find_policy, read_policy, saved_policy_bytes
from repolicy.readers.reading import Options
from repolicy.rql.hyperparameters import CUSTOMIZING, TASKS, Settings, customize_defaults, task_of, train_defaults
from repolicy.runs import AnySettings, Result, RunFolder, SingleRank, one_thread, polite_interrupt, versions
from repolicy.runs import Settings as EngineSettings
from repolicy.runs import request as engine
from repolicy.text import nearest

EPISODES = 20  # how many of the latest are averaged


def lines(steps: int, settings: AnySettings) -> int:
    """Return how many lines of metrics there are after so many steps; the last may have fewer steps than the others."""
    return settings.iterations if steps >= settings.steps else steps // settings.iteration_steps


class Log:
    """The metrics, for the folder and for the callbacks; its `step` is Stable-Baselines3's kind of callback."""

    def __init__(
        self, request: "Request", folder: RunFolder, callbacks: Sequence[Callback], interrupted: threading.Event
    ) -> None:
        self._request, self._folder, self._watchers, self._interrupted = request, folder, callbacks, interrupted
        self.metrics: dict[str, float] = {}
        self.stopped = False
        self.segment = 0, 0  # the steps at which the one under way begins and ends

    def begin(self, steps: int, complaints: Sequence[str]) -> None:
        settings = self._request.settings
        done = lines(steps, settings)
        self._first, self._began = steps, time.perf_counter()
        self._folder.drop_metrics_after(done)
        for callback in self._watchers:
            callback.begin(self._request, done, settings.iterations)
            for complaint in complaints:
                callback.say(complaint)

    def step(self, local: dict[str, Any], _: dict[str, Any]) -> bool:
        """Note a step of the environment. Returns whether to go on."""
        model, settings = local["self"], self._request.settings
        steps, (first, end) = model.num_timesteps, self.segment
        cut = steps == end and (steps - first) % settings.train_every > 0  # Stable-Baselines3 would fill the round up
        if steps % settings.iteration_steps and steps != settings.steps:
            return not cut
        self.metrics = {"iteration": math.ceil(steps / settings.iteration_steps), "steps": steps}
        if episodes := list(model.ep_info_buffer)[-EPISODES:]:
            self.metrics["task_return"] = sum(episode["r"] for episode in episodes) / len(episodes)
            self.metrics["episode_length"] = sum(episode["l"] for episode in episodes) / len(episodes)
        logged = model.logger.name_to_value
        self.metrics |= {name.removeprefix("train/"): v for name, v in logged.items() if name.startswith("train/")}
        seconds = time.perf_counter() - self._began
        self.metrics |= {"seconds": seconds, "steps_per_second": (steps - self._first) / seconds}
        self._folder.log(self.metrics)
        for callback in self._watchers:
            callback.write(self.metrics)
        self.stopped = steps < settings.steps and self._interrupted.is_set()
        return not (self.stopped or cut)

    def close(self) -> None:
        for callback in self._watchers:
            callback.close()


@dataclass(frozen=True)
class Request(engine.Request):
    """What a run of Residual Q-learning is asked for."""

    settings: Settings  # type: ignore[assignment]

    method = "Residual Q-learning"


def train(
    env: EnvLike,
    objective: Objective,
    out: str | Path,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    addon: str | Sequence[str] = (),
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    env_timeout: float | None = None,
    trust: bool = False,
) -> Result:
    """Train a policy from nothing, a prior or a baseline. The folder `out` holds everything of the run.

    An alpha that is not set is the task's own. The other parameters are as in `repolicy.train`.
    """
    asked = RequestOptions.from_arguments(env, addon)
    if objective.reads_prior:
        raise UsageError("an objective with omega above 0 needs a prior: use customize")
    before = earlier_request(RunFolder(out, Request), resume, trust, asked)
    asked = asked.filled_from(before)
    if objective.alpha is None:
        known = task_of(asked.env) if before is None else before.objective
        if known is None:
            raise UsageError(f"{asked.env} is no task{nearest(asked.env, TASKS)}; for another environment give --alpha")
        objective = replace(objective, alpha=known.alpha)
    usual = train_defaults(asked.env) if before is None else cast(Settings, before.settings)
    request = _request(asked.env, objective, complete_settings(settings, usual), asked.addons)
    return _run(request, out, None, resume, callbacks, env_timeout)


def customize(
    prior: str | Path,
    objective: Objective,
    out: str | Path,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    addon: str | Sequence[str] = (),
    env: EnvLike | None = None,
    options: Options | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    env_timeout: float | None = None,
    trust: bool = False,
) -> Result:
    """Give the policy in a file a new requirement, without the reward that trained it.

    The requirement is `addon`, or what the environment itself tells in `info["addon_reward"]`, as the four tasks do.
    Weights that are not set are found as by `repolicy.customize`, from which the other parameters are, too; without a
    wish of its own, omega is named, and alpha is the one that the prior was trained with. `options` are for another
    library's file.
    """
    path, folder = find_policy(prior), RunFolder(out, Request)
    saved = read_policy(path, options)
    asked = RequestOptions.from_arguments(env, addon)
    before = earlier_request(folder, resume, trust, asked, customizes=True)
    asked = asked.filled_from(before)
    env = asked.env or env_from_card(saved.card, path, trust)
    if objective.reads_basic:
        raise UsageError("customizing needs an objective whose task is the add-on: residual, kl or greedy")
    choices = saved.policy.actions.kind == "discrete"
    if choices and objective.states is None:
        objective = replace(objective, states=0.0)
    if before is not None:
        unset = [name for name in ("omega", "alpha", "states") if getattr(objective, name) is None]
        objective = replace(objective, **{name: getattr(before.objective, name) for name in unset})
    usual = customize_defaults(env, choices) if before is None else cast(Settings, before.settings)
    settings = complete_settings(settings, usual)

    saved = saved._replace(content=saved_policy_bytes(saved, folder.prior))
    decision = _weighed(objective, saved, path, env, asked.addons, settings, callbacks)
    notes = list(decision.notes)
    if before is None:
        learnt = steps_to_collect(settings.steps) if decision.objective.reads_states else 0
        notes.append(Spending(weights=decision.steps, states=learnt, training=settings.steps).sentence())
    if task_of(env) is None and not choices and settings.steps > CUSTOMIZING.steps:
        notes.append(f"beyond {CUSTOMIZING.steps:,} steps it may lose the old task: take `repolicy customize`")
    request = _request(env, decision.objective, settings, asked.addons, saved.content)
    return _run(request, out, saved, resume, callbacks, env_timeout, notes)


def _weighed(
    objective: Objective,
    saved: SavedPolicy,
    path: Path,
    env: str,
    wishes: tuple[str, ...],
    settings: Settings,
    callbacks: Sequence[Callback],
) -> Decision:
    """Return the objective with all its weights."""
    engines = EngineSettings(steps=settings.steps, seed=settings.seed)
    if wishes or objective.is_set:
        decision = decide(objective, saved, env, wishes, engines, lambda sentence: tell(callbacks, [sentence]))
        if decision.settings.budget is not None:
            raise UsageError("what a nat of the prior is worth cannot be told from its episodes: name --omega")
        return decision
    # The wish is the environment's own, of which the engine's episodes do not tell.
    if objective.omega is None:
        raise UsageError("objective residual needs omega; name one with --omega")
    alpha = alpha_from_card(saved.card) if objective.alpha is None else objective.alpha
    if alpha is None:
        raise UsageError(f"{path} does not tell the alpha that it was trained with; name one with --alpha")
    return Decision(replace(objective, alpha=alpha, states=objective.states or 0.0), engines, [])


def make(env: str) -> gymnasium.Env[Any, Any]:
    """Return the environment of a task, of `module:callable`, or of a Gymnasium id."""
    reference = TASKS[env].env if env in TASKS else env
    if not is_in_gymnasium(reference):
        raise UsageError(f"there is no task or environment {env!r}{nearest(env, {*TASKS, *gymnasium.registry})}")
    if observed_keys(reference) or critic_keys(reference):
        parts = f"environment {env!r} names parts of a Dict, which Residual Q-learning does not take"
        raise UsageError(f"{parts}: leave them out, and wrap the environment in gymnasium's FlattenObservation")
    return make_one_env(reference)


def _request(
    env: str, objective: Objective, settings: Settings, addons: tuple[str, ...], prior: bytes | None = None
) -> Request:
    """Return the request; without an add-on, an objective that reads one reads what the environment tells."""
    check_env(addons, env)
    if addons and not objective.reads_addon:
        raise UsageError("a soft objective is about the environment's own reward; an add-on goes with full or greedy")
    if objective.reads_addon:
        addons = addons or ("repolicy.rql.tasks:addon",)
    checksum = hashlib.sha256(prior).hexdigest() if prior else ""
    return Request(TASKS[env].env if env in TASKS else env, objective, settings, addons, checksum)


def _run(
    request: Request,
    out: str | Path,
    prior: SavedPolicy | None,  # with its file's content, which the run keeps
    resume: bool,
    callbacks: Sequence[Callback],
    env_timeout: float | None,
    notes: Sequence[str] = (),
) -> Result:
    folder = RunFolder(out, Request)
    with watchdog(env_timeout), one_thread():  # layers this small are slower on several threads
        model = _algorithm(request, prior.policy if prior else None)
        tell(callbacks, notes)
        made_with = versions() | {"stable_baselines3": version("stable_baselines3")}
        with folder.locked():
            tell(callbacks, folder.begin(request, made_with, resume, prior.content if prior else None))
            with polite_interrupt() as interrupted:
                return _work(model, request, folder, callbacks, interrupted, made_with)


def _work(
    model: Any,
    request: Request,
    folder: RunFolder,
    callbacks: Sequence[Callback],
    interrupted: threading.Event,
    made_with: dict[str, str],
) -> Result:
    """Return all segments that are still to do."""
    settings, log = request.settings, Log(request, folder, callbacks, interrupted)
    segment, complaints = _restored(model, folder)
    log.begin(model.num_timesteps, complaints)
    try:
        while model.num_timesteps < settings.steps and not interrupted.is_set():
            if segment:  # the first one begins as the model was made
                _renew(model, request, segment)
            end = min((segment + 1) * settings.checkpoint_every, settings.steps)
            log.segment = model.num_timesteps, end
            steps = end - model.num_timesteps
            model.learn(steps, callback=log.step, log_interval=None, reset_num_timesteps=not segment)
            if log.stopped:
                break
            segment += 1
            card = {"request": request.as_dict(), "steps": model.num_timesteps, "versions": made_with, "which": "last"}
            folder.check_exists()
            model.save(folder.policy, card)
            header = {"iteration": lines(model.num_timesteps, settings), "steps": model.num_timesteps}
            folder.save(segment, state(model), header)
    finally:
        log.close()
    return Result(folder.path, model.num_timesteps, model.num_timesteps >= settings.steps, log.metrics)


def _algorithm(request: Request, prior: Policy | None) -> Any:
    """Return ResidualDQN where actions are choices, ResidualSAC where they are numbers."""
    from repolicy.rql.algorithms import ResidualDQN, ResidualSAC
    from repolicy.rql.wrapping import TaskReward, spaces_of

    made = _environment(request)
    spaces_of(made)
    made.action_space.seed(request.settings.seed)
    trial = TaskReward(made, request.objective)  # a wish that fails does so here, before the folder is claimed
    trial.reset(seed=request.settings.seed)
    trial.step(made.action_space.sample())
    if isinstance(made.action_space, gymnasium.spaces.Discrete):
        return ResidualDQN(made, request.objective, prior, request.settings)
    density = None
    if request.objective.reads_states:
        assert prior is not None
        check_learnable(prior)
        engines = EngineSettings(steps=request.settings.steps, seed=request.settings.seed)
        density = fit_prior_density(prior, engine.Request(request.env, request.objective, engines), SingleRank())
    return ResidualSAC(made, request.objective, prior, request.settings, density=density)


def _environment(request: Request) -> gymnasium.Env[Any, Any]:
    from repolicy.rql.wrapping import WithAddon

    made = make(request.env)
    return WithAddon(made, *request.addons) if request.addons else made


def _renew(model: Any, request: Request, segment: int) -> None:
    """Renew the environment and every random stream, from (seed, segment)."""
    model.env.close()
    if model.ep_info_buffer is not None:
        model.ep_info_buffer.clear()
    model.set_env(_environment(request))
    model.set_random_seed(engine.derived_seed(request.settings.seed, segment, 0))


# Checkpoints ----------------------------------------------------------------------------------------------------------

BUFFER = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def state(model: Any) -> dict[str, Tensor]:
    """Return all that the rest of a run depends on, as tensors: networks, optimizers, and what the buffer remembers."""
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
    buffer, parts = model.replay_buffer, model.get_parameters()
    for name in BUFFER:
        values = tensors[f"buffer/{name}"].numpy()
        getattr(buffer, name)[: len(values)] = values
    buffer.pos, buffer.full = int(tensors["buffer/position"]), len(values) == buffer.buffer_size
    for name, tensor in tensors.items():
        part, *keys = name.split("/")
        if part.endswith("optimizer"):
            parts[part]["state"].setdefault(int(keys[0]), {})[keys[1]] = tensor
        elif part != "buffer":
            parts[part][keys[0]] = tensor
    model.set_parameters(parts)


def _restored(model: Any, folder: RunFolder) -> tuple[int, list[str]]:
    """Take up the newest whole checkpoint: the segment that is next, and what was wrong with other checkpoints."""
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
