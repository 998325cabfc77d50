"""A file of results, a JSON line a finished run, that only grows. Each line carries its own checksum."""

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repolicy.errors import FileError
from repolicy.policies.storage import replace_nonfinite

Row = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """The rows of one file. What stands there is not measured again."""

    path: Path

    def rows(self) -> list[Row]:
        """Return all rows, in the order in which they were added; refused where a line is not as it was written."""
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{self.path} cannot be read: {error}") from None
        return [self._row(number, line) for number, line in enumerate(lines, start=1)]

    def _row(self, number: int, line: str) -> Row:
        try:
            row = json.loads(line)
            known = row.pop("sha256")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FileError(f"{self.path}, line {number} is no row of a ledger; delete the line") from None
        if known != checksum(row):
            raise FileError(
                f"{self.path}, line {number} was changed after it was written: its checksum does not match; "
                "restore it, or delete the line to run it again"
            )
        return row

    def by_key(self) -> dict[str, Row]:
        """Return the newest row of each key."""
        rows = self.rows()
        if any("key" not in row for row in rows):
            raise FileError(f"{self.path} is no ledger of runs: it has a line without a key; choose another file")
        return {row["key"]: row for row in rows}

    def add(self, row: Row) -> None:
        """One more line, with the command and the commit of the code that made it, on the disk when this returns."""
        made_by = {"command": row.get("command") or command(), "commit": row.get("commit") or commit()}
        row = replace_nonfinite(row | made_by)
        line = json.dumps(row | {"sha256": checksum(row)}) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as file:
                if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                    line = "\n" + line  # an editor may have left the last line without its end
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {error.strerror}") from None

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """One program at a time writes a ledger; readers need no claim. It ends with its process."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "a")  # noqa: SIM115
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                said = f"another program is filling {self.path}; wait for it, or choose another file"
                raise FileError(said) from None
            yield


def grouped(rows: Iterable[Row], kind: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Return the rows of each kind, in the order in which they come."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(kind(row), []).append(row)
    return found


def seedless(row: Row) -> str:
    """Return a row's key without its last part, which is the seed."""
    return str(row["key"].rpartition("/")[0])


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a file anew that is no ledger of runs, its rows with the command and the commit of the code."""
    made_by = {"command": command(), "commit": commit()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(made_by | row) + "\n" for row in rows))


def checksum(row: Row) -> str:
    """Of what a row says, whatever the order of its entries."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def command() -> str:
    """Return what started this process, as one would type it."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def commit() -> str:
    """Of the clone that this code is in, with a + where files differ from it; empty where it is in none."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
        return done.stdout.strip()

    if shutil.which("git") is None or not git("ls-files", Path(__file__).name):
        return ""
    changed = git("status", "--porcelain", "--", ":/src", ":/experiments", ":/benchmarks")
    return git("rev-parse", "HEAD") + ("+" if changed else "")
