"""Keep the evaluations of a policy in a file, beside what they depend on, so that a resumed sweep reuses them."""

import importlib.util
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Evaluation, parse_env_name
from repolicy.envs.addon_names import import_target
from repolicy.errors import FileError
from repolicy.files import file_sum
from repolicy.policies.storage import checksum, read, write

KIND = "evaluations"


def write_evaluations(path: Path, evaluations: Sequence[Evaluation], made_of: dict[str, Any]) -> None:
    """Write the evaluations, without their steps, and what they depend on."""
    tensors, header = _pack(evaluations)
    write(path, KIND, tensors, {"made_of": made_of, KIND: header})


def read_evaluations(path: Path, made_of: dict[str, Any]) -> tuple[Evaluation, ...] | None:
    """Return the evaluations in a file; None where it is missing or damaged, or depends on something else."""
    try:
        tensors, header = read(path, KIND)
        return _unpack(tensors, header[KIND]) if header["made_of"] == made_of else None
    except (FileError, KeyError, TypeError, AttributeError):
        return None


def _unpack(tensors: dict[str, Tensor], header: list[dict[str, Any]]) -> tuple[Evaluation, ...]:
    """Return the evaluations that `_pack` has packed."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    evaluations = []
    for index, values in enumerate(header):
        for name, parts in values.items():
            if isinstance(parts, list):
                values[name] = {part: arrays[f"{index} {name} {part}"] for part in parts}
            elif f"{index} {name}" in arrays:
                values[name] = arrays[f"{index} {name}"]
        evaluations.append(Evaluation(**values))
    return tuple(evaluations)


def code_sums(env: str, addons: Sequence[str]) -> dict[str, str]:
    """Return the checksum of each file of the user's that makes the environment or an add-on, without its imports."""
    targets = [parse_env_name(env).import_target, *map(import_target, addons)]
    files = {target: _source_file(target) for target in targets if target}
    return {target: file_sum(file) for target, file in files.items() if file is not None}


def _source_file(target: str) -> Path | None:
    """Return the file of `file.py:name`, of `module:name`, or of a wish that is a file itself; None if built in."""
    source = target.rpartition(":")[0] or target
    if Path(source).is_file():
        return Path(source)
    module = importlib.util.find_spec(source)
    return Path(module.origin) if module and module.origin and module.has_location else None


def evaluations_sum(evaluations: Sequence[Evaluation]) -> str:
    """Return a checksum of the evaluations, without their steps."""
    tensors, header = _pack(evaluations)
    return checksum(tensors, {KIND: header})


def _pack(evaluations: Sequence[Evaluation]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return the arrays by `INDEX FIELD` or `INDEX FIELD PART`, and the other fields of each evaluation.

    Among the other fields, an array is None, and a mapping to arrays is the list of its parts.
    """
    tensors, others = dict[str, Tensor](), list[dict[str, Any]]()
    for index, evaluation in enumerate(evaluations):
        values = {each.name: getattr(evaluation, each.name) for each in fields(evaluation) if each.name != "steps"}
        for name, value in values.items():
            if isinstance(value, dict):
                tensors |= {f"{index} {name} {part}": torch.from_numpy(array) for part, array in value.items()}
                values[name] = list(value)
            elif isinstance(value, np.ndarray):
                tensors[f"{index} {name}"] = torch.from_numpy(value)
                values[name] = None
        others.append(values)
    return tensors, others
