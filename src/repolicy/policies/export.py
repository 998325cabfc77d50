"""A policy for other programs: raw observations to the mean action, in one ONNX or TorchScript file.

What the environment takes comes out: the normalizer is inside, squashed actions are squashed and scaled, and of
discrete actions the most probable is chosen. A policy with dials has a second input, a value for each dial, which the
graph keeps within its range. The file that was written is read back and must agree with the policy. It carries what a
robot's program must know, and the policy itself (`metadata`).
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
from repolicy.policies.file import policy_bytes
from repolicy.policies.metadata import deployment_info, embed_in_onnx, torchscript_files
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy, frozen
from repolicy.policies.storage import write_bytes
from repolicy.ranges import Dial

Format = Literal["onnx", "torchscript"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torchscript": ".pt"}
FORMAT_BY_SUFFIX = {suffix: format for format, suffix in SUFFIXES.items()}
TOLERANCE = 1e-5
AS_FAR = 4.0  # or that many times as far as the policy's own rounding takes it


class MeanActionModule(nn.Module):
    """Raw observations `[N, O]` to the mean action as the environment takes it: `[N, A]`, or `[N]` for one choice."""

    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        space = policy.spec.actions
        self.family, self.spec, self.bound = policy.family, policy.spec, policy.normalizer.bound
        self.one_choice = space.kind == "discrete" and len(space.sizes) == 1
        size = policy.spec.observation_size
        self.network = frozen(policy).network  # a copy: the policy may go on learning
        self.register_buffer("mean", policy.normalizer.shift[:size])
        self.register_buffer("scale", policy.normalizer.scale[:size])
        self.register_buffer("low", torch.tensor(space.low))
        self.register_buffer("high", torch.tensor(space.high))

    def forward(self, observations: Tensor) -> Tensor:
        return self.acted(self.inputs(observations))

    def inputs(self, observations: Tensor) -> Tensor:
        return ((observations - self.mean) * self.scale).clamp(-self.bound, self.bound)

    def acted(self, inputs: Tensor) -> Tensor:
        """Return the action by the network in torch's own operations, which every exporter knows."""
        mode = self.family.mode(self.network(inputs), self.spec)
        if self.spec.actions.kind == "discrete":
            mode = mode + self.low.to(mode.dtype) if self.spec.actions.low else mode  # choices are counted from there
        elif self.spec.clips:
            mode = mode.clamp(self.low, self.high)
        else:
            mode = self.family.to_environment(mode, self.low, self.high)
        return mode.squeeze(-1) if self.one_choice else mode


class DialedActionModule(MeanActionModule):
    """The same of a policy with dials: a value for each, `[N, dials]`, beside the observations."""

    def __init__(self, policy: ConditionedPolicy) -> None:
        super().__init__(policy)
        self.dials = policy.dials

    def forward(self, observations: Tensor, dials: Tensor) -> Tensor:  # type: ignore[override]
        places = [place(dial, values) for dial, values in zip(self.dials, dials.unbind(-1), strict=True)]
        inputs = torch.cat([self.inputs(observations), torch.stack(places, -1)], -1)
        return self.acted(inputs)


def place(dial: Dial, values: Tensor) -> Tensor:
    """Return the same as `Dial.place`, of tensors. What is beyond an end counts as that end, and NaN as a safe one."""
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
    told: dict[str, Any] | None = None,
) -> float:
    """Write the policy for other programs. Returns the largest difference found between the file and the policy.

    The file tells of the `prior` that it was customized from, of its `card`, and what the environment `told` of itself.
    """
    if format not in SUFFIXES:
        raise UsageError(f"there is no format {format!r}; choose from {', '.join(SUFFIXES)}")
    acting: MeanActionModule = MeanActionModule(policy)
    example: tuple[Tensor, ...] = (torch.zeros(2, policy.spec.observation_size),)
    if isinstance(policy, ConditionedPolicy):
        acting, example = DialedActionModule(policy), (*example, torch.ones(2, len(policy.dials)))
    module = acting.eval().requires_grad_(False)
    card = card or {}
    beside = deployment_info(policy, prior, card, told or {}), policy_bytes(policy, card)
    if format == "onnx":
        content = embed_in_onnx(onnx_graph(module, example), *beside)
        act = onnx_runner(content)
    else:
        content = _torchscript(module, example, *beside)
        act = _torchscript_reader(content)
    worst, own = differences(policy, act)
    if not worst <= max(TOLERANCE, AS_FAR * own):
        raise RepolicyError(f"the exported policy differs from the original by {worst:.3g}; {path} was not written")
    write_bytes(Path(path), content)
    return worst


def differences(policy: Policy, act: Callable[..., np.ndarray]) -> tuple[float, float]:
    """Return how far `act`, and the policy in single precision, are at worst from the mean action in double precision.

    Both are relative to the largest action where that is above 1. Each number of an action has its own largest one:
    rounding does as much to its small values as to its large ones. Where a network's large numbers cancel, rounding
    alone takes actions further away than 1e-5, and no file could come nearer than the policy does.

    It is tried on observations like those that the policy was trained on, and on some that the normalizer clips.
    """
    generator = torch.Generator().manual_seed(0)
    spread = torch.cat([torch.ones(256), torch.full((64,), 30.0)])[:, None]
    noise = spread * torch.randn(len(spread), policy.observation_size, generator=generator)
    observations = policy.normalizer.denormalized_noise(noise)
    exact = frozen(policy).double()
    with torch.no_grad():
        own = policy.to_environment(policy(observations).mode().numpy())
        wanted = exact.to_environment(exact(observations.double()).mode().numpy())
    least = np.maximum(1.0, np.abs(wanted).max(0))
    rounded = float((np.abs(own - wanted) / least).max())
    if policy.actions.kind == "discrete" and policy.actions.low:
        wanted = wanted + np.array(policy.actions.low, wanted.dtype)  # an environment may count choices from there
    if isinstance(policy, ConditionedPolicy):
        size = policy.spec.observation_size
        values = [dial.value(each) for dial, each in zip(policy.dials, observations[:, size:].unbind(-1), strict=True)]
        actions = act(observations[:, :size].contiguous().numpy(), torch.stack(values, -1).numpy())
    else:
        actions = act(observations.numpy())
    if policy.actions.kind == "discrete" and len(policy.actions.sizes) == 1:
        wanted = wanted[:, 0]
    if actions.shape != wanted.shape:
        raise RepolicyError(f"the exported policy gives actions of shape {actions.shape}, not {wanted.shape}")
    return float((np.abs(actions - wanted) / np.maximum(1.0, np.abs(wanted).max(0))).max()), rounded


# ONNX -----------------------------------------------------------------------------------------------------------------


def onnx_graph(module: nn.Module, example: tuple[Tensor, ...]) -> bytes:
    """Return a module as an ONNX graph, which takes any number of rows and calls its output `actions`."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--format onnx needs the package {error.name}: pip install 'repolicy[onnx]'") from None
    names, batch = list(inspect.signature(module.forward).parameters), torch.export.Dim("batch")
    named: dict[str, Any] = {"input_names": names, "output_names": ["actions"]}
    shapes = {name: {0: batch} for name in names}
    with suppress_export_warnings():
        program: Any = torch.onnx.export(module, example, dynamic_shapes=shapes, dynamo=True, verbose=False, **named)
        return program.model_proto.SerializeToString()


def onnx_session(content: bytes) -> Any:
    """Return a graph in onnxruntime, on one core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal: what else goes wrong is raised
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def onnx_runner(content: bytes) -> Callable[..., np.ndarray]:
    """Return what runs a graph: its inputs in their order, to its first output."""
    session = onnx_session(content)
    names = [each.name for each in session.get_inputs()]
    return lambda *inputs: np.asarray(session.run(None, dict(zip(names, inputs, strict=True)))[0])


# TorchScript ----------------------------------------------------------------------------------------------------------


def _torchscript(module: MeanActionModule, example: tuple[Tensor, ...], told: dict[str, Any], policy: bytes) -> bytes:
    with suppress_export_warnings():
        frozen = torch.jit.freeze(torch.jit.trace(module, example))
        bare, buffer = io.BytesIO(), io.BytesIO()
        torch.jit.save(frozen, bare)
        torch.jit.save(frozen, buffer, _extra_files=torchscript_files(zipfile.ZipFile(bare), told, policy))
    return buffer.getvalue()


def _torchscript_reader(content: bytes) -> Callable[..., np.ndarray]:
    with suppress_export_warnings():
        loaded = torch.jit.load(io.BytesIO(content))
    return lambda *inputs: np.asarray(loaded(*map(torch.from_numpy, inputs)).numpy())


@contextlib.contextmanager
def suppress_export_warnings() -> Iterator[None]:
    """Silence PyTorch's notices about itself, and that TorchScript is deprecated: people ask for it by name."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is", DeprecationWarning)
            warnings.filterwarnings("ignore", r"# The axis name: batch will not be used", UserWarning)
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
