"""The two entry points of training: `train()` from scratch and `customize()` from a prior."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from repolicy.envs import (
    EPISODE_CAP,
    EnvLike,
    Watchdog,
    addons,
    chunk_length,
    decoder_options,
    with_observation_roles,
    with_observed_keys,
    with_observed_keys_of,
)
from repolicy.errors import UsageError
from repolicy.learning.run import Callback, announce, run
from repolicy.objective import Objective, residual, soft
from repolicy.policies import Policy, Prior
from repolicy.prepare import session
from repolicy.prepare.beginning import INITS, Start
from repolicy.prepare.checks import (
    NO_ADDON,
    check_request,
    check_settings,
    check_wish,
    choose_weights,
    try_addon,
    unused_settings,
)
from repolicy.prepare.decision import decide
from repolicy.prepare.defaults import train_defaults
from repolicy.prepare.generative import evaluate_untrained, open_start
from repolicy.prepare.session import RequestOptions
from repolicy.prepare.spending import estimate_spending
from repolicy.priors import MeanFunction
from repolicy.readers.reading import Options
from repolicy.runs import Request, Result, RunFolder, Settings, torchrun_place


def train(
    env: EnvLike,
    objective: Objective | None = None,
    out: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    addon: addons.Wish = (),
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    env_timeout: float | None = None,
    observe: str = "",
    observe_critic: str = "",
    trust: bool = False,
) -> Result:
    """Train a policy from nothing, and return the run's result.

    Args:
        env: an id, or a function that makes one environment.
        objective: what the return contains; by default `soft()`, with the usual alpha.
        out: the run's folder, which holds everything of it; by default `runs/ENV-OBJECTIVE-SEED`.
        settings: how to train, such as `{"steps": 300_000}`; what is not in it is as in `train_defaults(env)`.
        addon: a wish for `full`: a name, a function, or a list of them.
        resume: go on with the run in the folder, if there is one; what is not given again is as it was.
        callbacks: objects that are told of each iteration, as `repolicy.learning.run.Callback` says.
        progress: show the live display; by default in a terminal or a notebook.
        env_timeout: seconds of one environment step that end the process; a minute is reported on stderr in any case.
        observe: of an observation that is a Dict, the parts that the policy sees, "KEY,KEY"; by default `state` or
            `policy` where there is a part for a critic too, else all.
        observe_critic: the parts that the critic sees; by default `privileged_state` beside `state`, `critic` beside
            `policy`, else what the policy sees.
        trust: run code that the resumed run names as its add-on.
    """
    callbacks = [*callbacks, *session.display_callbacks(progress)]
    asked = RequestOptions.from_arguments(env, addon, objective=objective)
    called = session.objective_label(objective or soft())
    folder = RunFolder(session.folder_for(out, asked.env, called, settings, resume))
    folder.check_new(resume)  # before anything that takes a while
    before = session.earlier_request(folder, resume, trust, asked)
    asked = asked.filled_from(before)
    env = with_observed_keys(asked.env, observe, observe_critic)
    if before is not None:
        env = with_observed_keys_of(env, before.env)

    usual = train_defaults(env) if before is None else before.settings
    settings, notes = session.ranks_for(session.complete_settings(settings, usual), [env, *asked.addons])
    objective, settings = session.resume_choices(asked.objective or soft(), settings.resolved(), before, folder.path)
    with watchdog(env_timeout):
        env = with_observation_roles(env, backend=settings.backend)
        decision = decide(objective, None, env, asked.addons, settings)
        objective = decision.objective
        if objective.reads_prior:
            raise UsageError("an objective with omega above 0 needs a prior: use customize")
        if objective.reads_states:
            raise UsageError("an objective with states above 0 needs a prior, whose states they are: use customize")
        if objective.dials or addons.dials(asked.addons):
            raise UsageError("a range of weights needs a prior, which the dial begins as: use customize")
        request = Request(env, objective, decision.settings, asked.addons)
        check_request(request)
        notes = [f"training in {env}, into {session.describe_folder(folder, resume, before)}", *notes, *decision.notes]
        return run(request, folder, resume, callbacks, notes, env_timeout)


def customize(
    prior: str | Path | Policy | Result | Prior | MeanFunction,
    addon: addons.Wish = (),
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

    The actor starts as the prior, with the prior's observation statistics, frozen; the critic starts fresh and is
    fitted alone for the first `settings.critic_warmup` of the steps. The run keeps a copy of the policy. A prior that
    cannot be copied scores as it is, and the actor is fitted to it first; to resume, it has to be given again.

    Args:
        prior: a policy's file, a run's folder, the name of a policy that ships, a policy, the result of a run; or an
            object with `log_prob`, a function from observations to mean actions, or `module:name` of one.
        addon: the wish: a name, a function, or a list of them.
        objective: what the return contains; by default `residual()`, with weights that are found.
        out: the run's folder; by default `runs/PRIOR-OBJECTIVE-SEED`.
        settings: how to train, such as `{"steps": 300_000}`; what is not in it is as in `customize_defaults(prior)`.
        env: an id, or a function that makes one environment; by default the one that the prior was trained in.
        resume: go on with the run in the folder, if there is one; what is not given again is as it was.
        callbacks: objects that are told of each iteration, as `repolicy.learning.run.Callback` says.
        progress: show the live display; by default in a terminal or a notebook.
        env_timeout: seconds of one environment step that end the process.
        observe: of an observation that is a Dict, the parts that the policy sees; by default what fits the prior.
        observe_critic: the parts that the critic sees, as in `train`.
        trust: run code: a prior that is TorchScript, or what the prior's file or the resumed run names.
        std: of a prior that has none, the std of its actions.
        reading: options for a file of another library.
        init: "copy" starts the actor as the prior, "clone" fits it to the prior first, "auto" clones what cannot be
            copied; a policy's file starts it as that policy, which is of the prior's shape: one that was planned.
        noise: of a generative policy, which turns observations and noise into actions: how many numbers of noise it
            takes; an object with `decode` may tell it as `noise_size`, and its `chunk`. The noise is what is chosen
            then, and N(0, I) the prior.
        chunk: how many actions in a row a generative policy gives at a time.
        sparse: accept an add-on that is constant over some thousand trial steps.
        limits: what must hold for the mean action, such as "energy<=0.09"; a name is an add-on, an entry of `info`, or
            file.py:function. A share of the old return is kept by the setting `keep`.
    """
    callbacks = [*callbacks, *session.display_callbacks(progress)]
    reading = reading if std is None else replace(reading or Options(), std=std)
    asked = RequestOptions.from_arguments(env, addon, limits, objective, sparse)
    called = session.objective_label(objective or residual())
    folder = RunFolder(session.folder_for(out, prior, called, settings, resume))
    folder.check_new(resume)  # before anything that takes a while
    trusted = trust or isinstance(prior, Result)  # the names are of this session
    before = session.earlier_request(folder, resume, trusted, asked, customizes=True)
    asked = asked.filled_from(before)
    if not asked.addons:
        raise UsageError(f"customizing {NO_ADDON}")
    if before is not None and before.init and init == "auto":
        init = folder.init

    # Open the prior, which names its environment and its settings.
    resumed = before is not None
    start, env = open_start(prior, asked.env, settings, noise, chunk, trust, folder.prior, resumed, reading, init)
    env = with_observed_keys(env or start.env(trust), observe, observe_critic)
    usual = start.default_settings(env, settings) if before is None else before.settings
    settings = start.limit_ranks(session.complete_settings(settings, usual))
    settings, notes = session.ranks_for(settings, [env, *asked.addons])
    objective, settings = session.resume_choices(
        asked.objective or residual(), settings.resolved(), before, folder.path
    )
    check_settings(settings)
    with watchdog(env_timeout):
        env = start.with_roles(env, settings.backend)
        check_wish(asked.addons, env)  # before what takes a while
        where = session.describe_folder(folder, resume, before)
        headline = f"customizing {session.display_name(prior)} in {env} to {' + '.join(asked.addons)}, into {where}"
        notes = [headline, *notes, *start.notes, *unused_settings(settings)]
        request = Request(env, objective, settings, asked.addons, sparse=asked.sparse, limits=asked.limits)
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
    """Return both, completed with the actor's initial policy and all weights; append sentences to `notes`."""

    def say(note: str) -> None:
        """Announce a step that takes a while, after the notes so far."""
        announce(callbacks, [*notes, note])
        notes.clear()

    # The actor starts as a copy of the prior, as a policy fitted to it, or as another policy.
    start = start.fit_clone(request.env, request.settings, folder.prior, say)
    start.check_not_a_clone(folder.prior)
    if init not in INITS:
        start = start.with_initial_policy(init)
        notes.append(f"the actor begins as {init}, and {start.name} stays the prior")
    prior = start.saved
    assert prior is not None
    prior_checksum, init_checksum = start.checksums
    request = replace(request, prior=prior_checksum, init=init_checksum)

    # Try the add-on, and measure what a generative policy earns before training.
    notes += try_addon(prior.policy, request)
    untrained = 0
    if decoder_options(request.env) is not None and not resumed:
        earned, untrained = evaluate_untrained(prior.policy, request.env, request.addons, request.settings)
        notes += earned

    # Choose the weight of each term of the return.
    request, decision = choose_weights(request, prior, say)
    notes += decision.notes
    if not resumed:
        length = float(prior.card.get("evaluation", {}).get("evaluation_length", EPISODE_CAP))
        spent = estimate_spending(request, decision.steps, length, untrained, start.trials)
        notes.append(spent.sentence(chunk_length(request.env)))
    return start, request


def watchdog(env_timeout: float | None) -> Watchdog:
    """Return a watchdog over environment steps that hang, for the first rank or, under torchrun, for each."""
    if env_timeout is not None and not env_timeout > 0:
        raise UsageError(f"env_timeout is {env_timeout}; it must be a number of seconds above 0")
    rank, _ = torchrun_place() or (0, 1)
    return Watchdog(rank, env_timeout)
