"""The theory on the page is a program: each block prints what stands under it."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def test_every_block_prints_what_the_page_shows():
    page = PAGE.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(page))
    assert len(blocks) == page.count("```python") > 4
    assert sum(block["shown"] is not None for block in blocks) == page.count("```text")
    names: dict[str, object] = {}
    for block in blocks:
        line = page[: block.start("code")].count("\n")
        code = compile("\n" * line + block["code"], str(PAGE), "exec")  # so that a traceback points into the page
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert printed.getvalue() == (block["shown"] or ""), f"the block at line {line + 1} of {PAGE.name}"
