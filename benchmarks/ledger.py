"""A file of results, a JSON line a row, that is filled run by run: what stands there is not measured again."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

Row = dict[str, Any]


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def fill(path: Path, keys: Sequence[Row], measure: Callable[..., Row], at_once: int = 1) -> None:
    """For each key that no row of the file has, measure the rest of its row, and add it as soon as it is known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known, lock = rows_of(path), Lock()

    def add(key: Row) -> None:
        row = key | measure(**key)
        with lock, path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(add, [key for key in keys if not any(key.items() <= row.items() for row in known)]))


def repolicy(words: Sequence[str]) -> dict[str, Any]:
    """What a command of Repolicy answers with --json."""
    found = subprocess.run(
        [sys.executable, "-m", "repolicy", *words, "--json"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise SystemExit(f"repolicy {' '.join(words)}: {found.stderr}")
    return json.loads(found.stdout)
