"""TorchScript that is a program: what works in place is followed, and other code is not copied."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import assert_equal, describe, mean, observations, stirred
from made_graphs import script, stacked
from torch import nn

from repolicy.errors import FileError
from repolicy.policies.distributions import ActionSpace
from repolicy.priors.kinds import MeanPrior
from repolicy.priors.opening import open_policy
from repolicy.readers.description import CannotCopyError
from repolicy.readers.reading import Options


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(obs - 0.5)
        torch.tanh_(hidden)
        out = self.second(hidden)
        out.clamp_(-0.3, 0.3)
        return out


class ByRsqrt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.register_buffer("var", torch.rand(5) + 0.3)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs * torch.rsqrt(self.var + 1e-5))


class ByPower(ByRsqrt):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs / (self.var + 1e-5) ** 0.5)


@pytest.mark.parametrize("kind", [ByRsqrt, ByPower])
@pytest.mark.parametrize("traced", [False, True])
def test_a_standardizer_is_read_however_its_root_is_written(kind: Any, traced: bool, tmp_path: Path) -> None:
    module, obs = kind().eval(), observations(5)
    described = describe(script(tmp_path / "policy.pt", module, 5, traced))
    with torch.no_grad():
        assert_equal(mean(described, obs), module(obs))
    assert described.normalizer is not None


@pytest.mark.parametrize(("function", "name"), [(nn.Sigmoid(), "sigmoid"), (nn.Hardtanh(), "clip")])
def test_a_function_between_layers_is_named_as_such(function: nn.Module, name: str, tmp_path: Path) -> None:
    for last, sentence in ((nn.Linear(6, 2), "stands between its layers"), (nn.Sigmoid(), "follows its last layer")):
        module = nn.Sequential(nn.Linear(5, 6), function, last)
        word = "sigmoid" if sentence.startswith("follows") else name  # a symmetric clip may follow
        with pytest.raises(CannotCopyError, match=f"{word} {sentence}"):
            describe(script(tmp_path / "policy.pt", module, 5, traced=True))


class Looping(InPlace):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            obs = obs + 1.0
        return self.second(torch.tanh(self.first(obs)))


class Chunking(InPlace):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.chunk(self.first(obs), 0, 1)[0])


class Skipping(InPlace):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        if bool(obs.sum() > 0.0):
            return self.second(torch.tanh(self.first(obs)))
        return self.second(torch.relu(self.first(obs)))


class CastInPlace(InPlace):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        other = obs.to(torch.float64)
        other.mul_(2.0)
        return self.first(obs)


def test_what_works_in_place_is_followed(tmp_path: Path) -> None:
    module = stirred(InPlace())
    obs = observations(5)
    described = describe(script(tmp_path / "policy.pt", module, 5))
    with torch.no_grad():
        assert_equal(mean(described, obs), module(obs))
    assert described.mean_clip == 0.3


@pytest.mark.parametrize("kind", [Looping, Skipping, Chunking, CastInPlace])
def test_other_code_cannot_be_copied(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(CannotCopyError, match="its code") as raised:
        describe(script(tmp_path / "policy.pt", kind(), 5))
    assert "Error(" not in str(raised.value)


class Multiplied(InPlace):
    """As layers were written out before PyTorch traced them as `linear`."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(torch.addmm(self.first.bias, obs, self.first.weight.t()))
        return torch.mm(hidden, self.second.weight.t()) + self.second.bias


class Scaled(InPlace):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.first.bias, obs, self.first.weight.t(), alpha=0.5)


@pytest.mark.parametrize("traced", [False, True])
def test_layers_that_are_written_as_products(traced: bool, tmp_path: Path) -> None:
    module, obs = stirred(Multiplied()), observations(5)
    with torch.no_grad():
        assert_equal(mean(describe(script(tmp_path / "policy.pt", module, 5, traced)), obs), module(obs))
    with pytest.raises(CannotCopyError, match="addmm"):
        describe(script(tmp_path / "scaled.pt", Scaled(), 5, traced))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.body(obs).unflatten(-1, [2, 4])[..., 1, :]


class Last(Wide):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.body(obs).unflatten(-1, [2, 4])[..., -1, :]


class Unsized(Wide):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.body(obs).unflatten(-1, [2, -1])[..., 0, :]


class Empty(Wide):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.body(obs)[:, 2:2]


@pytest.mark.parametrize(("kind", "reason"), [(Last, "select"), (Unsized, "unflatten"), (Empty, "leaves nothing")])
def test_half_of_a_layer_is_that_half_or_refused(kind: Any, reason: str, tmp_path: Path) -> None:
    """Scripted: in a traced module, the numbers that are negative here are written out."""
    module, obs = stirred(Wide()), observations(5)
    with torch.no_grad():
        assert_equal(mean(describe(script(tmp_path / "half.pt", module, 5)), obs), module(obs))
    with pytest.raises(CannotCopyError, match=reason):
        describe(script(tmp_path / "policy.pt", kind(), 5))


def doubled(self: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output * 2.0


def halved(self: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    return (inputs[0] * 0.5,)


@pytest.mark.parametrize("before", [False, True])
def test_hooks_are_followed_or_refused(before: bool, tmp_path: Path) -> None:
    obs = observations(5)
    for name in ("part", "whole"):
        module = stirred(InPlace())
        hooked: nn.Module = module.second if name == "part" else module
        if before:
            hooked.register_forward_pre_hook(halved)
        else:
            hooked.register_forward_hook(doubled)
        path = script(tmp_path / f"{name}.pt", module, 5)
        if name == "whole":
            with pytest.raises(CannotCopyError, match="its code has a hook"):
                describe(path)
        elif not before:
            with torch.no_grad():
                assert_equal(mean(describe(path), obs), module(obs))


def test_a_torchscript_file_without_its_code_is_one_sentence(tmp_path: Path) -> None:
    path = script(tmp_path / "policy.pt", stacked(nn.Tanh()), 5)
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            if "container" not in name:
                new.writestr(name, old.read(name))
    path.write_bytes(buffer.getvalue())
    with pytest.raises(FileError, match="is damaged: .* cannot be unpacked .*no item named"):
        describe(path)


def test_layer_norms_of_two_epsilons_run_as_they_are(tmp_path: Path) -> None:
    first, second = ([nn.Linear(5, 5), nn.LayerNorm(5, eps=eps), nn.Tanh()] for eps in (1e-5, 0.1))
    module = stirred(nn.Sequential(*first, *second, nn.Linear(5, 2)))
    path, obs = script(tmp_path / "policy.pt", module, 5), observations(5)
    with pytest.raises(CannotCopyError, match="its LayerNorms have different epsilons"):
        describe(path)
    prior = open_policy(path, Options(std=0.2), trust=True).agent
    assert isinstance(prior, MeanPrior)
    with torch.no_grad():
        assert_equal(prior.for_spaces(5, ActionSpace("continuous", (2,))).distribution(obs).mode(), module(obs))
