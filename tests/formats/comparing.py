"""What the tests of formats share: descriptions in double precision, against the host library's own numbers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.policies.formats.described import Described, distribution, mean_action, value

COUNT = 256
TOLERANCE = 1e-5


def observations(size: int, spread: float = 1.0) -> Tensor:
    """As many as every comparison is made on, in single precision, as the libraries take them."""
    return spread * torch.randn(COUNT, size, generator=torch.Generator().manual_seed(1))


def stirred(module: torch.nn.Module) -> torch.nn.Module:
    """With random numbers added to all parameters, as fresh policies have zeros where a mistake would not be seen."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return module


def log_prob(described: Described, obs: Tensor, actions: Any) -> np.ndarray:
    return distribution(described, obs.double()).log_prob(torch.as_tensor(actions).double()).numpy()


def mean(described: Described, obs: Tensor) -> np.ndarray:
    return mean_action(described, obs.double()).numpy()


def values(described: Described, obs: Tensor) -> np.ndarray:
    return value(described, obs.double()).numpy()


def assert_equal(found: Any, wanted: Any) -> None:
    """Everywhere equal to 1e-5 (relative, where the numbers are above 1), and no trivial constant."""
    found, wanted = (np.asarray(torch.as_tensor(x).detach()).squeeze() for x in (found, wanted))
    assert found.shape == wanted.shape
    assert len(wanted) == COUNT
    assert np.all(np.std(wanted, axis=0) > 1e-4)
    worst = float((np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))).max())
    assert worst <= TOLERANCE, f"off by {worst:.3g}"
