"""What happens when a command does not end as it should: a sentence of at most three lines, and an exit code."""

import contextlib
import io
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from typing import NoReturn

from repolicy.cli.run_commands import speaks
from repolicy.errors import RepolicyError, UsageError, described
from repolicy.loading import printable

LONGEST_WORD = 300
LONGEST_LINE = 1200
STOPPED = 130  # by Ctrl-C or SIGTERM


@contextlib.contextmanager
def caught() -> Iterator[None]:
    """Whatever is raised, one sentence on stderr and an exit code; the traceback of a surprise goes to a file."""
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
    """A command ends by returning. `sys.exit(0)` in an environment, say, is no success."""
    try:
        yield
    except SystemExit as error:
        raise RepolicyError(f"the command was ended by the code that it ran: {described(error)}") from error


@contextlib.contextmanager
def stopped_with_advice(resumes: bool) -> Iterator[None]:
    """A command that is stopped at once says how it goes on, where it can."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("; the same command with --resume goes on" if resumes else "") from None


@contextlib.contextmanager
def without_a_box(command: str) -> Iterator[None]:
    """Around tyro: what it writes about a wrong option, a box of a dozen lines, as a sentence."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            yield
    except SystemExit as ended:
        if not ended.code:
            raise
        first, *others = _paragraphs(output.getvalue())
        near = [line.split()[0] for lines in others for line in lines[1:] if lines[0] == "Perhaps you meant:"]
        near = [word.rstrip(",") for word in near if word.startswith("--")][:3]
        guess = f"; did you mean {' or '.join(near)}?" if near else ""
        said = " ".join(first).rstrip(".")
        for python, plain in PLAINER:
            said = re.sub(python, plain, said)
        raise UsageError(f"{said}{guess}; {command} --help lists the options") from None


PLAINER = (  # what Python and tyro say of a word that does not fit, and the same in plain English
    (r"(Missing from [^:]+: [A-Z]+) .*", r"\1"),  # without all that the help says of it
    (r"Missing value for argument '(-\S+)'.*", r"\1 stands without a value"),
    (r"Missing value for argument '(\S+)'.*", r"\1 is missing; it stands by itself, without --\1"),
    (
        r"Unrecognized options: ([\d.]+(?:, [\d.]+)*)$",
        r"\1 is too much (of omega, several values are `repolicy sweep`, and a range is --omega 0.1..0.3)",
    ),
    (r"Unrecognized options: ([^-]\S*(?:, [^-]\S*)*)$", r"\1 is too much (an add-on more has its own --addon)"),
    (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", r"\1 is \2; it must be a whole number"),
    (r"Error parsing (\S+): could not convert string to float: (.*)", r"\1 is \2; it must be a number"),
    (
        r"Error parsing --omega: Could not find valid parse for arguments: (.*)",
        r"--omega does not take \1; write values with spaces between: 0.1 0.3 (a range is `repolicy customize`)",
    ),
    (
        r"Error parsing (\S+): Could not find valid parse for arguments: (.*)",
        r"\1 does not take \2; write numbers with spaces between",
    ),
    (r"invalid choice (.*) for argument '(\S+)'\. Expected one of \((.*)\)", r"\2 is \1; choose from \3"),
    (r"'None', |, 'None'", ""),  # who wants the default leaves the option out
)


def _paragraphs(text: str) -> list[list[str]]:
    """Return the lines between the rules of a box of tyro's, whose edges are UTF-8 with its title, or missing."""
    paragraphs: list[list[str]] = [[]]
    for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines():
        words = line.strip("│ ")
        if words and not words.strip("─-"):
            paragraphs.append([])
        elif words and words[0] not in "╭╰":
            paragraphs[-1].append(words)
    return paragraphs if "╭" in text else paragraphs[1:]


def sentence(text: str) -> str:
    """At most three lines, without control characters, and with what is far too long cut in its middle."""
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
    """Nobody reads stdout any more: let Python not try again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
