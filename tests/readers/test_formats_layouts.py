"""State dicts that are nearly those of a library, and what a run's own settings say of them."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import assert_equal, describe, mean, observations
from made_checkpoints import brax_file, mlp, named, saved
from torch import nn

from repolicy.errors import FileError
from repolicy.readers.copying import policy_from
from repolicy.readers.described import CannotCopyError
from repolicy.readers.reading import Options

# Layers of the user's own ---------------------------------------------------------------------------------------------


def squashed() -> dict[str, torch.Tensor]:
    layers = {"fc1": nn.Linear(5, 8), "fc2": nn.Linear(8, 8), "fc_mean": nn.Linear(8, 2), "fc_logstd": nn.Linear(8, 2)}
    state = {"action_scale": torch.ones(2), "action_bias": torch.zeros(2)}
    for name, layer in layers.items():
        state |= named(name, layer)
    return state


def gaussian() -> dict[str, torch.Tensor]:
    state = named("actor_mean", mlp((5, 8, 2), nn.Tanh)) | named("critic", mlp((5, 8, 1), nn.Tanh))
    return state | {"actor_logstd": torch.zeros(1, 2)}


@pytest.mark.parametrize(
    ("made", "own"),
    [
        (squashed, named("fc3", nn.Linear(8, 8))),
        (squashed, named("ln1", nn.LayerNorm(8))),
        (squashed, named("bn1", nn.BatchNorm1d(8))),
        (gaussian, named("encoder", nn.Linear(5, 5))),
    ],
)
def test_a_layer_that_cleanrls_scripts_do_not_have_is_not_left_out(made: Any, own: Any, tmp_path: Path) -> None:
    assert describe(saved(tmp_path / "theirs.pth", made())).library == "CleanRL"
    with pytest.raises(FileError, match="no policy of a known layout.*export it to ONNX or TorchScript"):
        describe(saved(tmp_path / "mine.pth", made() | own))


@pytest.mark.parametrize(
    ("state", "actor", "own"),
    [
        ("model_state_dict", "actor", "history_encoder"),
        ("model_state_dict", "student", "estimator"),
        ("actor_state_dict", "mlp", "encoder"),
    ],
)
def test_an_encoder_in_a_checkpoint_of_rsl_rl_is_not_left_out(state: str, actor: str, own: str, tmp_path: Path) -> None:
    kept = named(actor, mlp((5, 8, 2), nn.ELU)) | {"std": torch.ones(2)}
    if state == "model_state_dict":
        beside = {"actor": "critic", "student": "teacher"}[actor]
        kept |= named(beside, mlp((9, 8, 2), nn.ELU)) | named(f"{beside}_obs_normalizer", nn.BatchNorm1d(9))
    assert describe(saved(tmp_path / "theirs.pt", {state: kept})).library == "rsl_rl"
    with pytest.raises(CannotCopyError, match=rf"it has {own}.0.weight.*, which no policy of rsl_rl's own has"):
        describe(saved(tmp_path / "mine.pt", {state: kept | named(own, mlp((5, 8, 5), nn.ELU))}))


@pytest.mark.parametrize("word", ["gelu", "gelu_tanh"])
def test_flaxs_gelu_is_the_one_by_tanh(word: str, tmp_path: Path) -> None:
    path, obs = brax_file(tmp_path / "params"), observations(5, 3.0)
    _, kept = pickle.loads(path.read_bytes())
    first, second = (
        [torch.as_tensor(kept["params"][f"hidden_{n}"][part]) for part in ("kernel", "bias")] for n in (0, 1)
    )
    hidden = nn.functional.gelu(obs.double() @ first[0] + first[1], approximate="tanh")
    wanted = torch.tanh((hidden @ second[0] + second[1])[:, :3])
    assert_equal(mean(describe(path, Options(file_activation=word)), obs), wanted)


# What a run's settings say --------------------------------------------------------------------------------------------


def settings(folder: Path, text: str) -> None:
    (folder / "params").mkdir(exist_ok=True)
    (folder / "params" / "agent.yaml").write_text(f"seed: 42\npolicy:\n{text}")


RANGES = ["\n    - 0.2\n    - 1.0", " !!python/tuple\n    - 0.2\n    - 1.0", " [0.2, 1.0]  # of the std"]


@pytest.mark.parametrize("kind", ["GaussianDistribution", "HeteroscedasticGaussianDistribution"])
@pytest.mark.parametrize("std_type", ["scalar", "log"])
@pytest.mark.parametrize("written", RANGES)
def test_rsl_rls_std_stays_in_the_range_of_its_settings(kind: str, std_type: str, written: str, tmp_path: Path) -> None:
    distribution = getattr(pytest.importorskip("rsl_rl.modules.distribution"), kind)(
        3, std_range=(0.2, 1.0), std_type=std_type
    )
    hetero = kind.startswith("Hetero")
    network = mlp((5, 8, 6 if hetero else 3), nn.ELU)
    with torch.no_grad():
        network[-1].bias[:] = torch.tensor([0.0, 0.0, 0.0, -9.0, 0.6, 9.0])[: len(network[-1].bias)]
        for parameter in distribution.parameters():
            parameter[:] = torch.tensor([-9.0, 0.6, 9.0])
    kept = {"actor_state_dict": named("mlp", network) | named("distribution", distribution)}
    path = saved(tmp_path / "model_1.pt", kept)
    assert any("std_range" in note for note in describe(path).notes)
    settings(tmp_path, f"  activation: elu\n  std_type: {std_type}\n  std_range:{written}\n")
    described, obs = describe(path), observations(5)
    assert not any("std_range" in note for note in described.notes)
    with torch.no_grad():
        outputs = network(obs)
        distribution.update(outputs.reshape(-1, 2, 3) if hetero else outputs)
        found = policy_from(described)(obs)
        torch.testing.assert_close(found.log_std.exp().expand(len(obs), 3), distribution.std, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.mode(), distribution.mean, atol=1e-5, rtol=1e-5)


SKRL = "    clip_log_std: {}\n    min_log_std: -2.0\n    max_log_std: 1.0\n    activations: {}\n"


def skrls(path: Path) -> Path:
    layers = named("net_container", mlp((5, 8, 7), nn.Tanh)) | named("policy_layer", nn.Linear(7, 3))
    kept = {"policy": layers | {"log_std_parameter": torch.tensor([-3.0, 0.0, 3.0])}, "value": {}, "optimizer": {}}
    return saved(path, kept)


@pytest.mark.parametrize(("clip", "bounds"), [("true", (-2.0, 1.0)), ("false", (-3.0, 3.0))])
@pytest.mark.parametrize("activations", ["tanh", "[tanh, tanh]", "\n    - tanh\n    - tanh"])
def test_skrls_log_std_stays_in_the_bounds_of_its_settings(
    clip: str, bounds: tuple[float, float], activations: str, tmp_path: Path
) -> None:
    path = skrls(tmp_path / "agent_1.pt")
    assert any("within other bounds than -20 and 2" in note for note in describe(path).notes)
    settings(tmp_path, f"{SKRL.format(clip, activations)}    output: ACTIONS\n")
    described = describe(path)
    assert described.actor.activation == "tanh"
    assert described.notes == ("observations are not normalized (the file has no statistics)",)
    std = policy_from(described).std
    assert std is not None
    torch.testing.assert_close(std, torch.tensor([bounds[0], 0.0, bounds[1]]).exp())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [("    output: 2.0 * tanh(ACTIONS)\n", "its output is 2.0 [*] tanh"), ("", "layers have different activations")],
)
def test_skrls_other_functions_are_refused(more: str, sentence: str, tmp_path: Path) -> None:
    path = skrls(tmp_path / "agent_1.pt")
    settings(tmp_path, SKRL.format("true", "tanh" if more else "[tanh, elu]") + more)
    with pytest.raises(CannotCopyError, match=sentence):
        describe(path)


@pytest.mark.parametrize("low", ["little", "[-2, -1]"])
def test_settings_that_are_no_numbers_are_blamed_themselves(low: str, tmp_path: Path) -> None:
    path = skrls(tmp_path / "agent_1.pt")
    settings(tmp_path, f"    activations: tanh\n    min_log_std: {low}\n")
    with pytest.raises(FileError, match=r"^params/agent.yaml cannot be used: its min_log_std is "):
        describe(path)
