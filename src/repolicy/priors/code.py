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
from repolicy.policies.file import notes_of
from repolicy.policies.policy import Policy
from repolicy.policies.storage import is_own
from repolicy.priors.finding import SHELF, find_policy
from repolicy.priors.fitting import fitted_to, wants_fit
from repolicy.priors.hub import is_on_hub
from repolicy.priors.kinds import (
    Exact,
    MeanPrior,
    ScoredPrior,
    Std,
    name_of,
    prior_of,
)
from repolicy.priors.opening import read_policy
from repolicy.readers.reading import Options

Source = dict[str, Any]  # how another process gets the same prior


def is_code(reference: object) -> bool:
    """Whether it is `module:name` or `file.py:name`, and not the name of a file, or one of the hub's or the shelf's."""
    if not isinstance(reference, str) or ":" not in reference or Path(reference).exists():
        return False
    return not is_on_hub(reference) and reference.partition(":")[0] not in {name.partition(":")[0] for name in SHELF}


def exact_of(given: Any, options: Options | None = None, trust: bool = False) -> Exact | None:
    """What runs as it is; None for a policy of ours, or a file that can be copied into one."""
    options = options or Options()
    if isinstance(given, Policy):
        return None
    if is_code(given):
        thing = load_object(given, "prior")
        return thing if isinstance(thing, Policy) else _with_std(thing, options, given)
    if not isinstance(given, str | Path):
        return _with_std(given, options)
    path = find_policy(given)
    if is_own(path):
        return None
    from repolicy.readers.described import CannotCopyError
    from repolicy.readers.recognize import describe

    try:
        describe(path, options)
    except CannotCopyError as error:
        from repolicy.priors.running import runner
        from repolicy.readers.recognize import RUNNABLE, recognized

        if recognized(path) not in RUNNABLE:
            raise
        program = runner(path, trust)
        return _with_std(program, options, str(path), (f"{error}; it runs as it is", *program.notes))
    return None


class Acting(NamedTuple):
    """What a reference to a policy leads to, to be run."""

    path: Path
    agent: Policy | MeanPrior
    prior: Policy | None
    card: dict[str, Any]
    notes: tuple[str, ...]


def acting(reference: str | Path, options: Options, trust: bool) -> Acting:
    """A policy to run, of our own or as it is."""
    exact = exact_of(str(reference), options, trust)
    if isinstance(exact, ScoredPrior):
        raise UsageError(f"{exact.name} scores actions and does not choose any: it is a prior, and no policy to run")
    if isinstance(exact, MeanPrior):
        return Acting(Path(reference), exact, None, {}, exact.notes)
    if exact is not None:
        return Acting(Path(reference), exact, None, {}, ())
    path = find_policy(reference)
    saved = read_policy(path, options)
    return Acting(path, saved.policy, saved.prior, saved.card, tuple(notes_of(saved.card)))


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
    """How other processes get this prior; None where they cannot."""
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
    """In another process: what the user named, with the std that it was given there."""
    std: Std | None = None if source["std"] is None else torch.tensor(source["std"])
    options = Options(**source["options"])
    if options.std is not None and std is not None:
        options = replace(options, std=1.0, demonstrations=None)  # whatever it was, `std` has come of it
    prior = exact_of(source["prior"], options, source["trust"])
    if prior is None:  # it could be copied, and is fitted to all the same
        return read_policy(Path(source["prior"]), options).policy
    return MeanPrior(prior.mean, std, prior.name) if isinstance(prior, MeanPrior) and std is not None else prior


def _importable(thing: Any) -> str | None:
    """`module:name` of a function or an object of a module, where that leads to it again."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    name = getattr(thing, "__name__", "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not thing:
        return None
    return f"{module.__name__}:{name}"
