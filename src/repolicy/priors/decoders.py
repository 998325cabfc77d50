"""Decoders of generative policies: observations and noise to actions. `file.py:name`, an ONNX graph, or TorchScript."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, NumericError, RepolicyError, UsageError, described, in_one_sentence
from repolicy.loading import load_object
from repolicy.policies import TOLERANCE, Policy, read_decoder
from repolicy.policies.export import MeanActionModule, onnx_graph, onnx_runner
from repolicy.policies.storage import write_bytes
from repolicy.priors.finding import cache_folder
from repolicy.priors.opening import is_code
from repolicy.priors.running import Session, check_trusted, load_torchscript
from repolicy.readers.onnx_graphs import input_shapes
from repolicy.readers.recognize import PolicyFile

LARGEST = 64 * 2**20  # bytes; a larger decoder is not stored in a policy's file
DIGEST_LENGTH = 16  # digits of a sha256 that identify a decoder
DecodeFunction = Callable[[np.ndarray, np.ndarray], Any]  # observations [N, O] and noise [N, Z], to actions [N, C · A]


class DecoderSpec(NamedTuple):
    """The decoder options in an environment's name. They are not checked: a user may have written anything."""

    decoder: Any  # a file, or code
    noise: Any
    chunk: Any
    sha256: str | None  # the first digits of the file's sha256, if it is known


class Decoder:
    """A deterministic function from observations and noise `[N, Z]` to `chunk` consecutive actions, `[N, C · A]`."""

    def __init__(self, function: DecodeFunction, name: str, noise: int, chunk: int) -> None:
        self.function, self.name, self.noise, self.chunk = function, name, noise, chunk
        self._is_checked = False

    def __call__(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        decoded = self._run(observations, noise)
        if not self._is_checked:
            self._is_checked = True
            if not np.allclose(decoded, self._run(observations, noise), atol=1e-6, equal_nan=True):
                why = "it draws numbers of its own, and must take all of them as its noise"
                raise UsageError(f"{self.name} gives other actions for the same observations and noise: {why}")
        return decoded

    def _run(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        with in_one_sentence(f"{self.name} failed on {noise.shape[1]} numbers of noise", UsageError), torch.no_grad():
            decoded = np.asarray(self.function(observations.copy(), noise.copy()), np.float32)
        if decoded.shape[:1] != noise.shape[:1]:
            raise UsageError(f"{self.name} gives shape {decoded.shape} for {len(noise)} rows of noise, not one each")
        decoded = decoded.reshape(len(noise), -1)
        if not np.isfinite(decoded).all():
            raise NumericError(f"{self.name} gave an action that is not finite")
        return decoded


def load_decoder(reference: Any, noise: Any, chunk: Any, sha256: Any = None, trust: bool = True) -> Decoder:
    """Load the decoder that a user named, with a noise of size `noise` and `chunk` actions in a row.

    With `sha256`, its first digits, no other file is accepted. TorchScript is a program and needs `trust`. A caller
    that reads the reference from a file must check it with `envs/trust.py` first.
    """
    for option, value in (("noise", noise), ("chunk", chunk)):  # as in an environment's name
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100_000:
            raise UsageError(f"--{option} is {value!r}; it must be a whole number, 1 or more")
    if is_code(reference):
        thing = load_object(reference, "decoder")
        thing = thing() if isinstance(thing, type) else thing
        return Decoder(getattr(thing, "decode", thing), reference, noise, chunk)
    file = find_decoder_file(str(reference), sha256)
    if file.format == "torchscript":
        check_trusted(file, trust)
        function = _torchscript_function(file)
    elif file.format == "onnx":
        function = _onnx_function(file, noise)
    else:
        raise UsageError(f"{file.path} is no decoder: it must be ONNX, TorchScript, or code, file.py:decode")
    return Decoder(function, str(file.path), noise, chunk)


def _torchscript_function(file: PolicyFile) -> DecodeFunction:
    module, precision = load_torchscript(file)

    def run(observations: np.ndarray, noise: np.ndarray) -> Any:
        return module(torch.from_numpy(observations).to(precision), torch.from_numpy(noise).to(precision))

    return run


def _onnx_function(file: PolicyFile, size: int) -> DecodeFunction:
    session, inputs = Session(file), input_shapes(file.reader_input.graph)
    source, shape = noise_input(inputs, size, file.path)
    [other] = [name for name in inputs if name != source]

    def run(observations: np.ndarray, noise: np.ndarray) -> Any:
        return session.run({other: observations, source: noise.reshape(len(noise), *shape)})[0]

    return run


# Its file -------------------------------------------------------------------------------------------------------------


def decoder_digest(reference: str) -> str:
    """Return the first digits of the sha256 of a decoder's file; empty for code."""
    return "" if is_code(reference) else PolicyFile(reference).sha256[:DIGEST_LENGTH]


def find_decoder_file(reference: str, sha256: str | None) -> PolicyFile:
    """Return a decoder's file, from the named place or from the cache into which `restore_decoder` writes."""
    named, cached = Path(reference), cache_folder("decoders") / str(sha256)
    if sha256 is None or (named.is_file() and decoder_digest(reference) == sha256):
        return PolicyFile(named)
    if cached.is_file() and decoder_digest(str(cached)) == sha256:
        return PolicyFile(cached)
    what = "is another file now" if named.is_file() else "is not there"
    raise FileError(f"{reference} {what}, and the decoder that is meant has a sha256 of {sha256}...: put it back")


def decoder_bytes(spec: DecoderSpec | None) -> bytes:
    """Return the contents of the decoder's file to store with a policy; empty for code, or if it is too large."""
    if spec is None or not spec.sha256:
        return b""
    content = find_decoder_file(spec.decoder, spec.sha256).content
    return content if len(content) <= LARGEST else b""


def restore_decoder(path: Path, spec: DecoderSpec | None) -> None:
    """Write the decoder that is stored in a policy's file into the cache, unless `find_decoder_file` finds it."""
    if spec is None or not spec.sha256:
        return
    try:
        find_decoder_file(spec.decoder, spec.sha256)
    except FileError:
        content = read_decoder(path) if path.is_file() else b""
        if hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH] == spec.sha256:
            write_bytes(cache_folder("decoders") / spec.sha256, content)


# Its inputs -----------------------------------------------------------------------------------------------------------


def noise_input(inputs: dict[str, list[Any]], size: int, path: Path) -> tuple[str, list[int]]:
    """Find the noise among a graph's two inputs, by size and then by name; return its name and the shape of a row."""
    remedy = "write a function that runs it and name that as file.py:decode"
    if len(inputs) != 2:
        takes = f"{len(inputs)} inputs ({', '.join(inputs)})"
        raise UsageError(f"{path} takes {takes}, and a decoder takes observations and noise: {remedy}")
    if fixed := [name for name, shape in inputs.items() if shape and isinstance(shape[0], int)]:
        takes = f"{inputs[fixed[0]][0]} of its input {fixed[0]} at a time"
        raise UsageError(f"{path} takes {takes}: export it with a first axis that is not fixed")
    rows = {name: list(shape[1:]) for name, shape in inputs.items()}
    fitting = [name for name, row in rows.items() if all(isinstance(n, int) for n in row) and np.prod(row) == size]
    named = [name for name in fitting if NOISE & {*re.split(r"[^a-z0-9]+", name.lower())}]
    others = [name for name in fitting if any(word in name.lower() for word in NO_NOISE)]
    found = named or [name for name in fitting if name not in others]
    if len(found) != 1:
        shapes = ", ".join(f"{name} {row}" for name, row in rows.items())
        raise UsageError(f"{path} does not tell which of its inputs is {size} numbers of noise ({shapes}): {remedy}")
    return found[0], rows[found[0]]


NOISE = {"noise", "latent", "latents", "eps", "epsilon", "z"}  # words in the name of an input
NO_NOISE = ("obs", "state", "hist", "prev", "command", "goal", "task", "h_", "hidden", "memory", "mask", "time")


# A policy and its decoder as one graph: observations and noise N(0, I) in, a chunk of actions out ---------------------


BEFORE = "decoder/"  # the names of what was in the decoder's graph
CHOSEN = "chosen"  # the noise that the policy gives, between the two
ROWS = 64


class NoiseActionModule(MeanActionModule):
    """Raw observations `[N, O]` and noise `[N, Z]` to the noise that the decoder starts from, in its shape."""

    std: Tensor

    def __init__(self, policy: Policy, shape: list[int]) -> None:
        super().__init__(policy)
        assert policy.std is not None
        self.shape = shape
        self.register_buffer("std", policy.std.detach())

    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:  # type: ignore[override]
        chosen = super().forward(observations) + self.std * noise
        return chosen.reshape(-1, *self.shape)


def export_composed(policy: Policy, decoder: Path, noise: int, chunk: int, out: Path) -> float:
    """Write the policy and its decoder, an ONNX graph, as one. Returns how far its actions are from those of the two.

    The observations go to both. Drawn from N(0, I), the noise gives the policy's own samples; 0 gives its mode.
    """
    file = PolicyFile(decoder)
    source, shape = noise_input(input_shapes(file.reader_input.graph), noise, decoder)
    module = NoiseActionModule(policy, shape).eval().requires_grad_(False)
    size = policy.observation_size
    chooser = onnx_graph(module, (torch.zeros(2, size), torch.zeros(2, noise)))
    content = _joined(chooser, file, source)

    generator = np.random.default_rng(0)
    spread = policy.normalizer.var.clamp_min(0.0).sqrt().numpy()
    seen = (policy.normalizer.mean.numpy() + spread * generator.standard_normal((ROWS, size))).astype(np.float32)
    drawn = generator.standard_normal((ROWS, noise), np.float32)
    with torch.no_grad():
        chosen = module(torch.from_numpy(seen), torch.from_numpy(drawn)).numpy()
    wanted = load_decoder(decoder, noise, chunk)(seen, chosen.reshape(ROWS, -1))
    found = onnx_runner(content)(seen, drawn).reshape(ROWS, -1)
    difference = float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))
    if not difference <= TOLERANCE:
        raise RepolicyError(f"the graph differs from policy and decoder by {difference:.3g}; {out} was not written")
    write_bytes(out, content)
    return difference


def _joined(first: bytes, file: PolicyFile, source: str) -> bytes:
    """Return one graph in which the decoder's noise is what the first one gives, and the observations go to both."""
    import onnx

    chooser = onnx.load_model_from_string(first)
    decoder = onnx.compose.add_prefix(file.reader_input, BEFORE)
    chooser.graph.output[0].name = chooser.graph.node[-1].output[0] = CHOSEN
    try:
        opset = max(entry.version for model in (chooser, decoder) for entry in model.opset_import if not entry.domain)
        chooser, decoder = (onnx.version_converter.convert_version(model, opset) for model in (chooser, decoder))
        chooser.ir_version = decoder.ir_version = max(chooser.ir_version, decoder.ir_version)
        joined = onnx.compose.merge_models(chooser, decoder, io_map=[(CHOSEN, f"{BEFORE}{source}")])
    except Exception as error:  # onnx's own, of several classes
        raise FileError(f"{file.path} cannot be joined with a policy: {described(error)[:200]}") from None
    [extra] = [entry for entry in joined.graph.input if entry.name.startswith(BEFORE)]
    joined.graph.input.remove(extra)
    for node in joined.graph.node:
        for place, name in enumerate(node.input):
            if name == extra.name:
                node.input[place] = "observations"
    last = joined.graph.output[0]
    joined.graph.node.append(onnx.helper.make_node("Identity", [last.name], ["actions"]))
    last.name = "actions"
    return joined.SerializeToString()
