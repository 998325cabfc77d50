"""What people read while a command works, on stderr, as it is: `repolicy[sb3]` is no markup, `my.py:ok:` no emoji.

Standard output is for the result alone.
"""

import contextlib
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repolicy.text import printable


class Terminal(Console):
    def __init__(self) -> None:
        super().__init__(stderr=True, markup=False, highlight=False, emoji=False)

    def say(self, *sentences: str) -> None:
        """Print each sentence on a line of its own, however long: a path that is broken in two cannot be copied."""
        for sentence in sentences:
            self.print(sentence, soft_wrap=True)

    def numbers(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table whose numbers are whole, however narrow the terminal is."""
        self.say(f"{title}\n{format_table(headings, rows)}")

    def facts(self, facts: Mapping[str, object]) -> None:
        """Print a name and what there is to say of it, a line each; nothing where there is nothing to say."""
        table = Table(show_header=False, box=None, padding=(0, 2))
        table.add_column()
        table.add_column(overflow="fold")  # a path that ends in … cannot be copied
        for name, value in facts.items():
            if value != "":
                table.add_row(Text(printable(name), "bold"), str(value))
        self.print(table)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text, or a cell of a table, as the terminal takes it: some of them were written by others."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in plain text as wide as the terminal: headings break at words, what does not fit comes below.

    The first column stands before each group of columns.
    """
    columns = [[*heading.split(), *(row[place] for row in rows)] for place, heading in enumerate(headings)]
    widths = [max(map(len, words), default=0) for words in columns]
    room, groups = shutil.get_terminal_size().columns - widths[0], [list[int]()]
    for place in range(1, len(widths)):
        if groups[-1] and sum(widths[each] + 2 for each in [*groups[-1], place]) > room:
            groups.append([])
        groups[-1].append(place)
    blocks = []
    for group in groups:
        own = [widths[place] for place in group]
        heads = [textwrap.wrap(headings[place], widths[place]) for place in group]
        tall = max(map(len, heads), default=0)
        above = [["", *line] for line in zip(*([""] * (tall - len(head)) + head for head in heads), strict=True)]
        if above:
            above[-1][0] = headings[0]
        lines = [*above, *([row[0], *(row[place] for place in group)] for row in rows)]
        cells = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], own)] for line in lines)
        blocks.append("\n".join("  ".join(each).rstrip() for each in cells))
    return "\n\n".join(blocks)


@contextlib.contextmanager
def silent_stdout() -> Iterator[None]:
    """Send what an environment, an add-on or a library prints to stderr, whether from Python or from C."""
    sys.stdout.flush()
    with contextlib.ExitStack() as after, contextlib.redirect_stdout(sys.stderr):
        with contextlib.suppress(OSError):  # a program may be started without either
            stdout = os.dup(1)
            after.callback(os.close, stdout)
            os.dup2(2, 1)
            after.callback(os.dup2, stdout, 1)
        yield


@contextlib.contextmanager
def full_stdout_is_an_error() -> Iterator[None]:
    """Print at once at the end what was printed; a disk that is full then is said in a sentence."""
    out, held = sys.stdout, io.StringIO()
    try:
        with contextlib.redirect_stdout(held):
            yield
    finally:
        try:
            if out is not None:  # it may be closed
                encoding = out.encoding or "utf-8"  # a terminal that has no ω shows a question mark
                out.write(held.getvalue().encode(encoding, "replace").decode(encoding))
                out.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # Python would try again as it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if not isinstance(error, BrokenPipeError):  # `| head` has what it wanted
                print(f"repolicy: standard output cannot be written: {error.strerror}", file=sys.stderr)
            sys.exit(1)
