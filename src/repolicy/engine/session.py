"""What a Python program may give that a command line cannot: functions and results. And what is left out."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repolicy.engine.folder import RunFolder
from repolicy.engine.machine import torchrun_place
from repolicy.engine.result import Result
from repolicy.engine.settings import Settings, validated
from repolicy.engine.wanted import Wanted
from repolicy.errors import UsageError
from repolicy.loading import as_file_name, lives_here_alone, stem_of
from repolicy.objective import Objective, name_of
from repolicy.policies.policy import Policy


def ranks_for(settings: Settings, names: Sequence[str]) -> tuple[Settings, list[str]]:
    """One rank where a function lives in this process alone; refused where more were asked for."""
    here = [name for name in names if lives_here_alone(name)]
    if not here or torchrun_place() is not None:  # under torchrun every process has run the same program
        return settings, []
    name = here[0].partition(":")[2]
    if settings.ranks > 1:
        raise UsageError(
            f"the function {name!r} lives in this Python session alone, and {settings.ranks} ranks must import it: "
            f"write it into a file and name it as file.py:{name}, or set ranks=1"
        )
    sentence = f"one rank: the function {name!r} lives in this Python session; name it as file.py:{name} for every core"
    return replace(settings, ranks=1), [sentence] * (settings.ranks == 0)


def folder_for(out: str | Path | None, name: object, objective: str, seed: int, resume: bool) -> Path:
    """The run's folder; without a name, runs/NAME-OBJECTIVE-SEED, and where that is taken, the next that is free."""
    if out is not None:
        return Path(out)
    stem = called(name)
    plain = Path("runs") / f"{as_file_name(stem_of(stem) if '/' in stem else stem)}-{objective}-{seed}"
    if resume:
        return plain
    tried, count = plain, 1
    while os.path.exists(tried):  # False where the name is too long, which is said later
        count += 1
        tried = plain.with_name(f"{plain.name}-{count}")
    return tried


def called_objective(objective: Objective | Wanted | None, usual: str) -> str:
    """What a run's folder calls its objective: not each has a name."""
    if objective is None or isinstance(objective, Wanted):
        return usual if objective is None else objective.name
    check_objective(objective)
    named = name_of(objective)
    return "custom" if named is None else named[0]


def check_objective(objective: object) -> None:
    if not isinstance(objective, Objective):
        raise UsageError(f"the objective is {objective!r}; make one, such as repolicy.residual(0.17, 0.13)")


def called(thing: object) -> str:
    """What to call an environment, or a prior in whatever form."""
    return str(thing.folder) if isinstance(thing, Result) else "policy" if isinstance(thing, Policy) else str(thing)


def resumed(out: Path, resume: bool) -> tuple[Objective | None, Settings | None]:
    """What the run that is resumed was asked for."""
    request = RunFolder(out).request() if resume else None
    if request is None:
        return None, None
    return Objective(**request["objective"]), Settings(**validated(request["settings"], f"the run in {out}"))


def continued(
    objective: Objective | Wanted | None, settings: Settings | None, out: Path, resume: bool
) -> tuple[Objective | Wanted, Settings | None, Settings | None]:
    """What customizing was asked for, with what the run that is resumed chose by itself; and that run's settings.

    A run that could not tell what a nat is worth has taken a budget, and both weights begin where it said.
    """
    before, kept = resumed(out, resume)
    _check_same_way(objective, settings, kept, out)
    by_itself = objective is None or (isinstance(objective, Wanted) and objective.omega in (None, "auto"))
    if before is not None and kept is not None and kept.budget is not None and by_itself:
        if settings is not None and settings.budget is None:
            settings = replace(settings, kl_budget=kept.kl_budget, log_prior_budget=kept.log_prior_budget)
        if isinstance(objective, Wanted) and objective.alpha is None:
            objective = replace(objective, alpha=before.alpha)
    return objective or before or Wanted("residual"), settings, kept


def _check_same_way(
    objective: Objective | Wanted | None, settings: Settings | None, kept: Settings | None, out: Path
) -> None:
    """Raise where a run with a budget is resumed at a weight, or the other way round."""
    if kept is None:
        return
    weight = objective.omega if isinstance(objective, Wanted) else None
    other = ""
    if kept.budget is not None and isinstance(weight, int | float):
        other = f"{kept.budget.words}, and now omega is to be {weight:g}"
    elif kept.budget is None and settings is not None and settings.budget is not None:
        other = f"it has no budget, and now {settings.budget.words}"
    if other:
        raise UsageError(f"{out} cannot be resumed with other settings: {other}")


def shown(progress: bool | None) -> list[Any]:
    """The live display, by default where somebody looks: in a terminal or a notebook."""
    if progress is None:
        progress = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    place = torchrun_place()
    if not progress or (place is not None and place[0] > 0):
        return []
    from repolicy.engine.display import Display

    return [Display()]
