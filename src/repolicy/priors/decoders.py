"""Decoders of generative policies, from observations and noise to actions: code, an ONNX graph, or TorchScript."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, NumericError, RepolicyError, UsageError, describe_error, in_one_sentence
from repolicy.files import write_bytes
from repolicy.loading import load_object
from repolicy.policies import TOLERANCE, Policy, read_decoder
from repolicy.policies.export import MeanActionModule, onnx_graph, onnx_runner
from repolicy.priors.finding import cache_folder
from repolicy.priors.opening import is_code
from repolicy.priors.running import (
    Session,
    check_trusted,
    fixed_batch_problem,
    inputs_named_noise,
    load_torchscript,
    row_size,
    runtime_errors_as_usage,
)
from repolicy.readers.onnx_graphs import action_sort_key, input_shapes
from repolicy.readers.recognize import PolicyFile

MAX_SIZE = 64 * 2**20  # bytes; a larger decoder is not stored in a policy's file
DIGEST_LENGTH = 16  # digits of a sha256 that identify a decoder
DecodeFunction = Callable[[np.ndarray, np.ndarray], Any]  # observations [N, O] and noise [N, Z] to actions [N, C · A]


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
    that reads the reference from a file must check it with `addons/trust.py` first.
    """
    for option, value in (("noise", noise), ("chunk", chunk)):  # as in an environment's name
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100_000:
            raise UsageError(f"--{option} is {value!r}; it must be a whole number, 1 or more")
    if is_code(reference):
        decoder = load_object(reference, "decoder")
        if isinstance(decoder, type):
            decoder = decoder()
        return Decoder(getattr(decoder, "decode", decoder), reference, noise, chunk)
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
        tensors = (torch.from_numpy(array).to(precision) for array in (observations, noise))
        sizes = f"observations of {observations.shape[1]} and noise of {noise.shape[1]} numbers, in this order"
        with runtime_errors_as_usage(file.path, sizes):
            return module(*tensors)

    return run


def _onnx_function(file: PolicyFile, noise_size: int) -> DecodeFunction:
    session, inputs = Session(file), input_shapes(file.reader_input.graph)
    noise_name, noise_shape = find_noise_input(inputs, noise_size, file.path)
    [observation_name] = [name for name in inputs if name != noise_name]
    output = decoder_output(file)

    def run(observations: np.ndarray, noise: np.ndarray) -> Any:
        noise = noise.reshape(len(noise), *noise_shape)
        return session.run({observation_name: observations, noise_name: noise}, [output])[0]

    return run


# The file of a decoder ------------------------------------------------------------------------------------------------


def decoder_digest(reference: str) -> str:
    """Return the first digits of the sha256 of a decoder's file; empty for code."""
    return "" if is_code(reference) else PolicyFile(reference).sha256[:DIGEST_LENGTH]


def find_decoder_file(reference: str, sha256: str | None) -> PolicyFile:
    """Return a decoder's file, from the named place or from the cache into which `restore_decoder` writes."""
    named, cached = Path(reference), cache_folder("decoders") / str(sha256)
    if sha256 is None:
        if not named.is_file():
            raise FileError(f"{reference} is no file of a decoder; for another kind of policy leave out --noise")
        return PolicyFile(named)
    for path in (named, cached):
        if path.is_file() and (file := PolicyFile(path)).sha256[:DIGEST_LENGTH] == sha256:
            return file
    problem = "is another file now" if named.is_file() else "is not there"
    raise FileError(f"{reference} {problem}, and the decoder that is meant has a sha256 of {sha256}...: put it back")


def decoder_bytes(spec: DecoderSpec | None) -> bytes:
    """Return the contents of the decoder's file to store with a policy; empty for code, or if it is too large."""
    if spec is None or not spec.sha256:
        return b""
    content = find_decoder_file(spec.decoder, spec.sha256).content
    return content if len(content) <= MAX_SIZE else b""


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


# The inputs of an ONNX decoder ----------------------------------------------------------------------------------------


OTHER_PARTS = ("obs", "state", "hist", "prev", "command", "goal", "task", "h_", "hidden", "memory", "mask", "time")


def find_noise_input(inputs: dict[str, list[Any]], size: int, path: Path) -> tuple[str, list[int]]:
    """Find the noise among a graph's two inputs, by size and then by name; return its name and the shape of a row."""
    remedy = "write a function that runs it and name that as file.py:decode"
    if len(inputs) != 2:
        names = ", ".join(inputs)
        raise UsageError(f"{path} takes {len(inputs)} inputs ({names}), not observations and noise: {remedy}")
    if problem := fixed_batch_problem(inputs, path):
        raise UsageError(problem)
    rows = {name: list(shape[1:]) for name, shape in inputs.items()}
    fitting = [name for name, shape in inputs.items() if row_size(shape) == size]
    candidates = inputs_named_noise(fitting)
    if not candidates:
        candidates = [name for name in fitting if not any(part in name.lower() for part in OTHER_PARTS)]
    if len(candidates) != 1:
        named = inputs_named_noise(inputs)
        if len(named) == 1 and (right := row_size(inputs[named[0]])) not in (size, None):
            found = f"{right} numbers of noise ({named[0]} {rows[named[0]]})"
            raise UsageError(f"{path} takes {found}, not {size}: --noise {right}")
        shapes = ", ".join(f"{name} {row}" for name, row in rows.items())
        raise UsageError(f"{path} does not tell which of its inputs is {size} numbers of noise ({shapes}): {remedy}")
    return candidates[0], rows[candidates[0]]


def decoder_output(file: PolicyFile) -> str:
    """Return the name of the graph's output that has the actions."""
    return min((output.name for output in file.reader_input.graph.output), key=action_sort_key)


# A policy and its decoder as one graph, from observations and noise N(0, I) to a chunk of actions ---------------------


DECODER_PREFIX = "decoder/"  # of the names in the decoder's graph
CHOSEN_NOISE = "chosen"  # the output of the policy's graph
PROBE_COUNT = 64


class NoiseActionModule(MeanActionModule):
    """A policy that samples a decoder's noise, in its shape, from raw observations `[N, O]` and noise `[N, Z]`."""

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
    """Write the policy and its decoder, an ONNX graph, as one graph; return the relative error of its actions.

    Both get the observations. Noise from N(0, I) gives samples of the policy; noise of 0 gives its mode.
    """
    file, size = PolicyFile(decoder), policy.observation_size
    noise_name, shape = find_noise_input(input_shapes(file.reader_input.graph), noise, decoder)
    module = NoiseActionModule(policy, shape).eval().requires_grad_(False)
    policy_graph = onnx_graph(module, (torch.zeros(2, size), torch.zeros(2, noise)))
    content = _join_graphs(policy_graph, file, noise_name)

    # Compare the graph with the policy and the decoder on random inputs.
    generator = np.random.default_rng(0)
    normal = torch.from_numpy(generator.standard_normal((PROBE_COUNT, size)))
    observations = policy.normalizer.denormalized_noise(normal).numpy()
    samples = generator.standard_normal((PROBE_COUNT, noise), np.float32)
    with torch.no_grad():
        chosen = module(torch.from_numpy(observations), torch.from_numpy(samples)).numpy()
    expected = load_decoder(decoder, noise, chunk)(observations, chosen.reshape(PROBE_COUNT, -1))
    actions = onnx_runner(content)(observations, samples).reshape(PROBE_COUNT, -1)
    difference = float(np.abs(actions - expected).max() / max(1.0, np.abs(expected).max()))
    if not difference <= TOLERANCE:
        raise RepolicyError(f"the graph differs from policy and decoder by {difference:.3g}; {out} was not written")
    write_bytes(out, content)
    return difference


def _join_graphs(policy_graph: bytes, file: PolicyFile, noise_name: str) -> bytes:
    """Return one graph in which the decoder gets the policy's output as its noise, and the policy's observations."""
    import onnx

    policy = onnx.load_model_from_string(policy_graph)
    decoder = onnx.compose.add_prefix(file.reader_input, DECODER_PREFIX)
    types = {each.name: each.type.tensor_type.elem_type for each in decoder.graph.input}
    policy.graph.node[-1].output[0] = CHOSEN_NOISE  # it was `actions`, which is now the decoder's output
    sources, links = {noise_name: CHOSEN_NOISE}, []
    sources |= {name: "observations" for name in input_shapes(file.reader_input.graph) if name != noise_name}
    del policy.graph.output[:]
    for name, source in sources.items():  # a decoder may calculate in another precision than the policy
        link, to = f"to_{DECODER_PREFIX}{name}", f"{DECODER_PREFIX}{name}"
        _append_cast(policy.graph, source, link, types[to])
        links.append((link, to))
    try:
        opsets = [*policy.opset_import, *decoder.opset_import]
        version = max(opset.version for opset in opsets if not opset.domain)
        policy = onnx.version_converter.convert_version(policy, version)
        decoder = onnx.version_converter.convert_version(decoder, version)
        policy.ir_version = decoder.ir_version = max(policy.ir_version, decoder.ir_version)
        joined = onnx.compose.merge_models(policy, decoder, io_map=links)
    except Exception as error:  # onnx raises errors of several classes
        remedy = "export what gives the noise as TorchScript (--out NAME.pt), and decode it"
        raise FileError(
            f"{file.path} cannot be joined with a policy: {describe_error(error)[:200]}; {remedy}"
        ) from None
    del joined.graph.output[:]
    _append_cast(joined.graph, DECODER_PREFIX + decoder_output(file), "actions", onnx.TensorProto.FLOAT)
    return joined.SerializeToString()


def _append_cast(graph: Any, source: str, output: str, element_type: int) -> None:
    """Append an output to a graph: the tensor `source`, with the elements' type."""
    import onnx

    graph.node.append(onnx.helper.make_node("Cast", [source], [output], to=element_type))
    graph.output.append(onnx.helper.make_tensor_value_info(output, element_type, None))
