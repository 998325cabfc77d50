"""Which format a file of another library has, by looking into it, and the description that its reader gives."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch

from repolicy.errors import FileError, UsageError, first_line
from repolicy.loading import read_bytes
from repolicy.policies import metadata
from repolicy.policies.storage import SAFETENSORS, is_repolicy_file
from repolicy.readers import brax, mapped, rllib, skrl, torchscript
from repolicy.readers import onnx_graphs as onnx
from repolicy.readers import rsl_rl_checkpoint as rsl_rl
from repolicy.readers import sb3_zip as sb3
from repolicy.readers.context import ReadContext
from repolicy.readers.description import CannotCopyError, PolicyDescription
from repolicy.readers.perceptrons import first_names
from repolicy.readers.pickles import DAMAGE_ERRORS, PICKLE_MAGIC, ZIP_MAGIC, ObjectStub, load, short_repr
from repolicy.readers.reading import Options
from repolicy.readers.zips import open_zip
from repolicy.text import printable

KNOWN = (
    "Stable-Baselines3's, rsl_rl's, skrl's, RLlib's, CleanRL's, TorchRL's, rl_games's, tianshou's and Brax's, ONNX and "
    "TorchScript"
)
EXPORT = "export it to ONNX or TorchScript, which run as they are"
# By the format of a file: of what PyTorch or pickle wrote the first that fits, then what the other readers take.
CHECKPOINTS: dict[str, Any] = {"rsl_rl": rsl_rl, "skrl": skrl, "rllib": rllib, "brax": brax, "mapped": mapped}
READERS: dict[str, Any] = CHECKPOINTS | {"sb3": sb3, "onnx": onnx, "torchscript": torchscript}
OPENED: dict[str | None, Any] = {"sb3": sb3.open_model, "onnx": onnx.load_model, "torchscript": open_zip}
CHANGED = "the graph is no more the one that Repolicy exported: it is read, and not the policy that it carries"
RUNNABLE = ("onnx", "torchscript")
CARRYING: dict[str | None, Callable[[Any], metadata.EmbeddedPolicy | None]] = {
    "onnx": metadata.embedded_in_onnx,
    "torchscript": metadata.embedded_in_torchscript,
    "rsl_rl": metadata.embedded_in_checkpoint,
}


class PolicyFile:
    """A policy's file. It is opened once, and what is in it is looked for once, when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.content = read_bytes(self.path)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def format(self) -> str | None:
        """sb3, rsl_rl, skrl, rllib, brax, mapped (CleanRL, ...), onnx or torchscript; None if it is no such."""
        names = self.names
        if sb3.recognized(names):
            return "sb3"
        if torchscript.recognized(names):
            return "torchscript"
        if self.is_pickled or self.is_safetensors:
            return next((name for name, each in CHECKPOINTS.items() if each.recognized(self.pickled)), None)
        return "onnx" if onnx.recognized(self.content) else None

    @cached_property
    def names(self) -> list[str]:
        """The names of a zip's entries; none where it is no zip."""
        return open_zip(self.content, str(self.path)).namelist() if self.content[:4] == ZIP_MAGIC else []

    @property
    def is_pickled(self) -> bool:
        return self.content[:1] == PICKLE_MAGIC or any(name.endswith("data.pkl") for name in self.names)

    @property
    def is_safetensors(self) -> bool:
        return self.content[5:9] == SAFETENSORS

    @cached_property
    def pickled(self) -> Any:
        """What PyTorch or pickle wrote, or safetensors in the place of it."""
        if not self.is_safetensors:
            return load(self.content, str(self.path))
        try:
            tensors = safetensors.torch.load(self.content)
        except safetensors.SafetensorError as error:
            raise FileError(f"{self.path} is damaged: {first_line(error)}") from None
        names = sorted(tensors, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(4), name))  # 2 before 10
        plain = (tensors[name].double() if tensors[name].is_floating_point() else tensors[name] for name in names)
        return {name: each.numpy() for name, each in zip(names, plain, strict=True)}

    @cached_property
    def reader_input(self) -> Any:
        """What the readers of the present format take."""
        name = self.format
        return OPENED[name](self.content, str(self.path)) if name in OPENED else self.pickled

    @cached_property
    def repolicy_bytes(self) -> bytes | None:
        """A policy's file of ours, in bytes: this file, or the one that an unchanged file carries; else None."""
        if is_repolicy_file(self.path, self.content):
            return self.content
        return self.carried.policy if self.carried is not None and self.carried.is_as_exported else None

    @cached_property
    def carried(self) -> metadata.EmbeddedPolicy | None:
        """What a graph that Repolicy exported, or a checkpoint, carries beside it; None in any other file."""
        if self.format not in CARRYING:
            return None
        opened = self.reader_input
        try:
            return CARRYING[self.format](opened)
        except (FileError, *DAMAGE_ERRORS) as error:
            raise FileError(f"{self.path} is damaged: {first_line(error)}") from None

    def describe(self, options: Options) -> PolicyDescription:
        """Return the policy in the file, or raise one sentence about why there is none."""
        name = self.format if options.layout is None else "mapped"
        if options.layout is not None and self.format in RUNNABLE:
            raise UsageError(f"{self.path} is a graph, which tells its layers itself: leave --layout out")
        if name is None:
            what = f"{self.path} holds {self._found()}, and no policy of a known layout"
            raise FileError(f"{what}; known are {KNOWN}; {EXPORT}{self._to_try()}")
        try:
            context = ReadContext(self.path, options)
            found: PolicyDescription = READERS[name].read(
                self.reader_input if options.layout is None else self.pickled, context
            )
            for idle in sorted({"std", "temperature", "file_activation"} - context.used_options):
                if getattr(options, idle) not in (None, "fit"):
                    word = idle.replace("_", "-")
                    raise UsageError(f"{self.path} has its own {word}, or needs none: leave --{word} out")
            if self.carried is not None and not self.carried.is_as_exported:
                context.notes.append(CHANGED)
            return replace(found, notes=tuple(context.notes))
        except CannotCopyError as error:
            hint = "" if name in RUNNABLE else f"; {EXPORT}"
            if options.layout is None and hint:
                hint += self._to_try()
            raise CannotCopyError(f"{self.path} cannot be copied: {error}{hint}") from None
        except DAMAGE_ERRORS as error:
            raise FileError(f"{self.path} is damaged, or of another layout: {first_line(error)}") from None

    def _to_try(self) -> str:
        """Return the layout that the file may have, for the end of a sentence."""
        try:
            line = mapped.suggested(self.pickled)
        except FileError:
            return ""
        return f', or say which tensors are what, such as --layout "{printable(line)}"' if line else ""

    def _found(self) -> str:
        """Return what is in a file of an unknown format, for a sentence."""
        if {"observations.npy", "actions.npy"} <= {*self.names}:
            return f"demonstrations (`repolicy imitate {self.path}` makes a policy of them)"
        if not (self.is_pickled or self.is_safetensors):
            return f"a zip of {first_names(self.names)}" if self.names else f"{len(self.content):,} bytes"
        inside = self.pickled
        if isinstance(inside, dict) and {"state_dict", "data"} == inside.keys():
            return "what Stable-Baselines3's policy.save wrote (save the model itself instead)"
        if isinstance(inside, ObjectStub):
            return f"a whole module, {short_repr(inside)}, whose code is not in it"
        return (
            f"a dict of {first_names(map(str, inside))}"
            if isinstance(inside, dict)
            else f"a pickle of {short_repr(inside)}"
        )
