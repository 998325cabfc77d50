"""The rooms know only those before them, and the names at the top cost nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import repolicy

SOURCE = Path(repolicy.__file__).parent
ROOMS = [
    "errors", "loading", "settings", "objective", "network", "distributions", "policy", "envs", "addons", "rollout",
    "ppo", "ranks", "checkpoint", "evaluation", "worker", "training", "watch", "display", "bench", "inspection",
    "film", "export", "page", "report", "sweep", "commands", "cli", "__main__",
]  # fmt: skip
BEFORE_ALL = {"errors", "loading", "settings", "objective", "network", "distributions", "policy", "checkpoint"}
GUESTS = ["exact", "llm", "rql", "adapters"]  # beside the row; nothing but the command line may import them


def imported(path: Path) -> set[str]:
    """The rooms that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "repolicy":
            parts = node.module.split(".")
            found |= {parts[1]} if parts[1:] else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("repolicy.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_a_room_imports_only_earlier_rooms(path: Path) -> None:
    if path.stem == "__init__":
        return
    allowed = set(ROOMS[: ROOMS.index(path.stem)]) | (set(GUESTS) if path.stem in ("commands", "cli") else set())
    assert imported(path) <= allowed


@pytest.mark.parametrize("path", sorted(path for guest in GUESTS for path in (SOURCE / guest).rglob("*.py")), ids=str)
def test_a_guest_imports_the_first_rooms_and_itself(path: Path) -> None:
    assert imported(path) <= BEFORE_ALL | {path.relative_to(SOURCE).parts[0]}


@pytest.mark.parametrize("module", ["repolicy", "repolicy.objective", "repolicy.settings", "repolicy.commands"])
def test_what_help_needs_does_not_import_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules or 'envpool' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_public_name_is_there() -> None:
    assert all(getattr(repolicy, name) is not None for name in repolicy.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = repolicy.nothing
