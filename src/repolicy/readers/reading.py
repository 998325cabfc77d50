"""Options for reading another library's policy file. (This module does not import torch, so `--help` stays quick.)"""

import contextlib
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from repolicy.errors import RepolicyError, UsageError

MIN_NUMBER, MAX_NUMBER = 1e-12, 1e12  # single precision can still divide by these and square them
MIN_STD = 1e-5  # with a smaller std, rounding errors of the mean would dominate log-probabilities


@dataclass(frozen=True)
class Options:
    """What the user adds to a policy file of another library, because the file does not hold it."""

    std: float | Literal["fit"] | None = None
    """Std of the actions of a policy that has none, before any tanh. "fit" estimates it from --demonstrations."""
    temperature: float | None = None
    """Temperature at which a Q-network chooses its actions, in units of the return."""
    vecnormalize: str | None = None
    """File with the statistics of the observations, or "none" for no normalization."""
    file_activation: str | None = None
    """Activation of the network, where the file does not name it."""
    demonstrations: str | None = None
    """Recorded observations and actions for --std fit: an .npz file or a Minari dataset."""
    layout: str | None = None
    """Roles of the tensors in a checkpoint of an unknown layout, such as "actor=model.actor, log_std=model.logstd,
    activation=elu, normalizer=obs_rms"."""

    def __post_init__(self) -> None:
        """Check the numbers here, so that no error blames the file for them; store only what JSON can hold."""
        for name, value in vars(self).items():
            if value is None:
                continue
            # The text is compared, as an array would be compared number by number.
            is_number = name == "temperature" or (name == "std" and str(value) != "fit")
            object.__setattr__(self, name, _checked_number(name, value) if is_number else str(value))


OPTION = re.compile(
    r"--(std|temperature|vecnormalize|file-activation|demonstrations|layout|trust)\b"
    r"(?: (fit|none|FILE\.npz|\d[\d.]*)\b)?"
)


def in_python_terms(text: str) -> str:
    """Replace command-line options in a message by names in Python, `--std 0.2` by `std=0.2`."""

    def python_name(match: re.Match[str]) -> str:
        name, value = match[1].removeprefix("file-"), match[2]
        if value is None:
            return name
        return f"{name}={value}" if value[0].isdigit() else f"{name}={value!r}"

    text = OPTION.sub(python_name, text)
    return re.sub(r"(?<!\w)--([a-z-]+)", lambda option: option[1].replace("-", "_"), text)


def options_of_new(text: str) -> str:
    """Replace options in a message on the new policy of a comparison: `--std 0.2` by `--of-new std=0.2`."""

    def behind_of_new(match: re.Match[str]) -> str:
        name, value = match.groups()
        return match[0] if name == "trust" else f"--of-new {name}{f'={value}' if value else ''}"

    return OPTION.sub(behind_of_new, text)


@contextlib.contextmanager
def errors_in_python_terms(hint: str = "") -> Iterator[None]:
    """Translate options in error messages to Python names, and append `hint` where there was an option."""
    try:
        yield
    except RepolicyError as error:
        message = in_python_terms(str(error))
        if message == str(error):
            raise
        raise type(error)(message + hint) from None


def _checked_number(name: str, value: Any) -> float:
    low = MIN_STD if name == "std" else MIN_NUMBER
    if not isinstance(value, Real) or not low <= float(value) <= MAX_NUMBER:
        allowed = f"it must be above 0, a number from {low:g} to {MAX_NUMBER:g}"
        raise UsageError(f"--{name} is {reprlib.repr(value)}; {allowed}")
    return float(value)
