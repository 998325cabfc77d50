"""What a Python program may give that a command line cannot, what is left out, and a resumed run known again."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repolicy.envs import addons
from repolicy.envs.making import probed
from repolicy.envs.trust import confirm
from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import as_file_name, lives_here_alone, stem_of
from repolicy.objective import WEIGHTS, Objective, name_of
from repolicy.plan.weights import trial
from repolicy.policies.policy import Policy, seeded
from repolicy.policies.storage import read, write
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder
from repolicy.runs.machine import torchrun_place, versions
from repolicy.runs.request import Request, spec_for
from repolicy.runs.result import Result
from repolicy.runs.settings import AnySettings, S, Settings, validated


def ranks_for(settings: Settings, names: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return one rank where a function lives in this process alone; refused where more were asked for."""
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
    named = name_of(objective)
    return "custom" if named is None else named[0]


def check_objective(objective: object) -> None:
    if not isinstance(objective, Objective):
        raise UsageError(f"the objective is {objective!r}; make one, such as repolicy.residual(0.17, 0.13)")


def called(thing: object) -> str:
    """Return what to call an environment, or a prior in whatever form."""
    return str(thing.folder) if isinstance(thing, Result) else "policy" if isinstance(thing, Policy) else str(thing)


def earlier(
    folder: RunFolder, resume: bool, trust: bool, *, env: str | None, addon: Sequence[str], customizes: bool = False
) -> Request | None:
    """Return what the run that is resumed was asked for, None where there is none.

    What is not named again, `env` or `addon`, is taken from there. Raises UsageError where that is code which nobody
    trusts, or where it is a run of the other function.
    """
    kept = folder.request() if resume else None
    if kept is None:
        return None
    if bool(kept["prior"]) != customizes:
        whose = "customize" if kept["prior"] else "train"
        raise UsageError(f"{folder.path} is a run of `{whose}`; go on with it by that command")
    named = kept["env"] if env is None else None
    confirm(folder.path / "run.json", trust, env=named, addons=() if addon else kept["addons"])
    return folder.kind_of(kept).from_dict(kept)


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
        settings = replace(settings, kl_budget=kept.kl_budget, log_prior_budget=kept.log_prior_budget)
    other = ""
    if budget is not None and not by_itself:
        other = f"{budget.words}, and now omega is to be {objective.omega:g}"
    elif budget is None and settings.budget is not None:
        other = f"it has no budget, and now {settings.budget.words}"
    if other:
        raise UsageError(f"{out} cannot be resumed with other settings: {other}")
    unset = [name for name in WEIGHTS if getattr(objective, name) in (None, "auto", "alpha")]
    return replace(objective, **{name: getattr(before.objective, name) for name in unset}), settings


KEPT = 32  # steps of a trial in each of its environments, by which a resumed run is known again
CLOSE = 1e-3  # of a number's largest value: another processor rounds otherwise, and a robot makes more of it


def begun(request: Request, folder: RunFolder, resume: bool, prior: bytes | None) -> list[str]:
    """Claim the folder for a run. Returns what is to be said.

    Raises where an environment or an add-on does not give what it gave when the run began, though it repeats itself
    and the versions are the same: the source of one of them, or what it imports, has changed.
    """
    notes = folder.begin(request.as_dict(), versions(), resume, prior)
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
            reward = addons.combined([name]).reward(*rollout.transitions)
            found[f"add-on {name!r}"] = torch.as_tensor(reward, dtype=torch.float64)
    return found


def _parted(kept: dict[str, Tensor], now: dict[str, Tensor]) -> str | None:
    """Return the first thing whose numbers `[T, N, ...]` are others than those that were kept."""
    for name in sorted(kept, key=lambda name: name.startswith("add-on")):  # which follow the environment
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
    from repolicy.runs.display import Display

    return [Display()]
