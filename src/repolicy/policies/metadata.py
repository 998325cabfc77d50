"""Metadata that is embedded in an exported graph: a JSON description for the robot's program, and the policy's file.

    info = json.loads(session.get_modelmeta().custom_metadata_map["repolicy.json"])       # of ONNX
    extra = {"repolicy.json": ""}; torch.jit.load("policy.pt", _extra_files=extra)        # of TorchScript

With the embedded file, a graph can be read back as the exact policy, with its std and its dials. It is used only if the
graph has not changed since the export, which a digest shows. In a checkpoint of rsl_rl only the policy is embedded.
"""

import base64
import hashlib
import json
import math
import zipfile
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, UsageError
from repolicy.files import check_shape
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy
from repolicy.policies.storage import checksum

FORMAT = 1
ABOUT, POLICY = "repolicy.json", "policy.safetensors"
DIGEST = "policy.sha256"  # in a checkpoint: the digest of the actor that the policy was made from
INFO_SHAPE = {
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
    """A policy that was found in an exported graph or in a checkpoint."""

    deployment_info: dict[str, Any]  # empty in a checkpoint
    policy: bytes  # the contents of the policy's file
    is_as_exported: bool  # whether the graph, or the actor, is still the one that belongs to this policy


def fingerprint(policy: Policy) -> str:
    """Return a digest of a policy's weights, family, activation and dials."""
    dials = [dial._asdict() for dial in policy.dials] if isinstance(policy, ConditionedPolicy) else []
    header = {"family": policy.spec.family, "activation": policy.spec.activation, "dials": dials}
    return checksum(policy.state_dict(), header)


def deployment_info(
    policy: Policy, prior: Policy | None, card: dict[str, Any], env_info: dict[str, Any]
) -> dict[str, Any]:
    """Describe a policy for the program that runs it; `env_info` describes the environment, as far as it is known."""
    spec, actions, env_actions = policy.spec, policy.spec.actions, env_info.get("actions", {})
    for side, size in (("observations", spec.observation_size), ("actions", actions.width)):
        for entries in env_info.get(side, {}).values():
            if len(entries) != size:
                env = env_info["env"]
                raise UsageError(f"{env} has {len(entries)} {side}, and the policy {size}: name its own with --env")
    if actions.kind == "continuous" and not actions.low:  # such as a file of a library that stores no bounds
        actions = replace(actions, low=env_actions.get("low", ()), high=env_actions.get("high", ()))
    stays_within = actions.kind == "discrete" or spec.clips or "squashed" in spec.family
    bounds: dict[str, Any] = {}
    if actions.kind == "discrete":
        low = actions.low or (0.0,) * actions.width
        bounds = {"low": low, "high": [first + size - 1.0 for first, size in zip(low, actions.sizes, strict=True)]}
    elif not any(map(math.isfinite, (*actions.low, *actions.high))):
        bounds = {"low": (), "high": ()}
    else:
        largest = float(np.finfo(np.float32).max)  # JSON has no infinite numbers
        bounds = {side: np.clip(getattr(actions, side), -largest, largest).tolist() for side in ("low", "high")}
    dials = policy.dials if isinstance(policy, ConditionedPolicy) else ()
    return {
        "format": FORMAT,
        "env": env_info.get("env", ""),
        "control_period": env_info.get("control_period"),
        "observations": {"size": spec.observation_size} | env_info.get("observations", {}),
        "actions": env_actions | asdict(actions) | bounds | {"stay_within": stays_within},
        "dials": [dial._asdict() | {"if_nan": dial.if_nan} for dial in dials],
        "addons": list(card.get("request", {}).get("addons", ())),
        "policy": fingerprint(policy),
        "prior": None if prior is None else fingerprint(prior),
        "repolicy": version("repolicy"),
    }


def embed_in_onnx(content: bytes, info: dict[str, Any], policy: bytes) -> bytes:
    """Return an ONNX graph with the metadata, and without the notes that torch's exporter leaves on each node."""
    import onnx

    model = onnx.load_model_from_string(content)
    for part in (model.graph, *model.graph.node, *model.graph.value_info):
        part.ClearField("metadata_props")
    entries = {ABOUT: _to_json(info | {"graph": onnx_digest(model)}), POLICY: base64.b64encode(policy).decode()}
    onnx.helper.set_model_props(model, entries)
    return model.SerializeToString(deterministic=True)


def embedded_in_onnx(model: Any) -> EmbeddedPolicy | None:
    """Return the policy that is embedded in an ONNX graph, or None if there is none."""
    entries = {entry.key: entry.value for entry in model.metadata_props}
    if not {ABOUT, POLICY} <= entries.keys():
        return None
    try:
        policy = base64.b64decode(entries[POLICY], validate=True)
    except ValueError:
        raise FileError(f"its {POLICY} is damaged") from None
    return _embedded(entries[ABOUT], policy, onnx_digest(model))


def onnx_digest(model: Any) -> str:
    """Return a digest of a graph, including its constants."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


def torchscript_files(archive: zipfile.ZipFile, info: dict[str, Any], policy: bytes) -> dict[str, Any]:
    """Return the extra files to embed in TorchScript; `archive` is the script without them."""
    return {ABOUT: _to_json(info | {"graph": torchscript_digest(archive)}), POLICY: policy}


def embedded_in_torchscript(archive: zipfile.ZipFile) -> EmbeddedPolicy | None:
    """Return the policy that is embedded in TorchScript, or None if there is none."""
    extra = {name.partition("/extra/")[2]: name for name in archive.namelist() if "/extra/" in name}
    if not {ABOUT, POLICY} <= extra.keys():
        return None
    try:
        info, policy, digest = archive.read(extra[ABOUT]), archive.read(extra[POLICY]), torchscript_digest(archive)
    except Exception as error:  # zipfile's, zlib's, lzma's and bz2's, of many classes
        raise FileError(f"it cannot be unpacked ({error})") from None
    return _embedded(info, policy, digest)


def torchscript_digest(archive: zipfile.ZipFile) -> str:
    """Return a digest of code and constants. It skips what differs between exports: `.data/` and debug information."""
    digest = hashlib.sha256()
    for name in sorted(archive.namelist()):
        inside = name.partition("/")[2]
        if not inside.startswith(("extra/", ".data/")) and not inside.endswith(".debug_pkl"):
            digest.update(inside.encode() + b"\0" + archive.read(name))
    return digest.hexdigest()


def checkpoint_entries(actor: dict[str, Tensor], policy: bytes) -> dict[str, Any]:
    """Return the entries to add to a checkpoint with the weights of this actor."""
    return {POLICY: torch.frombuffer(bytearray(policy), dtype=torch.uint8), DIGEST: actor_digest(actor)}


def embedded_in_checkpoint(checkpoint: dict[str, Any]) -> EmbeddedPolicy | None:
    """Return the policy that is embedded in a checkpoint, whose tensors are NumPy arrays; None if there is none."""
    policy, actor = checkpoint.get(POLICY), checkpoint.get("actor_state_dict")
    if not (isinstance(policy, np.ndarray) and isinstance(actor, dict)):
        return None
    weights = {name: torch.tensor(part) for name, part in actor.items() if isinstance(part, np.ndarray)}
    return EmbeddedPolicy({}, policy.tobytes(), checkpoint.get(DIGEST) == actor_digest(weights))


def actor_digest(actor: dict[str, Tensor]) -> str:
    """Return a digest of an actor's weights."""
    return checksum({name: part.cpu() for name, part in actor.items()}, {})


def _to_json(info: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in info.items() if value is not None}, allow_nan=False)


def _embedded(text: str | bytes, policy: bytes, digest: str) -> EmbeddedPolicy:
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        raise FileError(f"its {ABOUT} is damaged") from None
    if isinstance(info, dict) and isinstance(info.get("format"), int) and info["format"] > FORMAT:
        raise FileError(f"its {ABOUT} has format {info['format']}; this version reads up to {FORMAT}: upgrade repolicy")
    check_shape(info, INFO_SHAPE, f"its {ABOUT} is not whole: it")
    return EmbeddedPolicy(info, policy, info["graph"] == digest)
