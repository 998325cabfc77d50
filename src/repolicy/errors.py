"""What can go wrong, as a small tree.

RepolicyError        something failed; the message is one sentence for a person   (exit code 1)
├── UsageError       what was asked for cannot be done as asked                   (exit code 2)
├── FileError        a file or folder is missing, damaged, in use or of another kind
└── NumericError     a quantity stopped being finite, or broke an invariant
"""

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator
from numbers import Integral
from pathlib import Path
from typing import Any

# Where code lies that is not the user's: Python's own, what is made while running, and this package.
NOT_OWN = (sysconfig.get_path("stdlib"), "<", str(Path(__file__).parent))


class RepolicyError(Exception):
    """Base of every error that Repolicy raises on purpose."""

    exit_code = 1


class UsageError(RepolicyError):
    """The request itself is wrong: an unknown name, a size that does not fit, an option out of range."""

    exit_code = 2


class FileError(RepolicyError):
    """A file or folder cannot be used."""


class NumericError(RepolicyError):
    """A number that must be finite, or an equality that must hold, is not."""


def check_counts(least: int = 1, **counts: Any) -> None:
    """Raise where one of these, by its name, is below that, or no whole number."""
    for name, count in counts.items():
        if not isinstance(count, Integral):  # --jobs None
            raise UsageError(f"{name} is {count}; it must be a whole number, {least} or more")
        if count < least:
            raise UsageError(f"{name} is {count}; it must be {least} or more")


def first_line(error: BaseException) -> str:
    """Return what another library's error says, for a sentence of ours."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{line} is missing" if isinstance(error, KeyError) else line


@contextlib.contextmanager
def in_one_sentence(what: str, cls: type[RepolicyError] = RepolicyError) -> Iterator[None]:
    """Turn whatever ends code that is not ours early, `sys.exit(0)` too, into a failure. Ctrl-C stays Ctrl-C."""
    try:
        yield
    except (RepolicyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise cls(f"{what}: {described(error)}") from error


def described(error: BaseException) -> str:
    """Return what an exception says, on one line."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}{_place(error)}"


def _place(error: BaseException) -> str:
    """Return ` (file.py, line 3)`, the last line of the user's own code that led to it, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith(NOT_OWN) and "site-packages" not in frame.filename
    ]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
