"""Compute with torch's own defaults inside a program that has chosen others."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def with_torch_defaults() -> Iterator[None]:
    """Compute in float32, on the CPU, with gradients and with 0 for an underflow, whatever the program around has set.

    Every public function that makes or reads a policy has this as its decorator.
    """
    dtype, device = torch.get_default_dtype(), torch.empty(0).device  # get_default_device() may fail in old torch
    on_cpu = contextlib.nullcontext() if device.type == "cpu" else torch.device("cpu")  # the latter slows each call
    with on_cpu, torch.inference_mode(False), torch.enable_grad(), np.errstate(under="ignore"):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
