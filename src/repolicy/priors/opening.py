"""Open whatever a user names as a prior: a file of ours, a file that is copied, or what must run as it is.

Code runs only where the user named it: as an object in Python, as `module:name` on the command line, or as TorchScript
with `--trust`.
"""

import os
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from repolicy.errors import UsageError
from repolicy.loading import load_object
from repolicy.policies import Policy, SavedPolicy, frozen, origin_notes, policy_bytes, read_card, read_saved_policy
from repolicy.priors.finding import SHELF, find_policy, is_plan
from repolicy.priors.fitting import fit_std, wants_fit
from repolicy.priors.hub import is_on_hub
from repolicy.priors.kinds import MeanPrior, ScoredPrior, ScoringPrior, qualname_of, wrap_prior
from repolicy.priors.running import Graph, Script, check_trusted
from repolicy.readers.copying import policy_from
from repolicy.readers.description import CannotCopyError, PolicyDescription, Std
from repolicy.readers.reading import Options, errors_in_python_terms
from repolicy.readers.recognize import RUNNABLE_FORMATS, PolicyFile


def read_policy(path: str | Path, options: Options | None = None) -> SavedPolicy:
    """Return a policy's file; refused unless the policy reproduces the log-probabilities that were stored with it.

    Of a file that another library wrote, a copy of its policy, read with these options.
    """
    return read_file(PolicyFile(path), options or Options())


def read_file(file: PolicyFile, options: Options) -> SavedPolicy:
    """Return the policy in a file that was opened already, ours or a copy."""
    if file.repolicy_bytes is None:
        return _copied(file, options)
    check_own_file_options(file.path, options)
    return read_saved_policy(file.path, file.repolicy_bytes)


def check_own_file_options(path: str | Path, options: Options | None) -> None:
    """Refuse options of reading for a file of ours, or for a run's folder."""
    if options not in (None, Options()):
        others = "--std, --temperature, --vecnormalize, --file-activation and --layout"
        raise UsageError(f"{path} is Repolicy's own file: leave out {others}, which are for other libraries' files")


def load_policy(
    reference: str | Path,
    *,
    std: float | Literal["fit"] | None = None,
    temperature: float | None = None,
    vecnormalize: str | None = None,
    activation: str | None = None,
    demonstrations: str | None = None,
    layout: str | None = None,
) -> Policy:
    """Load the policy in a file, in a run's folder, or that ships under a name, and return it.

    Args:
        reference: the file, the folder, or the name.
        std: of another library's policy that has none: the std of its actions, or "fit".
        temperature: of a Q-network: its choices follow `exp(Q / temperature)`.
        vecnormalize: a file with the observations' statistics, or "none".
        activation: of a file that does not say it: its network's activation.
        demonstrations: recorded actions, for `std="fit"`.
        layout: of an unknown checkpoint: which tensors are what.
    """
    with errors_in_python_terms():
        options = Options(std, temperature, vecnormalize, activation, demonstrations, layout)
        return read_policy(find_policy(reference), options).policy


def describe_file(file: PolicyFile, options: Options) -> PolicyDescription:
    """Return the policy in another library's file, with a std that is fitted where the options ask for that."""
    described = file.describe(options)
    if not wants_fit(options):
        return described
    if described.std is not None or described.actions.kind == "discrete":
        raise UsageError(f"{file.path} needs no std: leave --std fit out")
    ones = Std("vector", np.ones(described.actions.width, np.float32), "identity")
    std, note = fit_std(policy_from(replace(described, std=ones)), options)
    return replace(described, std=replace(ones, raw=std.numpy()), notes=(*described.notes, note))


def _copied(file: PolicyFile, options: Options) -> SavedPolicy:
    """Return a copy of the policy in another library's file, and on its card where it is from."""
    described = describe_file(file, options)
    origin = {
        "library": described.library,
        "version": described.version,
        "kind": described.kind,
        "file": file.path.name,
        "sha256": file.sha256,
        "options": {name: value for name, value in asdict(options).items() if value is not None},
        "notes": list(described.notes),
    }
    return SavedPolicy(frozen(policy_from(described)), None, {"which": "copy", "origin": origin})


def saved_policy_bytes(saved: SavedPolicy, earlier: Path | None = None) -> bytes:
    """Return a policy that was read as a file of ours.

    `earlier` may be one that was made from the same file before. It is taken again, as another machine may round the
    log-probabilities of the probes otherwise.
    """
    if saved.content:
        return saved.content
    if earlier is not None and earlier.is_file() and read_card(earlier).get("origin") == saved.card["origin"]:
        return earlier.read_bytes()
    return policy_bytes(saved.policy, saved.card)


# What runs as it is, beside what a file holds -------------------------------------------------------------------------


PriorSource = dict[str, Any]  # how another process gets the same prior


def is_code(reference: object) -> bool:
    """Say whether it is `module:name` or `file.py:name`, and not a file, or a name of the hub's or the shelf's."""
    if not isinstance(reference, str) or ":" not in reference or Path(reference).exists():
        return False
    return not is_on_hub(reference) and reference.partition(":")[0] not in {name.partition(":")[0] for name in SHELF}


@dataclass(frozen=True)
class OpenedPolicy:
    """A policy that somebody named: who acts or scores, and what is known of it.

    agent: it acts and scores; a `ScoredPrior` scores alone.
    prior: the policy that it was customized from, where its file tells.
    saved: what its file holds; None where it is no file's, or runs as it is.
    """

    name: str  # what to call it in a sentence
    agent: Any
    path: Path = Path()  # of its file or folder
    prior: Policy | None = None
    card: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what is to be known of it, a sentence each
    saved: SavedPolicy | None = None


def open_policy(given: Any, options: Options | None = None, trust: bool = False) -> OpenedPolicy:
    """Open what a user named as a policy or a prior: what a file holds, ours or a copy, or else what runs as it is.

    A file is opened once.
    """
    options = options or Options()
    if isinstance(given, Policy):
        return _as_it_is(given, given)
    if is_code(given):
        thing = load_object(given, "prior")
        return _as_it_is(given, thing if isinstance(thing, Policy) else _with_std(thing, options, given))
    if not isinstance(given, str | Path):
        return _as_it_is(given, _with_std(given, options))
    file = PolicyFile(find_policy(given))
    try:
        saved = read_file(file, options)
    except CannotCopyError as error:
        if file.format not in RUNNABLE_FORMATS:
            raise
        program: Graph | Script
        if file.format == "onnx":
            program = Graph(file)
        else:
            check_trusted(file, trust)
            program = Script(file)
        notes = f"{error}; it runs as it is", *program.notes
        return _as_it_is(given, _with_std(program, options, str(file.path), notes))
    notes = tuple(origin_notes(saved.card))
    return OpenedPolicy(str(given), saved.policy, file.path, saved.prior, saved.card, notes, saved)


def _as_it_is(given: Any, agent: ScoringPrior) -> OpenedPolicy:
    """Return what was given as `agent`, which no file's card tells of."""
    notes = getattr(agent, "notes", ())
    if isinstance(given, str | Path):
        return OpenedPolicy(str(given), agent, Path(given), notes=notes)
    return OpenedPolicy(getattr(agent, "name", "the prior"), agent, notes=notes)


PLANNER = "repolicy.planning.keeping:open_planner"  # what opens one; its room comes after this one, and is named


def open_agent(reference: str | Path, options: Options, trust: bool) -> OpenedPolicy:
    """Return a policy to run, of our own or as it is; of a planner's folder, the planner."""
    if is_plan(reference):
        check_own_file_options(reference, options)
        return load_object(PLANNER, "planner")(Path(reference), trust)
    found = open_policy(str(reference), options, trust)
    if isinstance(agent := found.agent, ScoredPrior):
        raise UsageError(f"{agent.name} scores actions and does not choose any: it is a prior, and no policy to run")
    return found


def _with_std(thing: Any, options: Options, name: str = "", notes: tuple[str, ...] = ()) -> ScoringPrior:
    if replace(options, std=None, demonstrations=None) != Options():
        others = "--vecnormalize, --temperature, --file-activation and --layout"
        raise UsageError(f"{name or qualname_of(thing)} runs as it is: {others} do not belong to it")
    if not wants_fit(options):
        assert options.std != "fit"
        prior = wrap_prior(thing, options.std, name)
    else:
        unit = wrap_prior(thing, 1.0, name)
        if not isinstance(unit, MeanPrior):
            raise UsageError(f"{unit.name} has log_prob, which knows its own std: leave --std out")
        std, sentence = fit_std(unit, options)
        prior, notes = MeanPrior(unit.mean, std, unit.name), (*notes, sentence)
    prior.notes = (*prior.notes, *notes)
    return prior


def prior_source(given: Any, prior: ScoringPrior, options: Options | None, trust: bool) -> PriorSource | None:
    """Return how other processes get this prior; None where they cannot."""
    options = options or Options()
    if isinstance(given, MeanPrior):
        given, options = given.mean, replace(options, std=1.0)
    reference = str(given) if isinstance(given, str | Path) else _importable(given)
    if reference is None:
        return None
    if isinstance(given, str | Path) and not is_code(given):
        reference = os.path.abspath(find_policy(given))  # not where a link leads: statistics lie beside the link
    std = prior.std.tolist() if isinstance(prior, MeanPrior) else None
    return {"prior": reference, "std": std, "trust": trust, "options": asdict(options)}


def prior_from_source(source: PriorSource) -> ScoringPrior:
    """Return what the user named in another process, with the std that it was given there."""
    std = None if source["std"] is None else torch.tensor(source["std"])
    options = Options(**source["options"])
    if options.std is not None and std is not None:
        options = replace(options, std=1.0, demonstrations=None)  # whatever it was, `std` has come of it
    prior: ScoringPrior = open_policy(source["prior"], options, source["trust"]).agent
    return MeanPrior(prior.mean, std, prior.name) if isinstance(prior, MeanPrior) and std is not None else prior


def _importable(thing: Any) -> str | None:
    """Return `module:name` of a function or an object of a module, where that leads to it again."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    name = getattr(thing, "__name__", "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not thing:
        return None
    return f"{module.__name__}:{name}"
