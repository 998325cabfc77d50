"""What somebody else's policy file may not say, and its user can. (Without torch, so that `--help` is quick.)"""

import contextlib
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from repolicy.errors import RepolicyError, UsageError

LEAST, MOST = 1e-12, 1e12  # what single precision divides by and squares
MIN_STD = 1e-5  # with a smaller one, log-probabilities would be those of rounding errors of the mean


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
        """Refuse numbers that a file would be blamed for later; what is kept can be written as JSON."""
        for name, value in vars(self).items():
            number = name in ("std", "temperature") and not (name == "std" and value == "fit")
            if value is not None:
                object.__setattr__(self, name, _number(name, value) if number else str(value))


OPTION = re.compile(
    r"--(std|temperature|vecnormalize|file-activation|demonstrations|layout|trust)\b"
    r"(?: (fit|none|FILE\.npz|\d[\d.]*)\b)?"
)


def in_python_terms(text: str) -> str:
    """Return a sentence with `load_policy`'s names for the options in the place of the command line's."""

    def word(found: re.Match[str]) -> str:
        name, value = found[1].removeprefix("file-"), found[2]
        if value is None:
            return name
        return f"{name}={value}" if value[0].isdigit() else f"{name}={value!r}"

    return OPTION.sub(word, text)


@contextlib.contextmanager
def errors_in_python_terms(where: str = "") -> Iterator[None]:
    """Make an error name options as they are in Python; `where` says how to give them, at a door that has none."""
    try:
        yield
    except RepolicyError as error:
        if (said := in_python_terms(str(error))) == str(error):
            raise
        raise type(error)(said + where) from None


def _number(name: str, value: Any) -> float:
    least = MIN_STD if name == "std" else LEAST
    if not isinstance(value, Real) or not least <= float(value) <= MOST:
        raise UsageError(f"--{name} is {reprlib.repr(value)}; it must be above 0, a number from {least:g} to {MOST:g}")
    return float(value)
