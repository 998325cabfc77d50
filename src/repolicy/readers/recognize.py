"""Which format a file has, by looking into it, and the description that its reader gives."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repolicy.errors import FileError, first_line
from repolicy.loading import printable, read_bytes
from repolicy.readers import (
    brax,
    cleanrl,
    mapped,
    onnx_files,
    skrl,
    torchscript,
)
from repolicy.readers import (
    onnx_graphs as onnx,
)
from repolicy.readers import (
    rsl_rl_checkpoint as rsl_rl,
)
from repolicy.readers import (
    sb3_zip as sb3,
)
from repolicy.readers.described import CannotCopyError, Described
from repolicy.readers.perceptrons import some
from repolicy.readers.pickles import DAMAGE, LEGACY_START, Shell, load, open_zip, read_pickle, shortened
from repolicy.readers.reading import Options

KNOWN = (
    "Stable-Baselines3's and sb3-contrib's zips, checkpoints of rsl_rl, skrl, CleanRL, rl_games and tianshou, Brax's "
    "parameters, ONNX and TorchScript"
)
EXPORT = "export it to ONNX or TorchScript, which run as they are"
CHECKPOINTS: Mapping[str, tuple[Callable[[Any], bool], Callable[[Path, Any, Options], Described]]] = {
    "rsl_rl": (rsl_rl.recognized, rsl_rl.read),
    "skrl": (skrl.recognized, skrl.read),
    "cleanrl": (cleanrl.recognized, cleanrl.read),
    "mapped": (mapped.recognized, mapped.read),
}

RUNNABLE: Mapping[str, Callable[[Path, Options], Described]] = {"onnx": onnx.read, "torchscript": torchscript.read}


def recognized(path: str | Path) -> str | None:
    """sb3, rsl_rl, skrl, cleanrl, mapped (rl_games, tianshou), brax, onnx or torchscript; None where it is no such."""
    path = Path(path)
    content = read_bytes(path)
    if content[:4] == b"PK\x03\x04":
        return _zip(content, str(path))
    if content[:1] == b"\x80":
        return _checkpoint(content, str(path)) if LEGACY_START in content[:32] else _pickle(content, str(path))
    return "onnx" if onnx_files.recognized(content) else None


def describe(path: str | Path, options: Options | None = None) -> Described:
    """The policy in a file of any known format, or one sentence about why there is none."""
    path, options = Path(path), options or Options()
    name = recognized(path) if options.layout is None else "mapped"
    if name is None:
        raise FileError(
            f"{path} holds {_found(path)}, and no policy of a known layout; known are {KNOWN}; {EXPORT}{_to_try(path)}"
        )
    try:
        if name in RUNNABLE:
            return RUNNABLE[name](path, options)
        if name in CHECKPOINTS:
            return CHECKPOINTS[name][1](path, _saved(path), options)
        return {"sb3": sb3.read, "brax": brax.read}[name](path, options)
    except CannotCopyError as error:
        raise error if name in RUNNABLE else CannotCopyError(f"{error}; {EXPORT}{_to_try(path)}") from None
    except DAMAGE as error:
        raise FileError(f"{path} is damaged, or of another layout: {first_line(error)}") from None


def _saved(path: Path) -> Any:
    """What PyTorch or pickle wrote."""
    content = read_bytes(path)
    return load(content, str(path))


def _to_try(path: Path) -> str:
    """The layout that a file may have, for the end of a sentence."""
    try:
        line = mapped.suggested(_saved(path))
    except FileError:
        return ""
    return f', or say which tensors are what, such as --layout "{printable(line)}"' if line else ""


def _zip(content: bytes, where: str) -> str | None:
    names = open_zip(content, where).namelist()
    if sb3.recognized(names):
        return "sb3"
    if torchscript.recognized(names):
        return "torchscript"
    return _checkpoint(content, where) if any(name.endswith("data.pkl") for name in names) else None


def _checkpoint(content: bytes, where: str) -> str | None:
    checkpoint = load(content, where)
    return next((name for name, (belongs, _) in CHECKPOINTS.items() if belongs(checkpoint)), None)


def _pickle(content: bytes, where: str) -> str | None:
    try:
        return "brax" if brax.recognized(read_pickle(content, where)) else None
    except FileError:
        return None


def _found(path: Path) -> str:
    """What is in a file of an unknown format, for a sentence."""
    content = read_bytes(path)
    if content[:1] == b"\x80" and LEGACY_START not in content[:32]:
        return f"a pickle of {shortened(read_pickle(content, str(path)))}"
    if content[:4] != b"PK\x03\x04":
        return f"{len(content):,} bytes that begin with {content[:8]!r}"
    names = open_zip(content, str(path)).namelist()
    if not any(name.endswith("data.pkl") for name in names):
        return f"a zip of {some(names)}"
    inside = load(content, str(path))
    if isinstance(inside, dict) and {"state_dict", "data"} == inside.keys():
        return "what Stable-Baselines3's policy.save wrote (save the model itself instead)"
    if isinstance(inside, Shell):
        return f"a whole module of PyTorch, {shortened(inside)}, whose code is not in it"
    return f"PyTorch's {some(map(str, inside))}" if isinstance(inside, dict) else f"PyTorch's {type(inside).__name__}"
