"""ONNX graphs by the exporter that is quick and called old, where a test reads or runs a graph."""

import inspect
import io
import warnings

import torch


def quick_graph(module: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> bytes:
    """What `repolicy.policies.export.onnx_graph` gives: it takes any number of rows."""
    names, content = list(inspect.signature(module.forward).parameters), io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module, example, content, input_names=names, output_names=["actions"], dynamo=False,
            dynamic_axes={name: {0: "batch"} for name in names},
        )  # fmt: skip
    return content.getvalue()
