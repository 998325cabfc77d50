"""What an exported graph carries beside its numbers: what a robot's program must know, as JSON, and the policy itself.

A checkpoint of rsl_rl's carries the policy alone.

    about = json.loads(session.get_modelmeta().custom_metadata_map["repolicy.json"])      # of ONNX
    extra = {"repolicy.json": ""}; torch.jit.load("policy.pt", _extra_files=extra)        # of TorchScript

The policy is a file of ours, so that a graph is read back to the bit, with its std and its dials. It counts only while
the graph is the one that was exported: a sum over the graph is kept beside it.
"""

import base64
import binascii
import hashlib
import json
import math
import zipfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, UsageError
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy
from repolicy.policies.storage import check_shape, checksum

FORMAT = 1
ABOUT, POLICY = "repolicy.json", "policy.safetensors"
SUM = "policy.sha256"  # in a checkpoint, over the actor that became this policy
SHAPE = {
    "format": int,
    "env": str,
    "observations": {"size": int, "names?": [str], "units?": [str]},
    "actions": {"kind": str, "sizes": [int], "names?": [str], "low": [float], "high": [float], "stay_within": bool},
    "control_period?": float,
    "dials": [{"name": str, "low": float, "high": float, "scale": str, "if_nan": float}],
    "addons": [str],
    "policy": str,
    "prior?": str,
    "repolicy": str,
    "graph": str,
}


@dataclass(frozen=True)
class EmbeddedPolicy:
    """What was found in an exported graph, or in a checkpoint."""

    deployment_info: dict[str, Any]  # empty in a checkpoint
    policy: bytes  # a file of ours
    is_as_exported: bool  # the graph, or the actor, is still the one that belongs to this policy


def fingerprint(policy: Policy) -> str:
    """Return a sum over all that a policy is: two are equal where it is."""
    dials = [dial._asdict() for dial in policy.dials] if isinstance(policy, ConditionedPolicy) else []
    what = {"family": policy.spec.family, "activation": policy.spec.activation, "dials": dials}
    return checksum(policy.state_dict(), what)


def deployment_info(policy: Policy, prior: Policy | None, card: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Return what a robot's program must know; `told` is what the environment tells of itself, as far as it does."""
    spec, request = policy.spec, card.get("request", {})
    for what, size in (("observations", spec.observation_size), ("actions", spec.actions.width)):
        names = told.get(what, {}).get("names")
        if names is not None and len(names) != size:
            raise UsageError(f"{told['env']} has {len(names)} {what}, and the policy {size}: name its own with --env")
    within = spec.actions.kind == "discrete" or spec.clips or "squashed" in spec.family
    bounded = all(map(math.isfinite, (*spec.actions.low, *spec.actions.high)))
    bounds: dict[str, Any] = {} if bounded else {"low": (), "high": ()}  # JSON knows no infinite number
    if spec.actions.kind == "discrete":
        low = spec.actions.low or (0.0,) * spec.actions.width
        bounds = {"low": low, "high": [first + size - 1.0 for first, size in zip(low, spec.actions.sizes, strict=True)]}
    dials = policy.dials if isinstance(policy, ConditionedPolicy) else ()
    return {
        "format": FORMAT,
        "env": told.get("env", ""),
        "control_period": told.get("control_period"),
        "observations": {"size": spec.observation_size} | told.get("observations", {}),
        "actions": asdict(spec.actions) | bounds | {"stay_within": within} | told.get("actions", {}),
        "dials": [dial._asdict() | {"if_nan": dial.if_nan} for dial in dials],
        "addons": list(request.get("addons", ())),
        "policy": fingerprint(policy),
        "prior": None if prior is None else fingerprint(prior),
        "repolicy": version("repolicy"),
    }


def embed_in_onnx(content: bytes, told: dict[str, Any], policy: bytes) -> bytes:
    """Return a graph with what it is to carry, and without its exporter's notes on each node."""
    import onnx

    model = onnx.load_model_from_string(content)
    for part in (model.graph, *model.graph.node, *model.graph.value_info):
        part.ClearField("metadata_props")
    entries = {ABOUT: _text(told | {"graph": onnx_digest(model)}), POLICY: base64.b64encode(policy).decode()}
    onnx.helper.set_model_props(model, entries)
    return model.SerializeToString(deterministic=True)


def embedded_in_onnx(model: Any) -> EmbeddedPolicy | None:
    """Return what a graph carries; None where it is not Repolicy's."""
    entries = {entry.key: entry.value for entry in model.metadata_props}
    if not {ABOUT, POLICY} <= entries.keys():
        return None
    try:
        policy = base64.b64decode(entries[POLICY], validate=True)
    except (binascii.Error, ValueError):
        raise FileError(f"its {POLICY} is damaged") from None
    return _carried(entries[ABOUT], policy, onnx_digest(model))


def onnx_digest(model: Any) -> str:
    """Return a sum over a graph, its constants included."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


def torchscript_files(archive: zipfile.ZipFile, told: dict[str, Any], policy: bytes) -> dict[str, Any]:
    """Return what TorchScript is to carry; `archive` is the same without it."""
    return {ABOUT: _text(told | {"graph": torchscript_digest(archive)}), POLICY: policy}


def embedded_in_torchscript(archive: zipfile.ZipFile) -> EmbeddedPolicy | None:
    """Return what TorchScript carries; None where it is not Repolicy's."""
    found = {name.partition("/extra/")[2]: name for name in archive.namelist() if "/extra/" in name}
    if not {ABOUT, POLICY} <= found.keys():
        return None
    return _carried(archive.read(found[ABOUT]), archive.read(found[POLICY]), torchscript_digest(archive))


def torchscript_digest(archive: zipfile.ZipFile) -> str:
    """Return a sum over code and constants. (Each file has a number of its own and notes on where its code is from.)"""
    digest = hashlib.sha256()
    for name in sorted(archive.namelist()):
        inside = name.partition("/")[2]
        if not inside.startswith(("extra/", ".data/")) and not inside.endswith(".debug_pkl"):
            digest.update(inside.encode() + b"\0" + archive.read(name))
    return digest.hexdigest()


def checkpoint_entries(actor: dict[str, Tensor], policy: bytes) -> dict[str, Any]:
    """Return what a checkpoint with the weights of this actor is to carry."""
    return {POLICY: torch.frombuffer(bytearray(policy), dtype=torch.uint8), SUM: actor_digest(actor)}


def embedded_in_checkpoint(checkpoint: dict[str, Any]) -> EmbeddedPolicy | None:
    """Return what a checkpoint carries, its tensors being NumPy's; None where it carries nothing."""
    policy, actor = checkpoint.get(POLICY), checkpoint.get("actor_state_dict")
    if not (isinstance(policy, np.ndarray) and isinstance(actor, dict)):
        return None
    weights = {name: torch.tensor(part) for name, part in actor.items() if isinstance(part, np.ndarray)}
    return EmbeddedPolicy({}, policy.tobytes(), checkpoint.get(SUM) == actor_digest(weights))


def actor_digest(actor: dict[str, Tensor]) -> str:
    """Return a sum over an actor's weights."""
    return checksum({name: part.cpu() for name, part in actor.items()}, {})


def _text(told: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in told.items() if value is not None}, allow_nan=False)


def _carried(text: str | bytes, policy: bytes, graph: str) -> EmbeddedPolicy:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise FileError(f"its {ABOUT} is damaged") from None
    if isinstance(told, dict) and isinstance(told.get("format"), int) and told["format"] > FORMAT:
        raise FileError(f"its {ABOUT} has format {told['format']}; this version reads up to {FORMAT}: upgrade repolicy")
    check_shape(told, SHAPE, f"its {ABOUT} is not whole: it")
    return EmbeddedPolicy(told, policy, told["graph"] == graph)
