"""Keep the evaluations of a policy in a file, beside what they depend on, so that a resumed sweep reuses them."""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.envs import Evaluation, parse_env_name
from repolicy.envs.addon_names import import_target
from repolicy.errors import FileError
from repolicy.files import file_sum, read_json, write_bytes


def write_evaluations(path: Path, evaluations: Sequence[Evaluation], made_of: dict[str, Any]) -> None:
    """Write the evaluations, without their steps, and what they depend on."""
    content = {"made_of": made_of, "evaluations": as_values(evaluations)}
    write_bytes(path, json.dumps(content).encode())  # with NaN, which `write_json` would make null


def read_evaluations(path: Path, made_of: dict[str, Any]) -> tuple[Evaluation, ...] | None:
    """Return the evaluations in a file; None where it is missing or damaged, or depends on something else."""
    try:
        content = read_json(path)
        if content["made_of"] != made_of:
            return None
        return tuple(Evaluation(**_with_arrays(values)) for values in content["evaluations"])
    except (FileError, KeyError, TypeError, AttributeError):
        return None


def as_values(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Return the evaluations as JSON content, with lists in the place of arrays, and without their steps."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        return value.tolist() if isinstance(value, np.ndarray) else value

    names = [each.name for each in fields(Evaluation) if each.name != "steps"]
    return [{name: plain(getattr(evaluation, name)) for name in names} for evaluation in evaluations]


def _with_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_arrays(part) for name, part in value.items()}
    return np.array(value) if isinstance(value, list) else value


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
