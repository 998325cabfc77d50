"""A run, and the two ways into it: `train()` from nothing and `customize()` from a prior."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from repolicy.envs import (
    LONGEST,
    EnvLike,
    Limit,
    Watchdog,
    addons,
    chunk_of,
    decoder,
    env_name,
    probed,
    with_observed,
    with_observed_of,
    with_roles,
)
from repolicy.envs import limits as limits_of
from repolicy.errors import UsageError
from repolicy.learning.run import Callback, run, tell
from repolicy.objective import Objective, residual, soft
from repolicy.policies import Policy, Prior
from repolicy.prepare import session
from repolicy.prepare.beginning import INITS
from repolicy.prepare.decision import decide
from repolicy.prepare.defaults import train_defaults
from repolicy.prepare.generative import free, start_of
from repolicy.prepare.spending import spending
from repolicy.prepare.states import check_learnable
from repolicy.prepare.weights import trial
from repolicy.priors import Function
from repolicy.readers.reading import Options
from repolicy.runs import ACTORS, Request, Result, RunFolder, Settings, check_dials, spec_for, torchrun_place


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
    name, wishes = env_name(env), addons.names(addon)
    callbacks = [*callbacks, *session.shown(progress)]
    wanted = objective or soft()
    folder = RunFolder(session.folder_for(out, name, session.called_objective(wanted), settings, resume))
    folder.check_new(resume)  # before anything that takes a while
    before = session.earlier(folder, resume, trust, env=name, addon=wishes)
    name = with_observed(name, observe, observe_critic)
    if before is not None:
        wishes = wishes or before.addons
        wanted = before.objective if objective is None else wanted
        name = with_observed_of(name, before.env)
    usual = train_defaults(name) if before is None else before.settings
    how, notes = session.ranks_for(session.settings_of(settings, usual), [name, *wishes])
    wanted, how = session.continued(wanted, how.resolved(), before, folder.path)
    with watchdog(env_timeout):
        name = with_roles(name, backend=how.backend)
        notes = [f"training in {name}, into {folder.path}", *notes]
        wanted, how, chosen, _ = decide(wanted, None, name, wishes, how)
        if wanted.reads_prior:
            raise UsageError("an objective with omega above 0 needs a prior: use customize")
        if wanted.reads_states:
            raise UsageError("an objective with states above 0 needs a prior, whose states they are: use customize")
        if wanted.dials or addons.dials(wishes):
            raise UsageError("a range of weights needs a prior, which the dial begins as: use customize")
        request = Request(name, wanted, how, wishes)
        check(request)
        return run(request, folder, resume, callbacks, [*notes, *chosen], env_timeout=env_timeout)


def customize(
    prior: str | Path | Policy | Result | Prior | Function,
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
    callbacks = [*callbacks, *session.shown(progress)]
    wishes, name = addons.names(addon), None if env is None else env_name(env)
    held = (limits,) if isinstance(limits, str) else tuple(limits)
    wanted = objective or residual()
    reading = reading if std is None else replace(reading or Options(), std=std)
    folder = RunFolder(session.folder_for(out, prior, session.called_objective(wanted), settings, resume))
    folder.check_new(resume)  # before anything that takes a while
    # Resume: what is not named again is as it was.
    trusted = trust or isinstance(prior, Result)  # the names are of this session
    before = session.earlier(folder, resume, trusted, env=name, addon=wishes, limits=held, customizes=True)
    if before is not None:
        wishes, name, sparse = wishes or before.addons, name or before.env, sparse or before.sparse
        wanted, held = before.objective if objective is None else wanted, held or before.limits
        init = folder.init if before.init and init == "auto" else init
    if not wishes:
        raise UsageError(f"customizing {NO_ADDON}")
    # Open the prior, which tells its environment and its settings.
    resumed = before is not None
    start, name = start_of(prior, name, settings, noise, chunk, trust, folder.prior, resumed, reading, init)
    name = with_observed(name or start.env(trust), observe, observe_critic)
    usual = start.usual(name, settings) if before is None else before.settings
    how, notes = session.ranks_for(start.settings(session.settings_of(settings, usual)), [name, *wishes])
    wanted, how = session.continued(wanted, how.resolved(), before, folder.path)
    check_steps(how)
    with watchdog(env_timeout):
        name = start.with_roles(name, how.backend)
        addons.combined(addons.at(wishes))  # what is wrong there is said before what takes a while
        addons.check_env(wishes, name)
        saying = f"customizing {session.called(prior)} in {name} to {' + '.join(wishes)}, into {folder.path}"
        notes = [saying, *notes, *start.notes, *unused(how)]

        def say(note: str) -> None:
            """Tell what takes a while; the notes until then come first."""
            tell(callbacks, [*notes, note])
            notes.clear()

        # The actor begins as the prior, as what is fitted to it, or as another policy.
        start = start.cloned(name, how, folder.prior, say)
        start.check_not_fitted_to_another(folder.prior)
        if init not in INITS:
            start = start.beginning_as(init)
            notes.append(f"the actor begins as {init}, and {start.name} stays the prior")
        saved = start.saved
        assert saved is not None
        # Look at the wish, and at what a generative policy earns untrained.
        notes += try_addon(saved.policy, name, wishes, how, sparse, limits_of(held, name))
        untrained = 0
        if decoder(name) is not None and before is None:
            told, untrained = free(saved.policy, name, wishes, how)
            notes += told
        # Decide what each term of the return weighs.
        wanted, how, chosen, measured = decide(wanted, saved, name, wishes, how, say)
        if not wanted.reads_addon:
            raise UsageError("customizing needs an objective whose task is the add-on: residual, kl or greedy")
        kept_prior, kept_init = start.checksums
        request = Request(name, wanted, how, wishes, kept_prior, sparse, held, kept_init)
        check(request)
        if wanted.reads_states:
            check_learnable(saved.policy)
        if before is None:
            length = float(saved.card.get("evaluation", {}).get("evaluation_length", LONGEST))
            chosen = [*chosen, spending(request, measured, length, untrained, start.trials).sentence(chunk_of(name))]
        return run(request, folder, resume, callbacks, [*notes, *chosen], env_timeout, start)


NO_ADDON = (
    "needs an add-on, the new requirement: --addon NAME, or file.py:function for one of your own "
    "(repolicy addons lists those that ship)"
)


def unused(settings: Settings) -> list[str]:
    """Return a note on what customizing has no use for."""
    named = [name for name in ACTORS if getattr(settings, name) != getattr(Settings, name)]
    return [f"{' and '.join(named)} changed nothing: the actor begins as its prior"] if named else []


def try_addon(
    prior: Policy, env: str, wishes: tuple[str, ...], settings: Settings, sparse: bool, limits: Sequence[Limit] = ()
) -> list[str]:
    """Drive the prior for some steps and look at each add-on and limit: its shape, whether it is finite, its range."""
    rollout = trial(prior, env, settings)
    means = {limit: limit.values(rollout, prior.observation_size).mean() for limit in limits}
    notes = [f"limit {limit}: {mean:.3g} a step under the prior" for limit, mean in means.items()]
    if settings.keep is not None:
        if not np.isfinite(rollout.basic).all():
            raise UsageError(f"--keep needs the environment's own reward, and {env} does not tell it")
        notes.append("the environment's own reward is read to tell what share of it is kept, and for nothing else")
    for name in addons.at(wishes):
        addon = addons.combined([name])
        reward = addon.reward(rollout.transitions)
        if addon.reported is not None:
            addon.metric(rollout.transitions)
        if reward.min() == reward.max() and not sparse:
            why = "if it is meant to be that rare, add --sparse" if any(addon.weights) else "its weight is 0"
            if any(addon.weights) and not reward.any() and (option := addons.option_of(name)):
                why = f"{env} counts it with the weight 0, so name it as {env}{'&' if '?' in env else '?'}{option}"
            same = f"gave the same reward, {reward.min():g}, in all of {reward.size:,} trial steps"
            raise UsageError(f"add-on {name!r} {same}; {why}")
        ends = f"{reward.min():.3g} to {reward.max():.3g}"
        notes.append(f"add-on {name}: {ends}, mean {reward.mean():.3g} a step under the prior")
    return notes


def watchdog(env_timeout: float | None) -> Watchdog:
    """Return what notices an environment that hangs, in the first rank or, under torchrun, in each."""
    if env_timeout is not None and not env_timeout > 0:
        raise UsageError(f"env_timeout is {env_timeout}; it must be a number of seconds above 0")
    rank, _ = torchrun_place() or (0, 1)
    return Watchdog(rank, env_timeout)


def check_steps(settings: Settings) -> None:
    """Refuse a customization that would end before its first update."""
    if settings.steps < settings.iteration_steps:
        few = f"steps is {settings.steps:,}, and one update takes {settings.iteration_steps:,}"
        raise UsageError(f"{few}: name that many at least, or fewer --envs or --n-steps")


def check(request: Request) -> None:
    """Refuse early what cannot work, before anything is written."""
    if request.objective.reads_addon and not request.addons:
        raise UsageError(f"this {NO_ADDON}")
    if request.addons and not request.objective.reads_addon:
        raise UsageError("this objective's task is the basic reward alone, so an add-on has no effect: leave it out")
    check_dials(request)
    addons.combined(addons.at(request.addons))
    addons.check_env(request.addons, request.env)
    spec_for(probed(request.env, request.settings.backend, critic=True), request.settings)
    settings, objective = request.settings, request.objective
    if settings.kl_budget is not None and not 0 < objective.omega == objective.alpha:
        what = "a KL budget moves omega and alpha together, from one value on: it goes with customize --omega auto"
        raise UsageError(f"{what}, or in Python with kl(alpha)")
    if settings.log_prior_budget is not None and not (objective.omega > 0 and objective.alpha > 0):
        raise UsageError(
            "a log-prior budget moves omega from a value above 0 on, at a fixed alpha above 0: it goes with customize "
            "--omega auto, or in Python with residual(omega, alpha)"
        )
    if settings.keep is not None and not (request.prior and objective.omega > 0):
        raise UsageError("keep moves omega, from a value above 0 on: it goes with customize, and not with greedy")
    if request.prior:
        check_steps(settings)
    if request.prior and request.settings.family != "auto":
        raise UsageError("a policy keeps the family of its prior while it is customized: leave --family out")
