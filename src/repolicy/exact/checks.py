"""Numbers that the exact problems can work with, or one sentence that says why not."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import UsageError

TOLERANCE = 1e-6  # how far a row of probabilities may be from summing to one: float32 passes, a slip does not


def float64(name: str, value: Any, shape: list[int] | None = None) -> Tensor:
    """Return a float64 copy of `value`, finite and, where one is given, of that shape."""
    try:
        array = torch.from_numpy(
            np.array(value.detach().cpu().numpy() if isinstance(value, Tensor) else value, np.float64)
        )
    except (TypeError, ValueError):
        raise UsageError(f"{name} is not a rectangular array of numbers") from None
    if shape is not None and list(array.shape) != shape:
        raise UsageError(f"{name} has shape {list(array.shape)}; the other arrays ask for {shape}")
    if not bool(torch.isfinite(array).all()):
        raise UsageError(f"{name} has an entry that is infinite or no number")
    return array


def check_discount(discount: float, horizon: int | None = None) -> None:
    """A number in [0, 1], below 1 where the horizon is infinite."""
    if isinstance(discount, bool) or not isinstance(discount, Real) or not 0 <= discount <= 1:
        raise UsageError(f"discount is {discount!r}; it must be a number from 0 to 1")
    if horizon is None and discount == 1:
        raise UsageError("an infinite horizon needs a discount below 1")


def check_horizon(horizon: int | None) -> None:
    if horizon is None:
        return
    if isinstance(horizon, bool) or not isinstance(horizon, Integral) or horizon < 1:
        raise UsageError(f"horizon is {horizon!r}; it must be a whole number, 1 or more, or None for no end")


def check_temperature(alpha: float) -> None:
    number = isinstance(alpha, Real) and not isinstance(alpha, bool)
    if not number or not math.isfinite(alpha) or alpha <= 0:
        raise UsageError(f"alpha is {alpha!r}; a temperature must be a finite number greater than 0")


def check_probabilities(name: str, array: Tensor) -> None:
    """Rows, along the last axis, that are at least 0 and sum to 1."""
    if bool((array < 0).any()):
        raise UsageError(f"{name} has a probability below 0: {array.min().item():.6g}")
    total = array.sum(-1)
    worst = np.unravel_index(int((total - 1).abs().argmax()), total.shape)
    if abs(total[worst].item() - 1) > TOLERANCE:
        row = f" at {[int(index) for index in worst]}" if worst else ""
        raise UsageError(f"the probabilities in {name}{row} sum to {total[worst].item():.6g}; they must sum to 1")
