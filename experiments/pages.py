"""Tables that programs write into pages, between `<!-- table: NAME -->` and `<!-- end -->`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from repolicy.loading import read_bytes
from repolicy.policies.storage import write_bytes

Tables = dict[str, Callable[[], str]]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first, *others = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in (headings, *rows))
    return "\n".join([f"| {first} |", "|---" * len(headings) + "|", *(f"| {row} |" for row in others)])


def once(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows without a first cell that the row above has, too."""
    return [["" if row[0] == above[0] else row[0], *row[1:]] for above, row in zip([[""], *rows], rows, strict=False)]


def filled(text: str, tables: Tables) -> str:
    """Return the page with each of the tables written anew; tables of other names stay as they are."""

    def fresh(match: re.Match[str]) -> str:
        return f"{match[1]}{tables[match[2]]()}\n{match[3]}" if match[2] in tables else match[0]

    return re.sub(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", fresh, text, flags=re.DOTALL)


def fill(path: Path, tables: Tables, check: bool = False) -> bool:
    """Write the page's tables anew, or only look. Returns whether they were stale."""
    text = read_bytes(path).decode()
    fresh = filled(text, tables)
    if fresh != text and not check:
        write_bytes(path, fresh.encode())
    return fresh != text


def each_and_mean(values: list[float], digits: int = 0) -> str:
    several = f" ({', '.join(f'{value:,.{digits}f}' for value in values)})" if len(values) > 1 else ""
    return f"**{mean(values):,.{digits}f}**{several}"
