"""The rooms stand in a row, each imports only those before it, and no two files import each other in a circle."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import repolicy
from repolicy.cli.main import GROUPS

SOURCE = Path(repolicy.__file__).parent

ROW = ["errors", "loading", "objective", "policies", "envs", "engine", "many", "report", "cli", "__main__"]
# Wings: folders beside the row, and what they may know of it. Their visitors come through the command line alone.
WINGS = {
    "adapters": ["errors", "loading", "objective", "policies", "envs", "engine"],
    "exact": ["errors", "objective"],
    "llm": ["errors", "loading", "objective", "report"],
    "rql": ["errors", "loading", "objective", "policies", "envs", "engine"],
}


# The one way up: `result.report()` in Python asks the room of reports, when it is called.
UPWARD = {"engine.result": {"report.run"}}


def modules() -> dict[str, Path]:
    """Every file of the package by its name below `repolicy`; a folder's `__init__` goes by the folder's name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> set[str]:
    """What a file imports of repolicy, wherever in the file, types alone excepted: `engine.ppo`, `objective`."""
    known, found = modules(), set()
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("repolicy.")}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "repolicy":  # which hands out names of other rooms
                found |= {
                    f"repolicy.{repolicy._HOMES[name.name]}" for name in node.names if name.name in repolicy._HOMES
                }
            if node.module and node.module.partition(".")[0] == "repolicy":
                below = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {name if name.removeprefix("repolicy.") in known else node.module for name in below}
    return {name.removeprefix("repolicy.") for name in found} - {"repolicy"}


def test_every_file_has_its_place() -> None:
    places = {name.partition(".")[0] for name in modules()} - {""}
    assert places <= {*ROW, *WINGS}, f"new rooms: {places - {*ROW, *WINGS}}; say where in the row they stand"
    assert len({*places} - {"__main__"}) <= 13


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_room_knows_only_those_before_it(name: str) -> None:
    room = name.partition(".")[0]
    if room == "":  # the package itself hands out names of every room, when they are asked for
        return
    allowed = WINGS[room] if room in WINGS else ROW[: ROW.index(room)]
    if room in ("cli", "__main__"):
        allowed = [*allowed, *WINGS]
    found = imports(modules()[name]) - UPWARD.get(name, set())
    assert {other.partition(".")[0] for other in found} <= {room, *allowed}


def test_no_circle() -> None:
    graph = {name: imports(path) - UPWARD.get(name, set()) for name, path in modules().items() if name}
    assert [*TopologicalSorter(graph).static_order()]  # raises CycleError, with the circle


def test_the_parser_sees_imports(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "import repolicy.engine.ppo\nfrom repolicy.engine import ranks\nfrom repolicy.exact.mdp import MDP\n"
        "from repolicy import __version__, write_report\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from repolicy.engine.training import Result\n"
        "def f():\n    from repolicy.cli.main import main\n"
    )
    assert imports(tmp_path / "x.py") == {"engine.ppo", "engine.ranks", "exact.mdp", "report.run", "cli.main"}


LIGHT = [
    *("repolicy", "repolicy.engine.settings", "repolicy.engine.defaults", "repolicy.objective", "repolicy.cli.main"),
    *(module for _, module in GROUPS.values()),
]


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_stay_light(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'gymnasium', 'envpool', 'mujoco', 'matplotlib', 'safetensors', 'trl', 'stable_baselines3'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'it imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there() -> None:
    assert all(getattr(repolicy, name) is not None for name in repolicy.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = repolicy.nothing
