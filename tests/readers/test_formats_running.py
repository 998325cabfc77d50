"""Files that cannot be copied run as they are, and agree with onnxruntime and PyTorch, memory included."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import STD, assert_equal, describe, mean, observations, placed, random
from made_graphs import graph, node, onnx, run, script, value
from other_policies import Around

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, UsageError
from repolicy.priors.opening import open_policy, prior_from_source, prior_source
from repolicy.priors.running import Graph
from repolicy.readers.recognize import PolicyFile


# Graphs ---------------------------------------------------------------------------------------------------------------
def residual(tmp_path: Path, batch: Any = "batch") -> Path:
    """A graph with a connection around a layer, which no perceptron of ours has."""
    nodes = [
        node("Gemm", "obs w", "a"), node("Relu", "a", "b"), node("Gemm", "b u", "c"), node("Add", "a c", "d"),
        node("Gemm", "d v", "out"),
    ]  # fmt: skip
    weights = {"w": random(5, 7), "u": random(7, 7), "v": random(7, 3)}
    return graph(tmp_path / "policy.onnx", nodes, weights, [value("obs", [batch, 5])])


@pytest.mark.parametrize("batch", ["batch", 1])
def test_a_graph_runs_in_onnxruntime_as_a_mean(batch: Any, tmp_path: Path) -> None:
    path, obs = residual(tmp_path, batch), observations(5)
    prior, program = placed(path, 5, 3), Graph(PolicyFile(path))
    program.prepare(5)
    assert program._runs_row_by_row == (batch == 1)  # those that a graph keeps apart run together
    assert not prior.has_memory
    assert any("it holds Add" in note and "its std is of the actions themselves" in note for note in prior.notes)
    assert_equal(prior.distribution(obs).mode(), run(path, obs))
    again = prior_from_source(prior_source(str(path), prior, STD, False))
    assert_equal(again.for_spaces(5, prior.actions).distribution(obs).mode(), run(path, obs))


@pytest.mark.parametrize(
    ("mixing", "constant"),
    [
        ([node("ReduceMean", "obs k", "middle"), node("Add", "obs middle", "x")], [0]),
        ([node("Reshape", "obs k", "middle"), node("Add", "middle middle", "x")], [1, 5]),
    ],
    ids=["mean", "shape"],
)
def test_a_graph_that_mixes_rows_up_or_takes_one_alone_runs_row_by_row(
    mixing: list[Any], constant: list[int], tmp_path: Path
) -> None:
    """A mean over the rows gives other actions for several; a shape that is written down refuses several."""
    constants = {"k": np.array(constant), "w": random(5, 3)}
    nodes = [*mixing, node("Softsign", "x", "y"), node("Gemm", "y w", "out")]
    path, obs = graph(tmp_path / "policy.onnx", nodes, constants), observations(5)
    program = Graph(PolicyFile(path))
    assert not program.prepare(5)
    wanted = (2.0 * obs / (1.0 + 2.0 * obs.abs())) @ torch.from_numpy(constants["w"]).float()
    assert_equal(program.step(obs.numpy(), {})[0], wanted)
    assert_equal(placed(path, 5, 3).distribution(obs).mode(), wanted)


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
    path = graph(tmp_path / "policy.onnx", [node("Mul", "obs w", "out")], {"w": random(1, 3)}, [value("obs", [])])
    with pytest.raises(FileError, match=r"takes observations of shape \[\], and no rows of numbers: write a function"):
        Graph(PolicyFile(path))


def test_a_graph_of_two_inputs_does_not_run_as_it_is_and_inspect_says_so(tmp_path: Path) -> None:
    path = graph(tmp_path / "policy.onnx", [node("Add", "obs time", "out")], {}, ("obs", "time"))
    said = "takes 2 inputs (obs, time), and a prior takes observations alone"
    with pytest.raises(FileError, match=f"{re.escape(said)}: .*file.py:act"):
        open_policy(path, STD)
    facts = inspect(path)
    assert facts["runs as it is"].startswith(f"no: it {said}")
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
    memory, kept = value("h_in", [rows, 4]), value("h_out", [rows, 4])
    path = graph(tmp_path / "policy.onnx", nodes, weights, ["obs", memory], ["out", kept])
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


@pytest.mark.parametrize(
    ("kind", "one"), [(onnx.TensorProto.INT64, np.ones(1, np.int64)), (onnx.TensorProto.INT32, np.ones(1, np.int32))]
)
def test_a_graphs_memory_may_count(kind: int, one: np.ndarray, tmp_path: Path) -> None:
    """n_out = n_in + 1, which is added to the action."""
    nodes = [node("MatMul", "obs w", "a"), node("Add", "n_in one", "n_out")]
    nodes += [node("Cast", "n_in", "n", to=onnx.TensorProto.FLOAT), node("Add", "a n", "out")]
    memory, kept = value("n_in", ["batch", 1], kind), value("n_out", ["batch", 1], kind)
    path = graph(tmp_path / "policy.onnx", nodes, {"w": random(5, 3), "one": one}, ["obs", memory], ["out", kept])
    ended = torch.tensor([[False, False], [False, True], [False, False]])
    found = placed(path, 5, 3).follow(torch.zeros(3, 2, 5), ended, None)[0].mode()
    assert found[..., 0].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]]


def test_a_graph_that_gives_nothing_but_its_memory_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path / "policy.onnx", [node("Add", "obs h_in", "h_out")], {}, ["obs", "h_in"], ["h_out"])
    with pytest.raises(FileError, match=r"gives nothing but its memory \(h_out\), and no action"):
        open_policy(path, STD)


@pytest.mark.parametrize("names", [("in", "out"), ("x_in", "x_out")])
def test_a_graph_of_one_input_has_no_memory_whatever_it_is_called(names: tuple[str, str], tmp_path: Path) -> None:
    nodes, obs = [node("Gemm", f"{names[0]} w", "a"), node("Softsign", "a", names[1])], observations(5)
    path = graph(tmp_path / "policy.onnx", nodes, {"w": random(5, 3)}, names[:1], names[1:])
    assert_equal(placed(path, 5, 3).distribution(obs).mode(), run(path, obs))


def drawing(path: Path, names: tuple[str, ...]) -> Path:
    """A graph that gives its mean and what it draws around it, under two of these names, or under one."""
    plain = names[-1] if names[1:] else "mean"
    nodes = [node("Gemm", "obs w", plain), node("RandomNormalLike", plain, "noise")]
    nodes.append(node("Add", f"{plain} noise", names[0]))
    return graph(path, nodes, {"w": random(5, 3)}, outputs=names)


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


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "link"])
def test_weights_outside_of_a_graphs_folder_are_refused_before_it_runs(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    (folder / "link").symlink_to(tmp_path / "secret")
    tensor = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "kept")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    model = onnx.load(residual(folder))
    model.graph.initializer.append(tensor)
    (folder / "flat.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FileError, match="keeps weights in another file"):
        Graph(PolicyFile(folder / "flat.onnx"))


@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_sparse_weights_are_refused(place: str, tmp_path: Path) -> None:
    """Whose numbers may lie in a file of the current folder."""
    model = onnx.load(residual(tmp_path))
    numbers = onnx.numpy_helper.from_array(np.ones(1, np.float32), "kept")
    sparse = onnx.helper.make_sparse_tensor(numbers, onnx.numpy_helper.from_array(np.zeros(1, np.int64)), [4])
    if place == "initializer":
        model.graph.sparse_initializer.append(sparse)
    else:
        model.graph.node.append(onnx.helper.make_node("Constant", [], ["kept"], sparse_value=sparse))
    (tmp_path / "flat.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FileError, match="has sparse weights, which are not read"):
        Graph(PolicyFile(tmp_path / "flat.onnx"))


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes observations of 5 numbers, the environment's: 6"):
        placed(residual(tmp_path), 6, 3)
    path = script(tmp_path / "policy.pt", Around(), 5)
    said = r"policy.pt does not run on observations of 6 numbers: (addmm: )?mat1 and mat2 [^:]*$"
    with pytest.raises(UsageError, match=said):
        placed(path, 6, 3, trust=True)
