"""Graphs and scripts to read, and what their own runtimes make of them."""

import runpy
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import stirred
from torch import nn

onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def run(path: Path, obs: torch.Tensor, output: int = 0) -> np.ndarray:
    """onnxruntime's own outputs, row by row where the batch is fixed at one."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    fixed = entry.shape[0] == 1
    batches = [obs[i : i + 1].numpy() for i in range(len(obs))] if fixed else [obs.numpy()]
    return np.concatenate([session.run(None, {entry.name: batch})[output] for batch in batches])


def script(path: Path, module: nn.Module, size: int, traced: bool = False) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.trace(module, torch.zeros(2, size)) if traced else torch.jit.script(module)
        torch.jit.save(scripted, str(path))
    return path


MODULE = """
import torch


class Written(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 6), torch.nn.Linear(6, 8)
        self.register_buffer("var", torch.linspace(0.3, 1.3, 5))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
"""


def written(path: Path, code: str, traced: bool = False) -> tuple[Path, nn.Module]:
    """TorchScript of what computes an expression, or statements, of `obs` and the layers in `self`, and the module."""
    source = path.with_suffix(".py")  # where torch looks for the code
    body = code if "return" in code else f"return {code}"
    source.write_text(MODULE + textwrap.indent(body, " " * 8))
    module = stirred(runpy.run_path(str(source), run_name="written")["Written"]())
    return script(path, module, 5, traced), module


def exported(path: Path, module: nn.Module, old: bool = True, opset: int = 18) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.zeros(1, 5),), str(path), opset_version=opset, input_names=["in"], dynamo=not old
        )
    return path


def stacked(activation: nn.Module, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in ((5, 9), (9, 8)):
        layers += [nn.Linear(a, b), *([nn.LayerNorm(b, eps=1e-4)] if norm else []), activation]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def graph(
    path: Path,
    nodes: list[Any],
    constants: dict[str, np.ndarray],
    inputs: Sequence[Any] = ("obs",),
    outputs: Sequence[Any] = ("out",),
) -> Path:
    """A graph from five observations to `out`, or from and to other names or values."""
    made = helper.make_graph(
        nodes,
        "policy",
        [value(each, ["batch", 5]) if isinstance(each, str) else each for each in inputs],
        [value(each, None) if isinstance(each, str) else each for each in outputs],
        [
            numpy_helper.from_array(numbers.astype("f4") if numbers.dtype == np.float64 else numbers, name)
            for name, numbers in constants.items()
        ],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def value(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)
