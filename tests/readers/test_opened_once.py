"""A prior's file is opened once, however its policy comes out of it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparing import random
from made_checkpoints import Around
from made_graphs import graph, node, script
from made_sb3 import made, sb3

from repolicy.priors.opening import open_agent
from repolicy.readers.reading import Options

OPENED: dict[str, int] = {}
sys.addaudithook(lambda event, arguments: _note(arguments[0]) if event == "open" and OPENED else None)


def _note(file: Any) -> None:
    if isinstance(file, str | bytes | Path) and (name := os.fsdecode(file)) in OPENED:
        OPENED[name] += 1


def onnx(folder: Path, activation: str) -> Path:
    nodes = [node("Gemm", "obs w", "a"), node(activation, "a", "b"), node("Gemm", "b v", "out")]
    return graph(folder / "policy.onnx", nodes, {"w": random(5, 7), "v": random(7, 3)})


FILES: dict[str, tuple[Callable[[Path], Path], float | None]] = {  # and the std that the user gives
    "a zip": (lambda folder: made(sb3.PPO, folder)[1], None),
    "a graph": (lambda folder: onnx(folder, "Tanh"), 0.2),
    "a graph that runs as it is": (lambda folder: onnx(folder, "Softsign"), 0.2),
    "a script that runs as it is": (lambda folder: script(folder / "around.pt", Around(), 5), 0.2),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_opened_once(kind: str, tmp_path: Path) -> None:
    make, std = FILES[kind]
    path = make(tmp_path)
    OPENED[str(path)] = 0
    open_agent(path, Options(std=std), trust=True)
    assert OPENED.pop(str(path)) == 1
