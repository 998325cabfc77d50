"""Messages and tables for people, on stderr; standard output is for a command's result alone.

Text is printed as it is: `repolicy[sb3]` is not read as markup, nor `my.py:ok:` as an emoji.
"""

import contextlib
import io
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from repolicy.text import Say, printable

SECONDS_BETWEEN_LINES = 10.0  # of progress, where it is printed line by line
MAX_LINE_LENGTH = 10_000  # of what is printed: a verdict with many limits is long, and a name in a damaged file endless


class Terminal(Console):
    """A rich console on stderr, without markup."""

    def __init__(self) -> None:
        super().__init__(stderr=True, markup=False, highlight=False, emoji=False)

    def say(self, *sentences: str) -> None:
        """Print each sentence on a line of its own, without wrapping: a wrapped path cannot be copied."""
        for sentence in sentences:
            self.print(sentence, soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, text: str) -> Iterator[Say]:
        """Show a text until the block ends, and yield a function that shows the next one in its place.

        Where nothing can be overwritten, as in a log, a line is printed every `SECONDS_BETWEEN_LINES` instead.
        """
        if self.is_interactive:
            with self.status(text) as status:
                yield status.update
            return
        printed_time = time.monotonic()

        def show(text: str) -> None:
            nonlocal printed_time
            if time.monotonic() - printed_time >= SECONDS_BETWEEN_LINES:
                self.say(text)
                printed_time = time.monotonic()

        yield show

    def numbers(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table of numbers, which are never cut off, even on a narrow terminal."""
        self.say(f"{title}\n{format_table(headings, rows)}")

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text, or a cell of a table, without control characters, which text from files may contain."""
        lines = (printable(line, MAX_LINE_LENGTH) for line in text.split("\n"))
        return super().render_str("\n".join(lines), **options)


def format_facts(facts: Mapping[str, object]) -> str:
    """Return each name with its value, one line each, without control characters; empty values are left out.

    Nothing is wrapped: a wrapped path cannot be copied, nor found by grep.
    """
    shown = {printable(name): printable(str(value), MAX_LINE_LENGTH) for name, value in facts.items() if value != ""}
    width = max(map(len, shown), default=0)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in shown.items())


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as plain text that fits the terminal.

    Headings are wrapped at words. Columns that do not fit are printed below the others, in blocks that all begin with
    the first column.
    """
    columns = zip(headings, *rows, strict=True)
    widths = [max(map(len, [*heading.split(), *cells]), default=0) for heading, *cells in columns]
    # Divide the other columns into groups that fit.
    available = shutil.get_terminal_size().columns - widths[0]
    groups = [list[int]()]
    for index in range(1, len(widths)):
        if groups[-1] and sum(widths[column] + 2 for column in [*groups[-1], index]) > available:
            groups.append([])
        groups[-1].append(index)

    blocks = []
    for group in groups:
        wrapped = [textwrap.wrap(headings[column], widths[column]) for column in group]
        height = max(map(len, wrapped), default=0)
        wrapped = [[""] * (height - len(lines)) + lines for lines in wrapped]
        table = [["", *cells] for cells in zip(*wrapped, strict=True)]
        if table:
            table[-1][0] = headings[0]
        table += [[row[0], *(row[column] for column in group)] for row in rows]
        lines = []
        for first, *others in table:
            cells = [cell.rjust(widths[column]) for cell, column in zip(others, group, strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


@contextlib.contextmanager
def silent_stdout() -> Iterator[None]:
    """Redirect to stderr what an environment, an add-on or a library prints, from Python or from C."""
    print(end="", flush=True)  # unlike sys.stdout.flush, this works without stdout
    with contextlib.ExitStack() as after, contextlib.redirect_stdout(sys.stderr):
        with contextlib.suppress(OSError):  # a program may be started without stdout or stderr
            stdout = os.dup(1)
            after.callback(os.close, stdout)
            os.dup2(2, 1)
            after.callback(os.dup2, stdout, 1)
        yield


@contextlib.contextmanager
def flushed_stdout() -> Iterator[None]:
    """Write what is printed before Python ends, so that a full disk or a closed pipe is an error like others."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal whose encoding lacks ω shows a question mark
    try:
        yield
    finally:
        try:
            print(end="", flush=True)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # at exit, Python would try to write again
            raise OSError(error.errno, error.strerror, "stdout") from None
