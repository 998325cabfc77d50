"""A policy's file: the policy, the prior that it was customized from, and what it tells of its training."""

from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.policies.density import Density
from repolicy.policies.families import FAMILIES
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.policies.storage import Shape, check_shape, is_repolicy_file, read, serialize, write, write_bytes
from repolicy.ranges import MOST_DIALS, Dial
from repolicy.text import printable

PROBE_COUNT = 64
DECODER = "decoder"  # the name of the tensor that is the bytes of a decoder's file

# An objective's JSON; in a policy's file any of it may be missing.
OBJECTIVE_SHAPE: dict[str, Shape] = {
    "task": str,
    "omega": (float, [float]),
    "alpha": (float, [float], "omega"),
    "bonus": float,
    "states?": float,
}
# What readers rely on in the header that a policy's file tells, and in the spec of a policy.
CARD = {
    "request?": {
        "env?": str,
        "addons?": [str],
        "objective?": {f"{name.removesuffix('?')}?": shape for name, shape in OBJECTIVE_SHAPE.items()},
        "settings?": {},
    },
    "which?": str,
    "steps?": int,
    "evaluation?": {str: float},
    "versions?": {str: str},
    "command?": str,
    "nat_worth?": {"value": float, "error": float, "episodes": int},
    "scores?": {"mean action": [float], "episodes": int},
    "origin?": {"library": str, "version": str, "kind": str, "file": str, "sha256": str, "options": {}, "notes": [str]},
    "dial?": {"at?": float, "values?": {str: float}, "how": str, "of": str},
}
SPEC = {
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
    """What a policy's file holds: the policy, the prior that it was customized from, its card, and the prior's states.

    `content` is the file itself, where it is one of ours.
    """

    policy: Policy
    prior: Policy | None
    card: dict[str, Any]
    density: Density | None = None
    content: bytes = b""


def save_policy(
    path: str | Path,
    policy: Policy,
    card: dict[str, Any] | None = None,
    prior: Policy | None = None,
    density: Density | None = None,
    decoder: bytes = b"",
) -> None:
    """Write one self-contained file: weights, normalizer, and probes to recognize the policy by.

    Args:
        path: where it goes, as NAME.safetensors.
        policy: what is written.
        card: what is said of it, such as `{"request": {"env": "Pendulum-v1"}}`.
        prior: the policy that it was customized from, which the file then holds, too.
        density: how likely the prior's states are.
        decoder: of a generative policy, the file that turns its noise into actions.
    """
    if Path(path).suffix not in ("", ".safetensors"):
        raise UsageError(f"{path}: a policy's file is called NAME.safetensors; `repolicy export` writes other formats")
    extra = {DECODER: torch.frombuffer(bytearray(decoder), dtype=torch.uint8)} if decoder else {}
    write_bytes(Path(path), policy_bytes(policy, {} if card is None else card, prior, density, extra))


def policy_bytes(
    policy: Policy,
    card: dict[str, Any],
    prior: Policy | None = None,
    density: Density | None = None,
    extra: dict[str, Tensor] | None = None,
) -> bytes:
    """Return what `save_policy` writes; `extra` tensors are not read with the policy."""
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


def add_to_card(path: Path, more: dict[str, Any]) -> None:
    """Say more on the card of a policy's file; its tensors stay the same to the bit."""
    tensors, header = read(path, "policy")
    write(path, "policy", tensors, header | {"card": _card(path, header) | more})


def read_saved_policy(path: Path, content: bytes) -> SavedPolicy:
    """Return what a file of ours holds; FileError unless the policy reproduces the log-probabilities stored with it."""
    tensors, header = read(path, "policy", content)
    prior = _rebuilt(path, tensors, header, "prior") if "prior" in header else None
    policy = _rebuilt(path, tensors, header, "policy")
    return SavedPolicy(policy, prior, _card(path, header), _density(path, tensors, prior), content)


def origin_notes(card: dict[str, Any]) -> list[str]:
    """Return what is to be known of a policy that another library trained, a sentence each."""
    return list(card.get("origin", {}).get("notes", ()))


def read_card(path: Path) -> dict[str, Any]:
    """Return the card of a policy's file, and nothing else of it; another library's file has none."""
    if not is_repolicy_file(path):
        return {}
    return _card(path, read(path, "policy")[1])


def read_decoder(path: Path) -> bytes:
    """Return the file of the decoder that a policy's file holds; nothing where it holds none."""
    found = read(path, "policy")[0].get(DECODER) if is_repolicy_file(path) else None
    return b"" if found is None else found.numpy().tobytes()


def _policy_tensors(policy: Policy, name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    observations = policy.normalizer.denormalized_noise(
        torch.randn(PROBE_COUNT, policy.observation_size, generator=generator)
    )
    with torch.no_grad():
        actions = policy(observations).sample(generator)
    probes = {"observations": observations, "actions": actions, "log_probs": policy.log_prob(observations, actions)}
    return {f"{name}.{key}": value for key, value in policy.state_dict().items()} | {
        f"{name}_probes.{key}": value for key, value in probes.items()
    }


def _card(path: str | Path, header: dict[str, Any]) -> dict[str, Any]:
    check_shape(header, {"card": CARD}, f"{path} is no whole policy: its header")
    return dict(header["card"])


def _rebuilt(path: Path, tensors: dict[str, Tensor], header: dict[str, Any], name: str) -> Policy:
    spec = header.get(name)
    if isinstance(spec, dict):  # a bound that is null is none
        spec = {key: value for key, value in spec.items() if value is not None}
    check_shape({name: spec}, {name: SPEC}, f"{path} is no whole policy: its header")
    state = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    try:
        spec = PolicySpec.from_dict(header[name])
        make = _maker(header) if name == "policy" else Policy
        _check_sizes(spec, state, make)
        policy = make(spec)
        policy.load_state_dict(state)
        probes = {key: tensors[f"{name}_probes.{key}"] for key in ("observations", "actions", "log_probs")}
        check_fingerprint(policy, probes, f"the {name} in {path}")
    except FileError:
        raise
    except (RepolicyError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise FileError(f"{path} is no whole policy: {printable((str(error).splitlines() or [''])[0])}") from None
    return frozen(policy)


def _maker(header: dict[str, Any]) -> Callable[[PolicySpec], Policy]:
    """Return what makes the policy in a file: a conditioned one, where the header tells of dials."""
    if header.get("dials") is None:
        return Policy
    check_shape(header, {"dials": [{"name": str, "low": float, "high": float, "scale": str}]}, "its header")
    dials = [Dial(each["name"], each["low"], each["high"], each["scale"]).checked() for each in header["dials"]]
    names = {dial.name for dial in dials if dial.scale in ("log", "linear")}
    if not 0 < len(dials) == len(names) <= MOST_DIALS:
        raise ValueError(f"it has {len(dials)} dials of {len(names)} names and known scales")
    return lambda spec: ConditionedPolicy(spec, dials)


def _density(path: str | Path, tensors: dict[str, Tensor], prior: Policy | None) -> Density | None:
    """Return the density of the prior's states, where the file holds one."""
    if prior is None or "states.mean" not in tensors:
        return None
    try:
        density = Density.from_tensors(tensors)
        density.check_normalizer(prior.normalizer)
    except (UsageError, KeyError, ValueError) as error:
        raise FileError(f"{path} is no whole policy: {error}") from None
    return density


def _check_sizes(spec: PolicySpec, state: dict[str, Tensor], make: Callable[[PolicySpec], Policy]) -> None:
    """Raise unless the tensors are those of such a policy, before memory is set aside for what a file claims."""
    actions = spec.actions
    if not {len(actions.low), len(actions.high)} <= {0, actions.width}:
        raise ValueError(f"its bounds are not those of {actions}")
    if len(spec.hidden) >= len(state):
        raise ValueError(f"it says {len(spec.hidden)} hidden layers and has {len(state)} tensors")
    widths = (spec.observation_size, *spec.hidden, FAMILIES[spec.family].outputs(spec))
    if min(widths) < 1:
        raise ValueError(f"it has a layer of {min(widths)} numbers")
    claimed, present = sum(a * b for a, b in pairwise(widths)), sum(tensor.numel() for tensor in state.values())
    if claimed > present:
        raise ValueError(f"its spec makes weights of {claimed:,} numbers, and it holds {present:,}")
    wanted = make(spec).state_dict()
    if missing := {*wanted} ^ {*state}:
        raise ValueError(f"it lacks {min(missing)}, or should not have it")
    for key, tensor in wanted.items():
        found, made = (f"{list(each.shape)} {each.dtype}" for each in (state[key], tensor))
        if found != made:
            raise ValueError(f"{key} is {found}, and its spec makes it {made}")


def check_fingerprint(policy: Policy, probes: dict[str, Tensor], who: str) -> None:
    """Raise unless a policy that was loaded gives the log-probabilities that it gave when it was saved."""
    log_probs, stored = policy.log_prob(probes["observations"], probes["actions"]), probes["log_probs"]
    worst = float((log_probs - stored).abs().max())
    if worst <= 1e-3 * (1.0 + float(stored.abs().max())):
        return
    offset = (log_probs - stored).mean()
    constant = float((log_probs - stored - offset).abs().max()) < 0.01 * worst
    cause = "the std or the scale of actions" if constant else "the observation normalizer or the weights"
    raise FileError(f"{who} does not reproduce its log-probabilities (off by {worst:.3g}); the likely cause is {cause}")
