"""Programs for files that are run instead of copied: an ONNX graph in onnxruntime, TorchScript in PyTorch.

Either may have a memory. A graph's memory is inputs that belong to outputs (`h_in`, `h_out`); TorchScript's memory is
the buffers that change when it runs. Environments must not share a memory: a graph that has one,
and any file that does not take batches or mixes their rows, runs row by row. A memory of TorchScript with 2 or 3 axes
has an axis for the environments, so that it can run in batches.
"""

import contextlib
import io
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, UsageError, describe_error
from repolicy.policies.export import onnx_session, suppress_export_warnings
from repolicy.priors.kinds import State, generative_usage
from repolicy.readers.description import FIRST_OUTPUT_NOTE
from repolicy.readers.onnx_graphs import action_sort_key, input_shapes, unused_outputs_note
from repolicy.readers.recognize import PolicyFile

INPUT_TYPES: dict[str, Any] = {  # those that are not single precision
    "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_,
}  # fmt: skip
RUN_IT = "write a function that runs it and gives the mean actions, and name that as file.py:act"
BATCH_AXES = {2: 0, 3: 1}  # of a memory [rows, features], or [layers, rows, features] as in an LSTM
TEST_STEPS, TEST_ROWS = 8, 3  # steps and rows of the batch that tests what a file remembers and keeps apart
RESETS = ("reset_memory", "reset")  # in exports of rsl_rl; the latter since 5.5


def check_trusted(file: PolicyFile, trust: bool, problem: str = "") -> None:
    """Raise unless the user trusts this TorchScript file, which is a program; `problem` says why it must run."""
    if not trust:
        why = f"{problem}; it is" if problem else f"{file.path} is"
        remedy = "if you trust it, add --trust (in Python, trust=True)"
        raise UsageError(f"{why} TorchScript, a program, which may do what you may; {remedy}")


@contextlib.contextmanager
def runtime_errors_as_usage(path: Path, inputs: str) -> Iterator[None]:
    """Turn the runtime's errors into a UsageError with the last line of the trace, which has the reason."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # the runtimes have several classes
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        why = re.sub(r"^[\w.]*(Error|Exception): ", "", reason[0])[:200]
        raise UsageError(f"{path} does not run on {inputs}: {why}") from None


NOISE_WORDS = {"noise", "latent", "latents", "eps", "epsilon", "z"}  # whole words in the name of an input


def inputs_named_noise(inputs: Iterable[str]) -> list[str]:
    """Return the inputs of a graph whose names say that they are noise."""
    return [name for name in inputs if NOISE_WORDS & {*re.split(r"[^a-z0-9]+", name.lower())}]


def row_size(shape: list[Any]) -> int | None:
    """Return how many numbers an input of this shape has in a row; None if the graph does not fix it."""
    return math.prod(shape[1:]) if all(isinstance(axis, int) for axis in shape[1:]) else None


def fixed_batch_problem(inputs: dict[str, list[Any]], path: Path) -> str:
    """Return a sentence about the first input whose number of rows is fixed; empty where there is none."""
    fixed = next(((name, shape[0]) for name, shape in inputs.items() if shape and isinstance(shape[0], int)), None)
    if fixed is None:
        return ""
    return f"{path} takes {fixed[1]} of its input {fixed[0]} at a time: export it with a first axis that is not fixed"


class NeedsNoiseError(FileError):
    """A graph is a generative policy, which takes noise beside observations."""


class GraphSignature(NamedTuple):
    """The inputs and outputs of a graph."""

    observations: str  # name of the input
    shape: list[Any]  # of the observations: for each axis a number, or a name if it is not fixed
    memory: dict[str, str]  # names of inputs, and of the outputs with their next values
    sizes: dict[str, list[Any]]  # the shape of each memory input, for one row
    action: str  # name of the output with the mean action
    notes: tuple[str, ...]


def graph_signature(graph: Any, path: Path) -> GraphSignature:
    """Find the roles of a graph's inputs and outputs without running it; raise FileError if it cannot be a prior."""
    inputs = input_shapes(graph)
    outputs = [output.name for output in graph.output]
    pairs = {name: re.sub("in$", "out", name) for name in inputs if len(inputs) > 1}
    memory = {name: other for name, other in pairs.items() if other != name and other in outputs}
    others = [name for name in inputs if name not in memory]
    if len(others) == 2 and len(noises := inputs_named_noise(others)) == 1:
        if problem := fixed_batch_problem(inputs, path):
            raise NeedsNoiseError(problem)
        usage = generative_usage(row_size(inputs[noises[0]]) or "COUNT")
        raise NeedsNoiseError(f"{path} takes noise beside observations, as a generative policy does: {usage}")
    if len(others) != 1:
        takes = f"{len(others)} inputs ({', '.join(others)})" + " beside those of its memory" * bool(memory)
        noise = f"if one of them is noise, it is a generative policy: {generative_usage('COUNT')}"
        raise FileError(f"{path} takes {takes}, and a prior takes observations alone: {RUN_IT}; {noise}")
    candidates = [name for name in outputs if name not in memory.values()]
    if not candidates:
        raise FileError(f"{path} gives nothing but its memory ({', '.join(outputs)}), and no action")
    shape = inputs[others[0]]
    # An axis of the memory is the batch axis if it has the size or the name of the observations' first axis.
    sizes = {name: [1 if axis and axis == shape[0] else axis for axis in inputs[name]] for name in memory}
    for size in sizes.values():
        if not all(isinstance(number, int) for number in size):
            raise FileError(f"{path} has a memory of a shape that it does not fix, {size}: it cannot be run as it is")
    if len(shape) != 2:
        raise FileError(f"{path} takes observations of shape {shape}, and no rows of numbers: {RUN_IT}")
    action = min(candidates, key=action_sort_key)
    return GraphSignature(others[0], shape, memory, sizes, action, unused_outputs_note(candidates, action))


class Session:
    """An ONNX graph in onnxruntime, which takes inputs of any precision."""

    def __init__(self, file: PolicyFile) -> None:
        self.path = file.path
        try:
            self._session = onnx_session(file.reader_input.SerializeToString())
        except ImportError:
            raise UsageError(f"{self.path} needs the package onnxruntime: pip install 'repolicy[onnx]'") from None
        except Exception as error:  # onnxruntime's own, of several classes
            raise FileError(f"{self.path} cannot be run by onnxruntime: {describe_error(error)[:200]}") from None
        self._types = {each.name: INPUT_TYPES.get(each.type, np.float32) for each in self._session.get_inputs()}

    def run(self, inputs: dict[str, np.ndarray], outputs: list[str] | None = None) -> list[np.ndarray]:
        """Return the named outputs, or all."""
        inputs = {name: array.astype(self._types[name], copy=False) for name, array in inputs.items()}
        return [np.asarray(output) for output in self._session.run(outputs, inputs)]


class FileProgram(ABC):
    """A policy's file as a `Program`. Environments run together only where they cannot change each other's actions."""

    observation_size = 0  # if the file does not fix it
    notes: tuple[str, ...] = ()

    def __init__(self, file: PolicyFile) -> None:
        self._path, self.sha256 = file.path, file.sha256
        self._initial: State = {}  # one environment's memory at the start of an episode; `prepare` finds it
        self._runs_row_by_row = True

    @abstractmethod
    def initial_memory(self, steps: np.ndarray) -> State:
        """Return one environment's memory at the start of an episode, for some observations `[T, 1, O]`."""

    @abstractmethod
    def run(self, observations: np.ndarray, memory: State) -> tuple[Any, dict[str, Any]]:
        """Return the mean actions for observations `[N, O]`, and the memory `[N, ...]` after this step.

        It may raise for more than one environment.
        """

    def prepare(self, observation_size: int) -> bool:
        """Test whether the file is deterministic, and whether it can run batches. Return whether it has a memory."""
        generator = torch.Generator().manual_seed(0)
        steps = torch.randn(TEST_STEPS, TEST_ROWS, observation_size, generator=generator).numpy()
        with runtime_errors_as_usage(self._path, f"observations of {observation_size} numbers"):
            self._initial = self.initial_memory(steps[:, :1])
            runs = (self._rollout(self._run_rows, steps[:, :1])[:TEST_STEPS] for _ in range(2))
            first, second = (torch.stack(means).double() for means in runs)
        if not torch.allclose(first, second, atol=1e-6, equal_nan=True):
            why = "it draws them at random, or its state is not in its buffers"
            raise UsageError(
                f"{self._path} gives different actions from the same start, so that it tells no mean: {why}"
            )
        self._runs_row_by_row = not self._keeps_rows_apart(steps)
        return bool(self._initial)

    def _keeps_rows_apart(self, steps: np.ndarray) -> bool:
        """Return whether some steps of observations `[T, N, O]` give the same together as one by one."""
        one_by_one = self._rollout(self._run_rows, steps)
        try:
            together = self._rollout(self.run, steps)
        except Exception:  # the runtimes have several classes
            return False
        return all(
            a.shape == b.shape and torch.allclose(a, b, atol=1e-5) for a, b in zip(one_by_one, together, strict=True)
        )

    def _rollout(self, step: Callable[..., Any], steps: np.ndarray) -> list[Tensor]:
        """Return the means of each step, and the final memory."""
        state, means = self.begin(steps.shape[1]), list[Tensor]()
        for rows in steps:
            mean, state = step(rows, state)
            means.append(torch.as_tensor(mean))
        return [*means, *state.values()]

    def begin(self, count: int) -> State:
        return {name: value.expand(count, *value.shape).clone() for name, value in self._initial.items()}

    def step(self, observations: np.ndarray, state: State) -> tuple[Any, State]:
        return self._run_rows(observations, state) if self._runs_row_by_row else self.run(observations, state)

    def _run_rows(self, observations: np.ndarray, state: State) -> tuple[Tensor, State]:
        """Step each environment by itself."""
        memories = [{name: rows[n : n + 1] for name, rows in state.items()} for n in range(len(observations))]
        means, after = zip(*map(self.run, observations[:, None], memories), strict=True)
        return torch.cat([*map(torch.as_tensor, means)]), {
            name: torch.cat([memory[name] for memory in after]) for name in state
        }


class Graph(FileProgram):
    """An ONNX graph as a `Program`. Its memory is inputs that belong to outputs, and begins at 0."""

    def __init__(self, file: PolicyFile) -> None:
        super().__init__(file)
        self._session = Session(file)
        self._signature = graph_signature(file.reader_input.graph, file.path)
        self.notes = self._signature.notes
        size = self._signature.shape[1]
        if isinstance(size, int):
            self.observation_size = size

    def initial_memory(self, steps: np.ndarray) -> State:
        return {name: torch.zeros(size) for name, size in self._signature.sizes.items()}

    def run(self, observations: np.ndarray, memory: State) -> tuple[Any, dict[str, Any]]:
        if memory and len(observations) > 1:
            raise ValueError("the memory of a graph is one environment's")
        inputs = {name: rows[0].numpy() for name, rows in memory.items()}
        outputs = [self._signature.action, *self._signature.memory.values()]
        mean, *after = self._session.run({self._signature.observations: observations} | inputs, outputs)
        return mean, {
            name: torch.as_tensor(part)[None] for name, part in zip(self._signature.memory, after, strict=True)
        }


def load_torchscript(file: PolicyFile) -> tuple[Any, torch.dtype]:
    """Load a TorchScript file, on the CPU and without gradients; return the module and the precision of its inputs."""
    try:
        with suppress_export_warnings():
            module = torch.jit.load(io.BytesIO(file.content), map_location="cpu").eval()
            tensors = (*module.parameters(), *module.buffers())
            for tensor in tensors:
                tensor.requires_grad_(False)
    except (RuntimeError, ValueError, OSError) as error:
        raise FileError(f"{file.path} cannot be loaded by PyTorch: {describe_error(error)[:200]}") from None
    return module, next((each.dtype for each in tensors if each.is_floating_point()), torch.float32)


class Script(FileProgram):
    """A TorchScript module as a `Program`. Its memory is the buffers that change when it runs."""

    def __init__(self, file: PolicyFile) -> None:
        super().__init__(file)
        self._module, self._precision = load_torchscript(file)
        if any(each.type.kind() == "TupleType" for each in self._module.forward.schema.returns):
            self.notes = (FIRST_OUTPUT_NOTE,)

    def initial_memory(self, steps: np.ndarray) -> State:
        self._set_buffers(self._initial)  # if `prepare` ran before
        for reset in (getattr(self._module, name, None) for name in RESETS):
            if isinstance(reset, torch.ScriptMethod) and len(reset.schema.arguments) == 1:  # of the module alone
                reset()
        before, changed = self._buffers(), set[str]()
        for observation in steps:
            self._forward(observation)
            changed |= {name for name, value in self._buffers().items() if not torch.equal(value, before[name])}
        return {name: value for name, value in before.items() if name in changed}

    def run(self, observations: np.ndarray, memory: State) -> tuple[Any, dict[str, Any]]:
        self._set_buffers({name: _as_buffer(rows) for name, rows in memory.items()})
        mean = self._forward(observations)
        after = {name: attrgetter(name)(self._module).detach().clone() for name in memory}
        return mean, {name: _as_rows(buffer, len(observations)) for name, buffer in after.items()}

    @torch.no_grad()
    def _forward(self, observations: np.ndarray) -> Tensor:
        mean = self._module(torch.from_numpy(observations).to(self._precision))
        if isinstance(mean, tuple):
            mean = mean[0]
        if not isinstance(mean, Tensor):
            raise UsageError(f"{self._path} gives {type(mean).__name__}, and no tensor of actions")
        return mean.detach().clone()

    def _buffers(self) -> State:
        return {name: buffer.detach().clone() for name, buffer in self._module.named_buffers(remove_duplicate=False)}

    def _set_buffers(self, values: State) -> None:
        for name, value in values.items():
            *modules, last = name.split(".")
            setattr(reduce(getattr, modules, self._module), last, value.clone())


def _as_buffer(memory: Tensor) -> Tensor:
    """Return memories `[N, ...]` as one buffer, with the environments along its axis of rows."""
    if len(memory) == 1:
        return memory[0]
    axis = BATCH_AXES[memory.dim() - 1]
    return memory.squeeze(1 + axis).movedim(0, axis).contiguous()


def _as_rows(buffer: Tensor, count: int) -> Tensor:
    """Return the memories `[N, ...]` of `count` environments in a buffer."""
    if count == 1:
        return buffer[None]
    axis = BATCH_AXES[buffer.dim()]
    return buffer.movedim(axis, 0).unsqueeze(1 + axis)
