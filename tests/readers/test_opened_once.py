"""A prior's file is opened once, however its policy comes out of it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import random
from made_checkpoints import Around, mlp, named, saved
from made_graphs import graph, node, script, stacked
from made_sb3 import made, sb3

from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.opening import acting, load_policy
from repolicy.readers.reading import Options

OPENED: dict[str, int] = {}
sys.addaudithook(lambda event, arguments: _note(arguments[0]) if event == "open" and OPENED else None)


def _note(file: Any) -> None:
    if isinstance(file, str | bytes | Path) and (name := os.fsdecode(file)) in OPENED:
        OPENED[name] += 1


def ours(folder: Path) -> Path:
    save_policy(folder / "ours.safetensors", Policy(PolicySpec(5, ActionSpace("continuous", (2,)))), {})
    return folder / "ours.safetensors"


def rsl_rl(folder: Path) -> Path:
    state = named("actor", mlp((5, 8, 2), torch.nn.ELU)) | {"std": torch.ones(2)}
    return saved(folder / "model.pt", {"model_state_dict": state, "iter": 1})


def onnx(folder: Path, activation: str) -> Path:
    nodes = [node("Gemm", "obs w", "a"), node(activation, "a", "b"), node("Gemm", "b v", "out")]
    return graph(folder / "policy.onnx", nodes, {"w": random(5, 7), "v": random(7, 3)})


FILES: dict[str, tuple[Callable[[Path], Path], float | None]] = {  # and the std that the user gives
    "ours": (ours, None),
    "a zip": (lambda folder: made(sb3.PPO, folder)[1], None),
    "a checkpoint": (rsl_rl, None),
    "a graph": (lambda folder: onnx(folder, "Tanh"), 0.2),
    "a script": (lambda folder: script(folder / "policy.pt", stacked(torch.nn.Tanh()), 5), 0.2),
    "a graph that runs as it is": (lambda folder: onnx(folder, "Softsign"), 0.2),
    "a script that runs as it is": (lambda folder: script(folder / "around.pt", Around(), 5), 0.2),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_opened_once(kind: str, tmp_path: Path) -> None:
    make, std = FILES[kind]
    path = make(tmp_path)
    OPENED[str(path)] = 0
    acting(path, Options(std=std), trust=True)
    assert OPENED.pop(str(path)) == 1


def test_a_policy_is_unpickled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from repolicy.readers import recognize

    calls, path = list[str](), rsl_rl(tmp_path)
    load = recognize.load
    monkeypatch.setattr(recognize, "load", lambda content, where: calls.append(where) or load(content, where))
    load_policy(path, activation="relu")
    assert calls == [str(path)]
