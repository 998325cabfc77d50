"""Modules with weights of their own: they are not as they were made, and not like one another."""

from typing import Any

import torch


def shaken(module: Any, by: float = 0.3, seed: int | None = None) -> Any:
    """Return the module itself; without a seed, torch's own random numbers move its weights."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += by * torch.randn(parameter.shape, generator=generator)
    return module
