"""Exported policies act like the policy, its normalizer included."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from quick_graphs import quick_graph
from typed_commands import failed

from repolicy.cli import main as cli
from repolicy.errors import RepolicyError, UsageError
from repolicy.policies import export as module
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.export import export
from repolicy.policies.file import save_policy
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy, PolicySpec, make_policy
from repolicy.ranges import Dial

BOX = ActionSpace("continuous", (2,), (-1.0, -3.0), (1.0, 2.0))
SPECS = {
    "gaussian": PolicySpec(5, BOX),
    "state_gaussian": PolicySpec(5, BOX, "state_gaussian", hidden=(8,), activation="elu"),
    "squashed": PolicySpec(5, BOX, "squashed", activation="relu"),
    "state_squashed": PolicySpec(5, BOX, "state_squashed", activation="relu"),
    "swish, LayerNorm": PolicySpec(5, BOX, "features_squashed", (8, 6), "swish", norms=("before", "after")),
    "leaky, cut": PolicySpec(5, BOX, hidden=(8,), activation="leaky_relu", slope=0.2, mean_clip=1.5, clips=True),
    "one choice": PolicySpec(5, ActionSpace("discrete", (4,)), "categorical"),
    "choices from 2 on": PolicySpec(5, ActionSpace("discrete", (4,), (2.0,)), "categorical"),
    "two choices": PolicySpec(5, ActionSpace("discrete", (3, 2)), "categorical"),
}


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.load` is:DeprecationWarning")


def experienced(name: str) -> Policy:
    """A policy whose weights matter and whose normalizer has seen observations that are neither centred nor scaled."""
    policy = Policy(SPECS[name])
    with torch.no_grad():
        policy.network.weights[-1].mul_(100.0)
    policy.normalizer.update(moment_sums(np.random.default_rng(0).normal(7.0, 3.0, (1000, 5))))
    return policy


def acted(policy: Policy, observations: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        actions = policy.to_environment(policy(torch.from_numpy(observations)).mode().numpy())
    return actions[:, 0] if policy.spec.actions.sizes == (4,) else actions


def observations(count: int) -> np.ndarray:
    return np.random.default_rng(1).normal(7.0, 30.0, (count, 5)).astype(np.float32)


@pytest.mark.parametrize("name", SPECS)
def test_torchscript_acts_like_the_policy(name: str, tmp_path: Path) -> None:
    policy, first = experienced(name), 2 if name == "choices from 2 on" else 0  # as the environment counts them
    export(policy, tmp_path / "policy.pt", "torchscript")
    loaded = torch.jit.load(tmp_path / "policy.pt")
    for count in (1, 20):
        seen = observations(count)
        found = loaded(torch.from_numpy(seen)).numpy()
        np.testing.assert_allclose(found, acted(policy, seen) + first, rtol=1e-5, atol=1e-5)


def test_what_rounding_does_to_large_actions_is_no_difference(tmp_path: Path) -> None:
    policy = make_policy(PolicySpec(48, ActionSpace("continuous", (12,)), hidden=(512, 256, 128)), 0)
    with torch.no_grad():
        policy.network.weights[-1].mul_(1000.0)
    assert 0.0 < export(policy, tmp_path / "policy.pt", "torchscript") < 1e-5


def strong() -> Policy:
    """Weights as long training leaves them: large numbers cancel, and single precision is off by 5e-5 by itself."""
    box = ActionSpace("continuous", (6,), (-1.0,) * 6, (1.0,) * 6)
    policy = make_policy(PolicySpec(17, box, "state_squashed", (256, 256), "relu"), 0)
    with torch.no_grad():
        for weight, factor in zip(policy.network.weights, (4.0, 4.0, 400.0), strict=True):
            weight.mul_(factor)
    return policy


def test_a_strong_policy_is_compared_with_what_it_is_in_double_precision(tmp_path: Path) -> None:
    assert export(strong(), tmp_path / "policy.pt", "torchscript") > 1e-5  # and it was written
    assert (tmp_path / "policy.pt").exists()


@pytest.mark.parametrize("make", [Policy, lambda spec: ConditionedPolicy(spec, [Dial("omega", 0.1, 1.0, "log")])])
def test_a_policy_goes_on_learning_after_its_export(make: Callable[[PolicySpec], Policy], tmp_path: Path) -> None:
    policy = make(PolicySpec(5, BOX, hidden=(8,)))
    export(policy, tmp_path / "policy.pt", "torchscript")
    assert policy.training
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_a_policy_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.pt"
    path.write_bytes(b"before")
    forward = module.MeanActionModule.forward
    monkeypatch.setattr(module.MeanActionModule, "forward", lambda self, seen: forward(self, seen) + 4e-4)
    with pytest.raises(RepolicyError, match="differs from the original"):
        export(strong(), path, "torchscript")
    assert path.read_bytes() == b"before"


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"onnx.*pip install 'repolicy\[onnx\]'"):
        export(experienced("gaussian"), tmp_path / "policy.onnx", "onnx")


def test_a_files_name_says_its_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onnx_graph", quick_graph)
    save_policy(tmp_path / "cat.safetensors", experienced("gaussian"), {})
    words = ["export", str(tmp_path / "cat.safetensors")]
    for out, format in ((["--out", str(tmp_path / "cat.pt")], "torchscript"), ([], "onnx")):
        cli.main([*words, *out, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (found["format"], Path(found["file"]).parent) == (format, tmp_path)  # by default beside the policy
    assert torch.jit.load(tmp_path / "cat.pt")(torch.zeros(3, 5)).shape == (3, 2)
    assert "dog.pth does not end in .onnx or .pt" in failed(capsys, *words, "--out", tmp_path / "dog.pth")
    assert not list(tmp_path.glob("dog*"))
