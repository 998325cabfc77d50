"""The rooms stand in a row, and each imports only those before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import repolicy
from repolicy.cli import GROUPS

SOURCE = Path(repolicy.__file__).parent

ROOMS = [
    *("errors", "terminal", "loading", "settings", "objective", "network", "distributions", "policy", "envs", "addons"),
    *("rollout", "ppo", "ranks", "checkpoint", "evaluation", "request", "worker", "training"),
    *("watch", "display", "bench", "film", "inspection", "export", "page", "report", "tradeoff", "sweep"),
    *("sweep_report", "commands", "run_commands", "cli", "__main__"),
]
# Wings: folders beside the row, whose visitors come through the command line alone.
WINGS = {
    "adapters": {"errors", "objective", "network", "policy", "checkpoint", "worker"},
    "exact": {"errors", "objective"},
    "llm": {"errors", "loading", "objective"},
    "rql": {"errors", "terminal", "loading", "objective", "network", "distributions", "policy"}
    | {"checkpoint", "envs", "addons"},
}
ENTRANCES = {"cli", "commands", "run_commands", "__main__"}


def imports(path: Path) -> set[str]:
    """The rooms and wings of repolicy that a file imports, wherever in the file, types alone excepted."""
    found = set()
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
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("repolicy.")}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            top, _, rest = (node.module or "").partition(".")
            if top == "repolicy":
                found |= {rest.split(".")[0]} if rest else {alias.name for alias in node.names}
    return found - {"__version__"}


def test_every_file_has_its_place() -> None:
    rooms = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    wings = {path.name for path in SOURCE.iterdir() if any(path.glob("*.py"))}
    assert rooms <= set(ROOMS), f"new rooms: {rooms - set(ROOMS)}; say where in the row they stand"
    assert wings <= set(WINGS), f"new folders: {wings - set(WINGS)}; say what they may import"


@pytest.mark.parametrize("room", [room for room in ROOMS if (SOURCE / f"{room}.py").exists()])
def test_a_room_knows_only_those_before_it(room: str) -> None:
    before = set(ROOMS[: ROOMS.index(room)])
    allowed = before | set(WINGS) if room in ENTRANCES else before
    assert imports(SOURCE / f"{room}.py") <= allowed


@pytest.mark.parametrize("wing", [wing for wing in WINGS if (SOURCE / wing).is_dir()])
def test_a_wing_knows_little(wing: str) -> None:
    for path in (SOURCE / wing).rglob("*.py"):
        assert imports(path) <= WINGS[wing] | {wing}, path


def test_the_parser_sees_imports(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "import repolicy.ppo\nfrom repolicy import envs, ranks\nfrom repolicy.exact.mdp import MDP\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from repolicy.training import Result\n"
        "def f():\n    from repolicy.cli import main\n"
    )
    assert imports(tmp_path / "x.py") == {"ppo", "envs", "ranks", "exact", "cli"}


LIGHT = [
    "repolicy",
    "repolicy.settings",
    "repolicy.objective",
    "repolicy.commands",
    "repolicy.run_commands",
    "repolicy.cli",
]


@pytest.mark.parametrize("module", [*LIGHT, *(f"repolicy.{group}.commands" for group in GROUPS)])
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
