"""Numbers and names as a reader, a terminal and a file system take them."""

import difflib
import math
import re
from collections.abc import Iterable
from pathlib import Path


def printable(text: str, longest: int = 600) -> str:
    """Return text from outside as a terminal takes it: no control characters, no line breaks, no more than fits."""
    shown = escaped(text[: 2 * longest])
    if len(text) <= 2 * longest and len(shown) <= longest:
        return shown
    return f"{shown[: longest // 2]} … {escaped(text[-longest // 3 :])[-longest // 3 :]}"


def escaped(text: str, kept: str = "") -> str:
    """Return the same at any length, but for the characters to be `kept`."""
    return "".join(
        character if character.isprintable() or character in kept else character.encode("unicode_escape").decode()
        for character in text
    )


def capitalized(words: str) -> str:
    """Return words that begin a sentence; ω′ stays what it is."""
    return (words[0].upper() if words[0].isascii() else words[0]) + words[1:]


def as_number(text: str) -> float:
    """Return the number that a text says, NaN where it says none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def counted(number: int, what: str) -> str:
    """Return `1 episode` or `2 episodes`."""
    return f"{number} {what}{'s' * (number != 1)}"


def figures(value: float, digits: int) -> str:
    """Return so many significant digits, without an exponent: 1,460 and 280."""
    return f"{float(f'{value:.{digits}g}'):,.12g}"


def number(value: float, like: float | None = None, plus: bool = False) -> str:
    """Return as many digits as a reader wants: 5,896.5 · 0.54 · −3.10 · 0.0042; or as many as `like` has."""
    if not math.isfinite(value):
        return "unknown"
    size = abs(value if like is None else like)
    digits = 0 if size >= 10_000 else 1 if size >= 20 else 2
    if 1e-9 < size < 0.1:  # two that tell something
        digits = 1 - math.floor(math.log10(size))
    value = round(value, digits) + 0.0  # what rounds to 0 has no sign
    return f"{value:{'+' if plus else ''},.{digits}f}".replace("-", "−")


def without_version(env: str) -> str:
    """Return the name of an environment without its version and options."""
    return env.partition("?")[0].rsplit("-v", 1)[0]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean A, B or C?`, or nothing when no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    if not matches:
        return ""
    return f"; did you mean {' or '.join([', '.join(matches[:-1]), matches[-1]] if matches[1:] else matches)}?"


def as_file_name(reference: str) -> str:
    """Return `module:callable?option=1` as a name that file systems and shells take."""
    return re.sub(r"[^\w.=-]+", ".", reference)


def stem_of(reference: str | Path) -> str:
    """Return the last part of a path without its suffix; `omega-0.3` has none."""
    path = Path(reference)
    return path.name if path.suffix[1:].isdigit() else path.stem


def usual_out(reference: str | Path, ending: str) -> Path:
    """Return `runs/NAME-ending`, where what is made of a policy goes when nobody says where."""
    return Path("runs", f"{as_file_name(stem_of(reference))}-{ending}")
