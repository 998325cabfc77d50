"""What a user says of a file: refused where it is none, and never blamed on the file."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_checkpoints import Seen, mlp, named, saved
from torch import nn

from repolicy.cli import main as cli
from repolicy.errors import FileError, UsageError
from repolicy.policies.file import policy_bytes, save_policy
from repolicy.priors.kinds import MeanPrior
from repolicy.priors.opening import load_policy, read_policy
from repolicy.readers.reading import LEAST_STD, Options


@pytest.fixture
def td3(tmp_path: Path) -> Path:
    layers = {"fc1": nn.Linear(5, 8), "fc2": nn.Linear(8, 8), "fc_mu": nn.Linear(8, 2)}
    state = {"action_scale": torch.ones(2), "action_bias": torch.zeros(2)}
    for name, layer in layers.items():
        state |= named(name, layer)
    return saved(tmp_path / "td3.pth", state)


@pytest.mark.parametrize("value", ["0.2", 0.0, -1.0, np.nan, np.inf, 1e60])
@pytest.mark.parametrize(("name", "least"), [("std", "1e-05"), ("temperature", "1e-12")])
def test_a_number_that_is_none_is_refused(name: str, least: str, value: Any, td3: Path) -> None:
    with pytest.raises(UsageError, match=f"^{name} is .*; it must be above 0, a number from {least} to 1e[+]12$"):
        load_policy(td3, **{name: value})


def test_the_smallest_std_makes_a_policy_that_its_file_gives_back(td3: Path, tmp_path: Path) -> None:
    """With a smaller one, its log-probabilities were those of rounding errors, and its file was refused."""
    with pytest.raises(UsageError, match="^std is 1e-12; it must be"):
        load_policy(td3, std=1e-12)
    policy = load_policy(td3, std=LEAST_STD)
    save_policy(tmp_path / "p.safetensors", policy, {})
    torch.testing.assert_close(load_policy(tmp_path / "p.safetensors").state_dict(), policy.state_dict())
    assert MeanPrior(len, LEAST_STD).std == np.float32(LEAST_STD)
    with pytest.raises(UsageError, match="it must be above 0, 1e-05 or more"):
        MeanPrior(len, 1e-12)


def test_what_numpy_and_pathlib_give_is_taken(td3: Path) -> None:
    np.savez(td3.with_name("seen.npz"), mean=np.zeros(5), var=np.ones(5))
    saved = read_policy(td3, Options(std=np.float32(0.5), vecnormalize=td3.with_name("seen.npz")))  # type: ignore[arg-type]
    assert policy_bytes(saved.policy, saved.card)
    assert saved.policy.std is not None
    assert saved.policy.std.tolist() == [0.5, 0.5]


def test_the_command_refuses_them_too(td3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["inspect", str(td3), "--std", "1e60"])
    assert caught.value.code == 2
    assert "--std is 1e+60; it must be above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("td3.pth --std fit", "--std fit needs recorded actions of this policy"),
        ("td3.pth --std 0.2 --demonstrations nofile.npz", "--demonstrations goes with --std fit"),
        ("dqn.pth --std 0.3", "dqn.pth has no use for --std"),
        ("dqn.pth --std 0.3 --temperature 0.1", "dqn.pth has no use for --std"),
    ],
)
def test_inspect_refuses_what_evaluate_refuses(
    words: str, sentence: str, td3: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(td3.parent)
    saved(Path("dqn.pth"), named("network", mlp((4, 8, 2), nn.ReLU)))
    with pytest.raises(SystemExit) as caught:
        cli.main(["inspect", *words.split()])
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


def test_inspect_shows_a_fitted_std(td3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = td3.with_name("recorded.npz")
    np.savez(recorded, observations=np.zeros((100, 5)), actions=np.random.default_rng(0).uniform(-0.9, 0.9, (100, 2)))
    cli.main(["inspect", str(td3), "--std", "fit", "--demonstrations", str(recorded), "--json"])
    assert "before tanh" in json.loads(capsys.readouterr().out.splitlines()[-1])["std"]


def mixed(**changes: Any) -> dict[str, Any]:
    return {"mean": np.zeros(5), "var": np.ones(5)} | changes


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (mixed(var=np.array([1.0, -1.0, 1.0, 1.0, 1.0])), "its observations' statistics are damaged"),
        (mixed(mean=np.zeros(5) + 1j), "it holds complex128 where real numbers are expected"),
        (mixed(var=np.array(["1", "1", "1", "1", "1"])), "it holds <U1 where real numbers"),
    ],
)
def test_statistics_that_are_none_are_one_sentence_and_no_warning(arrays: Any, sentence: str, td3: Path) -> None:
    path = td3.with_name("seen.npz")
    np.savez(path, **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FileError, match=f"seen.npz .*{sentence}"):
            load_policy(td3, std=0.2, vecnormalize=str(path))


def test_statistics_without_a_clip_are_blamed_themselves(td3: Path) -> None:
    path = td3.with_name("seen.pkl")
    path.write_bytes(pickle.dumps(Seen(norm_obs=True)))
    with pytest.raises(FileError, match="seen.pkl is damaged, or no VecNormalize: 'clip_obs' is missing"):
        load_policy(td3, std=0.2, vecnormalize=str(path))
