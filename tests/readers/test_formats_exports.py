"""ONNX and TorchScript as libraries and their documentation export them: several outputs, choices, and halves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import STD, assert_equal, assert_scored, describe, mean, observations, placed, stirred
from made_checkpoints import mlp, seen_by_rsl_rl
from made_graphs import exported, run, script
from made_sb3 import made, sb3
from other_policies import Around
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.priors.opening import open_policy
from repolicy.readers.chain import TANH_NOTE
from repolicy.readers.copying import policy_from
from repolicy.readers.description import FIRST_OUTPUT_NOTE, CannotCopyError
from repolicy.readers.reading import Options

DROPPED = "half of the last layer is dropped by the graph, which does not tell what it is for"


class Deterministic(nn.Module):
    """The wrapper in Stable-Baselines3's documentation."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Tensor) -> Any:
        return self.policy(obs, deterministic=True)


@pytest.mark.parametrize(("kind", "own"), [("PPO", {}), ("A2C", {"use_sde": True}), ("SAC", {})])
def test_stable_baselines3s_documented_export_is_copied(kind: str, own: dict[str, Any], tmp_path: Path) -> None:
    model, _ = made(getattr(sb3, kind), tmp_path, **own)
    path = exported(tmp_path / "policy.onnx", Deterministic(model.actor if kind == "SAC" else model.policy))
    described, obs = describe(path, STD), observations(5)
    assert described.squashed == (TANH_NOTE in described.notes) == (kind == "SAC")
    assert_equal(mean(described, obs), run(path, obs))


def test_stable_baselines3s_documented_export_of_choices_is_copied(tmp_path: Path) -> None:
    model, _ = made(sb3.PPO, tmp_path, "choice")
    path, obs = exported(tmp_path / "policy.onnx", Deterministic(model.policy)), observations(5)
    dist = model.policy.get_distribution(obs.double()).distribution
    cool = torch.distributions.Categorical(logits=dist.logits / 0.5)
    described = describe(path)
    assert_scored(described, obs, dist)
    assert np.array_equal(policy_from(described)(obs).mode()[:, 0], run(path, obs))
    assert_scored(describe(path, Options(temperature=0.5)), obs, cool)


@pytest.mark.parametrize("own", ["Gaussian", "HeteroscedasticGaussian"])
def test_rsl_rls_graphs_are_copied(own: str, tmp_path: Path) -> None:
    """By both of PyTorch's exporters, and as TorchScript."""
    obs, has_half = observations(5, 3.0), own != "Gaussian"
    actor, groups = seen_by_rsl_rl(obs, f"{own}Distribution")
    onnx = exported(tmp_path / "policy.onnx", actor.as_onnx(verbose=False).eval(), old=not has_half)
    for path in (onnx, script(tmp_path / "policy.pt", actor.as_jit(), 5)):
        described = describe(path, STD)
        assert_equal(mean(described, obs), actor(groups))
        assert (DROPPED in described.notes) == has_half


class Followed(nn.Module):
    """A network, and a function of its outputs."""

    def __init__(self, body: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.function = body, function

    def forward(self, obs: Tensor) -> Tensor:
        return self.function(self.body(obs))


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_half_that_pytorchs_graph_drops_is_not_taken_for_braxs_std(scale: float, tmp_path: Path) -> None:
    """As many a script writes it: the means go through tanh, and the log-stds are left out."""
    module = stirred(Followed(mlp((5, 8, 6), nn.ReLU), lambda out: torch.tanh(out[:, :3]) * scale))
    obs = observations(5)
    for path in (exported(tmp_path / "p.onnx", module), script(tmp_path / "p.pt", module, 5, traced=True)):
        described = describe(path)
        assert described.std is None
        assert DROPPED in described.notes
        assert (TANH_NOTE in described.notes) == (scale == 1.0)
        assert_equal(mean(described, obs), module(obs))


@pytest.mark.parametrize("chooses", [False, True])
@pytest.mark.parametrize("last", ["", "softmax", "log_softmax"])
def test_a_graph_of_logits_or_probabilities_is_copied(last: str, chooses: bool, tmp_path: Path) -> None:
    def ending(out: Tensor) -> Tensor:
        out = getattr(torch, last)(out, -1) if last else out
        return out.argmax(-1) if chooses else out

    module, obs = stirred(Followed(mlp((5, 8, 3), nn.Tanh), ending)), observations(5)
    paths = [exported(tmp_path / "p.onnx", module), script(tmp_path / "p.pt", module, 5, traced=True)]
    dist = torch.distributions.Categorical(logits=module.body(obs))
    for path in paths:
        if not chooses:
            logits = "such as --std 0.2, or --temperature 1 where its outputs are logits"
            probabilities = "softmax follows its last layer: add --temperature 1 if .* probabilities of choices"
            with pytest.raises((UsageError, CannotCopyError), match=probabilities if last else logits):
                policy_from(describe(path))
        assert_scored(describe(path, Options(temperature=1.0)), obs, dist)


class Both(nn.Module):
    """Actions and a value, as a tuple."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor, self.critic = actor, nn.Linear(5, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs)


@pytest.mark.parametrize("traced", [False, True])
def test_of_a_tuple_the_first_is_taken(traced: bool, tmp_path: Path) -> None:
    obs, copied, cloned = observations(5), stirred(Both(mlp((5, 8, 3), nn.ELU))), stirred(Both(Around()))
    described = describe(script(tmp_path / "copied.pt", copied, 5, traced))
    assert FIRST_OUTPUT_NOTE in described.notes
    path = script(tmp_path / "cloned.pt", cloned, 5, traced)
    assert FIRST_OUTPUT_NOTE in open_policy(path, STD, trust=True).notes
    assert_equal(mean(described, obs), copied(obs)[0])
    assert_equal(placed(path, 5, 3, trust=True).distribution(obs).mode(), cloned(obs)[0])
