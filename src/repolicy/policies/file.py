"""The file of a policy: its weights, the prior that it was customized from, and a card that describes its training."""

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repolicy.errors import FileError, RepolicyError, UsageError, first_line
from repolicy.files import Shape, check_shape, write_bytes
from repolicy.policies.density import Density
from repolicy.policies.families import FAMILIES
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy, PolicySpec, with_torch_defaults
from repolicy.policies.storage import is_repolicy_file, read, serialize, write
from repolicy.ranges import MAX_DIALS, Dial
from repolicy.text import printable

PROBE_COUNT = 64  # observations and actions stored with a policy, to check its log-probabilities when it is read
DECODER = "decoder"  # the tensor that holds the bytes of a decoder's file

# The JSON of an objective.
OBJECTIVE_SHAPE: dict[str, Shape] = {
    "task": str,
    "omega": (float, [float]),
    "alpha": (float, [float], "omega"),
    "bonus": float,
    "states?": float,
}
# The parts of a policy's card and of its spec that the code reads. In the objective of a card, any part may be missing.
CARD_SHAPE = {
    "request?": {
        "env?": str,
        "addons?": [str],
        "limits?": [str],
        "objective?": {f"{name.removesuffix('?')}?": shape for name, shape in OBJECTIVE_SHAPE.items()},
        "settings?": {},
    },
    "which?": str,
    "groups?": [str],
    "steps?": int,
    "evaluation?": {str: float},
    "versions?": {str: str},
    "command?": str,
    "alpha?": float,
    "nat_worth?": {"value": float, "error": float, "episodes": int},
    "scores?": {"mean action": [float], "episodes": int},
    "origin?": {"library": str, "version": str, "kind": str, "file": str, "sha256": str, "options": {}, "notes": [str]},
    "dial?": {"at?": float, "values?": {str: float}, "how": str, "of": str},
}
SPEC_SHAPE = {
    "observation_size": int,
    "actions": {"kind": str, "sizes": [int], "low": [float], "high": [float]},
    "family": str,
    "hidden": [int],
    "activation": str,
    "initial_std": float,
    "min_std": float,
    "std": str,
    "observation_bound?": float,
    "slope": float,
    "norms": [str],
    "epsilon": float,
    "std_bounds": [float],
    "mean_clip?": float,
    "clips": bool,
}


class SavedPolicy(NamedTuple):
    """The contents of a policy's file."""

    policy: Policy
    prior: Policy | None  # that it was customized from
    card: dict[str, Any]  # JSON that describes the policy and its training
    density: Density | None = None  # of the prior's states
    content: bytes = b""  # the file itself, if Repolicy wrote it


@with_torch_defaults()
def save_policy(
    path: str | Path,
    policy: Policy,
    card: dict[str, Any] | None = None,
    prior: Policy | None = None,
    density: Density | None = None,
    decoder: bytes = b"",
) -> None:
    """Write a policy into one self-contained file: weights, normalizer, and probes that verify it when it is read.

    Args:
        path: the file to write, NAME.safetensors.
        policy: the policy.
        card: a description of the policy, such as `{"request": {"env": "Pendulum-v1"}}`; numbers may be NumPy's.
        prior: the policy that it was customized from; the file then contains both.
        density: a density model of the states that the prior visits.
        decoder: for a generative policy, the contents of the file that decodes its noise into actions.

    Raises where the file could not be read again.
    """
    check_policy_name(Path(path))
    if not isinstance(policy, Policy):
        needed = "no Policy, of which such a file is made; a run's result has one, its .policy"
        raise UsageError(f"a {type(policy).__name__} is {needed}")
    if isinstance(prior, ConditionedPolicy):
        raise UsageError(prior.missing_dials_message("the prior"))
    try:
        card = json.loads(json.dumps({} if card is None else card, default=lambda number: number.item()))
    except (AttributeError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise UsageError(f"{path} cannot be written: its card is no JSON ({first_line(error)})") from None
    check_shape(card, CARD_SHAPE, f"{path} cannot be written: its card")
    extra = {DECODER: torch.frombuffer(bytearray(decoder), dtype=torch.uint8)} if decoder else {}
    write_bytes(Path(path), policy_bytes(policy, card, prior, density, extra))


def check_policy_name(path: Path) -> None:
    """Raise unless the name is one under which policies are written and found."""
    if path.suffix not in ("", ".safetensors"):
        raise UsageError(f"{path}: a policy's file is called NAME.safetensors; `repolicy export` writes other formats")


def policy_bytes(
    policy: Policy,
    card: dict[str, Any],
    prior: Policy | None = None,
    density: Density | None = None,
    extra: dict[str, Tensor] | None = None,
) -> bytes:
    """Return the file that `save_policy` writes; `extra` tensors are stored beside those of the policy."""
    card = {"groups": [*policy.groups]} | card if policy.groups else card
    tensors = _policy_tensors(policy, "policy") | (extra or {})
    header: dict[str, Any] = {"policy": asdict(policy.spec), "card": card}
    if isinstance(policy, ConditionedPolicy):
        header["dials"] = [dial._asdict() for dial in policy.dials]
    if prior is not None:
        tensors |= _policy_tensors(prior, "prior")
        header["prior"] = asdict(prior.spec)
    if density is not None:
        tensors |= density.tensors()
    return serialize("policy", tensors, header)


def add_to_card(path: Path, entries: dict[str, Any]) -> None:
    """Add entries to the card of a policy's file; its tensors do not change."""
    tensors, header = read(path, "policy")
    write(path, "policy", tensors, header | {"card": _checked_card(path, header) | entries})


def read_saved_policy(path: Path, content: bytes) -> SavedPolicy:
    """Read a file that Repolicy wrote; raise if the policy does not reproduce its stored log-probabilities."""
    tensors, header = read(path, "policy", content)
    prior = _build_policy(path, tensors, header, "prior") if "prior" in header else None
    policy, card = _build_policy(path, tensors, header, "policy"), _checked_card(path, header)
    policy.groups = tuple(card.get("groups", ()))
    return SavedPolicy(policy, prior, card, _read_density(path, tensors, prior), content)


def origin_notes(card: dict[str, Any]) -> list[str]:
    """Return sentences with what a user must know about a policy that was copied from another library."""
    return list(card.get("origin", {}).get("notes", ()))


def read_card(path: Path) -> dict[str, Any]:
    """Return the card of a policy's file without loading the policy; empty for another library's file."""
    if not is_repolicy_file(path):
        return {}
    return _checked_card(path, read(path, "policy")[1])


def read_decoder(path: Path) -> bytes:
    """Return the contents of the decoder's file that is stored in a policy's file; empty if there is none."""
    decoder = read(path, "policy")[0].get(DECODER) if is_repolicy_file(path) else None
    return b"" if decoder is None else decoder.numpy().tobytes()


def _policy_tensors(policy: Policy, name: str) -> dict[str, Tensor]:
    """Return the weights of a policy, and probes: observations, actions, and the log-probabilities of these."""
    generator = torch.Generator().manual_seed(0)
    observations = policy.normalizer.denormalized_noise(
        torch.randn(PROBE_COUNT, policy.observation_size, generator=generator)
    )
    with torch.no_grad():
        actions = policy(observations).sample(generator)
    probes = {"observations": observations, "actions": actions, "log_probs": policy.log_prob(observations, actions)}
    weights = {f"{name}.{key}": value for key, value in policy.state_dict().items()}
    return weights | {f"{name}_probes.{key}": value for key, value in probes.items()}


def _checked_card(path: str | Path, header: dict[str, Any]) -> dict[str, Any]:
    check_shape(header, {"card": CARD_SHAPE}, f"{path} is no whole policy: its header")
    return dict(header["card"])


def _build_policy(path: Path, tensors: dict[str, Tensor], header: dict[str, Any], name: str) -> Policy:
    """Build the policy that a file stores as `name`, "policy" or "prior", and verify it with its probes."""
    spec = header.get(name)
    if isinstance(spec, dict):  # null means that there is no such bound
        spec = {key: value for key, value in spec.items() if value is not None}
    check_shape({name: spec}, {name: SPEC_SHAPE}, f"{path} is no whole policy: its header")
    state = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    try:
        spec = PolicySpec.from_dict(header[name])
        constructor = _policy_constructor(path, header) if name == "policy" else Policy
        _check_sizes(spec, state)
        with torch.random.fork_rng(devices=[]):  # the new weights are replaced, and nobody's random numbers change
            policy = constructor(spec)
        policy.load_state_dict(state)
        probes = {key: tensors[f"{name}_probes.{key}"] for key in ("observations", "actions", "log_probs")}
        check_fingerprint(policy, probes, f"the {name} in {path}")
    except FileError:
        raise
    except (RepolicyError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise FileError(f"{path} is no whole policy: {printable(first_line(error))}") from None
    return policy.requires_grad_(False).eval()


def _policy_constructor(path: Path, header: dict[str, Any]) -> Callable[[PolicySpec], Policy]:
    """Return the constructor of the policy in a file: a conditioned policy if the header lists dials."""
    if header.get("dials") is None:
        return Policy
    dials_shape = [{"name": str, "low": float, "high": float, "scale": str}]
    check_shape(header, {"dials": dials_shape}, f"{path} is no whole policy: its header")
    dials = [Dial(each["name"], each["low"], each["high"], each["scale"]).checked() for each in header["dials"]]
    valid_names = {dial.name for dial in dials if dial.scale in ("log", "linear")}
    if not 0 < len(dials) == len(valid_names) <= MAX_DIALS:
        raise ValueError(f"it has {len(dials)} dials of {len(valid_names)} names and known scales")
    return lambda spec: ConditionedPolicy(spec, dials)


def _read_density(path: str | Path, tensors: dict[str, Tensor], prior: Policy | None) -> Density | None:
    """Return the density of the prior's states, or None if the file has none."""
    if prior is None or "states.mean" not in tensors:
        return None
    try:
        density = Density.from_tensors(tensors, prior.normalizer.bound)
        density.check_normalizer(prior.normalizer)
    except (UsageError, KeyError, ValueError) as error:
        raise FileError(f"{path} is no whole policy: {error}") from None
    return density


def _check_sizes(spec: PolicySpec, state: dict[str, Tensor]) -> None:
    """Raise where a damaged spec would make us build more layers, or larger ones, than the tensors have."""
    if not {len(spec.actions.low), len(spec.actions.high)} <= {0, spec.actions.width}:
        raise ValueError(f"its bounds are not those of {spec.actions}")
    widths = (spec.observation_size, *spec.hidden, FAMILIES[spec.family].output_size(spec))
    if min(widths) < 1:
        raise ValueError(f"it has a layer of {min(widths)} numbers")
    claimed = sum(inputs * outputs for inputs, outputs in pairwise(widths))
    present = sum(tensor.numel() for tensor in state.values())
    if claimed > present or len(spec.hidden) >= len(state):
        makes = f"its spec makes {len(spec.hidden) + 1:,} layers of {claimed:,} numbers"
        raise ValueError(f"{makes}, and it holds {len(state):,} tensors of {present:,}")


def check_fingerprint(policy: Policy, probes: dict[str, Tensor], name: str) -> None:
    """Raise unless a loaded policy gives the log-probabilities that were stored with it."""
    stored = probes["log_probs"]
    error = float((policy.log_prob(probes["observations"], probes["actions"]) - stored).abs().max())
    if not error <= 1e-3 * (1.0 + float(stored.abs().max())):
        raise FileError(f"{name} does not reproduce its log-probabilities: it is off by {error:.3g}")
