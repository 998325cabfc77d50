"""Recognize the format of a policy file by its contents, and call the reader of that format."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch

from repolicy.errors import FileError, UsageError, first_line
from repolicy.files import read_bytes
from repolicy.policies import metadata
from repolicy.policies.storage import SAFETENSORS, is_repolicy_file
from repolicy.readers import brax, mapped, rllib, skrl, torchscript
from repolicy.readers import onnx_graphs as onnx
from repolicy.readers import rsl_rl_checkpoint as rsl_rl
from repolicy.readers import sb3_zip as sb3
from repolicy.readers.context import NoTemperatureError, ReadContext
from repolicy.readers.description import CannotCopyError, PolicyDescription, UnknownSettingError
from repolicy.readers.perceptrons import first_names
from repolicy.readers.pickles import DAMAGE_ERRORS, PICKLE_MAGIC, ZIP_MAGIC, ObjectStub, load, open_zip, short_repr
from repolicy.readers.reading import Options
from repolicy.text import printable

KNOWN_LIBRARIES = (
    "Stable-Baselines3's, rsl_rl's, skrl's, RLlib's, CleanRL's, TorchRL's, rl_games's, tianshou's and Brax's, ONNX and "
    "TorchScript"
)
EXPORT_HINT = "export it to ONNX or TorchScript, which run as they are, or write a function that runs it, file.py:act"
CHANGED_NOTE = "the graph is no more the one that Repolicy exported: it is read, and not the policy that it carries"
# The reader of each format. Among files that PyTorch or pickle wrote, the first reader that matches is taken.
CHECKPOINT_READERS: dict[str, Any] = {"rsl_rl": rsl_rl, "skrl": skrl, "rllib": rllib, "brax": brax, "mapped": mapped}
READERS: dict[str, Any] = CHECKPOINT_READERS | {"sb3": sb3, "onnx": onnx, "torchscript": torchscript}
OPENERS: dict[str | None, Any] = {"sb3": sb3.open_model, "onnx": onnx.load_model, "torchscript": open_zip}
RUNNABLE_FORMATS = ("onnx", "torchscript")
EMBEDDED_READERS: dict[str | None, Callable[[Any], metadata.EmbeddedPolicy | None]] = {
    "onnx": metadata.embedded_in_onnx,
    "torchscript": metadata.embedded_in_torchscript,
    "rsl_rl": metadata.embedded_in_checkpoint,
}


class PolicyFile:
    """A policy file of any library. It is read once; its contents are parsed when they are first needed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.content = read_bytes(self.path)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def format(self) -> str | None:
        """Key of the file's reader in READERS ("mapped" is CleanRL and others); None for an unknown format."""
        if sb3.matches(self.zip_names):
            return "sb3"
        if torchscript.matches(self.zip_names):
            return "torchscript"
        if self.is_pickled or self.is_safetensors:
            for name, reader in CHECKPOINT_READERS.items():
                if reader.matches(self.unpickled):
                    return name
            return None
        return "onnx" if onnx.matches(self.content) else None

    @cached_property
    def zip_names(self) -> list[str]:
        """Names of a zip's entries; empty where the file is no zip."""
        return open_zip(self.content, str(self.path)).namelist() if self.content[:4] == ZIP_MAGIC else []

    @property
    def is_pickled(self) -> bool:
        return self.content[:1] == PICKLE_MAGIC or any(name.endswith("data.pkl") for name in self.zip_names)

    @property
    def is_safetensors(self) -> bool:
        return self.content[5:9] == SAFETENSORS

    @cached_property
    def unpickled(self) -> Any:
        """The object that PyTorch or pickle wrote, or the tensors of a safetensors file by name."""
        if not self.is_safetensors:
            return load(self.content, str(self.path))
        try:
            tensors = safetensors.torch.load(self.content)
        except safetensors.SafetensorError as error:
            raise FileError(f"{self.path} is damaged: {first_line(error)}") from None
        arrays = {}
        for name in sorted(tensors, key=lambda name: re.sub(r"\d+", lambda digits: digits[0].zfill(4), name)):
            tensor = tensors[name]  # in natural order: layer 2 comes before layer 10
            arrays[name] = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
        return arrays

    @cached_property
    def reader_input(self) -> Any:
        """The parsed contents, as the `read` function of the file's format takes them."""
        opener = OPENERS.get(self.format)
        return opener(self.content, str(self.path)) if opener else self.unpickled

    @cached_property
    def repolicy_bytes(self) -> bytes | None:
        """A policy in Repolicy's own format: this file, or the one embedded in an unchanged export; else None."""
        if is_repolicy_file(self.path, self.content):
            return self.content
        return self.embedded.policy if self.embedded is not None and self.embedded.is_as_exported else None

    @cached_property
    def embedded(self) -> metadata.EmbeddedPolicy | None:
        """The policy that Repolicy embedded in a graph or a checkpoint when it exported it; None in other files."""
        if self.format not in EMBEDDED_READERS:
            return None
        reader_input = self.reader_input  # outside of the try: its errors are whole sentences already
        try:
            return EMBEDDED_READERS[self.format](reader_input)
        except (FileError, *DAMAGE_ERRORS) as error:
            raise FileError(f"{self.path} is damaged: {first_line(error)}") from None

    def describe(self, options: Options) -> PolicyDescription:
        """Read the policy in another library's file; raise a FileError or UsageError that says why it cannot be read.

        With `options.layout` the user's layout replaces the recognized format.
        """
        name = self.format if options.layout is None else "mapped"
        if options.layout is not None and self.format in RUNNABLE_FORMATS:
            raise UsageError(f"{self.path} is a graph, which tells its layers itself: leave --layout out")
        if name is None:
            if other := self._known_otherwise():
                raise FileError(f"{self.path} holds no policy, but {other}")
            problem = f"{self.path} holds {self._summarize_unknown()}, and no policy of a known layout"
            raise FileError(f"{problem}; known are {KNOWN_LIBRARIES}; {EXPORT_HINT}{self._layout_hint()}")
        context = ReadContext(self.path, options)
        try:
            reader_input = self.reader_input if options.layout is None else self.unpickled
            description: PolicyDescription = READERS[name].read(reader_input, context)
        except CannotCopyError as error:
            hint = "" if name in RUNNABLE_FORMATS else f"; {EXPORT_HINT}"
            if hint and options.layout is None and not isinstance(error, UnknownSettingError):
                hint += self._layout_hint()
            raise CannotCopyError(f"{self.path} cannot be copied: {error}{hint}") from None
        except NoTemperatureError:
            if options.std is None:
                raise
            raise self._no_std_error(options) from None
        except DAMAGE_ERRORS as error:
            raise FileError(f"{self.path} is damaged, or of another layout: {first_line(error)}") from None
        if options.std is not None and description.actions.kind == "discrete":
            raise self._no_std_error(options)
        for unused in sorted({"std", "temperature", "file_activation"} - context.used_options):
            if getattr(options, unused) not in (None, "fit"):
                word = unused.replace("_", "-")
                raise UsageError(f"{self.path} has its own {word}, or needs none: leave --{word} out")
        if self.embedded is not None and not self.embedded.is_as_exported:
            context.notes.append(CHANGED_NOTE)
        return replace(description, notes=tuple(context.notes))

    def _no_std_error(self, options: Options) -> UsageError:
        """Return the error that refuses --std for a policy that is read as one of choices."""
        hint = self._layout_hint() if self.format == "mapped" and options.layout is None else ""
        return UsageError(f"{self.path} is taken for a policy of choices, which has no std: leave --std out{hint}")

    def _layout_hint(self) -> str:
        """Return the end of a message that suggests a --layout for this file; empty where none is likely."""
        try:
            layout, addition = mapped.suggest_layout(self.unpickled)
        except FileError:
            return ""
        return f', or say which tensors are what, such as --layout "{printable(layout)}"{addition}' if layout else ""

    def _known_otherwise(self) -> str:
        """Return what a file is that is often named in place of a policy, and what to do; empty for any other."""
        if {"observations.npy", "actions.npy"} <= {*self.zip_names}:
            return f"demonstrations: `repolicy imitate {self.path}` makes a policy of them"
        if self.path.suffix == ".py":
            return f"code: name what is in it, {self.path}:NAME; an environment stands behind --env"
        saved = self.unpickled if self.is_pickled or self.is_safetensors else None
        if isinstance(saved, ObjectStub) and saved.last == "VecNormalize":
            return "VecNormalize's statistics: name the policy's zip, and this file by --vecnormalize"
        if isinstance(saved, dict) and {"state_dict", "data"} == saved.keys():
            return "what Stable-Baselines3's policy.save wrote: save the model itself instead"
        return ""

    def _summarize_unknown(self) -> str:
        """Return a few words about a file of an unknown format, for an error message."""
        if not (self.is_pickled or self.is_safetensors):
            return f"a zip of {first_names(self.zip_names)}" if self.zip_names else f"{len(self.content):,} bytes"
        saved = self.unpickled
        if isinstance(saved, ObjectStub):
            return f"a whole module, {short_repr(saved)}, whose code is not in it"
        if not isinstance(saved, dict):
            return f"a pickle of {short_repr(saved)}"
        return f"a dict of {first_names(map(str, saved))}"
