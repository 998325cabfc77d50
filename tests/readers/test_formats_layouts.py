"""State dicts that are nearly those of a library, and what a run's own settings say of them."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import assert_equal, describe, mean, observations
from made_checkpoints import Seen, brax_body, brax_file, dense, mlp, named, saved, settings, squashed
from torch import nn
from typed_commands import refused

from repolicy.cli import main as cli
from repolicy.errors import FileError, UsageError
from repolicy.policies.file import policy_bytes, save_policy
from repolicy.priors.kinds import MeanPrior
from repolicy.priors.opening import load_policy, read_policy
from repolicy.readers.copying import policy_from
from repolicy.readers.description import CannotCopyError
from repolicy.readers.reading import MIN_STD, Options

# Layers of the user's own ---------------------------------------------------------------------------------------------
SQUASHED = squashed("fc_mean", "fc_logstd")
GAUSSIAN = named("actor_mean", mlp((5, 8, 2), nn.Tanh)) | {"actor_logstd": torch.zeros(1, 2)}
CHOICE = named("actor", mlp((5, 8, 3), nn.ELU)) | named("critic", mlp((5, 8, 1), nn.ELU))
VALUES = named("network", mlp((5, 8, 6), nn.ReLU))
REFUSED = "is taken for a policy of choices, which has no std: leave --std out"
CHOICES = f'{REFUSED}, or say which tensors are what, such as --layout "actor'


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of what a file does not tell


@pytest.mark.parametrize(
    ("made", "own"),
    [
        (SQUASHED, named("fc3", nn.Linear(8, 8))),
        (SQUASHED, named("ln1", nn.LayerNorm(8))),
        (SQUASHED, named("bn1", nn.BatchNorm1d(8))),
        (GAUSSIAN, named("encoder", nn.Linear(5, 5))),
        (CHOICE, {"log_std": torch.ones(3)}),  # as of many a tutorial, whose actions are continuous
        (VALUES, {"atoms": torch.ones(3)}),  # distributions of returns
    ],
)
def test_what_cleanrls_scripts_do_not_have_is_not_left_out(made: Any, own: Any, tmp_path: Path) -> None:
    options = Options(temperature=1.0 if made is VALUES else None)
    described = describe(saved(tmp_path / "theirs.pth", made), options)
    assert described.library == "CleanRL"
    assert f"CleanRL's default, {described.actor.activation}, is assumed" in described.notes[0]  # a fork may differ
    with pytest.raises(FileError, match="no policy of a known layout.*export it to ONNX or TorchScript"):
        describe(saved(tmp_path / "mine.pth", made | own), options)


def test_another_script_and_demonstrations_are_told_from_a_policy(tmp_path: Path) -> None:
    bare = {name: each for name, each in squashed("fc_mu").items() if not name.startswith("action_")}
    with pytest.raises(FileError, match="no policy of a known layout.* file.py:act, or say .*actor=fc1[+]fc2[+]fc_mu"):
        describe(saved(tmp_path / "mine.pth", bare))
    np.savez(tmp_path / "demo.npz", observations=np.zeros((9, 5)), actions=np.zeros((9, 2)))
    with pytest.raises(FileError, match=r"demonstrations: `repolicy imitate .*demo.npz` makes a policy of them$"):
        describe(tmp_path / "demo.npz")


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
    layers = pickle.loads(path.read_bytes())[1]["params"]
    hidden = brax_body(layers, obs, 1, nn.GELU(approximate="tanh"))
    wanted = torch.tanh(dense(layers["hidden_1"], hidden)[:, :3])
    assert_equal(mean(describe(path, Options(file_activation=word)), obs), wanted)


# What a run's settings say --------------------------------------------------------------------------------------------
RANGES = ["\n    - 0.2\n    - 1.0", " !!python/tuple\n    - 0.2\n    - 1.0", " [0.2, 1.0]  # of the std"]


@pytest.mark.parametrize("kind", ["GaussianDistribution", "HeteroscedasticGaussianDistribution"])
@pytest.mark.parametrize(("std_type", "written"), [("scalar", RANGES[0]), ("log", RANGES[1]), ("log", RANGES[2])])
def test_rsl_rls_std_stays_in_the_range_of_its_settings(kind: str, std_type: str, written: str, tmp_path: Path) -> None:
    distribution = getattr(pytest.importorskip("rsl_rl.modules.distribution"), kind)(
        3, std_range=(0.2, 1.0), std_type=std_type
    )
    hetero = kind.startswith("Hetero")
    network = mlp((5, 8, 6 if hetero else 3), nn.ELU)
    network[-1].bias[:] = torch.tensor([0.0, 0.0, 0.0, -9.0, 0.6, 9.0])[: len(network[-1].bias)]
    for parameter in distribution.parameters():
        parameter[:] = torch.tensor([-9.0, 0.6, 9.0])
    kept = {"actor_state_dict": named("mlp", network) | named("distribution", distribution), "iter": 1}
    path = saved(tmp_path / "model_1.pt", kept)
    assert any("std_range" in note for note in describe(path).notes)
    settings(tmp_path, f"  activation: elu\n  std_type: {std_type}\n  std_range:{written}\n")
    described, obs = describe(path), observations(5)
    assert not any("std_range" in note for note in described.notes)
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


NO_STATISTICS = ("observations are not normalized (the file has no statistics)",)


@pytest.mark.parametrize(("clip", "bounds"), [("true", (-2.0, 1.0)), ("false", (-3.0, 3.0))])
@pytest.mark.parametrize("activations", ["tanh", "[tanh, tanh]", "\n    - tanh\n    - tanh"])
def test_skrls_log_std_stays_in_the_bounds_of_its_settings(
    clip: str, bounds: tuple[float, float], activations: str, tmp_path: Path
) -> None:
    path = skrls(tmp_path / "agent_1.pt")
    assert any("within other bounds than -20 and 2" in note for note in describe(path).notes)
    settings(tmp_path, f"{SKRL.format(clip, activations)}    output: ACTIONS\n")
    described = describe(path)
    assert (described.actor.activation, described.notes) == ("tanh", NO_STATISTICS)
    torch.testing.assert_close(policy_from(described).std, torch.tensor([bounds[0], 0.0, bounds[1]]).exp())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("tanh\n    output: 2.0 * tanh(ACTIONS)", "its output is 2.0 [*] tanh"),
        ("[tanh, elu]", "layers have different activations"),
        ("elu\n    network:\n    - activations: tanh\n      name: net", "layers have different activations"),
        ("tanh\n    other:\n      activations: elu", "layers have different activations"),
        ("[]", "its activation is none"),
        ("silu", "its activation is silu, which skrl does not know and leaves out"),
        ('""', "its activation is none"),
        ("tanh\n    output_activation: tanh\n    output_scale: 1.0", "its output_activation is tanh"),
        ('tanh\n    output_activation: ""\n    output_scale: 2.0', "its output_scale is 2.0"),
    ],
)
def test_skrls_other_functions_are_refused(more: str, sentence: str, tmp_path: Path) -> None:
    path = skrls(tmp_path / "agent_1.pt")
    settings(tmp_path, SKRL.format("true", more))
    without_layout = f"{sentence}.*, file.py:act$"  # which has none of these
    with pytest.raises(CannotCopyError, match=without_layout):
        describe(path)


def test_skrls_older_settings_say_the_same(tmp_path: Path) -> None:
    path = skrls(tmp_path / "agent_1.pt")
    output = '    output_shape: Shape.ACTIONS\n    output_activation: ""\n    output_scale: 1.0\n'
    settings(tmp_path, "    hidden_activation:\n    - tanh\n    - tanh\n" + output)
    described = describe(path)
    assert (described.actor.activation, described.notes) == ("tanh", NO_STATISTICS)


@pytest.mark.parametrize("name", ["observation_preprocessor", "state_preprocessor"])
def test_skrls_scaler_has_the_clip_and_the_epsilon_of_its_settings(name: str, tmp_path: Path) -> None:
    path = skrls(tmp_path / "agent_1.pt")
    scaler = {"running_mean": torch.zeros(5), "running_variance": torch.full((5,), 4.0)}
    saved(path, torch.load(path) | {name: scaler})
    policy = "    activations: tanh\n    output: ACTIONS\nvalue:\n    activations: relu\n"
    kwargs = "agent:\n  {}_preprocessor_kwargs:\n    clip_threshold: {}\n    epsilon: {}\n"
    settings(tmp_path, policy + kwargs.format("state", "9.0", "0.5") + kwargs.format("value", "1.0", "2.0"))
    described = describe(path)
    assert described.actor.activation == "tanh"
    assert (described.normalizer.clip, described.normalizer.scale.tolist()) == (9.0, [0.4] * 5)
    told = any("skrl 2 gives a state_preprocessor to the critic alone" in note for note in described.notes)
    assert told == (name == "state_preprocessor")


def test_skrls_clips_and_its_multivariate_gaussian(tmp_path: Path) -> None:
    """Before 2.1.1 it had its variances where torch takes stds."""
    path, usual = skrls(tmp_path / "agent_1.pt"), SKRL.format("true", "tanh") + "    output: ACTIONS\n"
    settings(tmp_path, "    class: MultivariateGaussianMixin\n    clip_actions: true\n" + usual)
    described = describe(path)
    assert any("skrl clips actions to the environment's bounds" in note for note in described.notes)
    assert any("before skrl 2.1.1 a MultivariateGaussian's std" in note for note in described.notes)
    torch.testing.assert_close(policy_from(described).std, torch.tensor([-2.0, 0.0, 1.0]).exp())
    settings(tmp_path, "    class: GaussianMixin\n    clip_mean_actions: true\n" + usual)
    with pytest.raises(CannotCopyError, match="its means are clipped to the environment's bounds"):
        describe(path)


@pytest.fixture
def td3(tmp_path: Path) -> Path:
    return saved(tmp_path / "td3.pth", squashed("fc_mu"))


@pytest.mark.parametrize("value", ["0.2", 0.0, -1.0, np.nan, np.inf, 1e60, np.array([0.3, 0.2])])
@pytest.mark.parametrize(("name", "least"), [("std", "1e-05"), ("temperature", "1e-12")])
def test_a_number_that_is_none_is_refused(name: str, least: str, value: Any, td3: Path) -> None:
    with pytest.raises(UsageError, match=f"^{name} is .*; it must be above 0, a number from {least} to 1e[+]12$"):
        load_policy(td3, **{name: value})


def test_the_smallest_std_makes_a_policy_that_its_file_gives_back(td3: Path, tmp_path: Path) -> None:
    """With a smaller one, its log-probabilities were those of rounding errors, and its file was refused."""
    with pytest.raises(UsageError, match="^std is 1e-12; it must be"):
        load_policy(td3, std=1e-12)
    policy = load_policy(td3, std=MIN_STD)
    save_policy(tmp_path / "p.safetensors", policy, {})
    torch.testing.assert_close(load_policy(tmp_path / "p.safetensors").state_dict(), policy.state_dict())
    assert MeanPrior(len, MIN_STD).std == np.float32(MIN_STD)
    with pytest.raises(UsageError, match="it must be above 0, 1e-05 or more"):
        MeanPrior(len, 1e-12)


def test_what_numpy_and_pathlib_give_is_taken(td3: Path) -> None:
    np.savez(td3.with_name("seen.npz"), mean=np.zeros(5), var=np.ones(5))
    saved = read_policy(td3, Options(std=np.float32(0.5), vecnormalize=td3.with_name("seen.npz")))
    assert policy_bytes(saved.policy, saved.card)
    assert saved.policy.std.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("td3.pth --std 1e60", "--std is 1e+60; it must be above 0"),
        ("td3.pth --std fit", "--std fit needs recorded actions of this policy"),
        ("td3.pth --std 0.2 --demonstrations nofile.npz", "--demonstrations goes with --std fit"),
        ("dqn.pth --std 0.3", f"dqn.pth {CHOICES}=network, activation=NAME"),
        ("dqn.pth --std fit --demonstrations seen.npz", f"dqn.pth {CHOICES}=network, activation=NAME"),
        ("dqn.pth --std 0.3 --temperature 0.1", f"dqn.pth {CHOICES}=network, activation=NAME"),
        ("ppo.pth --std 0.3", f"ppo.pth {CHOICES}=actor, activation=NAME"),
    ],
)
def test_inspect_refuses_what_evaluate_refuses(
    words: str, sentence: str, td3: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(td3.parent)
    saved(Path("dqn.pth"), named("network", mlp((4, 8, 2), nn.ReLU)))
    saved(Path("ppo.pth"), named("actor", mlp((4, 8, 2), nn.Tanh)) | named("critic", mlp((4, 8, 1), nn.Tanh)))
    assert sentence in refused(capsys, 2, "inspect", *words.split())


def test_inspect_shows_a_fitted_std(td3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = td3.with_name("recorded.npz")
    np.savez(recorded, observations=np.zeros((100, 5)), actions=np.random.default_rng(0).uniform(-0.9, 0.9, (100, 2)))
    cli.main(["inspect", str(td3), "--std", "fit", "--demonstrations", str(recorded), "--json"])
    assert "before tanh" in json.loads(capsys.readouterr().out.splitlines()[-1])["std"]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"var": np.array([1.0, -1.0, 1.0, 1.0, 1.0])}, "its observations' statistics are damaged"),
        ({"mean": np.zeros(5) + 1j}, "it holds complex128 where real numbers are expected"),
        ({"var": np.array(["1", "1", "1", "1", "1"])}, "it holds <U1 where real numbers"),
        ({"clip": 0.0}, "is damaged"),
        ({"epsilon": -1.0}, "is damaged"),
        ({"clip": np.nan}, "is damaged"),
        ({"clip": np.ones(5)}, "is damaged"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in sqrt:RuntimeWarning")
def test_statistics_that_are_none_are_one_sentence(arrays: Any, sentence: str, td3: Path) -> None:
    path = td3.with_name("seen.npz")
    np.savez(path, **{"mean": np.zeros(5), "var": np.ones(5)} | arrays)
    with pytest.raises(FileError, match=f"seen.npz .*{sentence}"):
        load_policy(td3, std=0.2, vecnormalize=str(path))


def test_statistics_without_a_clip_are_blamed_themselves(td3: Path) -> None:
    path = td3.with_name("seen.pkl")
    path.write_bytes(pickle.dumps(Seen(norm_obs=True)))
    with pytest.raises(FileError, match="seen.pkl is damaged, or no VecNormalize: 'clip_obs' is missing"):
        load_policy(td3, std=0.2, vecnormalize=str(path))
