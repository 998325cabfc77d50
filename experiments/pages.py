"""Write generated tables into pages, between `<!-- table: NAME -->` and `<!-- end -->`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from repolicy.files import read_bytes, write_bytes
from repolicy.text import with_minus

Tables = dict[str, Callable[[], str]]


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; a | in a cell is escaped, and numbers have a true minus."""
    first, *others = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in (headings, *rows))
    return "\n".join([f"| {first} |", "|---" * len(headings) + "|", *(f"| {with_minus(row)} |" for row in others)])


def blank_repeats(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows, with the first cell blank where it repeats that of the row above."""
    return [["" if row[0] == above[0] else row[0], *row[1:]] for above, row in zip([[""], *rows], rows, strict=False)]


def fill_tables(text: str, tables: Tables) -> str:
    """Return the page with new contents for these tables; other tables stay as they are."""

    def replacement(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        return f"{start}{tables[name]()}\n{end}" if name in tables else match[0]

    return re.sub(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", replacement, text, flags=re.DOTALL)


def update_page(path: Path, tables: Tables, check: bool = False) -> bool:
    """Write new tables into the page, unless `check`. Return whether the old ones were stale."""
    text = read_bytes(path).decode()
    fresh = fill_tables(text, tables)
    if fresh != text and not check:
        write_bytes(path, fresh.encode())
    return fresh != text


def mean_and_each(values: list[float], digits: int = 0) -> str:
    """Return the mean in bold and, of several values, each of them in brackets."""
    several = f" ({', '.join(f'{value:,.{digits}f}' for value in values)})" if len(values) > 1 else ""
    return f"**{mean(values):,.{digits}f}**{several}"
