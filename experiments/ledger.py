"""An append-only file of results: one JSON line per finished run. Each line carries its own checksum."""

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
from repolicy.files import replace_nonfinite

Row = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """One file of rows. Campaigns skip the keys that it holds."""

    path: Path

    def rows(self) -> list[Row]:
        """Return all rows in the order they were added. Raise FileError if a line was changed after it was written."""
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [self._parse(number, line) for number, line in enumerate(lines, start=1)]

    def _parse(self, number: int, line: str) -> Row:
        try:
            row = json.loads(line)
            expected = row.pop("sha256")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FileError(f"{self.path}, line {number} is no row of a ledger; delete the line") from None
        if expected != checksum(row):
            raise FileError(
                f"{self.path}, line {number} was changed after it was written: its checksum does not match; "
                "restore it, or delete the line to run it again"
            )
        return row

    def by_key(self) -> dict[str, Row]:
        """Return the newest row of each key."""
        return {row["key"]: row for row in self.rows()}

    def add(self, row: Row) -> None:
        """Append a row with its command and commit, and wait until it is on the disk."""
        origin = {"command": row.get("command") or current_command(), "commit": row.get("commit") or current_commit()}
        row = replace_nonfinite(row | origin)
        line = json.dumps(row | {"sha256": checksum(row)}) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = "\n" + line  # an editor may have left the last line without its end
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that lets one program at a time write. Readers need no lock; the lock ends with its process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                message = f"another program is filling {self.path}; wait for it, or choose another file"
                raise FileError(message) from None
            yield


def group_by(rows: Iterable[Row], kind: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Return lists of the rows for which `kind` returns the same value, in their first order."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(kind(row), []).append(row)
    return groups


def key_without_seed(row: Row) -> str:
    """Return a row's key without its last part, which is the seed."""
    return str(row["key"].rpartition("/")[0])


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Overwrite a plain file of rows, which is no ledger, adding the command and the commit to each row."""
    origin = {"command": current_command(), "commit": current_commit()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(origin | row) + "\n" for row in rows))


def checksum(row: Row) -> str:
    """Return the SHA-256 of a row, which does not depend on the order of its entries."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def current_command() -> str:
    """Return the command line that started this process."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def current_commit() -> str:
    """Return the commit of this clone, with a + if source files were changed since; empty outside a clone."""

    def git(*words: str) -> str:
        process = subprocess.run(
            ["git", *words], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
        )
        return process.stdout.strip()

    if shutil.which("git") is None or not git("ls-files", Path(__file__).name):
        return ""
    changed = git("status", "--porcelain", "--", ":/src", ":/experiments", ":/benchmarks")
    return git("rev-parse", "HEAD") + ("+" if changed else "")
