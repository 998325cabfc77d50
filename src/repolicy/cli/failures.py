"""What happens when a command does not end as it should: a sentence of at most three lines, and an exit code."""

import contextlib
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from typing import NoReturn

from repolicy.cli.run_commands import speaks
from repolicy.errors import RepolicyError, described
from repolicy.loading import printable

LONGEST_WORD = 300
LONGEST_LINE = 1200
STOPPED = 130  # by Ctrl-C or SIGTERM


@contextlib.contextmanager
def caught() -> Iterator[None]:
    """Turn whatever is raised into a sentence and an exit code; the traceback of a surprise goes to a file."""
    try:
        yield
    except SystemExit:
        raise
    except RepolicyError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt as stop:
        _fail(f"stopped{stop}", STOPPED)
    except BrokenPipeError:
        _silence()
        sys.exit(1)
    except OSError as error:
        if error.strerror is None:
            _fail(_surprise(error))
        _fail(f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror)
    except BaseException as error:
        _fail(_surprise(error))


@contextlib.contextmanager
def not_ended_from_within() -> Iterator[None]:
    """Raise where a command does not end by returning: `sys.exit(0)` in an environment is no success."""
    try:
        yield
    except SystemExit as error:
        raise RepolicyError(f"the command was ended by the code that it ran: {described(error)}") from error


@contextlib.contextmanager
def stopped_with_advice(resumes: bool) -> Iterator[None]:
    """Say how a command that was stopped at once can be resumed, where it can."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("; the same command with --resume goes on" if resumes else "") from None


def sentence(text: str) -> str:
    """Return at most three lines, without control characters; what is far too long is cut in its middle."""
    short = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: f"{word[0][:100]}…{word[0][-100:]}", text)
    lines = [printable(line) for line in short.splitlines() if line.strip()][:3]
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in lines)


def _surprise(error: BaseException) -> str:
    """Return a sentence about what should not have happened, with the file that tells where it did."""
    words = f"unexpected {described(error)}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="repolicy-", suffix=".txt", delete=False) as file:
            file.write(f"{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}")
    except OSError:
        return words
    return f"{words}\nThis is a mistake in Repolicy, or in code of yours that it ran; to report it, attach {file.name}"


def _fail(text: str, code: int = 1) -> NoReturn:
    notes = getattr(sys.exception(), "__notes__", [])  # `rank 1`, of what failed in that one's own work
    if speaks() or notes:
        whose = "" if speaks() else f"{notes[0]}: "
        with contextlib.suppress(OSError):
            print(f"repolicy: {whose}{sentence(text)}", file=sys.stderr, flush=True)
    sys.exit(code)


def _silence() -> None:
    """Keep Python from writing to stdout again when it ends: nobody reads it any more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
