"""Build self-contained HTML pages from verdicts, tables, films and commands; charts.py makes their charts.

    page("Hopper-v4", [section("Table", table([...], [...]))])

Colors follow the reader's dark or light setting. The JavaScript plays all visible films together.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from repolicy.files import write_bytes
from repolicy.text import capitalize

STYLE = (Path(__file__).parent / "page.css").read_text()
SCRIPT = (Path(__file__).parent / "page.js").read_text()


def page(title: str, lead: str, parts: Sequence[str], script: str = "") -> str:
    """Return the HTML document. `lead` is HTML; `script` is appended to the script of every page."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n'
        f'<body>\n<main>\n<header>\n<h1>{escape(title)}</h1>\n<p class="lead">{lead}</p>\n</header>\n{body}\n</main>\n'
        f"<script>\n{SCRIPT}{script}</script>\n</body>\n</html>\n"
    )


def write(path: Path, title: str, lead: str, parts: Sequence[str], script: str = "") -> Path:
    write_bytes(path, page(title, lead, parts, script).encode(errors="replace"))  # a file's name may be no UTF-8
    return path


def section(heading: str, *content: str, note: str = "") -> str:
    paragraph = f'<p class="note">{note}</p>' if note else ""
    return f"<section>\n<h2>{escape(heading)}</h2>\n{paragraph}\n" + "\n".join(content) + "\n</section>"


def verdict(sentences: Sequence[str], basis: str, hint: str = "") -> str:
    """Return the verdict, its first sentence in bold, the data that it rests on and what to try next, if anything."""
    first, *rest = (f"{escape(capitalize(sentence))}." for sentence in sentences)
    lines = [f'<p class="verdict">{first}</p>']
    if rest:
        lines.append(f'<p class="outcome">{" ".join(rest)}</p>')
    lines.append(f'<p class="note">{escape(basis)}.</p>')
    if hint:
        lines.append(f'<p class="complaint">To try next: {escape(hint)}.</p>')
    return "\n".join(lines)


class Tile(NamedTuple):
    """A large number with its name, its change from the prior and its unit."""

    name: str
    value: str
    change: str
    standing: str  # better, worse or empty; selects the color of the change
    unit: str


def tiles(entries: Sequence[Tile]) -> str:
    cells = [
        f'<div class="tile"><span class="what">{escape(tile.name)}</span>'
        f'<span class="number">{escape(tile.value)}</span>'
        f'<span class="change {tile.standing}">{escape(tile.change)}</span>'
        f'<span class="beside">{escape(tile.unit)}</span></div>'
        for tile in entries
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], attributes: Sequence[str] = ()) -> str:
    """Return a table whose first column is text. `attributes[i]` is HTML for the tag of row i."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' if heading else "<td></td>" for heading in headings)
    body = ""
    for index, row in enumerate(rows):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        first = f'<th scope="row">{escape(row[0])}</th>'
        body += f"<tr {attributes[index] if attributes else ''}>{first}{cells}</tr>\n"
    return (
        f'<div class="scroll" role="group" aria-label="table" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def film(content: bytes, caption: str, kind: str, attributes: str = "") -> str:
    """Return an mp4 with its caption; `kind`, prior or customized, selects the color."""
    source = f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
    name = escape(f"film, {caption}")
    video = f'<video controls muted playsinline preload="auto" aria-label="{name}" src="{source}"></video>'
    return f'<figure class="film {kind}" {attributes}>{video}<figcaption>{escape(caption)}</figcaption></figure>'


def films(figures: Sequence[str], complaint: str = "") -> str:
    if complaint:
        return f'<p class="complaint">No films: {escape(complaint)}.</p>'
    return f'<div class="films">{"".join(figures)}</div>'


def command(words: str) -> str:
    return f'<div class="command"><pre><code>{escape(words)}</code></pre></div>'


# The words of all pages, for readers who know neither the method nor the manual.
WORDS = {
    "prior, customized": "the policy before, and the new one that was made from it",
    "basic reward": "the environment's own reward, for the old task",
    "add-on reward, wish": "the reward for the new requirement, times its weight",
    "total reward": "basic reward and add-on reward, added up",
    "mean action, sampled": "what is deployed, and what the policy trains with: actions that are drawn at random",
    "nat, log prior": "the log prior is the logarithm of the probability that the prior gives to an action; one nat "
    "less is 37 % of the probability",
    "KL": "by how many nats a policy finds its own actions more likely than the prior does; 0 is the same behavior",
    "ω′, α̂, states": "the weights of the training: the reward that a nat of the log prior is worth, a nat of variety, "
    "and a nat of states that the prior does not visit",
}


def words(wishes: Mapping[str, str] | None = None) -> str:
    """Return a glossary that the reader can unfold; `wishes` are descriptions of add-ons by their names."""
    return _details("what the words mean", {**(wishes or {}), **WORDS}, ' class="words"')


def settings(values: Mapping[str, Any], title: str = "settings") -> str:
    """Return names and values that the reader can unfold."""
    return _details(f"{len(values)} {title}", values)


def _details(summary: str, values: Mapping[str, Any], attributes: str = "") -> str:
    rows = "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>" for name, value in values.items()
    )
    return f"<details><summary>{escape(summary)}</summary><dl{attributes}>{rows}</dl></details>"
