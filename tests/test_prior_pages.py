"""The commands of the pages about priors run as they stand there, with fewer steps."""

import functools
import shlex
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from known_optimum import FEW
from other_policies import Around
from pages import code, section
from quick_graphs import quick_graph
from typed_commands import SMALL, typed, with_few_states

import repolicy
from repolicy import evaluation
from repolicy.prepare import cloning, diagnosis, flows, generative, imitation, weights, worth
from repolicy.priors import fitting

pytestmark = pytest.mark.usefixtures("_elsewhere")


def commands(text: str) -> list[list[str]]:
    """The command lines of a section, with fewer steps and episodes."""
    found = []
    for line in "".join(code(text)).splitlines():
        if not line.startswith("repolicy "):
            continue
        words = shlex.split(line, comments=True)[1:]
        if "--episodes" in words:
            words[words.index("--episodes") + 1] = "2"
        if "--steps" in words:
            at = words.index("--steps")
            del words[at : at + 2]
        if words[0] == "customize":
            words += [*SMALL, "--evaluation-episodes", "1", "--no-report"]
        found.append(words)
    return found


def run_all(capsys: pytest.CaptureFixture[str], text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for module, name, few in ((cloning, "FIT_EPOCHS", 1), (cloning, "BLOCK", 8), (fitting, "MIN_STEPS", 4)):
        monkeypatch.setattr(module, name, few)
    monkeypatch.setattr(imitation, "TRIAL_EPISODES", 2)
    for module, name in ((cloning, "MAX_EPISODE_STEPS"), (worth, "MAX_EPISODE_STEPS")):
        monkeypatch.setattr(module, name, 20)
    monkeypatch.setattr(evaluation, "episode_cap", lambda _: 20)
    monkeypatch.setattr(weights.collect_trial, "__defaults__", (32,))  # steps of each environment
    monkeypatch.setattr(diagnosis, "DIAGNOSIS_STEPS", 50)
    with_few_states(monkeypatch)
    said = []
    for words in commands(text):
        status, out, err = typed(capsys, *words)
        assert status == 0, f"{' '.join(words)}: {err}"
        said.append(out + err)
    return said


def test_a_generative_policy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = section("your-policy.md", "A generative policy")
    Path("flow.py").write_text(code(text)[0])
    text, _, fitted = text.partition("`imitate` fits")
    monkeypatch.setattr(generative, "MAX_COPY_STEPS", 500)  # steps of copies
    trained, evaluated = run_all(capsys, text.replace("--sampled", "--sampled --episodes 2"), monkeypatch)
    assert "noise of scale 0.5: basic reward" in trained
    assert "4 of 4 directions of the noise change the actions" in trained
    assert "nats a step, the budget is" in trained
    assert "in Hopper-v4?decoder=flow.py:decode&noise=4&chunk=2" in evaluated
    steps = {"observations": np.zeros((200, 17)), "actions": np.zeros((200, 6)), "ended": np.arange(200) % 50 == 49}
    np.savez("cheetah.npz", **steps)
    monkeypatch.setattr(flows, "STEPS", 2)
    monkeypatch.setattr(flows, "onnx_graph", quick_graph)
    assert "--noise 24 --chunk 4 --env HalfCheetah-v4" in run_all(capsys, fitted, monkeypatch)[0]


def test_a_function(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = section("your-policy.md", "A function")
    program, _, snippet = code(text)
    Path("swing.py").write_text(program)
    said = run_all(capsys, text, monkeypatch)
    assert len(said) == 3
    assert "nats a step from swing.py:act" in said[1]
    names: dict[str, Any] = {}
    exec(program, names)
    few = functools.partial(repolicy.customize, settings=FEW)
    exec(
        snippet.replace("runs/calm-python", "runs/again"),
        names | {"repolicy": SimpleNamespace(customize=few, residual=repolicy.residual)},
    )
    assert Path("runs/again/policy.safetensors").exists()


def test_graphs_and_modules(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    module = Around(17, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), "lstm.pt")
        torch.onnx.export(module, (torch.zeros(1, 17),), "policy.onnx", dynamo=False, opset_version=17)
    said = run_all(capsys, section("your-policy.md", "A graph or a module that cannot be copied"), monkeypatch)
    assert len(said) == 3
    assert "in onnxruntime" in said[0]
    assert "nats a step from policy.onnx" in said[1]


def test_demonstrations(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    np.savez("cheetah.npz", observations=generator.normal(size=(300, 17)), actions=generator.normal(size=(300, 6)))
    said = run_all(capsys, section("your-policy.md", "A prior from demonstrations"), monkeypatch)
    assert len(said) == 2
    assert "that was held out" in said[0]
