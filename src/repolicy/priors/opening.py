"""Open what a user names as a policy or a prior: Repolicy's file, another library's file, code, or an object.

Code runs only if the user named it: as an object in Python, as `module:name` on the command line, or as TorchScript
with `--trust`.
"""

import os
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from repolicy.errors import UsageError
from repolicy.loading import import_name, load_object
from repolicy.policies import (
    Policy,
    SavedPolicy,
    fingerprint,
    frozen,
    origin_notes,
    policy_bytes,
    read_card,
    read_saved_policy,
    with_torch_defaults,
)
from repolicy.priors.finding import SHELVES, find_policy, is_plan, newest_checkpoint
from repolicy.priors.fitting import fit_std, wants_fit
from repolicy.priors.hub import is_on_hub
from repolicy.priors.kinds import MeanPrior, ScoredPrior, ScoringPrior, check_no_options, qualname_of, wrap_prior
from repolicy.priors.running import Graph, Script, check_trusted
from repolicy.readers.copying import policy_from
from repolicy.readers.description import CannotCopyError, PolicyDescription, Std
from repolicy.readers.reading import Options, errors_in_python_terms, in_python_terms
from repolicy.readers.recognize import RUNNABLE_FORMATS, PolicyFile


def read_policy(path: str | Path, options: Options | None = None) -> SavedPolicy:
    """Read a policy from a file. Another library's policy is copied, with these options."""
    return read_file(PolicyFile(path), options or Options())


def read_file(file: PolicyFile, options: Options) -> SavedPolicy:
    """Read a policy from a file that is already open."""
    if file.repolicy_bytes is None:
        return _copy_policy(file, options)
    check_no_options(file.path, options)
    return read_saved_policy(file.path, file.repolicy_bytes)


@with_torch_defaults()
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
    """Load the policy from a file or a run's folder, or one that ships with Repolicy under a name.

    Args:
        reference: the file, the folder, or the name.
        std: the std of the actions, for another library's policy without one; "fit" fits it to `demonstrations`.
        temperature: for a Q-network, whose choices then follow `exp(Q / temperature)`.
        vecnormalize: a file with the observations' statistics, or "none".
        activation: the network's activation, for a file that does not name it.
        demonstrations: recorded actions, for `std="fit"`.
        layout: for an unknown checkpoint, the roles of its tensors.
    """
    with errors_in_python_terms():
        options = Options(std, temperature, vecnormalize, activation, demonstrations, layout)
        saved = read_policy(find_policy(reference), options)
    for note in origin_notes(saved.card):
        warnings.warn(in_python_terms(note), stacklevel=3)  # past the decorator, to who loads
    return saved.policy


def describe_file(file: PolicyFile, options: Options) -> PolicyDescription:
    """Read the policy in another library's file, and fit its std if the options ask for that."""
    described = file.describe(options)
    if not wants_fit(options):
        return described
    if described.std is not None or described.actions.kind == "discrete":
        raise UsageError(f"{file.path} needs no std: leave --std fit out")
    unit_std = Std("vector", np.ones(described.actions.width, np.float32), "identity")
    std, note = fit_std(policy_from(replace(described, std=unit_std)), options)
    return replace(described, std=replace(unit_std, raw=std.numpy()), notes=(*described.notes, note))


def _copy_policy(file: PolicyFile, options: Options) -> SavedPolicy:
    """Copy the policy in another library's file; the card of the copy describes its origin."""
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
    policy = frozen(policy_from(described))
    groups = {"groups": [*policy.groups]} if policy.groups else {}
    return SavedPolicy(policy, None, {"which": "copy", "origin": origin} | groups)


def saved_policy_bytes(saved: SavedPolicy, earlier: Path | None = None) -> bytes:
    """Return the contents of Repolicy's file for a policy that was read, from whatever file.

    An `earlier` one of the same policy is used again, as another machine may round the probes' numbers differently.
    """
    if saved.content:
        return saved.content
    if earlier is not None and earlier.is_file() and read_card(earlier).get("origin") == saved.card["origin"]:
        kept = read_policy(earlier).policy  # statistics and weights may lie in files that the origin does not name
        if kept.spec == saved.policy.spec and fingerprint(kept) == fingerprint(saved.policy):
            return earlier.read_bytes()
    return policy_bytes(saved.policy, saved.card)


# Policies that are not read from a file, but run ----------------------------------------------------------------------


PriorSource = dict[str, Any]  # JSON from which another process can open the same prior


def is_code(reference: object) -> bool:
    """Return whether this is `module:name` or `file.py:name`, and neither a file nor a name on the hub or the shelf."""
    if not isinstance(reference, str) or ":" not in reference or Path(reference).exists():
        return False
    return not is_on_hub(reference) and reference.partition(":")[0] not in SHELVES


@dataclass(frozen=True)
class OpenedPolicy:
    """A policy that a user named, ready to act or to score, and what is known about it."""

    name: str  # for messages
    agent: Any  # it acts and scores; a `ScoredPrior` only scores
    path: Path = Path()  # of its file or folder
    prior: Policy | None = None  # that it was customized from, if its file has it
    card: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # sentences that a user must know
    saved: SavedPolicy | None = None  # the contents of its file; None if it is not read, but run


def open_policy(reference: Any, options: Options | None = None, trust: bool = False) -> OpenedPolicy:
    """Open what a user named as a policy or a prior. A file that cannot be copied is run, if that is possible."""
    options = options or Options()
    if isinstance(reference, Policy):
        return _without_file(reference, reference)
    if is_code(reference):
        thing = load_object(reference, "prior")
        agent = thing if isinstance(thing, Policy) else _wrap_with_std(thing, options, reference)
        return _without_file(reference, agent)
    if not isinstance(reference, str | Path):
        return _without_file(reference, _wrap_with_std(reference, options))
    file = PolicyFile(find_policy(reference))
    try:
        saved = read_file(file, options)
    except CannotCopyError as error:
        if file.format not in RUNNABLE_FORMATS:
            raise
        if file.format == "torchscript":
            check_trusted(file, trust, str(error))
        program = Graph(file) if file.format == "onnx" else Script(file)
        runs = "it runs as it is, and its std is of the actions themselves, also behind a tanh"
        notes = f"{error}; {runs}", *program.notes
        return _without_file(reference, _wrap_with_std(program, options, str(file.path), notes))
    notes = tuple(origin_notes(saved.card))
    if file.path == newest_checkpoint(Path(reference)):
        notes = (f"{file.path} is the newest checkpoint in {reference}", *notes)
    return OpenedPolicy(
        str(reference), saved.policy, file.path, prior=saved.prior, card=saved.card, notes=notes, saved=saved
    )


def _without_file(reference: Any, agent: ScoringPrior) -> OpenedPolicy:
    """Return the opened policy for an agent that was not read from a file, and so has no card."""
    notes = getattr(agent, "notes", ())
    if isinstance(reference, str | Path):
        return OpenedPolicy(str(reference), agent, Path(reference), notes=notes)
    return OpenedPolicy(getattr(agent, "name", "the prior"), agent, notes=notes)


OPEN_PLANNER = "repolicy.planning.keeping:open_planner"  # named, as this package must not import that one


def open_agent(reference: str | Path, options: Options | None = None, trust: bool = False) -> OpenedPolicy:
    """Open a policy, or a planner's folder, in order to act with it."""
    if is_plan(reference):
        check_no_options(reference, options)
        return load_object(OPEN_PLANNER, "planner")(Path(reference), trust)
    opened = open_policy(str(reference), options, trust)
    if isinstance(agent := opened.agent, ScoredPrior):
        raise UsageError(f"{agent.name} scores actions and does not choose any: it is a prior, and no policy to run")
    return opened


def _wrap_with_std(thing: Any, options: Options, name: str = "", notes: tuple[str, ...] = ()) -> ScoringPrior:
    """Wrap a user's object as a prior, with the std of the options, which may be fitted to demonstrations."""
    others = replace(options, std=None, demonstrations=None)
    check_no_options(name or qualname_of(thing), others, "no file that is read, and runs as it is")
    if not wants_fit(options):
        assert options.std != "fit"
        prior = wrap_prior(thing, options.std, name)
    else:
        unit = wrap_prior(thing, 1.0, name)
        if not isinstance(unit, MeanPrior):
            raise UsageError(f"{unit.name} has log_prob, which knows its own std: leave --std out")
        std, note = fit_std(unit, options)
        prior, notes = MeanPrior(unit.mean, std, unit.name), (*notes, note)
    prior.notes = (*prior.notes, *notes)
    return prior


def prior_source(thing: Any, prior: ScoringPrior, options: Options | None, trust: bool) -> PriorSource | None:
    """Return the source of the prior that was opened from a user's `thing`; None if it is bound to this process."""
    options = options or Options()
    if isinstance(thing, MeanPrior):
        thing, options = thing.mean, replace(options, std=1.0)
    reference = str(thing) if isinstance(thing, str | Path) else import_name(thing)
    if reference is None:
        return None
    if isinstance(thing, str | Path) and not is_code(thing):
        reference = os.path.abspath(find_policy(thing))  # links are not resolved: statistics may lie beside a link
    std = prior.std.tolist() if isinstance(prior, MeanPrior) else None
    return {"prior": reference, "std": std, "trust": trust, "options": asdict(options)}


def prior_from_source(source: PriorSource) -> ScoringPrior:
    """Open the prior that a user named in another process, with the std that it has there."""
    std = None if source["std"] is None else torch.tensor(source["std"])
    options = Options(**source["options"])
    if options.std is not None and std is not None:
        options = replace(options, std=1.0, demonstrations=None)  # it is replaced below, so it need not be fitted
    prior: ScoringPrior = open_policy(source["prior"], options, source["trust"]).agent
    if isinstance(prior, MeanPrior) and std is not None:
        return MeanPrior(prior.mean, std, prior.name)
    return prior
