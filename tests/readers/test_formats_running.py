"""Files that cannot be copied run as they are, and agree with onnxruntime and PyTorch, memory included."""

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import assert_equal, describe, mean, observations, random, stirred
from made_checkpoints import Around
from made_graphs import graph, node, onnx, run, script
from torch import Tensor, nn

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, UsageError
from repolicy.policies.distributions import ActionSpace
from repolicy.priors.kinds import MeanPrior
from repolicy.priors.opening import open_policy, prior_from_source, prior_source
from repolicy.priors.running import Graph, Script
from repolicy.readers.reading import Options
from repolicy.readers.recognize import PolicyFile
from repolicy.runs.machine import terminated_as_interrupted

STD = Options(std=0.2)


def placed(path: Path, size: int, width: int, trust: bool = False) -> MeanPrior:
    found = open_policy(path, STD, trust).agent
    assert isinstance(found, MeanPrior)
    return found.for_spaces(size, ActionSpace("continuous", (width,)))


# Graphs ---------------------------------------------------------------------------------------------------------------
def residual(tmp_path: Path, batch: Any = "batch") -> Path:
    """A graph with a connection around a layer, which no perceptron of ours has."""
    nodes = [
        node("Gemm", "obs w", "a"), node("Relu", "a", "b"), node("Gemm", "b u", "c"), node("Add", "a c", "d"),
        node("Gemm", "d v", "out"),
    ]  # fmt: skip
    path = graph(tmp_path / "policy.onnx", nodes, {"w": random(5, 7), "u": random(7, 7), "v": random(7, 3)})
    if batch != "batch":
        model = onnx.load(path)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
        onnx.save(model, path)
    return path


@pytest.mark.parametrize("batch", ["batch", 1])
def test_a_graph_runs_in_onnxruntime_as_a_mean(batch: Any, tmp_path: Path) -> None:
    path, obs = residual(tmp_path, batch), observations(5)
    prior = placed(path, 5, 3)
    assert not prior.has_memory
    assert any("it holds Add" in note and "it runs as it is" in note for note in prior.notes)
    assert_equal(prior.distribution(obs).mode(), run(path, obs))
    again = prior_from_source(prior_source(str(path), prior, STD, False))
    assert_equal(again.for_spaces(5, prior.actions).distribution(obs).mode(), run(path, obs))


@pytest.mark.parametrize("mixing", ["mean", "shape"])
def test_a_graph_that_mixes_rows_up_or_takes_one_alone_runs_row_by_row(mixing: str, tmp_path: Path) -> None:
    """A mean over the rows gives other actions for several; a shape that is written down refuses several."""
    constants = {"axes": np.array([0]), "row": np.array([1, 5]), "w": random(5, 3)}
    nodes = {
        "mean": [node("ReduceMean", "obs axes", "middle"), node("Add", "obs middle", "x")],
        "shape": [node("Reshape", "obs row", "middle"), node("Add", "middle middle", "x")],
    }
    used = {name: constants[name] for name in ("w", "axes" if mixing == "mean" else "row")}
    path = graph(
        tmp_path / "policy.onnx", [*nodes[mixing], node("Softsign", "x", "y"), node("Gemm", "y w", "out")], used
    )
    program, obs = Graph(PolicyFile(path)), observations(5)
    assert not program.prepare(5)
    wanted = (2.0 * obs / (1.0 + 2.0 * obs.abs())) @ torch.from_numpy(constants["w"]).float()
    assert_equal(program.step(obs.numpy(), {})[0], wanted)
    assert_equal(placed(path, 5, 3).distribution(obs).mode(), wanted)


def test_a_graph_that_keeps_rows_apart_runs_them_together(tmp_path: Path) -> None:
    program = Graph(PolicyFile(residual(tmp_path)))
    program.prepare(5)
    assert not program._runs_row_by_row


@pytest.mark.parametrize("kind", [onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16])
def test_a_graph_of_another_precision_gets_observations_of_it(kind: int, tmp_path: Path) -> None:
    path, obs = residual(tmp_path), observations(5).half().float()
    wanted, model = run(path, obs), onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = kind
    model.graph.node[0].input[0] = "single"
    model.graph.node.insert(0, node("Cast", "obs", "single", to=onnx.TensorProto.FLOAT))
    onnx.save(model, path)
    assert_equal(placed(path, 5, 3).distribution(obs).mode(), wanted)


def test_a_graph_that_takes_one_number_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path / "policy.onnx", [node("Mul", "obs w", "out")], {"w": random(1, 3)})
    model = onnx.load(path)
    model.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("obs", 1, []))
    onnx.save(model, path)
    with pytest.raises(FileError, match=r"takes observations of shape \[\], and no rows of numbers: write a function"):
        Graph(PolicyFile(path))


def test_a_graph_of_two_inputs_does_not_run_as_it_is_and_inspect_says_so(tmp_path: Path) -> None:
    path = graph(tmp_path / "policy.onnx", [node("Add", "obs time", "out")], {}, ("obs", "time"))
    with pytest.raises(
        FileError, match=r"takes 2 inputs \(obs, time\), and a prior takes observations alone: .*file.py:act"
    ):
        open_policy(path, STD)
    facts = inspect(path)
    assert facts["runs as it is"].startswith("no: it takes 2 inputs (obs, time), and a prior takes observations alone")
    assert facts["missing"].startswith("a function that runs it (file.py:act)")
    assert inspect(residual(tmp_path))["runs as it is"] == "in onnxruntime"


@pytest.mark.parametrize("rows", [1, "batch"])
def test_a_graph_with_a_memory_keeps_each_environments_own(rows: Any, tmp_path: Path) -> None:
    """h_out = tanh(obs · w + h_in · u), as exporters write an LSTM's memory: inputs that belong to outputs."""
    nodes = [
        node("MatMul", "obs w", "a"), node("MatMul", "h_in u", "b"), node("Add", "a b", "c"),
        node("Tanh", "c", "h_out"), node("MatMul", "h_out v", "out"),
    ]  # fmt: skip
    weights = {"w": random(5, 4), "u": random(4, 4), "v": random(4, 3)}
    path = graph(tmp_path / "policy.onnx", nodes, weights, ("obs", "h_in"))
    model = onnx.load(path)
    model.graph.input[1].CopyFrom(onnx.helper.make_tensor_value_info("h_in", 1, [rows, 4]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("h_out", 1, [rows, 4]))
    onnx.save(model, path)
    prior, steps = placed(path, 5, 3), torch.randn(6, 2, 5)
    ended = torch.zeros(6, 2, dtype=torch.bool)
    ended[2, 1] = True
    found = prior.follow(steps, ended, None)[0].mode()
    w, u, v = (torch.from_numpy(each).float() for each in weights.values())
    hidden = torch.zeros(2, 4)
    for t in range(6):
        hidden = torch.tanh(steps[t] @ w + hidden @ u)
        torch.testing.assert_close(found[t], hidden @ v, atol=1e-5, rtol=1e-5)
        hidden = torch.where(ended[t, :, None], 0.0, hidden)


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT64, onnx.TensorProto.INT32])
def test_a_graphs_memory_may_count(kind: int, tmp_path: Path) -> None:
    """n_out = n_in + 1, which is added to the action."""
    nodes = [node("MatMul", "obs w", "a"), node("Add", "n_in one", "n_out")]
    nodes += [onnx.helper.make_node("Cast", ["n_in"], ["n"], to=onnx.TensorProto.FLOAT), node("Add", "a n", "out")]
    path = graph(tmp_path / "policy.onnx", nodes, {"w": random(5, 3)}, ("obs", "n_in"))
    model = onnx.load(path)
    model.graph.initializer.append(onnx.helper.make_tensor("one", kind, [1], [1]))
    model.graph.input[1].CopyFrom(onnx.helper.make_tensor_value_info("n_in", kind, ["batch", 1]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("n_out", kind, ["batch", 1]))
    onnx.save(model, path)
    ended = torch.tensor([[False, False], [False, True], [False, False]])
    found = placed(path, 5, 3).follow(torch.zeros(3, 2, 5), ended, None)[0].mode()
    assert found[..., 0].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]]


def test_a_graph_that_gives_nothing_but_its_memory_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path / "policy.onnx", [node("Add", "obs h_in", "out")], {}, ("obs", "h_in"))
    model = onnx.load(path)
    model.graph.node[0].output[0] = model.graph.output[0].name = "h_out"
    onnx.save(model, path)
    with pytest.raises(FileError, match=r"gives nothing but its memory \(h_out\), and no action"):
        open_policy(path, STD)


@pytest.mark.parametrize("names", [("in", "out"), ("x_in", "x_out")])
def test_a_graph_of_one_input_has_no_memory_whatever_it_is_called(names: tuple[str, str], tmp_path: Path) -> None:
    path = graph(
        tmp_path / "policy.onnx", [node("Gemm", "obs w", "a"), node("Softsign", "a", "out")], {"w": random(5, 3)}
    )
    obs = observations(5)
    wanted = run(path, obs)
    model = onnx.load(path)
    model.graph.input[0].name = model.graph.node[0].input[0] = names[0]
    model.graph.output[0].name = model.graph.node[1].output[0] = names[1]
    onnx.save(model, path)
    assert_equal(placed(path, 5, 3).distribution(obs).mode(), wanted)


def drawing(path: Path, names: tuple[str, ...]) -> Path:
    """A graph that gives its mean and what it draws around it, under two of these names, or under one."""
    nodes = [node("Gemm", "obs w", names[-1] if names[1:] else "mean")]
    nodes += [node("RandomNormalLike", nodes[0].output[0], "noise"), node("Add", f"{nodes[0].output[0]} noise", "out")]
    model = onnx.load(graph(path, nodes, {"w": random(5, 3)}))
    model.graph.node[-1].output[0] = model.graph.output[0].name = names[0]
    for name in names[1:]:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, ["batch", 3]))
    onnx.save(model, path)
    return path


def test_of_a_draw_and_its_mean_the_mean_is_taken(tmp_path: Path) -> None:
    """As Unity ML-Agents names them."""
    path = drawing(tmp_path / "policy.onnx", ("continuous_actions", "deterministic_continuous_actions"))
    assert open_policy(path, STD).saved is not None  # the mean is a perceptron's, which is copied
    program, obs = Graph(PolicyFile(path)), observations(5)
    program.prepare(5)
    assert_equal(program.step(obs.numpy(), {})[0], run(path, obs, 1))
    assert_equal(mean(describe(path), obs), run(path, obs, 1))


def test_a_graph_that_draws_its_actions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gives different actions from the same start, .* it draws them at random"):
        placed(drawing(tmp_path / "policy.onnx", ("actions",)), 5, 3)


def looping(path: Path, count: int, kept: Any = None) -> Path:
    """A graph that halves its actions so many times, with another tensor in its sub-graph where one is given."""
    make, number, truth, whole = onnx.helper.make_tensor, onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, 7
    typed = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [node("Identity", "c0", "c1"), node("Mul", "x0 half", "x1")], "body",
        [typed("i", whole, []), typed("c0", truth, []), typed("x0", number, None)],
        [typed("c1", truth, []), typed("x1", number, None)],
        [make("half", number, [], [0.5]), *([kept] if kept is not None else [])],
    )  # fmt: skip
    constants = {"w": random(5, 3), "most": np.array(count), "yes": np.array(True)}
    return graph(path, [node("Gemm", "obs w", "x"), node("Loop", "most yes x", "out", body=body)], constants)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_loop_that_has_no_end(ending: signal.Signals, tmp_path: Path) -> None:
    path = looping(tmp_path / "policy.onnx", 10_000_000)
    prior = open_policy(path, STD).agent
    assert isinstance(prior, MeanPrior)
    with terminated_as_interrupted():
        threading.Timer(0.3, os.kill, (os.getpid(), ending)).start()
        began = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            prior.for_spaces(5, ActionSpace("continuous", (3,)))
    assert time.perf_counter() - began < 3.0


def test_a_loop_that_has_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.priors.running.PATIENCE", 0.3)
    prior = open_policy(looping(tmp_path / "policy.onnx", 10_000_000), STD).agent
    assert isinstance(prior, MeanPrior)
    with pytest.raises(UsageError, match="for a step"):
        prior.for_spaces(5, ActionSpace("continuous", (3,)))


def test_a_loop_that_ends_runs(tmp_path: Path) -> None:
    path, obs = looping(tmp_path / "policy.onnx", 3), observations(5)
    assert_equal(placed(path, 5, 3).distribution(obs).mode(), run(path, obs))


@pytest.mark.parametrize("kind", [np.float32, np.uint8])  # the second is one that no copy is made of
@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "link"])
def test_weights_outside_of_a_graphs_folder_are_refused_before_it_runs(place: str, kind: Any, tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    (folder / "link").symlink_to(tmp_path / "secret")
    tensor = onnx.numpy_helper.from_array(np.zeros(4, kind), "kept")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    model = onnx.load(residual(folder))
    model.graph.initializer.append(tensor)
    (folder / "flat.onnx").write_bytes(model.SerializeToString())
    for path in (folder / "flat.onnx", looping(folder / "loop.onnx", 3, tensor)):
        with pytest.raises(FileError, match="outside of its folder"):
            Graph(PolicyFile(path))
    if place == "link":
        (folder / "link").unlink()
        (folder / "link").write_bytes(bytes(16))
        Graph(PolicyFile(looping(folder / "loop.onnx", 3, tensor)))


# TorchScript ----------------------------------------------------------------------------------------------------------
class Recurrent(nn.Module):
    """As robots' makers export it: an LSTM whose state is in buffers."""

    hidden_state: Tensor
    cell_state: Tensor

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.memory, self.last = nn.LSTM(5, 8, layers), nn.Linear(8, 3)
        self.register_buffer("hidden_state", torch.zeros(layers, 1, 8))
        self.register_buffer("cell_state", torch.zeros(layers, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        out, (h, c) = self.memory(x.unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = h
        self.cell_state[:] = c
        return self.last(out.squeeze(0))

    @torch.jit.export
    def reset_memory(self) -> None:
        self.hidden_state[:] = 0.0
        self.cell_state[:] = 0.0


class Renewed(Recurrent):
    """The same with new tensors in each step. Those at the start are equal, and the compiler makes them one."""

    def forward(self, x: Tensor) -> Tensor:
        out, (self.hidden_state, self.cell_state) = self.memory(x.unsqueeze(0), (self.hidden_state, self.cell_state))
        return self.last(out.squeeze(0))

    @torch.jit.export
    def reset_memory(self) -> None:
        self.hidden_state = torch.zeros(1, 1, 8)
        self.cell_state = torch.zeros(1, 1, 8)


class ByHand(nn.Module):
    """A memory without an axis of rows: it cannot run two environments at a time."""

    sum: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(5))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.sum += x[0]
        return self.last(self.sum).unsqueeze(0)


def test_torchscript_runs_where_it_is_trusted(tmp_path: Path) -> None:
    module, obs = stirred(Around()), observations(5)
    path = script(tmp_path / "policy.pt", module, 5)
    with pytest.raises(UsageError, match=r"its code .*; it is .* a program, .*add --trust \(in Python, trust=True\)"):
        open_policy(path, STD)
    prior = placed(path, 5, 3, trust=True)
    assert not prior.has_memory
    with torch.no_grad():
        assert_equal(prior.distribution(obs).mode(), module(obs))


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_torchscript_of_another_precision_gets_observations_of_it(kind: torch.dtype, tmp_path: Path) -> None:
    module, obs = stirred(Around()).to(kind), observations(5)
    prior = placed(script(tmp_path / "policy.pt", module, 5), 5, 3, trust=True)
    with torch.no_grad():
        assert_equal(prior.distribution(obs).mode(), module(obs.to(kind)))


@pytest.mark.parametrize("module", [Recurrent(), Recurrent(layers=2), Renewed()])
def test_an_lstm_remembers_each_episode_of_its_own(module: Recurrent, tmp_path: Path) -> None:
    """Against PyTorch's LSTM over each episode as one sequence."""
    stirred(module)
    module(torch.randn(1, 5))  # it was saved in the middle of an episode
    path = script(tmp_path / "policy.pt", module, 5)
    prior = placed(path, 5, 3, trust=True)
    assert prior.has_memory
    steps, ended = torch.randn(9, 4, 5), torch.zeros(9, 4, dtype=torch.bool)
    ended[3, 0] = ended[0, 2] = ended[6, 2] = True
    first, state = prior.follow(steps[:5], ended[:5], None)
    second, _ = prior.follow(steps[5:], ended[5:], state)
    found = torch.cat([first.mode(), second.mode()])
    for n in range(4):
        starts = [0, *(np.flatnonzero(ended[:, n]) + 1).tolist(), 9]
        for start, end in itertools.pairwise(starts):
            with torch.no_grad():
                wanted = module.last(module.memory(steps[start:end, n : n + 1])[0])[:, 0]
            torch.testing.assert_close(found[start:end, n], wanted, atol=1e-5, rtol=1e-4)
    again, _ = prior.for_spaces(5, prior.actions).follow(steps[:5], ended[:5], None)
    assert torch.equal(again.mode(), first.mode())
    fast, slow = Script(PolicyFile(path)), Script(PolicyFile(path))
    assert fast.prepare(5)
    assert fast._runs_batches  # rows are kept apart, so that they run together
    slow.prepare(5)
    slow._runs_batches = False
    state = fast.begin(4)
    for rows in steps:
        a, after = fast.step(rows.numpy(), state)
        b, same = slow.step(rows.numpy(), state)
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(after["cell_state"], same["cell_state"], atol=1e-5, rtol=1e-4)
        state = after


def test_a_memory_without_rows_runs_row_by_row(tmp_path: Path) -> None:
    module = stirred(ByHand())
    prior = placed(script(tmp_path / "policy.pt", module, 5), 5, 3, trust=True)
    steps = torch.randn(4, 3, 5)
    for _ in range(2):  # a run begins with it several times
        prior = prior.for_spaces(5, prior.actions)
        found = prior.follow(steps, torch.zeros(4, 3, dtype=torch.bool), None)[0].mode()
        with torch.no_grad():
            torch.testing.assert_close(found, module.last(steps.cumsum(0)), atol=1e-5, rtol=1e-5)


def test_a_state_that_nobody_can_see_is_refused(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.count = nn.Linear(5, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return self.last(x) * self.count

    with pytest.raises(UsageError, match="its state is not in its buffers"):
        placed(script(tmp_path / "policy.pt", Counts(), 5), 5, 3, trust=True)


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes observations of 5 numbers, the environment's: 6"):
        placed(residual(tmp_path), 6, 3)
    with pytest.raises(
        UsageError, match=r"policy.pt does not run on observations of 6 numbers: (addmm: )?mat1 and mat2 [^:]*$"
    ):
        placed(script(tmp_path / "policy.pt", Around(), 5), 6, 3, trust=True)
