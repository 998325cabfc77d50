"""ONNX and TorchScript: perceptrons are copied from graphs and code, and agree with onnxruntime and PyTorch."""

import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import assert_equal, describe, log_prob, mean, observations, random, recognized, stirred
from made_graphs import exported, graph, node, onnx, run, script, stacked, value
from onnx import TensorProto, helper
from torch import nn

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, UsageError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.export import export
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.opening import open_policy
from repolicy.readers.copying import policy_from
from repolicy.readers.description import CannotCopyError
from repolicy.readers.reading import Options


# Real robots ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "size", "actions"), [("go1", 48, 12), ("bh", 52, 12)])
def test_playgrounds_policies(name: str, size: int, actions: int, real: Callable[[str], Path], tmp_path: Path) -> None:
    path = real(f"mujoco_playground/{name}_policy.onnx")
    described = describe(path)
    assert described.family == "state_squashed"
    assert described.actor.activation == "swish"
    assert described.actions == ActionSpace("continuous", (actions,), (-1.0,) * actions, (1.0,) * actions)
    obs = observations(size, 2.0)
    assert_equal(mean(described, obs), run(path, obs))
    # The scale: the graph with its last layer as an output, by onnxruntime, and Brax's formula by torch.distributions.
    model = onnx.load(path)
    gemm = next(node for node in reversed(model.graph.node) if node.op_type == "Gemm")
    model.graph.output.append(helper.make_tensor_value_info(gemm.output[0], TensorProto.FLOAT, [1, 2 * actions]))
    onnx.save(model, tmp_path / "wide.onnx")
    loc, raw = torch.as_tensor(run(tmp_path / "wide.onnx", obs, 1)).double().chunk(2, -1)
    dist = torch.distributions.Normal(loc, nn.functional.softplus(raw) + 0.001)
    before = loc + dist.stddev * torch.randn(loc.shape, generator=torch.Generator().manual_seed(3)).clamp(-2.0, 2.0)
    squashed = torch.distributions.TransformedDistribution(
        dist, torch.distributions.TanhTransform(cache_size=1), validate_args=False
    )
    jacobian = squashed.transforms[0].log_abs_det_jacobian(before, None).sum(-1)
    assert_equal(log_prob(described, obs, before), dist.log_prob(before).sum(-1) - jacobian)


def test_unitrees_policy_with_its_weights_beside(real: Callable[[str], Path], tmp_path: Path) -> None:
    path = real("unitree_rl_mjlab/policy.onnx")
    described = describe(path)
    obs = observations(96, 2.0)
    assert described.normalizer is not None
    assert described.std is None
    assert_equal(mean(described, obs), run(path, obs))
    shutil.copy(path, tmp_path)
    with pytest.raises(FileError, match=r"keeps weights in another file, which must lie beside it.*policy.onnx.data"):
        describe(tmp_path / "policy.onnx")
    (tmp_path / "policy.onnx.data").write_bytes(b"short")
    with pytest.raises(FileError, match="keeps weights in another file, which must lie beside it.*exceeds file size"):
        describe(tmp_path / "policy.onnx")


def test_boosters_policy(real: Callable[[str], Path]) -> None:
    path = real("booster_gym/T1.pt")
    obs = observations(47, 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_equal(mean(describe(path), obs), torch.jit.load(str(path))(obs))


def test_unitrees_policy_with_a_memory_cannot_be_copied(real: Callable[[str], Path]) -> None:
    with pytest.raises(CannotCopyError, match="its code has"):
        describe(real("unitree_rl_gym/g1_motion.pt"))


# Graphs made here -----------------------------------------------------------------------------------------------------
class Exported(nn.Module):
    """A policy as people export it: a normalizer in front, and a tanh with its scale behind."""

    def __init__(self, network: nn.Module, squashed: bool) -> None:
        super().__init__()
        self.network, self.squashed = network, squashed
        self.register_buffer("mean", torch.linspace(-1.0, 1.0, 5))
        self.register_buffer("std", torch.linspace(0.5, 2.0, 5))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out = self.network(torch.clamp((obs - self.mean) / (self.std + 1e-2), -5.0, 5.0))
        return torch.tanh(out) * 1.5 + 0.25 if self.squashed else out


ACTIVATIONS = [nn.Tanh(), nn.ReLU(), nn.ELU(), nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.LeakyReLU(0.2)]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("traced", [False, True])
def test_torchscript_perceptrons(activation: nn.Module, traced: bool, tmp_path: Path) -> None:
    module = stirred(Exported(stacked(activation, norm=True), squashed=traced)).eval()
    path = script(tmp_path / "policy.pt", module, 5, traced)
    assert recognized(path) == "torchscript"
    described = describe(path)
    assert described.squashed == traced
    assert described.normalizer.clip == 5.0
    obs = observations(5, 3.0)
    assert_equal(mean(described, obs), module(obs))


def test_a_clip_without_numbers_is_at_1(tmp_path: Path) -> None:
    """What is traced of `Hardtanh(-1, 1)` names no bounds, as whole numbers are no others than the defaults."""
    module = stirred(
        nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Hardtanh(-1, 1))
    ).eval()
    path, obs = script(tmp_path / "policy.pt", module, 5, True), observations(5, 9.0)
    assert describe(path).mean_clip == 1.0
    assert (module(obs).abs() == 1.0).any()
    assert_equal(mean(describe(path), obs), module(obs))


class Louder(nn.Module):
    """Another policy while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out = self.layer(obs)
        if self.training:
            out = 2.0 * out
        return out


def test_torchscript_that_was_saved_in_training_acts_as_after_eval(tmp_path: Path) -> None:
    module, obs = Louder(), observations(5)
    path = script(tmp_path / "policy.pt", module, 5)
    assert_equal(mean(describe(path), obs), module.layer(obs))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_onnx_perceptrons_by_the_older_exporter(activation: nn.Module, tmp_path: Path) -> None:
    if str(activation) == "GELU(approximate='tanh')":
        pytest.skip("this exporter writes it as a dozen nodes, which are refused")
    module = stirred(Exported(stacked(activation, norm=True), squashed=True)).eval()
    path, obs = exported(tmp_path / "policy.onnx", module, opset=17), observations(5, 3.0)
    assert recognized(path) == "onnx"
    assert_equal(mean(describe(path), obs), run(path, obs))


@pytest.mark.parametrize("family", ["gaussian", "state_squashed"])
def test_repolicys_own_exports(family: Any, tmp_path: Path) -> None:
    space = ActionSpace("continuous", (2,), (-1, -2), (1, 3))
    policy = Policy(PolicySpec(4, space, family))
    stirred(policy)
    policy.normalizer.mean += 0.5
    policy.normalizer._refresh()
    export(policy, path := tmp_path / "file", "torchscript")
    described = describe(path)
    obs = observations(4, 20.0)
    wanted = policy.to_environment(policy(obs).mode().numpy())
    assert_equal(mean(described, obs), wanted)


# By hand: what exporters write in other ways --------------------------------------------------------------------------
FIRST_LAYER = [node("Gemm", "obs w", "a")]
BODY = [*FIRST_LAYER, node("Tanh", "a", "b"), node("Gemm", "b v", "c")]
LAYERS = {"w": random(5, 7), "v": random(7, 3), "zero": np.array([0], np.int64), "one": np.array([1], np.int64)}
ROW = {"k": random(3)}
CHOICE = value("out", None, TensorProto.INT64)
SEVEN, TWO = np.array(7, np.int64), np.array(2, np.int64)


def test_the_largest_output_is_a_choice(tmp_path: Path) -> None:
    choice = [node("ArgMax", "c", "largest", axis=-1, keepdims=1), node("Squeeze", "largest axis", "out")]
    constants = LAYERS | {"axis": np.array([-1], np.int64)}
    path = graph(tmp_path / "policy.onnx", [*BODY, *choice], constants, outputs=[CHOICE])
    described, obs = describe(path), observations(5)
    assert described.family == "categorical"
    assert np.array_equal(policy_from(described)(obs).mode()[:, 0], run(path, obs))


def test_inspect_tells_a_generative_policy_and_the_size_of_its_noise(tmp_path: Path) -> None:
    path = graph(tmp_path / "flow.onnx", [node("Add", "obs noise", "out")], {}, ("obs", "noise"))
    with pytest.raises(
        FileError, match="as a generative policy does: customize and sweep take it with --noise 5 and --chunk"
    ):
        open_policy(path, Options(std=0.2))
    facts = inspect(path)
    assert facts["kind"] == "a generative policy as an ONNX graph"
    assert "--std" not in facts["missing"]


def test_a_graph_that_normalizes_takes_no_other_statistics(tmp_path: Path) -> None:
    nodes = [node("Sub", "obs m", "a"), node("Gemm", "a w", "out")]
    path = graph(tmp_path / "p.onnx", nodes, LAYERS | {"m": random(5)})
    np.savez(tmp_path / "n.npz", mean=np.zeros(5), var=np.ones(5))
    for given in (str(tmp_path / "n.npz"), "none"):
        with pytest.raises(UsageError, match="normalizes observations itself: leave --vecnormalize out"):
            describe(path, Options(vecnormalize=given))
    path = graph(tmp_path / "plain.onnx", [node("Gemm", "obs w", "out")], LAYERS)
    assert describe(path, Options(vecnormalize="none")).normalizer is None


def test_without_the_package_one_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = graph(tmp_path / "policy.onnx", [node("Gemm", "obs w", "out")], LAYERS)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"pip install 'repolicy\[onnx\]'"):
        describe(path)


def test_a_constant_larger_than_its_bytes_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path / "policy.onnx", [node("Gemm", "obs w", "out")], LAYERS)
    model = onnx.load(path)
    model.graph.initializer[0].dims[0] = 2**40
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FileError, match="is damaged"):
        describe(path)


SCALE = [node("Squeeze", "u zero", "flat"), node("Gemm", "obs flat", "out")]
SPLIT = onnx.helper.make_node("Split", ["c"], ["out", "rest"], axis=-1, num_outputs=2)
FACTORS = [
    node("Sub", "m obs", "a"),  # turned around: a negative scale
    node("Div", "a s", "b"),
    node("MatMul", "b w", "c"),
    node("Add", "c k", "d"),
    node("Relu", "d", "e"),
    node("Mul", "e f", "g"),
    node("Gemm", "g u k2", "h", alpha=0.5, beta=2.0, transB=1),
    node("Mul", "h s2", "out"),
]
OF_FACTORS = {"m": random(5), "s": abs(random(5)) + 1, "k": random(7), "f": random(7), "u": random(3, 7)}
OF_NORM = {"s": random(7), "l": random(7)}
BY_ERF = [  # 3 · x · (0.5 · erf(x · √0.5) + 0.5): a factor on both sides
    node("Mul", "a root", "r"),
    node("Erf", "r", "e"),
    node("Mul", "e half", "h"),
    node("Add", "h half", "i"),
    node("Mul", "a three", "t"),
    node("Mul", "t i", "b"),
    node("Gemm", "b v", "out"),
]
OF_ERF = {"root": np.array(0.5**0.5), "half": np.array(0.5), "three": np.array(3.0)}
NORMED = [node("LayerNormalization", "b s l", "c", epsilon=1e-3), node("Gemm", "c v", "out")]
MASKED = [node("Mul", "obs mask", "x"), node("Add", "x m", "y"), node("Gemm", "y w", "out")]
ROOTED = [node("Pow", "var half", "std"), node("Div", "obs std", "a"), node("Gemm", "a w", "out")]
COPIED: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    "an observation times 0": (MASKED, {"mask": np.array([1.0, 2.0, 0.0, 1.0, 1.0]), "m": random(5)}),
    "a power of two constants": (ROOTED, {"var": random(5) ** 2 + 0.1, "half": np.array(0.5)}),
    "a weight that loses an axis": (SCALE, {"u": random(1, 5, 3)}),
    "a row that gets an axis": ([*BODY, node("Unsqueeze", "k zero", "row"), node("Mul", "c row", "out")], ROW),
    "a quotient": ([*BODY, node("Div", "k l", "row"), node("Mul", "c row", "out")], ROW | {"l": random(1, 3)}),
    "a split into two of five is three and two": ([node("Gemm", "obs w", "c"), SPLIT], {"w": random(5, 5)}),
    "gelu by erf": ([*FIRST_LAYER, *BY_ERF], OF_ERF),
    "factors between layers": (FACTORS, OF_FACTORS | {"k2": random(3), "s2": np.array(3.0)}),
} | {
    f"gelu {kind}": ([*FIRST_LAYER, node("Gelu", "a", "b", approximate=kind), *NORMED], OF_NORM)
    for kind in ("none", "tanh")
}


def through(kind: int) -> list[Any]:
    """Observations that go through another type of numbers."""
    return [node("Cast", "obs", "coarse", to=kind), node("Cast", "coarse", "x", to=onnx.TensorProto.FLOAT)]


CUT_CHOICE = [*BODY, node("Clip", "c low high", "d"), node("ArgMax", "d", "out", axis=1)]
EXPANDED = [node("Shape", "c", "shape"), node("Expand", "number shape", "out")]
CUT_INPUT = [node("Clip", "obs low high", "x"), node("Gemm", "x w", "out")]
REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([*BODY, node("Unsqueeze", "k one", "column"), node("Mul", "c column", "out")], {"k": random(3)}, "it holds Mul"),
    (  # a quotient of whole numbers
        [*BODY, node("Div", "seven two", "q"), node("Cast", "q", "f", to=1), node("Mul", "c f", "out")],
        {"seven": SEVEN, "two": TWO},
        "it holds Mul",
    ),
    (CUT_CHOICE, {"low": -1.0, "high": 1.0}, "clip follows its last layer"),
    (CUT_INPUT, {"low": 1.0, "high": -1.0}, "clip stands where a linear layer belongs"),
    ([*BODY, node("Slice", "c start end one", "out")], {"start": [5], "end": [9]}, "a slice leaves nothing of its la"),
    ([*FIRST_LAYER, node("Softsign", "a", "b"), node("Gemm", "b v", "out")], {}, "it holds Softsign"),
    ([*FIRST_LAYER, node("Gemm", "a v", "out")], {}, "linear follows its last layer"),
    ([*FIRST_LAYER, node("Relu", "a", "b"), node("Add", "b a", "c"), node("Gemm", "c v", "out")], {}, "it holds Add"),
    ([*FIRST_LAYER, node("Elu", "a", "b", alpha=0.5), node("Gemm", "b v", "out")], {}, "it holds Elu"),
    ([node("Relu", "obs", "a"), node("Gemm", "a w", "out")], {}, "relu stands where a linear layer belongs"),
    ([*through(onnx.TensorProto.INT64), node("Gemm", "x w", "out")], {}, "it holds Cast"),
    ([*through(onnx.TensorProto.FLOAT16), node("Gemm", "x w", "out")], {}, "it holds Cast"),
    ([*BODY, node("Reshape", "c s", "out")], {"s": np.array([-1, 1])}, "it holds Reshape"),
    ([*BODY[:2], node("Gemm", "b v m", "out")], {"m": random(4, 3)}, "it holds Gemm"),
    ([*BODY[:2], node("Gemm", "b u obs", "out")], {"u": random(7, 5)}, "it holds Gemm"),  # a way around the layers
    ([node("Gemm", "obs u", "out")], {"u": random(1, 5, 3)}, "it holds Gemm"),  # an axis too many
    ([node("LayerNormalization", "obs k obs", "x"), node("Gemm", "x w", "out")], {"k": random(5)}, "LayerNormal"),
    ([node("Gemm", "obs h", "out")], {"h": random(5, 3).astype(np.float16)}, "it computes in half precision"),
    (
        [*BODY, onnx.helper.make_node("Slice", ["c", "start", "end", "", "one"], ["out"])],
        {"start": [0], "end": [2], "one": [1]},
        "it holds Slice",
    ),
    *(
        ([node("Gemm", "obs one_output", "a"), *nodes], {"one_output": random(5, 1), "k": random(3)}, "a row follows")
        for nodes in (
            [node("Mul", "a k", "out")],
            [node("Add", "a k", "out")],
            [node("Tanh", "a", "b"), node("Mul", "b k", "out")],
        )
    ),
    ([*FIRST_LAYER, node("Relu", "a", "b", domain="mine"), node("Gemm", "b v", "out")], {}, "it holds Relu"),
    ([node("Gemm", "obs u", "number"), *BODY, *EXPANDED], {"u": random(5, 1)}, "it holds Expand in a form"),
    ([node("Pow", "obs two", "a"), node("Gemm", "a w", "out")], {"two": TWO}, "it holds Pow in a form"),
]
DAMAGED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([*BODY[:2], node("Gemm", "b w", "out")], {}, "a layer of 7 units goes into one that takes 5"),
    ([node("Sub", "obs m", "x"), node("Gemm", "x w", "out")], {"m": random(4)}, "is damaged"),
    ([*BODY[:2], node("Gemm", "b nan", "out")], {"nan": random(7, 3) * np.nan}, "weights are not finite"),
    ([*BODY[:2], node("Gemm", "b v inf", "out")], {"inf": random(3) + np.inf}, "weights are not finite"),
]


def test_half_precision_that_no_output_needs_does_not_matter(tmp_path: Path) -> None:
    nodes = [*BODY, node("Identity", "c", "out"), node("Gemm", "obs h", "unused")]
    constants = LAYERS | {"h": random(5, 3).astype(np.float16)}
    assert describe(graph(tmp_path / "policy.onnx", nodes, constants)).actions.width == 3


@pytest.mark.parametrize("name", COPIED)
def test_a_constant_that_is_computed_is_what_onnxruntime_computes(name: str, tmp_path: Path) -> None:
    nodes, constants = COPIED[name]
    path, obs = graph(tmp_path / "policy.onnx", nodes, LAYERS | constants), observations(5)
    assert_equal(mean(describe(path), obs), run(path, obs))


@pytest.mark.parametrize(
    ("nodes", "constants", "reason", "wanted"),
    [*((*each, CannotCopyError) for each in REFUSED), *((*each, FileError) for each in DAMAGED)],
)
def test_what_no_perceptron_does_is_refused(
    nodes: list[Any], constants: Any, reason: str, wanted: type[FileError], tmp_path: Path
) -> None:
    output = CHOICE if nodes[-1].op_type == "ArgMax" else "out"
    arrays = LAYERS | {name: np.array(values) for name, values in constants.items()}
    with pytest.raises(wanted, match=reason) as caught:
        describe(graph(tmp_path / "policy.onnx", nodes, arrays, outputs=[output]))
    assert "\n" not in str(caught.value)
