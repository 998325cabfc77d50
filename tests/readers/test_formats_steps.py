"""ONNX graphs by hand: constants that are computed in the graph, and what no perceptron does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_equal, describe, mean, observations, random
from made_graphs import graph, node, onnx, run

from repolicy.errors import FileError
from repolicy.readers.described import CannotCopyError

FIRST_LAYER = [node("Gemm", "obs w", "a")]
BODY = [*FIRST_LAYER, node("Tanh", "a", "b"), node("Gemm", "b v", "c")]
LAYERS = {"w": random(5, 7), "v": random(7, 3), "zero": np.array([0], np.int64), "one": np.array([1], np.int64)}
SEVEN, TWO = np.array(7, np.int64), np.array(2, np.int64)

COPIED: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    "a weight that loses an axis": (
        [node("Squeeze", "u zero", "flat"), node("Gemm", "obs flat", "out")],
        {"u": random(1, 5, 3)},
    ),
    "a row that gets an axis": (
        [*BODY, node("Unsqueeze", "k zero", "row"), node("Mul", "c row", "out")],
        {"k": random(3)},
    ),
    "a quotient": (
        [*BODY, node("Div", "k l", "row"), node("Mul", "c row", "out")],
        {"k": random(3), "l": random(1, 3)},
    ),
}


def through(kind: int) -> list[Any]:
    """Observations that go through another type of numbers."""
    return [node("Cast", "obs", "coarse", to=kind), node("Cast", "coarse", "x", to=onnx.TensorProto.FLOAT)]


REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([*BODY, node("Unsqueeze", "k one", "column"), node("Mul", "c column", "out")], {"k": random(3)}, "it holds Mul"),
    (  # a quotient of whole numbers
        [*BODY, node("Div", "seven two", "q"), node("Cast", "q", "f", to=1), node("Mul", "c f", "out")],
        {"seven": SEVEN, "two": TWO},
        "it holds Mul",
    ),
    (
        [*BODY, node("Clip", "c low high", "d"), node("ArgMax", "d", "out", axis=1)],
        {"low": -1.0, "high": 1.0},
        "its outputs are clipped before the largest is chosen",
    ),
    (
        [node("Clip", "obs low high", "x"), node("Gemm", "x w", "out")],
        {"low": 1.0, "high": -1.0},
        "clip stands where a linear layer belongs",
    ),
    (
        [*BODY, node("Slice", "c start end one", "out")],
        {"start": np.array([5], np.int64), "end": np.array([9], np.int64)},
        "a slice leaves nothing of its last layer",
    ),
    ([*FIRST_LAYER, node("Softsign", "a", "b"), node("Gemm", "b v", "out")], {}, "it holds Softsign"),
    ([*FIRST_LAYER, node("Gemm", "a v", "out")], {}, "linear follows its last layer"),
    ([*FIRST_LAYER, node("Relu", "a", "b"), node("Add", "b a", "c"), node("Gemm", "c v", "out")], {}, "it holds Add"),
    ([*FIRST_LAYER, node("Elu", "a", "b", alpha=0.5), node("Gemm", "b v", "out")], {}, "it holds Elu"),
    ([node("Relu", "obs", "a"), node("Gemm", "a w", "out")], {}, "relu stands where a linear layer belongs"),
    ([*through(onnx.TensorProto.INT64), node("Gemm", "x w", "out")], {}, "it holds Cast"),
    ([*through(onnx.TensorProto.FLOAT16), node("Gemm", "x w", "out")], {}, "it holds Cast"),
    ([*BODY, node("Reshape", "c s", "out")], {"s": np.array([-1, 1])}, "it holds Reshape"),
    ([*BODY[:2], node("Gemm", "b v m", "out")], {"m": random(4, 3)}, "it holds Gemm"),
    ([*BODY[:2], node("Gemm", "b u obs", "out")], {"u": random(7, 5)}, "it holds Gemm"),  # a way around the layers
    ([node("Gemm", "obs u", "out")], {"u": random(1, 5, 3)}, "it holds Gemm"),  # an axis too many
    ([node("LayerNormalization", "obs k obs", "x"), node("Gemm", "x w", "out")], {"k": random(5)}, "LayerNormal"),
    ([*FIRST_LAYER, node("Relu", "a", "b", domain="mine"), node("Gemm", "b v", "out")], {}, "it holds Relu"),
]
DAMAGED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([*BODY[:2], node("Gemm", "b w", "out")], {}, "a layer of 7 units goes into one that takes 5"),
    ([node("Sub", "obs m", "x"), node("Gemm", "x w", "out")], {"m": random(4)}, "is damaged"),
    ([*BODY[:2], node("Gemm", "b nan", "out")], {"nan": random(7, 3) * np.nan}, "weights are not finite"),
    ([*BODY[:2], node("Gemm", "b v inf", "out")], {"inf": random(3) + np.inf}, "weights are not finite"),
]


@pytest.mark.parametrize("name", COPIED)
def test_a_constant_that_is_computed_is_what_onnxruntime_computes(name: str, tmp_path: Path) -> None:
    nodes, constants = COPIED[name]
    path, obs = graph(tmp_path / "policy.onnx", nodes, LAYERS | constants), observations(5)
    assert_equal(mean(describe(path), obs), run(path, obs))


@pytest.mark.parametrize(
    ("nodes", "constants", "reason", "wanted"),
    [*((*each, CannotCopyError) for each in REFUSED), *((*each, FileError) for each in DAMAGED)],
)
def test_what_no_perceptron_does_is_refused(
    nodes: list[Any], constants: Any, reason: str, wanted: type[FileError], tmp_path: Path
) -> None:
    kind = onnx.TensorProto.INT64 if nodes[-1].op_type == "ArgMax" else onnx.TensorProto.FLOAT
    arrays = LAYERS | {name: np.array(values) for name, values in constants.items()}
    with pytest.raises(wanted, match=reason) as caught:
        describe(graph(tmp_path / "policy.onnx", nodes, arrays, kind=kind))
    assert "\n" not in str(caught.value)
