"""TorchScript that is a program: what works in place is followed, and other code is not copied."""

import io
import zipfile
from pathlib import Path

import pytest
import torch
from comparing import assert_equal, describe, mean, observations, stirred
from made_graphs import script, stacked, written
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


BODY = "self.second(torch.tanh(self.first({})))".format
COPIED = {
    "a standardizer by its root's reciprocal": BODY("obs * torch.rsqrt(self.var + 1e-5)"),
    "a standardizer by a power": BODY("obs / (self.var + 1e-5) ** 0.5"),
    "a detour by double precision": BODY("obs.to(torch.float64).to(torch.float32)"),
    # As layers were written out before PyTorch traced them as `linear`.
    "products": "torch.mm(torch.tanh(torch.addmm(self.first.bias, obs, self.first.weight.t())), self.second.weight.t())"
    " + self.second.bias",
    "half of a layer": BODY("obs") + ".unflatten(-1, [2, 4])[..., 1, :]",
}


@pytest.mark.parametrize(
    ("name", "traced"), [*((name, False) for name in COPIED), *((name, True) for name in COPIED if "half" not in name)]
)
def test_code_is_read_however_it_is_written(name: str, traced: bool, tmp_path: Path) -> None:
    code = COPIED[name]
    (path, module), obs = written(tmp_path / "policy.pt", code, traced), observations(5)
    described = describe(path)
    assert_equal(mean(described, obs), module(obs))
    assert (described.normalizer is not None) == ("self.var" in code)


REFUSED = {
    BODY("obs.to(torch.int32).to(torch.float32)"): "torch.to",
    BODY("torch.div(obs, 0.3, rounding_mode='floor')"): "torch.div",
    "torch.addmm(self.first.bias, obs, self.first.weight.t(), alpha=0.5)": "addmm",
}
REFUSED_SCRIPTS = {  # in a traced module, numbers that are negative are written out, and there are no branches
    BODY("obs") + ".unflatten(-1, [2, 4])[..., -1, :]": "select",
    BODY("obs") + ".unflatten(-1, [2, -1])[..., 0, :]": "unflatten",
    BODY("obs") + "[:, 2:2]": "leaves nothing",
    "self.second(torch.chunk(self.first(obs), 0, 1)[0])": "its code",
    f"{BODY('obs')} if bool(obs.sum() > 0.0) else self.second(torch.relu(self.first(obs)))": "its code",
    f"for _ in range(3):\n    obs = obs + 1.0\nreturn {BODY('obs')}": "its code",
    f"other = obs.to(torch.float64)\nother.mul_(2.0)\nreturn {BODY('obs')}": "its code",
}


@pytest.mark.parametrize(
    ("code", "reason", "traced"),
    [
        *((*row, False) for row in (REFUSED | REFUSED_SCRIPTS).items()),
        *((*row, True) for row in REFUSED.items()),
    ],
)
def test_other_code_cannot_be_copied(code: str, reason: str, traced: bool, tmp_path: Path) -> None:
    with pytest.raises(CannotCopyError, match=reason) as raised:
        describe(written(tmp_path / "policy.pt", code, traced)[0])
    assert "Error(" not in str(raised.value)


@pytest.mark.parametrize(("function", "name"), [(nn.Sigmoid(), "sigmoid"), (nn.Hardtanh(), "clip")])
def test_a_function_between_layers_is_named_as_such(function: nn.Module, name: str, tmp_path: Path) -> None:
    for last, sentence in ((nn.Linear(6, 2), "stands between its layers"), (nn.Sigmoid(), "follows its last layer")):
        module = nn.Sequential(nn.Linear(5, 6), function, last)
        word = "sigmoid" if sentence.startswith("follows") else name  # a symmetric clip may follow
        with pytest.raises(CannotCopyError, match=f"{word} {sentence}"):
            describe(script(tmp_path / "policy.pt", module, 5, traced=True))


def doubled(self: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output * 2.0


def halved(self: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    return (inputs[0] * 0.5,)


@pytest.mark.parametrize("hook", ["", "before the whole", "after the whole", "after a part"])
def test_what_works_in_place_is_followed_and_so_are_hooks_or_they_are_refused(hook: str, tmp_path: Path) -> None:
    module, obs = stirred(InPlace()), observations(5)
    if "before" in hook:
        module.register_forward_pre_hook(halved)
    elif hook:
        (module.second if "part" in hook else module).register_forward_hook(doubled)
    path = script(tmp_path / "policy.pt", module, 5)
    if "whole" in hook:
        with pytest.raises(CannotCopyError, match="its code has a hook"):
            describe(path)
    else:
        described = describe(path)
        assert described.mean_clip == 0.3
        assert_equal(mean(described, obs), module(obs))


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
    assert_equal(prior.for_spaces(5, ActionSpace("continuous", (2,))).distribution(obs).mode(), module(obs))
