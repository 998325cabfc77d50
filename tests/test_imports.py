"""The rooms stand in a row, each imports only those before it, and no two files import each other in a circle."""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import repolicy
import repolicy.rql

SOURCE = Path(repolicy.__file__).parent

ROW = ["errors", "text", "files", "loading", "ranges", "objective", "objective_names"]
ROW += ["policies", "readers", "priors", "envs", "addons", "differences", "evaluation", "runs", "prepare", "learning"]
ROW += ["many", "report", "cli", "__main__"]
# Wings: folders beside the row, and what they may know of it. Their visitors come through the command line alone.
BEFORE_MANY = ROW[: ROW.index("learning") + 1]
WINGS = {
    "planning": BEFORE_MANY,
    "wishes": [*BEFORE_MANY, "report"],
    "hosts": [*BEFORE_MANY, "report"],
    "exact": ["errors", "objective"],
    "llm": ["errors", "text", "files", "loading", "objective", "objective_names", "differences", "report"],
    "rql": BEFORE_MANY,
}
MOST_NAMES = 14  # behind one door


@cache
def modules() -> dict[str, Path]:
    """Every file of the package by its name below `repolicy`; a folder's `__init__` goes by the folder's name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """What a file imports of repolicy, wherever in the file, types alone excepted: `train.ppo`, `objective`."""
    known, found = modules(), set()
    tree = tree_of(path)
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


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_room_knows_only_those_before_it(name: str) -> None:
    room = name.partition(".")[0]
    if room == "":  # the package itself hands out names of every room, when they are asked for
        return
    allowed = WINGS[room] if room in WINGS else ROW[: ROW.index(room)]
    if room in ("cli", "__main__"):
        allowed = [*allowed, *WINGS]
    found = imports(modules()[name])
    assert {other.partition(".")[0] for other in found} <= {room, *allowed}


def test_nobody_reaches_past_a_door() -> None:
    """Other rooms import what a folder's `__init__` imports, and those of its files that `__all__` names."""
    past = set[str]()
    for name, path in modules().items():
        for other in imports(path):
            room, _, file = other.partition(".")
            if not file or name == "" or room in WINGS or name.partition(".")[0] in (room, ""):
                continue
            door = importlib.import_module(f"repolicy.{room}").__all__
            if file not in door:
                past.add(f"{name} -> {other}")
    assert not past


@pytest.mark.parametrize("room", [room for room in ROW if (SOURCE / room).is_dir()])
def test_a_door_names_few_files_and_each_is_used(room: str) -> None:
    door = importlib.import_module(f"repolicy.{room}").__all__
    others = {other for name, path in modules().items() if not name.startswith(f"{room}.") for other in imports(path)}
    assert len(door) <= MOST_NAMES
    assert {f"{room}.{file}" for file in door} <= others | {*repolicy._HOMES.values(), "runs.result"}


@pytest.mark.parametrize("room", ["policies", "priors", "envs", "addons", "runs"])
def test_each_name_of_a_door_is_there_and_used_in_another_room(room: str) -> None:
    def taken(path: Path, module: str) -> set[str]:
        found = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom)]
        return {each.name for node in found if (node.module or "").startswith(module) for each in node.names}

    others = [path for name, path in modules().items() if not name.startswith(room)]
    used = set().union(*(taken(path, f"repolicy.{room}") for path in others))
    names = taken(SOURCE / room / "__init__.py", f"repolicy.{room}.")
    assert names <= used
    assert all(hasattr(importlib.import_module(f"repolicy.{room}"), name) for name in names)


def test_every_file_has_a_name_of_its_own() -> None:
    names = [name.rpartition(".")[2] for name, path in modules().items() if path.stem not in ("__init__", "__main__")]
    assert not {name for name in names if names.count(name) > 1}


def test_no_circle() -> None:
    graph = {name: imports(path) for name, path in modules().items() if name}
    assert [*TopologicalSorter(graph).static_order()]  # raises CycleError, with the circle


def test_tests_stand_in_the_rooms_of_what_they_test() -> None:
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/*.py")}
    assert folders <= {*ROW, *WINGS, "experiments", "golden", "helpers"}


def test_no_test_module_imports_another() -> None:
    """What two of them need stands in a file beside them, in `tests/helpers` or in a conftest."""
    past = re.compile(r"^ *(?:from|import) (?:\w+\.)*test_\w+", re.MULTILINE)
    assert not [path.name for path in Path(__file__).parent.rglob("*.py") if past.search(path.read_text())]


def test_the_parser_sees_imports(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "import repolicy.learning.ppo\nfrom repolicy.runs import ranks\nfrom repolicy.exact.mdp import MDP\n"
        "from repolicy import __version__, write_report\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from repolicy.learning.training import Result\n"
        "def f():\n    from repolicy.cli.main import main\n"
    )
    assert imports(tmp_path / "x.py") == {"learning.ppo", "runs.ranks", "exact.mdp", "report.run_page", "cli.main"}


LIGHT = ["repolicy", "repolicy.runs.settings", "repolicy.prepare.defaults", "repolicy.objective", "repolicy.cli.main"]


def test_light_modules_stay_light() -> None:
    code = (
        f"import sys, {', '.join(LIGHT)}\n"
        "heavy = {'torch', 'gymnasium', 'envpool', 'mujoco', 'matplotlib', 'safetensors', 'trl', 'stable_baselines3'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'it imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_not_public_is_not_there() -> None:
    assert dir(repolicy.rql) == sorted(repolicy.rql.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = repolicy.nothing


WITHOUT_ENGINE = """
import sys, repolicy, repolicy.llm.losses
repolicy.load_policy("hopper")
more = {"torch._dynamo", "trl", "transformers"} & {*sys.modules}
assert not more, f"what needs torch alone imports {more}"  # for two seconds
for name in ("envpool", "mujoco", "imageio", "imageio_ffmpeg", "tensorboard", "torch.utils.tensorboard"):
    sys.modules[name] = None  # as if it were not installed
import numpy as np
from repolicy.cli.main import main
from repolicy.hosts.prior_reward import prior_reward
reward = prior_reward(repolicy.load_policy("hopper"), omega=0.3, alpha=0.1)
assert np.isfinite(reward(np.zeros((2, 11)), np.zeros((2, 3)), np.zeros(2), np.zeros(2))).all()
small = ["--steps", "64", "--envs", "2", "--n-steps", "16", "--minibatch", "16", "--ranks", "1", "--alpha", "0.1"]
main(["train", "CartPole-v1", *small, "--evaluation-episodes", "1", "--out", sys.argv[1]])
"""


def test_a_host_and_the_simplest_run_need_no_simulator_and_a_policy_no_more_of_torch_than_itself(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no files for TensorBoard: pip install 'repolicy[engine]'" in done.stderr
    assert (tmp_path / "run/policy.safetensors").exists()
