"""ONNX graphs by hand: constants that are computed in the graph, and clips in odd places."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_equal, mean, observations, random
from made_graphs import graph, node, run

from repolicy.readers.described import CannotCopyError
from repolicy.readers.recognize import describe

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

BODY = [node("Gemm", "obs w", "a"), node("Tanh", "a", "b"), node("Gemm", "b v", "c")]
LAYERS = {"w": random(5, 7), "v": random(7, 3)}
FIRST, SECOND = np.array([0], np.int64), np.array([1], np.int64)
SEVEN, TWO = np.array(7, np.int64), np.array(2, np.int64)

COPIED: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    "a weight that loses an axis": (
        [node("Squeeze", "u axis", "flat"), node("Gemm", "obs flat", "out")],
        {"u": random(1, 5, 3), "axis": FIRST},
    ),
    "a row that gets an axis": (
        [*BODY, node("Unsqueeze", "k axis", "row"), node("Mul", "c row", "out")],
        {"k": random(3), "axis": FIRST},
    ),
    "a quotient": (
        [*BODY, node("Div", "k l", "row"), node("Mul", "c row", "out")],
        {"k": random(3), "l": random(1, 3)},
    ),
}
REFUSED: dict[str, tuple[list[Any], dict[str, np.ndarray], str]] = {
    "a column": (
        [*BODY, node("Unsqueeze", "k axis", "column"), node("Mul", "c column", "out")],
        {"k": random(3), "axis": SECOND},
        "it holds Mul",
    ),
    "a quotient of whole numbers": (
        [*BODY, node("Div", "seven two", "q"), node("Cast", "q", "f", to=1), node("Mul", "c f", "out")],
        {"seven": SEVEN, "two": TWO},
        "it holds Mul",
    ),
    "a clip in front of a choice": (
        [*BODY, node("Clip", "c low high", "d"), node("ArgMax", "d", "out", axis=1)],
        {"low": np.array(-1.0), "high": np.array(1.0)},
        "its outputs are clipped before the largest is chosen",
    ),
    "a clip whose bounds are exchanged": (
        [node("Clip", "obs low high", "x"), node("Gemm", "x w", "out")],
        {"low": np.array(1.0), "high": np.array(-1.0)},
        "clip stands where a linear layer belongs",
    ),
    "a slice of nothing": (
        [*BODY, node("Slice", "c start end axis", "out")],
        {"start": np.array([5], np.int64), "end": np.array([9], np.int64), "axis": SECOND},
        "a slice leaves nothing of its last layer",
    ),
}


@pytest.mark.parametrize("name", COPIED)
def test_a_constant_that_is_computed_is_what_onnxruntime_computes(name: str, tmp_path: Path) -> None:
    nodes, constants = COPIED[name]
    path, obs = graph(tmp_path / "policy.onnx", nodes, LAYERS | constants), observations(5)
    assert_equal(mean(describe(path), obs), run(path, obs))


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_perceptron_does_is_refused(name: str, tmp_path: Path) -> None:
    nodes, constants, reason = REFUSED[name]
    kind = onnx.TensorProto.INT64 if nodes[-1].op_type == "ArgMax" else onnx.TensorProto.FLOAT
    with pytest.raises(CannotCopyError, match=reason):
        describe(graph(tmp_path / "policy.onnx", nodes, LAYERS | constants, kind=kind))


def test_a_weight_with_an_axis_too_many_runs_as_it_is(tmp_path: Path) -> None:
    """It is none that Gemm takes, wherever it comes from."""
    path = graph(tmp_path / "policy.onnx", [node("Gemm", "obs u", "out")], {"u": random(1, 5, 3)})
    with pytest.raises(CannotCopyError, match="it holds Gemm"):
        describe(path)
