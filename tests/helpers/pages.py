"""The programs of the pages, as a reader copies them."""

import textwrap
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def fenced(text: str) -> list[str]:
    """The blocks of Python between fences."""
    return [part.split("```")[0] for part in text.split("```python\n")[1:]]


def snippets(page: str) -> list[str]:
    return fenced((DOCS / page).read_text())


def section(page: str, title: str) -> str:
    return (DOCS / page).read_text().split(f"## {title}\n")[1].split("\n## ")[0]


def code(text: str) -> list[str]:
    """The indented blocks of a section."""
    blocks: list[str] = [""]
    for line in text.splitlines():
        if line.startswith("    ") or (not line and blocks[-1]):
            blocks[-1] += line + "\n"
        elif blocks[-1]:
            blocks.append("")
    return [textwrap.dedent(block) for block in blocks if block.strip()]
