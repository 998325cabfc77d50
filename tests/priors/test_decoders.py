"""Decoders as other programs export them, and the graph of one behind a policy."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from repolicy.cli.inspection import inspect
from repolicy.errors import UsageError
from repolicy.policies.export import onnx_runner, suppress_export_warnings
from repolicy.prepare.generative import standard_normal
from repolicy.priors import decoders
from repolicy.priors.decoders import export_composed, find_noise_input, load_decoder
from repolicy.readers.reading import Options
from tests.helpers.quick_graphs import quick_graph

MATRIX = np.random.default_rng(0).standard_normal((2, 2))
SEEN, NOISE = np.random.default_rng(1).standard_normal((2, 5, 2)).astype(np.float32)


def write_decoder(
    path: Path, numbers: type = np.float32, rows: str | int = "N", weights_as_input: bool = False
) -> Path:
    """Write a graph whose first output is no action, and whose second is noise · MATRIX + observations."""
    weights = numpy_helper.from_array(MATRIX.astype(numbers), "W")
    kind = weights.data_type
    values = [helper.make_tensor_value_info(name, kind, [rows, 2]) for name in ("obs", "noise", "latents", "actions")]
    more = [helper.make_tensor_value_info("W", kind, [2, 2])] * weights_as_input
    nodes = [
        helper.make_node("MatMul", ["noise", "W"], ["moved"]),
        helper.make_node("Add", ["moved", "obs"], ["actions"]),
        helper.make_node("Neg", ["actions"], ["latents"]),
    ]
    graph = helper.make_graph(nodes, "decoder", [*values[:2], *more], values[2:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("how", [{"numbers": np.float32}, {"numbers": np.float64}, {"weights_as_input": True}])
def test_a_decoders_actions_are_alone_and_behind_a_policy(
    how: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either precision, with constants that are inputs, too, and beside an output that is no action."""
    monkeypatch.setattr(decoders, "onnx_graph", quick_graph)
    file, whole = write_decoder(tmp_path / "decoder.onnx", **how), tmp_path / "whole.onnx"
    wanted = NOISE @ MATRIX + SEEN
    np.testing.assert_allclose(load_decoder(file, 2, 1)(SEEN, NOISE), wanted, atol=1e-6)
    export_composed(standard_normal(2, 2), file, 2, 1, whole)
    decoded = onnx_runner(whole.read_bytes())(SEEN, NOISE)
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(decoded, wanted, atol=1e-6)
    assert [each.name for each in onnx.load(whole).graph.output] == ["actions"]


def test_a_graph_that_takes_one_row_at_a_time_is_no_decoder_and_inspect_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^flow.onnx takes 1 of its input x at a time: export it"):
        find_noise_input({"x": [1, 2], "noise": ["rows", 6]}, 6, Path("flow.onnx"))
    found = inspect(write_decoder(tmp_path / "one.onnx", rows=1), Options())
    assert "it takes 1 of its input obs at a time: export it" in str(found)


class Turned(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.tensor(MATRIX))

    def forward(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return noise @ self.matrix + observations


def test_a_script_runs_in_the_precision_of_its_buffers_and_fails_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "decoder.pt"
    with suppress_export_warnings():
        torch.jit.script(Turned()).save(file)
    np.testing.assert_allclose(load_decoder(file, 2, 1)(SEEN, NOISE), NOISE @ MATRIX + SEEN, atol=1e-6)
    with pytest.raises(
        UsageError, match=r"decoder\.pt does not run on observations of 2 and noise of 3 .*: [^\n]{,120}$"
    ):
        load_decoder(file, 3, 1)(SEEN, np.ones((5, 3), np.float32))


INPUTS = [
    ({"seen": 2, "noise": 6}, "noise"), ({"x": 6, "y": 2}, "x"), ({"observation": 6, "noise": 6}, "noise"),
    ({"normalized_obs": 6, "sample": 6}, "sample"), ({"obs_steps": 6, "initial_Z": 6}, "initial_Z"),
    ({"observation": 2, "command": 6}, ""),  # whose numbers are as many, and mean something else
    ({"observation": 2, "history": 6}, ""), ({"observation": 6, "history": 2}, ""), ({"x": 6, "y": 6}, ""),
    ({"observation": 2, "noise": "width"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "found"), INPUTS)
def test_which_input_is_the_noise_is_asked_where_it_is_not_told(inputs: dict, found: str) -> None:
    shapes = {name: ["rows", size] for name, size in inputs.items()}
    if found:
        assert find_noise_input(shapes, 6, Path("flow.onnx")) == (found, [6])
    else:
        with pytest.raises(UsageError, match="does not tell which of its inputs"):
            find_noise_input(shapes, 6, Path("flow.onnx"))
