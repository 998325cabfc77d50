"""What a run begins with: its folder, its prior, and what it was asked for before, where it is resumed."""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repolicy.envs import Backend, Limit, addons, confirm, decoder, env_of, only_here, placed, probed, with_roles
from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import as_file_name, stem_of
from repolicy.objective import WEIGHTS, Objective
from repolicy.objective_names import name_of
from repolicy.policies import Conditioned, Policy, SavedPolicy, frozen, notes_of, policy_bytes, seeded
from repolicy.policies.storage import read, write
from repolicy.prepare.cloning import clone, spec_of
from repolicy.prepare.defaults import STEPS, customize_defaults
from repolicy.prepare.weights import trial
from repolicy.priors import (
    MeanPrior,
    ScoredPrior,
    Scoring,
    Source,
    find_policy,
    opened,
    own_bytes,
    read_policy,
    source_of,
    take_out,
)
from repolicy.priors import name_of as called_prior
from repolicy.readers.reading import Options
from repolicy.runs import (
    BUDGETS,
    AnySettings,
    Request,
    Result,
    RunFolder,
    S,
    Settings,
    spec_for,
    torchrun_place,
    validated,
    versions,
)


def ranks_for(settings: Settings, names: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return one rank where a function or an id lives in this process alone; refused where more were asked for."""
    name = only_here(names)
    if not name or torchrun_place() is not None:  # under torchrun every process has run the same program
        return settings, []
    if settings.ranks > 1:
        what = f"{name!r} lives in this Python session alone, and {settings.ranks} ranks must import it"
        raise UsageError(f"{what}: write it into a file and name it as file.py:{name}, or set ranks=1")
    sentence = f"one rank: {name!r} lives in this Python session; name it as file.py:{name} for every core"
    return replace(settings, ranks=1), [sentence] * (settings.ranks == 0)


RUNS = Path("runs")


def folder_for(
    out: str | Path | None, name: object, objective: str, settings: Any, resume: bool, root: Path = RUNS
) -> Path:
    """Return the run's folder; without a name, runs/NAME-OBJECTIVE-SEED or, where that is taken, the next free one."""
    if out is not None:
        return Path(out)
    stem = called(name)
    seed = settings.get("seed", 0) if isinstance(settings, Mapping) else getattr(settings, "seed", 0)
    plain = root / f"{as_file_name(stem_of(stem) if '/' in stem else stem)}-{objective}-{seed}"
    if resume:
        return plain
    tried, count = plain, 1
    while os.path.exists(tried):  # False where the name is too long, which is said later
        count += 1
        tried = plain.with_name(f"{plain.name}-{count}")
    return tried


def called_objective(objective: Objective) -> str:
    """Return what a run's folder calls its objective: not each has a name."""
    if not isinstance(objective, Objective):
        kind = type(objective).__name__
        raise UsageError(f"the objective is a {kind}, and no objective such as residual(); for settings, settings=...")
    named = name_of(objective)
    return "custom" if named is None else named[0]


def called(thing: object) -> str:
    """Return what to call an environment, or a prior in whatever form; a run's folder is named after it."""
    if isinstance(thing, str | Path | Policy):
        return "policy" if isinstance(thing, Policy) else str(thing)
    return str(thing.folder) if isinstance(thing, Result) else called_prior(thing)


def earlier(
    folder: RunFolder,
    resume: bool,
    trust: bool,
    *,
    env: str | None,
    addon: Sequence[str],
    limits: Sequence[str] = (),
    customizes: bool = False,
) -> Request | None:
    """Return what the run that is resumed was asked for, None where there is none.

    What is not named again, `env` or `addon`, is taken from there. Raises UsageError where that is code which nobody
    trusts, or where it is a run of the other function.
    """
    kept = folder.request() if resume else None
    if kept is None:
        return None
    if bool(kept.prior) != customizes:
        whose = "customize" if kept.prior else "train"
        raise UsageError(f"{folder.path} is a run of `{whose}`; go on with it by that command")
    code = [*(() if addon else kept.addons), *(Limit.of(each).name for each in (() if limits else kept.limits))]
    confirm(folder.path / "run.json", trust, env=kept.env if env is None else None, addons=code)
    take_out(folder.policy, decoder(kept.env))
    return kept


def settings_of(given: S | Mapping[str, Any] | None, usual: S) -> S:
    """Return whole settings as they are given; of a mapping, the usual ones with its values in place of theirs."""
    if isinstance(given, AnySettings):
        return given  # type: ignore[return-value]
    return replace(usual, **validated(dict(given or {}), "settings", type(usual)))


def continued(
    objective: Objective, settings: Settings, before: Request | None, out: Path
) -> tuple[Objective, Settings]:
    """Return both with what the run that is resumed chose by itself, where nobody names another.

    A run that could not tell what a nat is worth has taken a budget, and both weights began at alpha.
    """
    if before is None:
        return objective, settings
    kept, budget = before.settings, before.settings.budget
    by_itself = objective == before.objective or not isinstance(objective.omega, float)
    if budget is not None and settings.budget is None and by_itself:
        settings = replace(settings, **{name: getattr(kept, name) for name in BUDGETS})
    other = ""
    if budget is not None and kept.keep is None and not by_itself:
        other = f"{budget.words}, and now omega is to be {objective.omega:g}"
    elif budget is None and settings.budget is not None:
        other = f"it has no budget, and now {settings.budget.words}"
    if other:
        raise UsageError(f"{out} cannot be resumed with other settings: {other}")
    unset = [name for name in WEIGHTS if getattr(objective, name) in (None, "auto", "alpha")]
    return replace(objective, **{name: getattr(before.objective, name) for name in unset}), settings


KEPT = 32  # steps of a trial in each of its environments, by which a resumed run is known again
CLOSE = 1e-3  # of a number's largest value: another processor rounds otherwise, and a robot makes more of it


def begun(request: Request, folder: RunFolder, resume: bool, start: "Start | None") -> list[str]:
    """Claim the folder for a run. Returns what is to be said.

    Raises where an environment or an add-on does not give what it gave when the run began, though it repeats itself
    and the versions are the same: the source of one of them, or what it imports, has changed.
    """
    prior, init = (None, None) if start is None else (start.content, start.init)
    notes = folder.begin(request, versions(), resume, prior, init)
    now = _tried(request, folder)
    if not folder.trial.exists():
        write(folder.trial, "trial", now, {})
        return notes
    kept, _ = read(folder.trial, "trial")
    if (what := _parted(kept, now)) is None:
        return notes
    sentence = f"{what} is not what it was when the run in {folder.path} began: the same trial steps differ"
    if _parted(now, _tried(request, folder)) is not None:
        return [*notes, f"{sentence}, and they do not repeat themselves: no run of it ends in the same bits"]
    if any("other versions" in note for note in notes):
        return [*notes, sentence]
    raise UsageError(f"{sentence}; put its source back, or begin a run of its own in another --out")


def _tried(request: Request, folder: RunFolder) -> dict[str, Tensor]:
    """Return what environment and add-ons give in some steps, without what fails there, which the run then says."""
    settings, found = request.settings, dict[str, Tensor]()
    with contextlib.suppress(RepolicyError):
        if request.prior:
            agent = read_policy(folder.prior).policy
        else:
            agent = seeded(spec_for(probed(request.env, settings.backend), settings), settings.seed)
        rollout = trial(agent, request.env, settings, KEPT)
        found[f"environment {request.env!r}"] = torch.from_numpy(rollout.observations)
        if request.objective.reads_basic:
            found[f"the reward of {request.env!r}"] = torch.from_numpy(rollout.basic)
        for name in addons.at(request.addons):
            reward = addons.combined([name]).reward(rollout.transitions)
            found[f"add-on {name!r}"] = torch.as_tensor(reward, dtype=torch.float64)
    return found


def _parted(kept: dict[str, Tensor], now: dict[str, Tensor]) -> str | None:
    """Return the first thing whose numbers `[T, N, ...]` are others than those that were kept."""
    for name in sorted(kept, key=lambda name: (name.startswith("add-on"), name)):  # which follow the environment
        before, after = kept[name], now.get(name)
        if after is None or after.shape != before.shape:
            return name
        near = (after - before).abs() <= CLOSE * before.nan_to_num().abs().amax((0, 1))
        if not bool((near | (after.isnan() & before.isnan())).all()):
            return name
    return None


def shown(progress: bool | None) -> list[Any]:
    """Return the live display, by default where somebody looks: in a terminal or a notebook."""
    if progress is None:
        progress = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    place = torchrun_place()
    if not progress or (place is not None and place[0] > 0):
        return []
    from repolicy.runs import Display

    return [Display()]


# What a customization starts from -------------------------------------------------------------------------------------


INITS = ("auto", "copy", "clone")  # whatever else is the file of a policy that the actor begins as


@dataclass(frozen=True)
class Start:
    """What a user gave as a prior, and the policy that the actor starts as."""

    given: Any
    name: str
    saved: SavedPolicy | None  # the policy that the actor starts as
    content: bytes  # of its file
    scoring_prior: Scoring | None = None  # where `saved` is no copy of it, but fitted to it
    source: Source | None = None  # how other processes load that
    init: bytes | None = None  # the file of what the actor starts as, where that is another policy than `saved`
    trials: int = 1  # how often some steps of it are looked at before the run

    def env(self, trust: bool) -> str:
        """Return the environment that the prior was made for, where it is known."""
        if self.saved is None:
            raise UsageError(f"{self.name} does not say which environment it is for; name one with --env")
        if isinstance(self.given, Policy):
            raise UsageError("a policy alone does not say which environment it is for; give env=...")
        session = isinstance(self.given, Result)  # the names in it come from this session
        return env_of(self.saved.card, Path(self.name), trust=session or trust)

    def settings(self, settings: Settings) -> Settings:
        """Return the settings with as many ranks as can have the prior."""
        if self.scoring_prior is not None and settings.log_prior_budget is not None:
            what = "a log-prior budget asks how likely the prior's own actions are, which only a copied policy tells"
            raise UsageError(f"{what}: take a KL budget")
        if self.scoring_prior is None or self.source is not None or torchrun_place() is not None:
            return settings
        if settings.ranks > 1:
            alone = f"{self.name} is an object of this program, which the other ranks cannot import"
            raise UsageError(f"{alone}: take one rank, or put it into a module and name it as module:function")
        return replace(settings, ranks=1)

    def usual(self, env: str, settings: Settings | Mapping[str, Any] | None) -> Settings:
        """Return the default settings for as many steps as these name."""
        steps = settings.get("steps") if isinstance(settings, Mapping) else None
        steps = STEPS if steps is None else validated({"steps": steps}, "settings")["steps"]
        if self.scoring_prior is None:
            assert self.saved is not None
            return customize_defaults(self.saved.policy, steps)
        prior, env = self.scoring_prior, self.with_roles(env)
        if isinstance(prior, MeanPrior):
            prior, env = placed(prior, env)
        return customize_defaults(Policy(spec_of(prior, probed(env))), steps)

    def with_roles(self, env: str, backend: Backend = "auto") -> str:
        """Return the environment's name with the parts that this prior and a critic observe."""
        who: object = self.scoring_prior
        if self.saved is not None:
            who = self.saved.policy
        elif isinstance(who, MeanPrior):
            who = who.mean
        return with_roles(env, getattr(who, "observation_size", 0), backend)

    @property
    def notes(self) -> list[str]:
        notes = [] if self.saved is None else notes_of(self.saved.card)
        if isinstance(self.scoring_prior, MeanPrior | ScoredPrior):
            notes += self.scoring_prior.notes
        return notes

    def cloned(self, env: str, settings: Settings, file: Path, say: Callable[[str], None]) -> "Start":
        """Return the same with a policy to start from, fitted to the prior where it is no copy of it."""
        prior = self.scoring_prior
        if prior is None:
            return self
        if isinstance(prior, MeanPrior):
            prior, env = placed(prior, env, settings.backend)
        saved, content = clone(prior, env, settings, file, say)
        return replace(self, saved=saved, content=content, scoring_prior=prior)

    @property
    def checksums(self) -> tuple[str, str]:
        """Those of the prior's file, and of what the actor begins as where that is another."""
        prior, init = (hashlib.sha256(each).hexdigest() if each else "" for each in (self.content, self.init))
        return prior, init

    def beginning_as(self, file: str | Path) -> "Start":
        """Return the same with another policy to start from, of the prior's shape: the prior scores its actions."""
        first, prior = read_policy(find_policy(file)), self.saved
        assert prior is not None
        for name in ("observation_size", "actions", "family", "clips"):
            ours, theirs = (getattr(each.policy.spec, name) for each in (first, prior))
            if ours != theirs:
                raise UsageError(
                    f"the actor cannot begin as {file}: its {name.replace('_', ' ')} ({ours}) and the prior's "
                    f"({theirs}) are not the same; take a policy that was made of {self.name}"
                )
        return replace(self, init=own_bytes(first))

    def check_not_fitted_to_another(self, kept: Path) -> None:
        """Raise where a run is resumed from its own copy of its prior, and that was only fitted to what scores."""
        if self.scoring_prior is None and self.saved is not None and "clone_of" in self.saved.card:
            named = Path(self.name)
            if named.is_file() and kept.is_file() and named.samefile(kept):
                raise UsageError(f"{kept} was only fitted to the prior of this run, which scores it: name that prior")


def open_prior(
    given: Any, reading: Options | None = None, init: str | Path = "auto", trust: bool = False, file: Path = Path()
) -> Start:
    """Read what a user gave as a prior, once; it is not fitted yet. `file` is the copy that a run keeps."""
    reference = given.folder if isinstance(given, Result) else given
    found = opened(reference, reading, trust)
    name, agent = found.name, found.agent
    if isinstance(agent, MeanPrior | ScoredPrior):
        if init == "copy":
            raise UsageError(f"{name} cannot be copied; leave --init out, and the actor is fitted to it")
        return Start(given, name, None, b"", agent, source_of(reference, agent, reading, trust))
    if found.saved is None:  # module:name may lead to one, too
        if reading not in (None, Options()):
            raise UsageError(
                f"{name} is a policy of Repolicy's, which has all that it needs: leave std and reading out"
            )
        saved, content = SavedPolicy(frozen(agent), None, {}), policy_bytes(agent, {})
    elif isinstance(agent, Conditioned):
        raise UsageError(f"a policy with {agent.words} is no prior; keep a position of it with `repolicy dial`")
    else:
        saved, content = found.saved, b"" if init == "clone" else own_bytes(found.saved, file)
    if init != "clone":
        return Start(given, name, saved, content)
    return Start(given, name, saved, content, saved.policy, source_of(reference, saved.policy, reading, trust))
