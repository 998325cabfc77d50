"""Where a run begins: its folder, what it was asked for before, where it is resumed, and who looks on."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from repolicy.envs import (
    EnvLike,
    Limit,
    Wish,
    addons,
    check_trust,
    decoder_options,
    env_name,
    find_session_only,
    probe_env,
)
from repolicy.errors import RepolicyError, UsageError
from repolicy.objective import WEIGHTS, Objective
from repolicy.objective_names import name_of
from repolicy.policies import Policy, make_policy
from repolicy.policies.storage import read, write
from repolicy.prepare.beginning import Start
from repolicy.prepare.weights import collect_trial
from repolicy.priors import qualname_of, read_policy, restore_decoder
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
    validate_settings,
    versions,
)
from repolicy.text import as_file_name, stem_of


def ranks_for(settings: Settings, names: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return one rank where a function or an id lives in this process alone; refused where more were asked for."""
    name = find_session_only(names)
    if not name or torchrun_place() is not None:  # under torchrun every process has run the same program
        return settings, []
    if settings.ranks > 1:
        what = f"{name!r} lives in this Python session alone, and {settings.ranks} ranks must import it"
        raise UsageError(f"{what}: write it into a file and name it as file.py:{name}, or set ranks=1")
    sentence = f"one rank: {name!r} lives in this Python session; name it as file.py:{name} for every core"
    return replace(settings, ranks=1), [sentence] * (settings.ranks == 0)


RUNS_FOLDER = Path("runs")


def folder_for(
    out: str | Path | None, name: object, objective: str, settings: Any, resume: bool, root: Path = RUNS_FOLDER
) -> Path:
    """Return the run's folder; without a name, runs/NAME-OBJECTIVE-SEED or, where that is taken, the next free one."""
    if out is not None:
        return Path(out)
    stem = display_name(name)
    seed = settings.get("seed", 0) if isinstance(settings, Mapping) else getattr(settings, "seed", 0)
    plain = root / f"{as_file_name(stem_of(stem) if '/' in stem else stem)}-{objective}-{seed}"
    if resume:
        return plain
    tried, count = plain, 1
    while os.path.exists(tried):  # False where the name is too long, which is said later
        count += 1
        tried = plain.with_name(f"{plain.name}-{count}")
    return tried


def objective_label(objective: Objective) -> str:
    """Return what a run's folder calls its objective: not each has a name."""
    if not isinstance(objective, Objective):
        kind = type(objective).__name__
        raise UsageError(f"the objective is a {kind}, and no objective such as residual(); for settings, settings=...")
    named = name_of(objective)
    return "custom" if named is None else named[0]


def display_name(thing: object) -> str:
    """Return what to call an environment, or a prior in whatever form; a run's folder is named after it."""
    if isinstance(thing, str | Path | Policy):
        return "policy" if isinstance(thing, Policy) else str(thing)
    return str(thing.folder) if isinstance(thing, Result) else qualname_of(thing)


@dataclass(frozen=True)
class RequestOptions:
    """What a user named for a run. What is empty was not named, and is as in the run that is resumed."""

    env: str = ""
    addons: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    objective: Objective | None = None
    sparse: bool = False

    @classmethod
    def of(
        cls,
        env: EnvLike | None,
        addon: Wish,
        limits: str | Sequence[str] = (),
        objective: Objective | None = None,
        sparse: bool = False,
    ) -> Self:
        """Return the same with names for functions, and in tuples."""
        limits = (limits,) if isinstance(limits, str) else tuple(limits)
        return cls("" if env is None else env_name(env), addons.names(addon), limits, objective, sparse)

    def completed(self, before: Request | None) -> "RequestOptions":
        """Return the same with what the earlier run was asked for in the place of what is empty."""
        if before is None:
            return self
        return RequestOptions(
            self.env or before.env,
            self.addons or before.addons,
            self.limits or before.limits,
            self.objective or before.objective,
            self.sparse or before.sparse,
        )

    def confirm(self, before: Request, file: Path, trust: bool) -> None:
        """Raise UsageError where what is empty comes from the file as code, which nobody trusts."""
        code = list[str]()
        if not self.addons:
            code += before.addons
        if not self.limits:
            code += [Limit.of(limit).name for limit in before.limits]
        check_trust(file, trust, env=None if self.env else before.env, addons=code)


def earlier_request(
    folder: RunFolder, resume: bool, trust: bool, asked: RequestOptions, customizes: bool = False
) -> Request | None:
    """Return what the run that is resumed was asked for, None where there is none.

    Raises UsageError where it is a run of the other function, or where something that is not asked for again, and so
    taken from there, is code which nobody trusts.
    """
    before = folder.request() if resume else None
    if before is None:
        return None
    if bool(before.prior) != customizes:
        whose = "customize" if before.prior else "train"
        raise UsageError(f"{folder.path} is a run of `{whose}`; go on with it by that command")
    asked.confirm(before, folder.path / "run.json", trust)
    restore_decoder(folder.policy, decoder_options(before.env))
    return before


def describe_folder(folder: RunFolder, resume: bool, before: Request | None) -> str:
    """Return where a run goes, in words; who resumes one that is not there hears that another begins."""
    return f"{folder.path}, where no run is yet: a new one begins" if resume and before is None else str(folder.path)


# Settings that only one choice of another setting reads: that choice, and whether it was made.
CONDITIONAL_SETTINGS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "desired_kl": ("schedule adaptive", lambda made: made.schedule == "adaptive"),
    "clip": ("surrogate clipped", lambda made: made.surrogate == "clipped"),
    "critic_explains": ("a critic_warmup above 0", lambda made: made.critic_warmup > 0.0),
}


def complete_settings(given: S | Mapping[str, Any] | None, usual: S) -> S:
    """Return whole settings as they are given; of a mapping, the usual ones with its values in place of theirs."""
    if isinstance(given, AnySettings):
        return given  # type: ignore[return-value]
    named = validate_settings(dict(given or {}), "settings", type(usual))
    made = replace(usual, **named)
    for name, (where, is_read) in CONDITIONAL_SETTINGS.items():
        known = {None, *(getattr(some, name, None) for some in (usual, Settings))}
        if named.get(name) not in known and not is_read(made):
            raise UsageError(f"{name} is read with {where} alone: name that too, or leave {name} out")
    return made


def resume_choices(
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


FINGERPRINT_STEPS = 32  # steps of a trial in each of its environments, by which a resumed run is known again
FINGERPRINT_TOLERANCE = (
    1e-3  # of a number's largest value: another processor rounds otherwise, and a robot makes more of it
)


def claim_folder(request: Request, folder: RunFolder, resume: bool, start: Start | None) -> list[str]:
    """Claim the folder for a run. Returns what is to be said.

    Raises where an environment or an add-on does not give what it gave when the run began, though it repeats itself
    and the versions are the same: the source of one of them, or what it imports, has changed.
    """
    prior, init = (None, None) if start is None else (start.content, start.init)
    notes = folder.begin(request, versions(), resume, prior, init)
    now = _trial_numbers(request, folder)
    if not folder.trial.exists():
        write(folder.trial, "trial", now, {})
        return notes
    kept, _ = read(folder.trial, "trial")
    if (what := _first_difference(kept, now)) is None:
        return notes
    sentence = f"{what} is not what it was when the run in {folder.path} began: the same trial steps differ"
    if _first_difference(now, _trial_numbers(request, folder)) is not None:
        return [*notes, f"{sentence}, and they do not repeat themselves: no run of it ends in the same bits"]
    if any("other versions" in note for note in notes):
        return [*notes, sentence]
    raise UsageError(f"{sentence}; put its source back, or begin a run of its own in another --out")


def _trial_numbers(request: Request, folder: RunFolder) -> dict[str, Tensor]:
    """Return what environment and add-ons give in some steps, without what fails there, which the run then says."""
    settings, found = request.settings, dict[str, Tensor]()
    with contextlib.suppress(RepolicyError):
        if request.prior:
            agent = read_policy(folder.prior).policy
        else:
            agent = make_policy(spec_for(probe_env(request.env, settings.backend), settings), settings.seed)
        rollout = collect_trial(agent, request.env, settings, FINGERPRINT_STEPS)
        found[f"environment {request.env!r}"] = torch.from_numpy(rollout.observations)
        if request.objective.reads_basic:
            found[f"the reward of {request.env!r}"] = torch.from_numpy(rollout.basic)
        for name in addons.with_weights(request.addons):
            reward = addons.combine_addons([name]).reward(rollout.transitions)
            found[f"add-on {name!r}"] = torch.as_tensor(reward, dtype=torch.float64)
    return found


def _first_difference(kept: dict[str, Tensor], now: dict[str, Tensor]) -> str | None:
    """Return the first thing whose numbers `[T, N, ...]` are others than those that were kept."""
    for name in sorted(kept, key=lambda name: (name.startswith("add-on"), name)):  # which follow the environment
        before, after = kept[name], now.get(name)
        if after is None or after.shape != before.shape:
            return name
        near = (after - before).abs() <= FINGERPRINT_TOLERANCE * before.nan_to_num().abs().amax((0, 1))
        if not bool((near | (after.isnan() & before.isnan())).all()):
            return name
    return None


def display_callbacks(progress: bool | None) -> list[Any]:
    """Return the live display, by default where somebody looks: in a terminal or a notebook."""
    if progress is None:
        progress = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    place = torchrun_place()
    if not progress or (place is not None and place[0] > 0):
        return []
    from repolicy.runs import Display

    return [Display()]
