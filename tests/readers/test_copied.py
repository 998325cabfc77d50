"""Other libraries' policies as priors: copied, run with, kept in a run's folder, and what is said about them."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_graphs import graph, node
from small_runs import Log
from tiny_envs import tiny
from torch import nn
from typed_commands import failed

import repolicy
from repolicy.cli.main import main
from repolicy.envs.making import make_envs, match_observation, with_observation_roles
from repolicy.errors import FileError, UsageError
from repolicy.learning.training import customize
from repolicy.objective import residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.priors.opening import load_policy, read_policy
from repolicy.readers.copying import policy_from
from repolicy.readers.description import HiddenLayer, LayerNorm, Linear, Normalizer, Perceptron, PolicyDescription, Std
from repolicy.readers.reading import Options
from repolicy.runs.folder import RunFolder
from repolicy.runs.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of what a file does not tell
SETTINGS = Settings(steps=64, ranks=1, envs=4, n_steps=8, minibatch=32, evaluation_episodes=1, hidden=(8,))


def rsl_rl(path: Path, size: int = 1, actions: int = 1, std: float = 0.3) -> tuple[Path, nn.Sequential]:
    """A checkpoint as rsl_rl 2 writes it, and its actor."""
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(size, 8), nn.ELU(), nn.Linear(8, actions))
    tensors = {f"actor.{name}": values for name, values in actor.state_dict().items()}
    torch.save({"model_state_dict": tensors | {"std": torch.full((actions,), std)}, "iter": 1}, path)
    return path, actor


def effort(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return -np.square(actions).sum(-1)


def run(prior: Any, out: Path, **options: Any) -> Any:
    addon, env = f"{Path(__file__)}:effort", tiny("WithoutReward")
    return customize(prior, addon, residual(0.1, 0.1), out, SETTINGS, env=env, **options)


def test_a_run_from_another_librarys_file_keeps_all_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, actor = rsl_rl(tmp_path / "model_7.pt")
    listener = Log()
    run(path, tmp_path / "run", callbacks=[listener])
    assert any("elu, is assumed" in sentence for sentence in listener.said)
    assert any(sentence.startswith("add-on") for sentence in listener.said)
    kept = read_policy(tmp_path / "run" / "prior.safetensors")
    obs = torch.randn(16, 1)
    torch.testing.assert_close(kept.policy(obs).mode(), actor(obs).detach(), rtol=1e-5, atol=1e-6)
    origin = kept.card["origin"]
    assert (origin["library"], origin["file"]) == ("rsl_rl", "model_7.pt")
    assert origin["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    request = RunFolder(tmp_path / "run").request()
    assert request.prior == hashlib.sha256((tmp_path / "run" / "prior.safetensors").read_bytes()).hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr("repolicy.policies.file.policy_bytes", lambda *_: b"rounded otherwise on another machine")
        assert run(path, tmp_path / "run", resume=True).finished
    rsl_rl(path, std=0.4)
    with pytest.raises(UsageError, match="began with another prior: name that one, or .*prior.safetensors"):
        run(path, tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="began with another prior"):  # not: it takes observations of 11 numbers
        run("hopper", tmp_path / "run", resume=True)
    path.unlink()
    assert run(tmp_path / "run" / "prior.safetensors", tmp_path / "run", resume=True).finished


def test_a_resumed_run_notices_that_the_statistics_changed(tmp_path: Path) -> None:
    path, statistics = rsl_rl(tmp_path / "model_7.pt")[0], tmp_path / "seen.npz"
    reading = Options(vecnormalize=str(statistics))
    np.savez(statistics, mean=np.zeros(1), var=np.ones(1))
    run(path, tmp_path / "run", reading=reading)
    assert run(path, tmp_path / "run", reading=reading, resume=True).finished
    np.savez(statistics, mean=np.ones(1), var=np.ones(1))
    with pytest.raises(UsageError, match="began with another prior"):
        run(path, tmp_path / "run", reading=reading, resume=True)


def test_what_a_file_does_not_tell_is_a_warning_and_an_option_in_python(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Repolicy's own file: leave out std, for files"):
        load_policy("halfcheetah", std=0.1)
    path, _ = rsl_rl(tmp_path / "model_7.pt")
    with pytest.warns(UserWarning, match=r"which activation .* is assumed \(activation says otherwise\)") as warned:
        load_policy(path)
    assert {each.filename for each in warned} == {__file__}
    assert load_policy(path, activation="relu").spec.activation == "relu"


def test_a_std_that_a_file_does_not_hold_is_given(tmp_path: Path) -> None:
    path = graph(tmp_path / "policy.onnx", [node("MatMul", "obs w", "out")], {"w": np.ones((5, 3))})
    with pytest.raises(UsageError, match=r"has no std: give one, such as std=0.2"):
        load_policy(path)
    actions = torch.tensor([[4.9, 5.0, 5.3]])
    wanted = torch.distributions.Normal(torch.full((1, 3), 5.0), 0.2).log_prob(actions).sum(-1)
    torch.testing.assert_close(load_policy(path, std=0.2).log_prob(torch.ones(1, 5), actions), wanted)


def test_scales_and_stds_of_any_size_are_copied() -> None:
    """A normalizer may turn a number around, or divide by next to nothing; a std may come from a layer of its own."""
    generator = np.random.default_rng(0)
    mean, raw = (Linear(generator.normal(size=(2, 3)).astype(np.float32), np.ones(2, np.float32)) for _ in range(2))
    shift, scale = np.array([1.0, 0.0, -2.0]), np.array([-2.0, 1e6, 0.5])
    described = PolicyDescription(
        "a library", "", "policy", Perceptron((), mean, "tanh"), ActionSpace("continuous", (2,)),
        std=Std("head", raw, "softplus", floor=0.01), normalizer=Normalizer(shift, scale, 3.0),
    )  # fmt: skip
    obs = np.array([[0.5, 1e-6, 4.0], [3.0, -9.0, -2.5]])
    inputs = torch.from_numpy(np.clip((obs - shift) * scale, -3.0, 3.0))
    wanted = inputs @ torch.from_numpy(mean.weight).double().T + 1.0
    std = nn.functional.softplus(inputs @ torch.from_numpy(raw.weight).double().T + 1.0) + 0.01
    policy = policy_from(described).double()
    actions = wanted + 0.7 * std
    expected = torch.distributions.Normal(wanted, std).log_prob(actions).sum(-1)
    torch.testing.assert_close(policy.log_prob(torch.from_numpy(obs), actions), expected, rtol=1e-5, atol=1e-5)


def parts(**shapes: tuple[int, ...]) -> PolicyDescription:
    """A policy of 3 observations and 2 actions with LayerNorms, whose std is a layer; some parts have these shapes."""
    ones = {
        name: np.ones(shape) for name, shape in ({"std": (2, 4), "norm": 4, "shift": 3, "bias": 4} | shapes).items()
    }
    norm = LayerNorm(ones["norm"], np.ones(4), 1e-5, "before")
    hidden = HiddenLayer(Linear(np.ones((4, 3)), ones["bias"]), norm)
    head = ones["std"] if ones["std"].ndim == 1 else Linear(ones["std"], np.ones(len(ones["std"])))
    return PolicyDescription(
        "a library", "", "policy", Perceptron((hidden,), Linear(np.ones((2, 4)), np.ones(2)), "tanh"),
        ActionSpace("continuous", (2,)), std=Std("vector" if ones["std"].ndim == 1 else "head", head),
        normalizer=Normalizer(ones["shift"], np.ones(3)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("part", "shape", "what"),
    [
        ("std", (3, 4), "network.weights.1"),
        ("std", (2, 5), "dimensions .* must match"),
        ("std", (3,), "log_std"),
        ("std", (1,), "log_std"),
        ("norm", (1,), "network.norms.0.weight"),
        ("shift", (1,), "normalizer.mean"),
        ("bias", (1,), "network.biases.0"),
    ],
)
def test_parts_that_do_not_fit_are_one_sentence(part: str, shape: tuple[int, ...], what: str) -> None:
    """A size of 1 is not stretched either."""
    assert policy_from(parts()).spec.hidden == (4,)
    with pytest.raises(FileError, match=f"^this policy of a library is damaged: .*{what}[^\n]*$"):
        policy_from(parts(**{part: shape}))


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is:DeprecationWarning")
def test_the_commands_take_another_librarys_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, actor = rsl_rl(tmp_path / "model_7.pt", 3)
    main(["inspect", str(path)])
    said = "".join(capsys.readouterr())
    assert "PPO of rsl_rl" in said
    assert "the environment (--env)" in said
    main(["evaluate", str(path), "--env", "Pendulum-v1", "--episodes", "1", "--backend", "gymnasium",
          "--out", str(tmp_path / "episodes.json")])  # fmt: skip
    assert "elu, is assumed" in capsys.readouterr().err
    main(["export", str(path), "--out", str(tmp_path / "out.pt")])
    obs = torch.randn(5, 3)
    torch.testing.assert_close(torch.jit.load(tmp_path / "out.pt")(obs), actor(obs).detach(), rtol=1e-5, atol=1e-6)
    words = ["customize", path, "--addon", "height", "--omega", "1", "--alpha", "1"]
    assert "name one with --env" in failed(capsys, *words)
    assert "'Hopper-v4' gives 11" in failed(capsys, *words, "--env", "Hopper-v4")


def test_a_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path, _ = rsl_rl(tmp_path / "model_7.pt")
    shutil.copy(path, tmp_path / "odd.name")
    assert load_policy(tmp_path / "odd.name").observation_size == 1
    own = Path(repolicy.__file__).parent / "priors" / "shipped" / "halfcheetah.safetensors"
    shutil.copy(own, tmp_path / "cheetah.zip")
    assert load_policy(tmp_path / "cheetah.zip").observation_size == 17
    (tmp_path / "text.pt").write_text("nothing of the kind")
    with pytest.raises(FileError, match="no policy of a known layout; known are Stable-Baselines3"):
        load_policy(tmp_path / "text.pt")


# Parts of an observation ----------------------------------------------------------------------------------------------
def test_the_part_of_a_dict_that_fits_is_observed() -> None:
    name = tiny("Groups")
    assert match_observation(name, 5) == name  # all of it
    assert match_observation(name, 2) == f"{name}?observe=state"
    assert match_observation(name, 3) == f"{name}?observe=privileged"
    assert match_observation(name, 7) == name  # nothing fits: whoever checks says so
    for wanted, size in (("state", 2), ("state,privileged", 5)):
        envs = make_envs(f"{name}?observe={wanted}", 2, 0)
        first, second = envs.reset(), envs.step(np.zeros((2, 1), np.float32)).observations
        envs.close()
        assert envs.observation_size == first.shape[1] == second.shape[1] == size
        expected = [1.0, 1.0] if wanted == "state" else [1.0, 1.0, 2.0, 2.0, 2.0]
        assert first[0].tolist() == second[1].tolist() == expected
    with pytest.raises(UsageError, match="has no observation 'stat'; did you mean state"):
        make_envs(f"{name}?observe=stat", 1, 0)
    with pytest.raises(UsageError, match="its observation is no Dict"):
        make_envs("Pendulum-v1?observe=state", 1, 0)


def test_the_parts_that_a_file_names_are_observed_in_its_order(tmp_path: Path) -> None:
    path, name = rsl_rl(tmp_path / "model_7.pt", 5)[0], tiny("Groups")
    (tmp_path / "params").mkdir()
    for groups, found in (("state, privileged", f"{name}?observe=state,privileged"), ("state, imu", name)):
        (tmp_path / "params" / "agent.yaml").write_text(f"obs_groups:\n  policy: [{groups}]\n  critic: [state]\n")
        saved = read_policy(path)
        save_policy(tmp_path / "kept.safetensors", saved.policy, saved.card)
        for policy in (saved.policy, load_policy(tmp_path / "kept.safetensors")):
            assert match_observation(name, policy) == found
            assert with_observation_roles(name, policy) == found


def test_envpools_playground_tasks_give_the_part_that_fits() -> None:
    pytest.importorskip("envpool")
    envs = make_envs("Go1JoystickFlatTerrain-v1", 1, 0)
    assert envs.groups == {"state": 48, "privileged_state": 123}
    assert match_observation("Go1JoystickFlatTerrain-v1", 48).endswith("?observe=state")


def test_playgrounds_go1_walks(real: Any) -> None:
    path = real("mujoco_playground/go1_policy.onnx")
    pytest.importorskip("onnx")
    pytest.importorskip("envpool")
    found = repolicy.evaluate(path, "Go1JoystickFlatTerrain-v1", 1, addon="energy")
    assert found.lengths.tolist() == [1000]
    assert 25.0 < found.basic.mean() < 33.0
    assert found.addon.max() < 0.0
