"""Begin or resume a run: choose its folder, read its earlier request, fill in its choices, attach a live display."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from repolicy.addons import Limit, Wish, addon_names, check_trust
from repolicy.envs import EnvLike, env_name, find_session_only, parse_env_name
from repolicy.errors import UsageError
from repolicy.objective import Objective
from repolicy.objective_names import objective_name
from repolicy.policies import Policy
from repolicy.priors import qualname_of, restore_decoder
from repolicy.runs import BUDGETS, Request, Result, RunFolder, Settings, torchrun_place
from repolicy.text import as_file_name, stem_of


def ranks_for(settings: Settings, names: Sequence[str], prior: str = "") -> tuple[Settings, list[str]]:
    """Return settings with one rank where a name exists only in this process; raise where more ranks were named.

    `prior` is the name of a prior that exists only in this process, if it does.
    """
    name = prior or find_session_only(names)
    if not name or torchrun_place() is not None:  # under torchrun every process has run the same program
        return settings, []
    if settings.ranks > 1:
        problem = f"{name!r} lives in this Python session alone, and {settings.ranks} ranks must import it"
        raise UsageError(f"{problem}: write it into a file and name it as file.py:{name}, or set ranks=1")
    if settings.ranks == 1:
        return settings, []
    note = f"one rank: {name!r} lives in this Python session; name it as file.py:{name} for every core"
    return replace(settings, ranks=1), [note]


RUNS_FOLDER = Path("runs")


def folder_for(
    out: str | Path | None, name: object, objective: Objective, settings: Any, resume: bool, root: Path = RUNS_FOLDER
) -> Path:
    """Return `out`, or by default runs/NAME-OBJECTIVE-SEED; a new run adds a number where that folder exists."""
    if not isinstance(objective, Objective):
        kind = type(objective).__name__
        raise UsageError(f"the objective is a {kind}, and no objective such as residual(); for settings, settings=...")
    if out is not None:
        return Path(out)
    stem = display_name(name)
    if "/" in stem:
        stem = stem_of(stem)
    seed = settings.get("seed", 0) if isinstance(settings, Mapping) else getattr(settings, "seed", 0)
    label, _ = objective_name(objective) or ("custom", {})
    default = root / f"{as_file_name(stem)}-{label}-{seed}"
    folder, count = default, 1
    while not resume and os.path.exists(folder):  # False where the name is too long; creating the folder reports that
        count += 1
        folder = default.with_name(f"{default.name}-{count}")
    return folder


def display_name(thing: object) -> str:
    """Return the name of an environment or of a prior in any form, for messages and folder names."""
    if isinstance(thing, Policy):
        return "policy"
    if isinstance(thing, Result):
        return str(thing.folder)
    return str(thing) if isinstance(thing, str | Path) else qualname_of(thing)


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
        held: tuple[Any, ...] = tuple(limits) if isinstance(limits, list | tuple) else (limits,)
        return cls("" if env is None else env_name(env), addon_names.wishes_of(addon), held, objective, sparse)

    def filled_from(self, before: Request | None) -> "RequestOptions":
        """Return a copy whose empty fields have the values of the earlier request."""
        if before is None:
            return self
        return RequestOptions(**{name: value or getattr(before, name) for name, value in vars(self).items()})

    def require_trust(self, before: Request, file: Path, trust: bool) -> None:
        """Raise UsageError where an empty field would take code from a file that is not trusted."""
        code_names = [] if self.addons else list(before.addons)
        if not self.limits:
            code_names += [Limit.of(limit).name for limit in before.limits]
        check_trust(file, trust, env=None if self.env else before.env, addons=code_names)


def earlier_request(
    folder: RunFolder, resume: bool, trust: bool, options: RequestOptions, customizes: bool = False
) -> Request | None:
    """Return the request of the run that is resumed, or None where there is none.

    Raises UsageError where `train` would resume a run of `customize`, or the reverse. It is also raised where an option
    that is not named again is code in a file that the user does not trust.
    """
    before = folder.request() if resume else None
    if before is None:
        return None
    if bool(before.prior) != customizes:
        command = "customize" if before.prior else "train"
        raise UsageError(f"{folder.path} is a run of `{command}`; go on with it by that command")
    options.require_trust(before, folder.path / "run.json", trust)
    restore_decoder(folder.policy, parse_env_name(before.env).decoder)
    return before


def describe_folder(folder: RunFolder, resume: bool, before: Request | None) -> str:
    """Return the folder for a message, with a note where there is no run to resume."""
    return f"{folder.path}, where no run is yet: a new one begins" if resume and before is None else str(folder.path)


def resume_choices(
    objective: Objective, settings: Settings, before: Request | None, out: Path
) -> tuple[Objective, Settings]:
    """Fill in the weights and the budget that the resumed run chose by itself, unless the user names others.

    A run that could not measure what a nat is worth has chosen a budget, and both its weights began at alpha.
    """
    if before is None:
        return objective, settings
    if settings.budget is not None and before.settings.budget is None:
        conflict = f"it has no budget, and now {settings.budget.words}"
        raise UsageError(f"{out} cannot be resumed with other settings: {conflict}")
    names_no_omega = objective == before.objective or not isinstance(objective.omega, float)
    if settings.budget is None and names_no_omega:
        settings = replace(settings, **{name: getattr(before.settings, name) for name in BUDGETS})
    return resumed_objective(objective, before, out), settings


def resumed_objective(objective: Objective, before: Request, out: str | Path) -> Objective:
    """Fill in the weights that are not named; raise where a budget is to find omega, and the resumed run has none."""
    if objective.omega == "auto" and before.settings.budget is None:
        conflict = f"omega was {before.objective.omega} and is now auto"
        raise UsageError(f"{out} cannot be resumed with other settings: {conflict}")
    unset = [name for name in objective.unset if getattr(objective, name) in (None, "auto")]  # "alpha" follows alpha
    return replace(objective, **{name: getattr(before.objective, name) for name in unset})


def display_callbacks(progress: bool | None) -> list[Any]:
    """Return the live display as a callback; by default only in a terminal or a notebook, and on the first rank."""
    if progress is None:
        progress = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    place = torchrun_place()
    if not progress or (place is not None and place[0] > 0):
        return []
    from repolicy.runs import Display

    return [Display()]
