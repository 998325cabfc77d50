"""Begin or resume a run: choose its folder, read its earlier request, claim the folder, attach a live display."""

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
from repolicy.objective_names import objective_name
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
    """Return settings with one rank where a name exists only in this process; raise where more ranks were named."""
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
    """Return `out`, else runs/NAME-OBJECTIVE-SEED or, where a new run finds that taken, the next free number."""
    if out is not None:
        return Path(out)
    stem = display_name(name)
    seed = settings.get("seed", 0) if isinstance(settings, Mapping) else getattr(settings, "seed", 0)
    plain = root / f"{as_file_name(stem_of(stem) if '/' in stem else stem)}-{objective}-{seed}"
    if resume:
        return plain
    tried, count = plain, 1
    while os.path.exists(tried):  # False where the name is too long; creating the folder reports that
        count += 1
        tried = plain.with_name(f"{plain.name}-{count}")
    return tried


def objective_label(objective: Objective) -> str:
    """Return the objective's name, or "custom", for the name of a run's folder."""
    if not isinstance(objective, Objective):
        kind = type(objective).__name__
        raise UsageError(f"the objective is a {kind}, and no objective such as residual(); for settings, settings=...")
    named = objective_name(objective)
    return "custom" if named is None else named[0]


def display_name(thing: object) -> str:
    """Return the name of an environment or of a prior in any form, for messages and folder names."""
    if isinstance(thing, str | Path | Policy):
        return "policy" if isinstance(thing, Policy) else str(thing)
    return str(thing.folder) if isinstance(thing, Result) else qualname_of(thing)


@dataclass(frozen=True)
class RequestOptions:
    """The parts of a request that the user named. Empty fields are filled from the run that is resumed."""

    env: str = ""
    addons: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    objective: Objective | None = None
    sparse: bool = False

    @classmethod
    def from_arguments(
        cls,
        env: EnvLike | None,
        addon: Wish,
        limits: str | Sequence[str] = (),
        objective: Objective | None = None,
        sparse: bool = False,
    ) -> Self:
        """Return the options of a call: functions become names, and single values become tuples."""
        limits = (limits,) if isinstance(limits, str) else tuple(limits)
        return cls("" if env is None else env_name(env), addons.names(addon), limits, objective, sparse)

    def filled_from(self, before: Request | None) -> "RequestOptions":
        """Return a copy whose empty fields have the values of the earlier request."""
        if before is None:
            return self
        return RequestOptions(
            self.env or before.env,
            self.addons or before.addons,
            self.limits or before.limits,
            self.objective or before.objective,
            self.sparse or before.sparse,
        )

    def require_trust(self, before: Request, file: Path, trust: bool) -> None:
        """Raise UsageError where an empty field would take code from a file that is not trusted."""
        code = list[str]()
        if not self.addons:
            code += before.addons
        if not self.limits:
            code += [Limit.of(limit).name for limit in before.limits]
        check_trust(file, trust, env=None if self.env else before.env, addons=code)


def earlier_request(
    folder: RunFolder, resume: bool, trust: bool, asked: RequestOptions, customizes: bool = False
) -> Request | None:
    """Return the request of the run that is resumed, or None where there is none.

    Raises UsageError where `train` would resume a run of `customize`, or the reverse; and where an option that is not
    named again is code in a file that the user does not trust.
    """
    before = folder.request() if resume else None
    if before is None:
        return None
    if bool(before.prior) != customizes:
        whose = "customize" if before.prior else "train"
        raise UsageError(f"{folder.path} is a run of `{whose}`; go on with it by that command")
    asked.require_trust(before, folder.path / "run.json", trust)
    restore_decoder(folder.policy, decoder_options(before.env))
    return before


def describe_folder(folder: RunFolder, resume: bool, before: Request | None) -> str:
    """Return the folder for a message, with a note where there is no run to resume."""
    return f"{folder.path}, where no run is yet: a new one begins" if resume and before is None else str(folder.path)


# Settings that are read only with one choice of another setting: that choice in words, and a test for it.
CONDITIONAL_SETTINGS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "desired_kl": ("schedule adaptive", lambda made: made.schedule == "adaptive"),
    "clip": ("surrogate clipped", lambda made: made.surrogate == "clipped"),
    "critic_explains": ("a critic_warmup above 0", lambda made: made.critic_warmup > 0.0),
}


def complete_settings(given: S | Mapping[str, Any] | None, usual: S) -> S:
    """Return whole settings unchanged; for a mapping, return the default settings with its values."""
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
    """Fill in the weights and the budget that the resumed run chose by itself, unless the user names others.

    A run that could not measure what a nat is worth has chosen a budget, and both its weights began at alpha.
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


FINGERPRINT_STEPS = 32  # trial steps of each environment, compared when a run is resumed
FINGERPRINT_TOLERANCE = 1e-3  # share of a number's largest value; processors round differently, and robots amplify it


def claim_folder(request: Request, folder: RunFolder, resume: bool, start: Start | None) -> list[str]:
    """Claim the folder for a run and return messages for the user.

    Raises where an environment or an add-on gives other numbers than when the run began, although it is reproducible
    and the versions are the same: then its source, or something that it imports, has changed.
    """
    prior, init = (None, None) if start is None else (start.content, start.init)
    notes = folder.begin(request, versions(), resume, prior, init)
    now = _trial_numbers(request, folder)
    if not folder.trial.exists():
        write(folder.trial, "trial", now, {})
        return notes
    stored, _ = read(folder.trial, "trial")
    what = _first_difference(stored, now)
    if what is None:
        return notes
    sentence = f"{what} is not what it was when the run in {folder.path} began: the same trial steps differ"
    if _first_difference(now, _trial_numbers(request, folder)) is not None:
        return [*notes, f"{sentence}, and they do not repeat themselves: no run of it ends in the same bits"]
    if any("other versions" in note for note in notes):
        return [*notes, sentence]
    raise UsageError(f"{sentence}; put its source back, or begin a run of its own in another --out")


def _trial_numbers(request: Request, folder: RunFolder) -> dict[str, Tensor]:
    """Return the numbers of environment and add-ons in trial steps, up to the first error."""
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
    """Return the name of the first entry whose numbers `[T, N, ...]` differ; add-ons come after the environment."""
    for name in sorted(kept, key=lambda name: (name.startswith("add-on"), name)):
        before, after = kept[name], now.get(name)
        if after is None or after.shape != before.shape:
            return name
        near = (after - before).abs() <= FINGERPRINT_TOLERANCE * before.nan_to_num().abs().amax((0, 1))
        if not bool((near | (after.isnan() & before.isnan())).all()):
            return name
    return None


def display_callbacks(progress: bool | None) -> list[Any]:
    """Return the live display as a callback; by default only in a terminal or a notebook, and on the first rank."""
    if progress is None:
        progress = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    place = torchrun_place()
    if not progress or (place is not None and place[0] > 0):
        return []
    from repolicy.runs import Display

    return [Display()]
