"""Format numbers and names for readers, terminals and file systems."""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

Say = Callable[[str], None]  # shows a sentence to the user while something runs


def printable(text: str, longest: int = 600) -> str:
    """Return untrusted text for a terminal: control characters and line breaks escaped, and shortened."""
    shown = escaped(text[: 2 * longest])
    if len(text) <= 2 * longest and len(shown) <= longest:
        return shown
    return f"{shown[: longest // 2]} … {escaped(text[-longest // 3 :])[-longest // 3 :]}"


def escaped(text: str, kept: str = "") -> str:
    """Escape all characters that are not printable, except those in `kept`; do not shorten."""
    return "".join(
        character if character.isprintable() or character in kept else character.encode("unicode_escape").decode()
        for character in text
    )


def capitalize(words: str) -> str:
    """Capitalize the first letter, unless it is not ASCII, as in ω′."""
    return (words[0].upper() if words[0].isascii() else words[0]) + words[1:]


def parse_number(text: str) -> float:
    """Parse a number; NaN where the text is not one."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def with_minus(text: str) -> str:
    """Return text for people, with a true minus before its numbers. What is copied or parsed keeps the hyphen."""
    return re.sub(r"(?<!\w)-(?=[\d.])", "−", text)


def format_count(number: int, what: str) -> str:
    """Return `1 episode` or `1,000 episodes`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def format_digits(value: float, digits: int) -> str:
    """Format with this many significant digits, without an exponent from 0.0001 on: 1,460 and 280."""
    return with_minus(f"{float(f'{value:.{digits}g}'):,.12g}")


def format_number(value: float, like: float | None = None, plus: bool = False) -> str:
    """Format with a sensible number of digits: 5,896.5 · 0.54 · −3.10 · 0.0042; or with as many as `like` gets."""
    if not math.isfinite(value):
        return "unknown"
    size = abs(value if like is None else like)
    digits = 0 if size >= 10_000 else 1 if size >= 20 else 2
    if 1e-7 < size < 0.1:  # two significant digits; what is smaller is rounding in single precision
        digits = 1 - math.floor(math.log10(size))
    value = round(value, digits) + 0.0  # −0.0 becomes 0.0
    return with_minus(f"{value:{'+' if plus else ''},.{digits}f}")


def strip_version(env: str) -> str:
    """Return the name of an environment without its version and options."""
    return re.sub(r"-v\d+$", "", env.partition("?")[0])


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean A, B or C?`, or nothing when no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    if not matches:
        return ""
    return f"; did you mean {' or '.join([', '.join(matches[:-1]), matches[-1]] if matches[1:] else matches)}?"


def as_file_name(reference: str) -> str:
    """Return a reference such as `module:callable?option=1` as a valid file name."""
    return re.sub(r"[^\w.=-]+", ".", reference)


def stem_of(reference: str | Path) -> str:
    """Return the last part of a path without its suffix; `omega-0.3` has none."""
    path = Path(reference)
    return path.name if path.suffix[1:].isdigit() else path.stem


def default_out(reference: str | Path, ending: str) -> Path:
    """Return `runs/NAME-ending`, the default output path of whatever is made from a policy."""
    return Path("runs", f"{as_file_name(stem_of(reference))}-{ending}")
