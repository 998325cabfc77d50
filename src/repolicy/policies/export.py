"""Export a policy for other programs, as one ONNX or TorchScript file from raw observations to the mean action.

The file contains the normalizer, and its output is in the environment's form. A policy with dials has a second input,
one value for each dial, which the graph clips to its range. The exported file is run and must agree with the policy.
"""

import contextlib
import inspect
import io
import logging
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import RepolicyError, UsageError
from repolicy.files import write_bytes
from repolicy.policies.file import policy_bytes
from repolicy.policies.metadata import deployment_info, embed_in_onnx, torchscript_files
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy, frozen
from repolicy.ranges import Dial

Format = Literal["onnx", "torchscript"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torchscript": ".pt"}
FORMAT_BY_SUFFIX = {suffix: format for format, suffix in SUFFIXES.items()}
TOLERANCE = 1e-5  # of actions, relative to the largest one
ROUNDING_FACTOR = 4.0  # a larger error is accepted up to this many times the policy's own rounding error


class MeanActionModule(nn.Module):
    """A module from raw observations `[N, O]` to the environment's mean action, `[N, A]` or `[N]` for one choice."""

    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        space = policy.spec.actions
        self.family, self.spec = policy.family, policy.spec
        self.is_single_choice = space.kind == "discrete" and len(space.sizes) == 1
        copy = frozen(policy)  # as the policy may be trained further
        self.normalizer, self.network = copy.normalizer, copy.network
        for name, bound in zip(("low", "high"), space.float32_bounds, strict=True):
            self.register_buffer(name, torch.tensor(bound))

    def forward(self, observations: Tensor) -> Tensor:
        """Return the action, with torch operations that every exporter knows."""
        mode = self.family.mode(self.network(self.normalizer(observations)), self.spec)
        if self.spec.actions.kind == "discrete":
            mode = mode + self.low.to(mode.dtype) if self.spec.actions.low else mode  # `low` is the first choice
        elif self.spec.clips:
            mode = mode.clamp(self.low, self.high)
        else:
            mode = self.family.to_environment(mode, self.low, self.high)
        return mode.squeeze(-1) if self.is_single_choice else mode


class DialedActionModule(MeanActionModule):
    """A mean-action module for a policy with dials: its second input has a value for each dial, `[N, dials]`."""

    def __init__(self, policy: ConditionedPolicy) -> None:
        super().__init__(policy)
        self.dials = policy.dials

    def forward(self, observations: Tensor, dials: Tensor) -> Tensor:  # type: ignore[override]
        positions = [dial_position(dial, values) for dial, values in zip(self.dials, dials.unbind(-1), strict=True)]
        inputs = torch.cat([observations, torch.stack(positions, -1)], -1)
        return super().forward(inputs)


def dial_position(dial: Dial, values: Tensor) -> Tensor:
    """Return `Dial.place` for a tensor of values. Values are clipped to the range, and NaN becomes `dial.if_nan`."""
    values = torch.where(torch.isnan(values), dial.if_nan, values).clamp(dial.low, dial.high)
    if dial.scale == "linear":
        return 2.0 * (values - dial.low) / (dial.high - dial.low) - 1.0
    return 2.0 * torch.log(values / dial.low) / math.log(dial.high / dial.low) - 1.0


def export(
    policy: Policy,
    path: str | Path,
    format: Format,
    *,
    prior: Policy | None = None,
    card: dict[str, Any] | None = None,
    env_info: dict[str, Any] | None = None,
) -> float:
    """Write the policy for other programs. Return the largest error of the file's actions.

    The embedded description names the `prior` and the add-ons of the `card`, and contains what `env_info` says.
    """
    if format not in SUFFIXES:
        raise UsageError(f"there is no format {format!r}; choose from {', '.join(SUFFIXES)}")
    module: MeanActionModule = MeanActionModule(policy)
    example: tuple[Tensor, ...] = (torch.zeros(2, policy.spec.observation_size),)
    if isinstance(policy, ConditionedPolicy):
        module, example = DialedActionModule(policy), (*example, torch.ones(2, len(policy.dials)))
    module.eval().requires_grad_(False)
    card = card or {}
    info, saved_policy = deployment_info(policy, prior, card, env_info or {}), policy_bytes(policy, card)
    if format == "onnx":
        content = embed_in_onnx(onnx_graph(module, example), info, saved_policy)
        run = onnx_runner(content)
    else:
        content = _torchscript(module, example, info, saved_policy)
        run = _torchscript_runner(content)
    error, rounding_error = export_errors(policy, run)
    if not error <= max(TOLERANCE, ROUNDING_FACTOR * rounding_error):
        raise RepolicyError(f"the exported policy differs from the original by {error:.3g}; {path} was not written")
    write_bytes(Path(path), content)
    return error


def export_errors(policy: Policy, run: Callable[..., np.ndarray]) -> tuple[float, float]:
    """Compare `run` and the policy in single precision with the policy in double precision; return both largest errors.

    The error of the policy itself tells what rounding costs: where large numbers cancel, it exceeds 1e-5 in any file.
    """
    generator = torch.Generator().manual_seed(0)
    spread = torch.cat([torch.ones(256), torch.full((64,), 30.0)])[:, None]  # the large ones are clipped
    noise = spread * torch.randn(len(spread), policy.observation_size, generator=generator)
    observations = policy.normalizer.denormalized_noise(noise)
    exact = frozen(policy).double()
    with torch.no_grad():
        single = policy.to_environment(policy(observations).mode().numpy())
        expected = exact.to_environment(exact(observations.double()).mode().numpy())
    rounding_error = _relative_error(single, expected)

    if policy.actions.kind == "discrete" and policy.actions.low:
        expected = expected + np.array(policy.actions.low, expected.dtype)  # the environment's first choices
    if isinstance(policy, ConditionedPolicy):
        size = policy.spec.observation_size
        values = [dial.value(each) for dial, each in zip(policy.dials, observations[:, size:].unbind(-1), strict=True)]
        actions = run(observations[:, :size].contiguous().numpy(), torch.stack(values, -1).numpy())
    else:
        actions = run(observations.numpy())
    if policy.actions.kind == "discrete" and len(policy.actions.sizes) == 1:
        expected = expected[:, 0]
    return _relative_error(actions, expected), rounding_error


def _relative_error(actions: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error, of each component relative to its largest value where that is above 1."""
    return float((np.abs(actions - expected) / np.maximum(1.0, np.abs(expected).max(0))).max())


# ONNX -----------------------------------------------------------------------------------------------------------------


def onnx_graph(module: nn.Module, example: tuple[Tensor, ...]) -> bytes:
    """Export a module as an ONNX graph that takes batches of any size and names its output `actions`."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"an ONNX graph needs the package {error.name}: pip install 'repolicy[onnx]'") from None
    names, batch = list(inspect.signature(module.forward).parameters), torch.export.Dim("batch")
    named: dict[str, Any] = {"input_names": names, "output_names": ["actions"]}
    shapes = {name: {0: batch} for name in names}
    with suppress_export_warnings():
        program: Any = torch.onnx.export(module, example, dynamic_shapes=shapes, dynamo=True, verbose=False, **named)
        return program.model_proto.SerializeToString()


def onnx_session(content: bytes) -> Any:
    """Load a graph into onnxruntime, on one core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # log only fatal errors, as others are raised
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def onnx_runner(content: bytes) -> Callable[..., np.ndarray]:
    """Return a function from the graph's inputs, in order, to its first output."""
    session = onnx_session(content)
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, dict(zip(names, inputs, strict=True)))[0])

    return run


# TorchScript ----------------------------------------------------------------------------------------------------------


def _torchscript(module: MeanActionModule, example: tuple[Tensor, ...], info: dict[str, Any], policy: bytes) -> bytes:
    with suppress_export_warnings():
        script = torch.jit.freeze(torch.jit.trace(module, example))
        bare, buffer = io.BytesIO(), io.BytesIO()
        torch.jit.save(script, bare)  # the digest of this file is embedded in the second one
        torch.jit.save(script, buffer, _extra_files=torchscript_files(zipfile.ZipFile(bare), info, policy))
    return buffer.getvalue()


def _torchscript_runner(content: bytes) -> Callable[..., np.ndarray]:
    with suppress_export_warnings():
        loaded = torch.jit.load(io.BytesIO(content))
    return lambda *inputs: np.asarray(loaded(*map(torch.from_numpy, inputs)).numpy())


@contextlib.contextmanager
def suppress_export_warnings() -> Iterator[None]:
    """Silence PyTorch's exporter, and its warnings that TorchScript is deprecated: the user asked for that format."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is")
            warnings.filterwarnings("ignore", r"# The axis name: batch will not be used", UserWarning)
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
