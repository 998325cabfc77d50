"""What a user gives as a prior: a policy of ours, a file that is copied, or what must run as it is.

Code runs only where the user named it: as an object in Python, as `module:name` on the command line, or as TorchScript
with `--trust`.
"""

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from repolicy.errors import UsageError
from repolicy.loading import load_object
from repolicy.policies.file import SavedPolicy, notes_of
from repolicy.policies.policy import Agent, Policy
from repolicy.priors.finding import SHELF, find_policy
from repolicy.priors.fitting import fitted_to, wants_fit
from repolicy.priors.hub import is_on_hub
from repolicy.priors.kinds import Exact, MeanPrior, ScoredPrior, Std, name_of, prior_of
from repolicy.priors.opening import check_own, read_file
from repolicy.readers.described import CannotCopyError
from repolicy.readers.reading import Options
from repolicy.readers.recognize import RUNNABLE, PolicyFile

Source = dict[str, Any]  # how another process gets the same prior


def is_code(reference: object) -> bool:
    """Say whether it is `module:name` or `file.py:name`, and not a file, or a name of the hub's or the shelf's."""
    if not isinstance(reference, str) or ":" not in reference or Path(reference).exists():
        return False
    return not is_on_hub(reference) and reference.partition(":")[0] not in {name.partition(":")[0] for name in SHELF}


def opened(given: Any, options: Options | None = None, trust: bool = False) -> Exact | SavedPolicy:
    """Return what a user gave as a prior: what runs as it is, or what a file holds that is ours or can be copied.

    A file is opened once.
    """
    options = options or Options()
    if isinstance(given, Policy):
        return given
    if is_code(given):
        thing = load_object(given, "prior")
        return thing if isinstance(thing, Policy) else _with_std(thing, options, given)
    if not isinstance(given, str | Path):
        return _with_std(given, options)
    file = PolicyFile(find_policy(given))
    try:
        return read_file(file, options)
    except CannotCopyError as error:
        if file.format not in RUNNABLE:
            raise
        from repolicy.priors.running import runner

        program = runner(file, trust)
        return _with_std(program, options, str(file.path), (f"{error}; it runs as it is", *program.notes))


PLAN = "plan.json"  # in a planner's folder
PLANNER = "repolicy.planning.keeping:opened"  # what opens one; its room comes after this one, and is named


def is_plan(reference: object) -> bool:
    return isinstance(reference, str | Path) and os.path.isfile(Path(reference, PLAN))  # False for a name too long


class Acting(NamedTuple):
    """What a reference to a policy leads to, to be run."""

    path: Path
    agent: Agent
    prior: Policy | None
    card: dict[str, Any]
    notes: tuple[str, ...]


def acting(reference: str | Path, options: Options, trust: bool) -> Acting:
    """Return a policy to run, of our own or as it is; of a planner's folder, the planner."""
    if is_plan(reference):
        check_own(reference, options)
        planner: Acting = load_object(PLANNER, "planner")(Path(reference), trust)
        return planner
    found = opened(str(reference), options, trust)
    if isinstance(found, ScoredPrior):
        raise UsageError(f"{found.name} scores actions and does not choose any: it is a prior, and no policy to run")
    if isinstance(found, SavedPolicy):
        path = find_policy(reference)
        return Acting(path, found.policy, found.prior, found.card, tuple(notes_of(found.card)))
    return Acting(Path(reference), found, None, {}, getattr(found, "notes", ()))


def _with_std(thing: Any, options: Options, name: str = "", notes: tuple[str, ...] = ()) -> Exact:
    if replace(options, std=None, demonstrations=None) != Options():
        raise UsageError(
            f"{name or name_of(thing)} runs as it is: --vecnormalize, --temperature, --file-activation and "
            "--layout do not belong to it"
        )
    if not wants_fit(options):
        assert options.std != "fit"
        prior = prior_of(thing, options.std, name)
    else:
        unit = prior_of(thing, 1.0, name)
        if not isinstance(unit, MeanPrior):
            raise UsageError(f"{unit.name} has log_prob, which knows its own std: leave --std out")
        std, sentence = fitted_to(unit, options)
        prior, notes = MeanPrior(unit.mean, std, unit.name), (*notes, sentence)
    prior.notes = (*prior.notes, *notes)
    return prior


def source_of(given: Any, exact: Exact, options: Options | None, trust: bool) -> Source | None:
    """Return how other processes get this prior; None where they cannot."""
    options = options or Options()
    if isinstance(given, MeanPrior):
        given, options = given.mean, replace(options, std=1.0)
    reference = str(given) if isinstance(given, str | Path) else _importable(given)
    if reference is None:
        return None
    if isinstance(given, str | Path) and not is_code(given):
        reference = os.path.abspath(find_policy(given))  # not where a link leads: statistics lie beside the link
    std = exact.std.tolist() if isinstance(exact, MeanPrior) else None
    return {"prior": reference, "std": std, "trust": trust, "options": asdict(options)}


def from_source(source: Source) -> Exact:
    """Return what the user named in another process, with the std that it was given there."""
    std: Std | None = None if source["std"] is None else torch.tensor(source["std"])
    options = Options(**source["options"])
    if options.std is not None and std is not None:
        options = replace(options, std=1.0, demonstrations=None)  # whatever it was, `std` has come of it
    prior = opened(source["prior"], options, source["trust"])
    if isinstance(prior, SavedPolicy):  # it could be copied, and is fitted to all the same
        return prior.policy
    return MeanPrior(prior.mean, std, prior.name) if isinstance(prior, MeanPrior) and std is not None else prior


def _importable(thing: Any) -> str | None:
    """Return `module:name` of a function or an object of a module, where that leads to it again."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    name = getattr(thing, "__name__", "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not thing:
        return None
    return f"{module.__name__}:{name}"
