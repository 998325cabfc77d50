"""Files that cannot be copied, run as they are: a graph in onnxruntime, TorchScript in PyTorch.

Either may have a memory. A graph shows it by inputs that belong to outputs (`h_in`, `h_out`), TorchScript by buffers
that change when it runs. One environment's memory is never another's: where a file does not take several rows at a
time, or mixes them up, it runs row by row.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, UsageError, described
from repolicy.policies.export import onnx_session, suppress_export_warnings
from repolicy.priors.kinds import GENERATIVE, State
from repolicy.readers.onnx_graphs import action_sort_key, input_shapes, unused_outputs_note
from repolicy.readers.recognize import PolicyFile

PATIENCE = 60.0  # seconds that a graph may take for a step
FLOATS = {"tensor(double)": np.float64, "tensor(float16)": np.float16}  # what is made of single precision
TRIED = 3  # rows with which it is tested whether a file keeps rows apart


def check_trusted(file: PolicyFile, trust: bool) -> None:
    """Raise where a TorchScript file is to run and nobody trusts it."""
    if not trust:
        why = "TorchScript that cannot be copied, a program, which may do what you may"
        raise UsageError(f"{file.path} is {why}; if you trust it, add --trust (in Python, trust=True)")


def _check_same(first: Tensor, again: Tensor, path: Path) -> None:
    """Refuse what gives other actions when it runs again."""
    if not torch.allclose(first, again, atol=1e-6, equal_nan=True):
        why = "it draws them at random, or its state is not in its buffers"
        raise UsageError(f"{path} gives different actions from the same start, so that it tells no mean: {why}")


@contextlib.contextmanager
def _runs_on(observation_size: int, path: Path) -> Iterator[None]:
    """Say in one sentence what a runtime tells by its whole trace, whose last line is the reason."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # of several classes
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        why = re.sub(r"^[\w.]*(Error|Exception): ", "", reason[0])[:200]
        raise UsageError(f"{path} does not run on observations of {observation_size} numbers: {why}") from None


class GraphSignature(NamedTuple):
    """What a graph takes and gives."""

    source: str  # the input that is the observations
    shape: list[Any]  # of them: a number for each axis, or a name where it is not fixed
    memory: dict[str, str]  # inputs, and the outputs that are their next values
    sizes: dict[str, list[Any]]  # of the memory
    action: str  # the output that is the mean action
    notes: tuple[str, ...]


def graph_signature(graph: Any, path: Path) -> GraphSignature:
    """Return what a graph takes and gives, from its file alone; FileError where it cannot be a prior as it is."""
    inputs = input_shapes(graph)
    outputs = [output.name for output in graph.output]
    pairs = {name: re.sub("in$", "out", name) for name in inputs if len(inputs) > 1}
    memory = {name: other for name, other in pairs.items() if other != name and other in outputs}
    sources = [name for name in inputs if name not in memory]
    if len(sources) != 1:
        takes = f"{len(sources)} inputs ({', '.join(sources)})" + " beside those of its memory" * bool(memory)
        remedy = "write a function that runs it and gives the mean actions, and name that as file.py:act"
        noise = f"if one of them is noise, it is a generative policy: {GENERATIVE}"
        raise FileError(f"{path} takes {takes}, and a prior takes observations alone: {remedy}; {noise}")
    left = [name for name in outputs if name not in memory.values()]
    if not left:
        raise FileError(f"{path} gives nothing but its memory ({', '.join(outputs)}), and no action")
    shape = inputs[sources[0]]
    sizes = {name: [1 if axis and axis == shape[0] else axis for axis in inputs[name]] for name in memory}  # a row's
    for size in sizes.values():
        if not all(isinstance(number, int) for number in size):
            raise FileError(f"{path} has a memory of a shape that it does not fix, {size}: it cannot be run as it is")
    if len(shape) != 2:
        raise FileError(f"{path} takes observations of shape {shape}, and no rows of numbers")
    action = min(left, key=action_sort_key)
    return GraphSignature(sources[0], shape, memory, sizes, action, unused_outputs_note(left, action))


class Session:
    """An ONNX graph in onnxruntime, which is given up where a step takes too long."""

    def __init__(self, file: PolicyFile) -> None:
        self.path = file.path
        try:
            import onnxruntime
        except ImportError:
            raise UsageError(f"{self.path} needs the package onnxruntime: pip install 'repolicy[onnx]'") from None
        try:
            self._session = onnx_session(file.reader_input.SerializeToString())
        except Exception as error:  # onnxruntime's own, of several classes
            raise FileError(f"{self.path} cannot be run by onnxruntime: {described(error)[:200]}") from None
        self._options, self._thread = onnxruntime.RunOptions, ThreadPoolExecutor(1)
        self._types = {each.name: FLOATS[each.type] for each in self._session.get_inputs() if each.type in FLOATS}

    def run(self, given: dict[str, np.ndarray], wanted: list[str] | None = None) -> list[np.ndarray]:
        """Return the outputs. A thread runs it, and this one waits: so Ctrl-C ends it, also a loop without an end."""
        options = self._options()
        given = {name: array.astype(self._types.get(name, array.dtype), copy=False) for name, array in given.items()}
        running = self._thread.submit(self._session.run, wanted, given, options)
        try:
            return [np.asarray(output) for output in running.result(PATIENCE)]
        except TimeoutError:
            raise UsageError(f"{self.path} takes longer than {PATIENCE:.0f} seconds for a step") from None
        finally:
            options.terminate = True


class Graph:
    """An ONNX graph as a `Program`."""

    observation_size = 0  # where the graph does not fix it

    def __init__(self, file: PolicyFile) -> None:
        self._session = Session(file)
        self._path = file.path
        self._signature = graph_signature(file.reader_input.graph, file.path)
        self.sha256 = file.sha256
        self.notes = self._signature.notes
        self.has_memory = bool(self._signature.memory)
        rows, size = self._signature.shape
        self._one_by_one = self.has_memory or rows == 1
        if isinstance(size, int):
            self.observation_size = size

    def prepare(self, observation_size: int) -> bool:
        """Find whether it keeps rows apart, so that it can run several at a time."""
        rows = torch.randn(TRIED, observation_size, generator=torch.Generator().manual_seed(0)).numpy()
        with _runs_on(observation_size, self._path):
            first, again = (torch.from_numpy(self.step(rows[:1], self.begin(1))[0]).double() for _ in range(2))
        _check_same(first, again, self._path)
        if self._one_by_one:
            return self.has_memory
        apart = np.stack([self.step(rows[n : n + 1], {})[0].reshape(-1) for n in range(TRIED)])
        try:
            together = self.step(rows, {})[0]
            self._one_by_one = together.shape != apart.shape or not np.allclose(together, apart, atol=1e-5)
        except Exception:  # onnxruntime's own, of several classes
            self._one_by_one = True
        return self.has_memory

    def begin(self, count: int) -> State:
        return {name: torch.zeros(count, *size) for name, size in self._signature.sizes.items()}

    def step(self, observations: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        if not self._one_by_one:
            return self._run(observations, {})[0], state
        means: list[np.ndarray] = []
        memories: list[dict[str, np.ndarray]] = []
        for n in range(len(observations)):
            mean, memory = self._run(observations[n : n + 1], {name: rows[n].numpy() for name, rows in state.items()})
            means.append(mean)
            memories.append(memory)
        after = {name: torch.from_numpy(np.stack([memory[name] for memory in memories])) for name in state}
        return np.concatenate(means), after

    def _run(self, observations: np.ndarray, memory: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return what the graph gives, and its memory afterwards."""
        wanted = [self._signature.action, *self._signature.memory.values()]
        mean, *after = self._session.run({self._signature.source: observations} | memory, wanted)
        return mean, dict(zip(self._signature.memory, after, strict=True))


def load_torchscript(file: PolicyFile) -> tuple[Any, torch.dtype]:
    """Return the module in a TorchScript file, on the CPU and without gradients, and the precision that it takes."""
    try:
        with suppress_export_warnings():
            module = torch.jit.load(io.BytesIO(file.content), map_location="cpu").eval()
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.requires_grad_(False)
    except (RuntimeError, ValueError, OSError) as error:
        raise FileError(f"{file.path} cannot be loaded by PyTorch: {described(error)[:200]}") from None
    return module, next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32)


class Script:
    """A TorchScript module. What it remembers are its buffers that change; each row is an environment's own."""

    notes = ()

    def __init__(self, file: PolicyFile) -> None:
        self._module, self._precision = load_torchscript(file)
        self._path, self.sha256 = file.path, file.sha256
        self._names: list[str] = []  # of the buffers that are its memory
        self._start: dict[str, Tensor] = {}  # what they hold when an episode begins
        self._axes: dict[str, int | None] = {}  # where they have a row for each environment
        self.has_memory = self._together = False

    def prepare(self, observation_size: int) -> bool:
        """Find its memory, and whether it can run several rows at a time."""
        self._set(self._start)  # where it ran already
        if hasattr(self._module, "reset_memory"):  # as rsl_rl exports it
            self._module.reset_memory()
        before = self._buffers()
        noise = torch.randn(2, TRIED, observation_size, generator=torch.Generator().manual_seed(0))
        with _runs_on(observation_size, self._path):
            first = self._row(noise[0, :1])
        after = self._buffers()
        self._names = [name for name, value in before.items() if not torch.equal(value, after[name])]
        self._start = {name: before[name] for name in self._names}
        self._set(self._start)
        _check_same(first, self._row(noise[0, :1]), self._path)
        self.has_memory, self._together = bool(self._names), False
        self._axes = {name: {2: 0, 3: 1}.get(value.dim()) for name, value in self._start.items()}
        apart = self._tried(noise)
        self._together = True
        try:
            together = self._tried(noise)
            self._together = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(apart, together, strict=True))
        except (RuntimeError, IndexError):
            self._together = False
        self._set(self._start)
        return self.has_memory

    def begin(self, count: int) -> State:
        return {name: value.expand(count, *value.shape).clone() for name, value in self._start.items()}

    @torch.no_grad()
    def step(self, observations: np.ndarray, state: State) -> tuple[Tensor, State]:
        rows = torch.from_numpy(observations)
        if self._together:
            self._set({name: self._packed(name, memory) for name, memory in state.items()})
            mean = self._row(rows)
            return mean, {name: self._unpacked(name, self._buffer(name)) for name in self._names}
        means: list[Tensor] = []
        after: list[State] = []
        for n in range(len(rows)):
            self._set({name: memory[n] for name, memory in state.items()})
            means.append(self._row(rows[n : n + 1]))
            after.append({name: self._buffer(name).clone() for name in self._names})
        return torch.cat(means), {name: torch.stack([row[name] for row in after]) for name in self._names}

    def _tried(self, noise: Tensor) -> list[Tensor]:
        """Return means and memories of some rows over some steps."""
        state, means = self.begin(TRIED), []
        for rows in noise:
            mean, state = self.step(rows.numpy(), state)
            means.append(mean)
        return [*means, *state.values()]

    @torch.no_grad()
    def _row(self, observations: Tensor) -> Tensor:
        mean = self._module(observations.to(self._precision))
        if not isinstance(mean, Tensor):
            raise UsageError(f"{self._path} gives {type(mean).__name__}, and no tensor of actions")
        return mean.detach().clone()

    def _packed(self, name: str, rows: Tensor) -> Tensor:
        """Return a memory `[N, …, 1, …]` as one buffer, with a row an environment where it had one row."""
        axis = self._axes[name]
        if axis is None or rows.shape[1 + axis] != 1:
            raise RuntimeError("it has no axis of rows")
        return rows.squeeze(1 + axis).movedim(0, axis).contiguous()

    def _unpacked(self, name: str, buffer: Tensor) -> Tensor:
        axis = self._axes[name]
        assert axis is not None
        return buffer.movedim(axis, 0).unsqueeze(1 + axis).clone()

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}

    def _buffer(self, name: str) -> Tensor:
        module, last = self._holder(name)
        return getattr(module, last).detach()

    def _set(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            module, last = self._holder(name)
            setattr(module, last, value.clone())

    def _holder(self, name: str) -> tuple[Any, str]:
        """Return the module that has this buffer, and what the buffer is called there."""
        *modules, last = name.split(".")
        return reduce(getattr, modules, self._module), last
