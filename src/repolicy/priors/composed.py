"""A customized generative policy as one ONNX graph: observations and noise N(0, I) in, a chunk of actions out."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, RepolicyError, described
from repolicy.policies.export import TOLERANCE, Acting, onnx_graph, onnx_reader
from repolicy.policies.policy import Policy
from repolicy.policies.storage import write_bytes
from repolicy.priors.decoders import decoder_of, noise_input
from repolicy.priors.running import inputs_of
from repolicy.readers.recognize import PolicyFile

BEFORE = "decoder/"  # the names of what was in the decoder's graph
ROWS = 64


class Choosing(Acting):
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
    source, shape = noise_input(inputs_of(file.opened.graph), noise, decoder)
    module = Choosing(policy, shape).eval().requires_grad_(False)
    size = policy.observation_size
    chooser = onnx_graph(module, (torch.zeros(2, size), torch.zeros(2, noise)))
    content = _joined(chooser, file, source)

    generator = np.random.default_rng(0)
    spread = policy.normalizer.var.clamp_min(0.0).sqrt().numpy()
    seen = (policy.normalizer.mean.numpy() + spread * generator.standard_normal((ROWS, size))).astype(np.float32)
    drawn = generator.standard_normal((ROWS, noise), np.float32)
    with torch.no_grad():
        chosen = module(torch.from_numpy(seen), torch.from_numpy(drawn)).numpy()
    wanted = decoder_of(decoder, noise, chunk)(seen, chosen.reshape(ROWS, -1))
    found = onnx_reader(content)(seen, drawn).reshape(ROWS, -1)
    difference = float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))
    if not difference <= TOLERANCE:
        raise RepolicyError(
            f"the exported graph differs from policy and decoder by {difference:.3g}; {out} not written"
        )
    write_bytes(out, content)
    return difference


def _joined(chooser: bytes, file: PolicyFile, source: str) -> bytes:
    """Return one graph in which the decoder's noise is what the chooser gives, and the observations go to both."""
    import onnx

    first, second = onnx.load_model_from_string(chooser), onnx.compose.add_prefix(file.opened, BEFORE)
    try:
        opset = max(entry.version for model in (first, second) for entry in model.opset_import if not entry.domain)
        first, second = (onnx.version_converter.convert_version(model, opset) for model in (first, second))
        first.ir_version = second.ir_version = max(first.ir_version, second.ir_version)
        joined = onnx.compose.merge_models(first, second, io_map=[("actions", f"{BEFORE}{source}")])
    except Exception as error:  # onnx's own, of several classes
        raise FileError(f"{file.path} cannot be joined with a policy: {described(error)[:200]}") from None
    [extra] = [entry for entry in joined.graph.input if entry.name.startswith(BEFORE)]
    joined.graph.input.remove(extra)
    for node in joined.graph.node:
        for place, name in enumerate(node.input):
            if name == extra.name:
                node.input[place] = "observations"
    return joined.SerializeToString()  # type: ignore[no-any-return]
