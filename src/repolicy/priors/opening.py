"""Open whatever file a policy is in: one of ours, or a copy of another library's."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import numpy as np

from repolicy.errors import RepolicyError, UsageError
from repolicy.policies.file import SavedPolicy, policy_bytes, read_card, read_own
from repolicy.policies.policy import Policy, frozen
from repolicy.policies.storage import is_own
from repolicy.priors.finding import find_policy
from repolicy.priors.fitting import fitted_to, wants_fit
from repolicy.readers.copying import policy_from
from repolicy.readers.described import Described, Std
from repolicy.readers.reading import Options, told_in_python
from repolicy.readers.recognize import PolicyFile


def read_policy(path: str | Path, options: Options | None = None) -> SavedPolicy:
    """Return a policy's file; refused unless the policy reproduces the log-probabilities that were stored with it.

    Of a file that another library wrote, a copy of its policy, read with these options.
    """
    return read_file(PolicyFile(path), options or Options())


def read_file(file: PolicyFile, options: Options) -> SavedPolicy:
    """Return the policy in a file that was opened already, ours or a copy."""
    if not is_own(file.path, file.content):
        if (carried := file.carried) is None or not carried.is_as_exported:
            return _copied(file, options)
        check_own(file.path, options)
        return read_own(file.path, carried.policy)
    check_own(file.path, options)
    return read_own(file.path, file.content)


def check_own(path: str | Path, options: Options | None) -> None:
    """Refuse options of reading for a file of ours, or for a run's folder."""
    if options not in (None, Options()):
        raise UsageError(
            f"{path} is Repolicy's own file and holds all that there is to know: leave out --std, --temperature, "
            "--vecnormalize, --file-activation and --layout, which are for other libraries' files"
        )


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
    with told_in_python():
        options = Options(std, temperature, vecnormalize, activation, demonstrations, layout)
        return read_policy(find_policy(reference), options).policy


def described_with(file: PolicyFile, options: Options) -> Described:
    """Return the policy in another library's file, read with options that it has a use for."""
    described = file.described(options)
    for name in ("std", "temperature", "file_activation"):
        if getattr(options, name) not in (None, "fit") and _is_idle(name, file, options, described):
            word = f"--{name.replace('_', '-')}"
            raise UsageError(f"{file.path} has no use for {word}, as it has its own or needs none: leave it out")
    if not wants_fit(options):
        return described
    if described.std is not None or described.actions.kind == "discrete":
        raise UsageError(f"{file.path} needs no std: leave --std fit out")
    ones = Std("vector", np.ones(described.actions.width, np.float32), "identity")
    std, note = fitted_to(policy_from(replace(described, std=ones)), options)
    return replace(described, std=replace(ones, raw=std.numpy()), notes=(*described.notes, note))


def _copied(file: PolicyFile, options: Options) -> SavedPolicy:
    """Return a copy of the policy in another library's file, and on its card where it is from."""
    described = described_with(file, options)
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


def _is_idle(name: str, file: PolicyFile, options: Options, described: Described) -> bool:
    """Return whether an option of reading a file is for nothing: without it, the file says as much."""
    try:
        plain = file.described(replace(options, **{name: None}))
    except RepolicyError:
        return False  # it is missing then
    return (plain.notes, plain.actor.activation) == (described.notes, described.actor.activation)


def own_bytes(saved: SavedPolicy, earlier: Path | None = None) -> bytes:
    """Return a policy that was read as a file of ours.

    `earlier` may be one that was made from the same file before. It is taken again, as another machine may round the
    log-probabilities of the probes otherwise.
    """
    if saved.content:
        return saved.content
    if earlier is not None and earlier.is_file() and read_card(earlier).get("origin") == saved.card["origin"]:
        return earlier.read_bytes()
    return policy_bytes(saved.policy, saved.card)
