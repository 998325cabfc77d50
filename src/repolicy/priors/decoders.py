"""Decoders of generative policies: observations and noise to actions. `file.py:name`, an ONNX graph, or TorchScript."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repolicy.errors import NumericError, UsageError, in_one_sentence
from repolicy.loading import load_object
from repolicy.priors.code import is_code
from repolicy.priors.running import Session, check_trusted, scripted
from repolicy.readers.recognize import PolicyFile

Function = Callable[[np.ndarray, np.ndarray], Any]  # observations [N, O] and noise [N, Z], to actions [N, C · A]


class Decoder:
    """What turns noise `[N, Z]` into `chunk` actions in a row, `[N, C · A]`. It must give the same each time."""

    def __init__(self, function: Function, name: str, noise: int, chunk: int) -> None:
        self.function, self.name, self.noise, self.chunk = function, name, noise, chunk
        self._tried = False

    def __call__(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        decoded = self._run(observations, noise)
        if not self._tried:
            self._tried = True
            if not np.allclose(decoded, self._run(observations, noise), atol=1e-6, equal_nan=True):
                raise UsageError(
                    f"{self.name} gives other actions for the same observations and noise: it draws numbers of its own "
                    "(dropout, or noise in between), and must take all of them as its noise"
                )
        return decoded

    def _run(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        with in_one_sentence(f"{self.name} failed on {noise.shape[1]} numbers of noise", UsageError), torch.no_grad():
            result = self.function(observations.copy(), noise.copy())
            decoded = np.asarray(result, np.float32).reshape(len(noise), -1)
        if not np.isfinite(decoded).all():
            raise NumericError(f"{self.name} gave an action that is not finite")
        return decoded


def decoder_of(reference: Any, noise: Any, chunk: Any, trust: bool = True) -> Decoder:
    """Return the decoder that a user named, for so many numbers of noise and actions a chunk.

    Who takes a name out of a file has asked `envs/trust.py` before; TorchScript is a program, and needs `trust`.
    """
    for option, value in (("noise", noise), ("chunk", chunk)):  # as in an environment's name
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100_000:
            raise UsageError(f"--{option} is {value!r}; it must be a whole number, 1 or more")
    if is_code(reference):
        thing = load_object(reference, "decoder")
        thing = thing() if isinstance(thing, type) else thing
        return Decoder(getattr(thing, "decode", thing), reference, noise, chunk)
    file = PolicyFile(Path(str(reference)))
    if file.format == "torchscript":
        check_trusted(file, trust)
        module = scripted(file)
        return Decoder(lambda *both: module(*map(torch.from_numpy, both)), str(file.path), noise, chunk)
    if file.format != "onnx":
        raise UsageError(
            f"{file.path} is no decoder: it must be ONNX or TorchScript with observations and noise as inputs, or "
            "code, file.py:decode"
        )
    session = Session(file)
    source, shape = noise_input(session.inputs, noise, file.path)
    other = next(name for name in session.inputs if name != source)

    def run(observations: np.ndarray, given: np.ndarray) -> Any:
        return session.run({other: observations, source: given.reshape(len(given), *shape)})[0]

    return Decoder(run, str(file.path), noise, chunk)


def noise_input(inputs: dict[str, list[Any]], size: int, path: Path) -> tuple[str, list[int]]:
    """Return which of a graph's two inputs is the noise, and the shape of its rows."""
    if len(inputs) != 2:
        raise UsageError(
            f"{path} takes {len(inputs)} inputs ({', '.join(inputs)}), and a decoder takes observations and noise: "
            "write a function that runs it and name that as file.py:decode"
        )
    rows = {name: list(shape[1:]) for name, shape in inputs.items()}
    fitting = [name for name, row in rows.items() if all(isinstance(n, int) for n in row) and np.prod(row) == size]
    named = [name for name in fitting if any(word in name.lower() for word in NOISE)]
    found = fitting if len(fitting) == 1 else named
    if len(found) != 1:
        shapes = ", ".join(f"{name} {row}" for name, row in rows.items())
        raise UsageError(
            f"{path} does not tell which of its inputs is {size} numbers of noise ({shapes}): write a function that "
            "runs it and name that as file.py:decode"
        )
    return found[0], rows[found[0]]


NOISE = ("noise", "latent", "eps", "z")  # in the name of an input, where the shapes fit both
