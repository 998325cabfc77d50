"""The two entry points of training: `train()` from scratch and `customize()` from a prior."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from repolicy.addons import Wish, addon_names
from repolicy.envs import (
    EnvLike,
    Watchdog,
    parse_env_name,
    with_observation_roles,
    with_observed_keys,
    with_observed_keys_of,
)
from repolicy.errors import UsageError
from repolicy.evaluation import EPISODE_CAP
from repolicy.learning.run import Callback, announce, run
from repolicy.objective import Objective, residual, soft
from repolicy.policies import Policy, Prior, read_card, with_torch_defaults
from repolicy.prepare import checks, session
from repolicy.prepare.beginning import INITS, Start
from repolicy.prepare.decision import decide
from repolicy.prepare.defaults import train_defaults
from repolicy.prepare.generative import evaluate_untrained, open_start
from repolicy.prepare.session import RequestOptions
from repolicy.prepare.spending import describe_spending, estimate_spending
from repolicy.priors import MeanFunction
from repolicy.readers.reading import Options
from repolicy.runs import Request, Result, RunFolder, Settings, complete_settings, torchrun_place


@with_torch_defaults()
def train(
    env: EnvLike,
    objective: Objective | None = None,
    out: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    addon: Wish = (),
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    env_timeout: float | None = None,
    observe: str = "",
    observe_critic: str = "",
    trust: bool = False,
) -> Result:
    """Train a new policy, and return the run's result.

    Args:
        env: an id, or a function that makes one environment.
        objective: the terms of the return and their weights; by default `soft()`, with the usual alpha.
        out: the run's folder, for all its files; by default `runs/ENV-OBJECTIVE-SEED`.
        settings: how to train, such as `{"steps": 300_000}`; the rest is as in `train_defaults(env)`. A `Settings` is
            taken whole.
        addon: an add-on reward for the objective `full`: a name, a function, or a list of them.
        resume: continue the run in the folder, if there is one; arguments that are not given stay as they were.
        callbacks: objects that follow the run, with the methods of `repolicy.learning.run.Callback`.
        progress: show the live display; by default in a terminal or a notebook.
        env_timeout: seconds after which an environment step that hangs ends the process; after a minute it is
            reported on stderr in any case.
        observe: the parts of a Dict observation that the policy sees, "KEY,KEY"; by default `state` or `policy` if
            there is a part for a critic too, else all.
        observe_critic: the parts that the critic sees; by default, if `observe` is not named, `privileged_state`
            beside `state`, `critic` beside `policy`; else what the policy sees.
        trust: run code that the resumed run names as its add-on.
    """
    callbacks = [*callbacks, *session.display_callbacks(progress)]
    options = RequestOptions.from_arguments(env, addon, objective=objective)
    folder = RunFolder(session.folder_for(out, options.env, objective or soft(), settings, resume))
    folder.check_new(resume)  # before anything slow
    earlier = session.earlier_request(folder, resume, trust, options)
    options = options.filled_from(earlier)
    env = with_observed_keys(options.env, observe, observe_critic)
    if earlier is not None:
        env = with_observed_keys_of(env, earlier.env)

    usual = train_defaults(env) if earlier is None else earlier.settings
    settings, notes = session.ranks_for(complete_settings(settings, usual), [env, *options.addons])
    objective, settings = session.resume_choices(options.objective or soft(), settings.resolved(), earlier, folder.path)
    checks.check_steps(settings)
    with watchdog(env_timeout):
        env = with_observation_roles(env, backend=settings.backend)
        decision = decide(objective, None, env, options.addons, settings)
        objective = decision.objective
        if objective.reads_prior or objective.reads_states or objective.dials or addon_names.dials(options.addons):
            raise UsageError("a weight on omega or states, or a range of weights, needs a prior: use customize")
        request = Request(env, objective, decision.settings, options.addons)
        checks.check_request(request)
        headline = f"training in {env}, into {session.describe_folder(folder, resume, earlier)}"
        notes = [headline, *notes, *decision.notes]
        with locked(folder):
            return run(request, folder, resume, callbacks, notes, env_timeout)


@with_torch_defaults()
def customize(
    prior: str | Path | Policy | Result | Prior | MeanFunction,
    addon: Wish = (),
    objective: Objective | None = None,
    out: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    env: EnvLike | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    env_timeout: float | None = None,
    observe: str = "",
    observe_critic: str = "",
    trust: bool = False,
    std: float | Literal["fit"] | None = None,
    reading: Options | None = None,
    init: str | Path = "auto",
    noise: int = 0,
    chunk: int = 1,
    sparse: bool = False,
    limits: str | Sequence[str] = (),
) -> Result:
    """Give a trained policy a new requirement, without the reward that trained it.

    The actor starts as a copy of the prior, with the prior's observation statistics, which stay fixed. The critic is
    new and is fitted alone for the first `settings.critic_warmup` of the steps. The run's folder gets a copy of the
    prior. A prior that cannot be copied is used as a program: the actor is first fitted to it, and to resume, the prior
    has to be given again.

    Args:
        prior: a policy's file, a run's folder, the name of a policy that ships, a policy, the result of a run; or an
            object with `log_prob`, a function from observations to mean actions, or `module:name` of one.
        addon: the new requirement as a reward: a name, a function, or a list of them.
        objective: the terms of the return and their weights; by default `residual()`, with weights that are found.
        out: the run's folder; by default `runs/PRIOR-OBJECTIVE-SEED`.
        settings: how to train, such as `{"steps": 300_000}`; the rest follows from the prior's shape and the steps
            (docs/train.md). A `Settings` is taken whole.
        env: an id, or a function that makes one environment; by default the one that the prior was trained in.
        resume: continue the run in the folder, if there is one; arguments that are not given stay as they were.
        callbacks: objects that follow the run, with the methods of `repolicy.learning.run.Callback`.
        progress: show the live display; by default in a terminal or a notebook.
        env_timeout: seconds after which an environment step that hangs ends the process.
        observe: the parts of a Dict observation that the policy sees; by default those that fit the prior.
        observe_critic: the parts that the critic sees, as in `train`.
        trust: run code: a prior in TorchScript, or code that the prior's file or the resumed run names.
        std: the std of actions, for a prior that has none.
        reading: options for reading another library's file.
        init: "copy" starts the actor as the prior, "clone" fits it to the prior first, "auto" clones only a prior that
            cannot be copied; the file of a policy with the prior's architecture starts it as that policy.
        noise: for a generative policy, which turns observations and noise into actions: the number of noise entries.
            An object with `decode` may have it as `noise_size`, and `chunk` as well. The run then chooses the noise,
            and the prior over it is N(0, I).
        chunk: the number of consecutive actions that a generative policy returns at a time.
        sparse: accept an add-on that is constant over some thousand trial steps.
        limits: bounds that the mean action must meet, such as "energy<=0.09"; the name is an add-on, an entry of
            `info`, or file.py:function. (The setting `keep` bounds the loss of the old return.)
    """
    callbacks = [*callbacks, *session.display_callbacks(progress)]
    reading = reading if std is None else replace(reading or Options(), std=std)
    options = RequestOptions.from_arguments(env, addon, limits, objective, sparse)
    folder = RunFolder(session.folder_for(out, prior, objective or residual(), settings, resume))
    folder.check_new(resume)  # before anything slow
    trusted = trust or isinstance(prior, Result)  # a result is of this session, and so is the code that it names
    earlier = session.earlier_request(folder, resume, trusted, options, customizes=True)
    options = options.filled_from(earlier)
    if not options.addons:
        raise UsageError(f"customizing {checks.NO_ADDON}")
    if earlier is not None and init == "auto":
        if earlier.init:
            init = folder.init
        elif folder.prior.is_file() and "clone_of" in read_card(folder.prior):
            init = "clone"

    # Open the prior, which names its environment and its settings.
    objective, resumed = options.objective or residual(), earlier is not None
    env = options.env and with_observed_keys(options.env, observe, observe_critic)
    if earlier is not None:
        env = with_observed_keys_of(env, earlier.env)
    start, env = open_start(prior, env, settings, noise, chunk, trust, folder.prior, resumed, reading, init)
    if earlier is not None and start.content:  # before another shape of the prior is blamed; a clone is not fitted yet
        folder.check_prior(earlier, start.checksums[0])
    env = env or with_observed_keys(start.env(trust), observe, observe_critic)
    usual = start.default_settings(env, settings) if earlier is None else earlier.settings
    settings = complete_settings(settings, usual)
    if earlier is None:  # whose omega began at alpha, if nobody named it
        checks.check_moved_alone(objective, settings)
    settings, notes = session.ranks_for(settings, [env, *options.addons], start.session_only)
    objective, settings = session.resume_choices(objective, settings.resolved(), earlier, folder.path)
    checks.check_steps(settings)
    with watchdog(env_timeout):
        env = start.with_roles(env, settings.backend)
        checks.check_wish(options.addons, env)  # before anything slow
        where = session.describe_folder(folder, resume, earlier)
        headline = f"customizing {session.display_name(prior)} in {env} to {' + '.join(options.addons)}, into {where}"
        notes = [headline, *notes, *start.notes, *checks.unused_settings(settings)]
        request = Request(env, objective, settings, options.addons, sparse=options.sparse, limits=options.limits)
        with locked(folder):
            start, request = _prepare_start(start, request, folder, init, resumed, callbacks, notes)
            return run(request, folder, resume, callbacks, notes, env_timeout, start)


def _prepare_start(
    start: Start,
    request: Request,
    folder: RunFolder,
    init: str | Path,
    resumed: bool,
    callbacks: Sequence[Callback],
    notes: list[str],
) -> tuple[Start, Request]:
    """Complete `start` with the actor's initial policy, and `request` with all weights; add sentences to `notes`."""

    def say(note: str) -> None:
        """Announce that a slow step begins, after all notes so far."""
        announce(callbacks, [*notes, note])
        notes.clear()

    # The actor starts as a copy of the prior, as a policy fitted to it, or as another policy.
    was_fitted = folder.prior.exists()  # before, by a sweep or by this run
    start = start.fit_clone(request.env, request.settings, folder.prior, say)
    if init not in INITS:
        start = start.with_initial_policy(init)
        notes.append(f"the actor begins as {init}, and {start.name} stays the prior")
    prior = start.saved
    assert prior is not None
    prior_checksum, init_checksum = start.checksums
    request = replace(request, prior=prior_checksum, init=init_checksum)

    # Try the add-on, and measure what a generative policy earns before training.
    tried, varies_by = checks.try_addon(prior.policy, request)
    notes += tried
    untrained = 0
    if not request.is_judged_by_mean and not resumed:
        say(
            "evaluating it without training: smaller noise, and the best of 16 draws in copies of the environment, "
            "which can take minutes"
        )
        sentences, untrained = evaluate_untrained(prior.policy, request.env, request.addons, request.settings)
        notes += sentences

    # Choose the weight of each term of the return.
    request, decision = checks.choose_weights(request, prior, say)
    notes += [*decision.notes, *checks.describe_weak_wish(varies_by, request)]
    if not resumed:
        length = float(prior.card.get("evaluation", {}).get("evaluation_length", EPISODE_CAP))
        fitting = 0 if was_fitted or start.scoring_prior is None else prior.card["clone_of"]["steps"]
        spending = estimate_spending(request, decision.steps, length, untrained, fitting)
        notes.append(describe_spending(spending, parse_env_name(request.env).chunk_length))
    return start, request


def locked(folder: RunFolder) -> AbstractContextManager[None]:
    """Lock the folder for preparation and run; under torchrun `run` does so, on the first rank."""
    return folder.locked() if torchrun_place() is None else nullcontext()


def watchdog(env_timeout: float | None) -> Watchdog:
    """Return a watchdog for environment steps of this process: the first rank or, under torchrun, any rank."""
    if env_timeout is not None and not env_timeout > 0:
        raise UsageError(f"env_timeout is {env_timeout}; it must be a number of seconds above 0")
    rank, _ = torchrun_place() or (0, 1)
    return Watchdog(rank, env_timeout)
