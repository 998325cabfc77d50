"""What somebody else's policy file may not say, and its user can. (Without torch, so that `--help` is quick.)"""

import os
import reprlib
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from repolicy.errors import UsageError

LEAST, MOST = 1e-12, 1e12  # what single precision divides by and squares
LEAST_STD = 1e-5  # with a smaller one, log-probabilities would be those of rounding errors of the mean


@dataclass(frozen=True)
class Options:
    """How to read a policy's file that another library wrote."""

    std: float | Literal["fit"] | None = None
    """Of a policy that has none: the std of its actions (before tanh, where it squashes them); fit: from
    --demonstrations."""
    temperature: float | None = None
    """Of another library's Q-network: the temperature at which it chooses its actions, in units of the return."""
    vecnormalize: str | None = None
    """Of another library's policy: a file with its observations' statistics, or none to go without."""
    file_activation: str | None = None
    """Of another library's policy: its network's activation, where the file does not say."""
    demonstrations: str | None = None
    """For --std fit: recorded observations and actions of the policy, an .npz file or a Minari dataset."""
    layout: str | None = None
    """Of a checkpoint of an unknown layout: which tensors are what, such as "actor=model.actor, log_std=model.logstd,
    activation=elu, normalizer=obs_rms"."""

    def __post_init__(self) -> None:
        """Refuse what a file would be blamed for later; what is kept can be written as JSON."""
        for name, value in vars(self).items():
            if value is None or (name == "std" and isinstance(value, str) and value == "fit"):
                continue
            checked = _number(name, value) if name in ("std", "temperature") else _text(name, value)
            object.__setattr__(self, name, checked)


def _number(name: str, value: Any) -> float:
    real, least = isinstance(value, Real) and not isinstance(value, bool), LEAST_STD if name == "std" else LEAST
    if not real or not least <= value <= MOST:
        raise UsageError(f"--{name} is {reprlib.repr(value)}; it must be above 0, a number from {least:g} to {MOST:g}")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"--{name.replace('_', '-')} is {reprlib.repr(value)}; it must be a text")
    return str(value)
