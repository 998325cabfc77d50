"""The exceptions of Repolicy, as a small tree.

RepolicyError        something failed; the message is one sentence for a person   (exit code 1)
├── UsageError       the request is wrong or contradicts itself                   (exit code 2)
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

# File name prefixes of code that is not the user's: Python's own, generated code, and this package.
FOREIGN_CODE = (sysconfig.get_path("stdlib"), "<", str(Path(__file__).parent))


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
    """Raise where one of the named counts is below `least`, or no whole number."""
    for name, count in counts.items():
        if not isinstance(count, Integral):  # --jobs None
            raise UsageError(f"{name} is {count}; it must be a whole number, {least} or more")
        if count < least:
            raise UsageError(f"{name} is {count}; it must be {least} or more")


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, for use in a message; and the next, if it ends with a colon."""
    first, *rest = (str(error).strip() or type(error).__name__).splitlines()
    line = f"{first.strip()} {rest[0].strip()}" if rest and first.strip().endswith(":") else first
    return f"{line} is missing" if isinstance(error, KeyError) else line


@contextlib.contextmanager
def in_one_sentence(what: str, cls: type[RepolicyError] = RepolicyError) -> Iterator[None]:
    """Turn any exception of foreign code, even `sys.exit(0)`, into an error of one sentence; but not Ctrl-C."""
    try:
        yield
    except (RepolicyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if was_interrupted(error):
            raise KeyboardInterrupt from None
        raise cls(f"{what}: {describe_error(error)}") from error


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether an exception is Ctrl-C or was raised from it, as the import of an extension raises ImportError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def describe_error(error: BaseException) -> str:
    """Return an exception's type, message and place on one line."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if message else ''}{message}{_place(error)}"


def _place(error: BaseException) -> str:
    """Return ` (file.py, line 3)`, the last line of the user's own code in the traceback, or nothing."""
    files = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(name, line) for name, line in files if not name.startswith(FOREIGN_CODE) and "site-packages" not in name]
    return f" ({Path(own[-1][0]).name}, line {own[-1][1]})" if own else ""
