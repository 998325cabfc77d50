"""What rsl_rl's adapter cannot do, in one sentence each."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from runner_envs import ACTIONS, OURS, SIZE, Drift
from runners import checkpoint, collected, residual, runner, small_policy

from repolicy import load_policy
from repolicy.errors import FileError, UsageError
from repolicy.hosts.prior_reward import prior_reward


def test_a_prior_of_other_sizes_is_refused_with_both(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="acts with 1 number, but the environment takes 2 numbers"):
        runner(algorithm=residual(small_policy(actions=1)))
    with pytest.raises(UsageError, match=r"hidden layers \[8\], and the actor has \[16, 16\]"):
        runner(algorithm=residual(small_policy(hidden=(8,))))
    path = checkpoint(tmp_path)
    with pytest.raises(UsageError, match=r"size mismatch for mlp.2.bias: .*\[16\]\) from .*\[2\]"):
        runner(algorithm=residual(str(path)), actor={"hidden_dims": [5]})


def test_a_prior_that_was_trained_with_other_settings_is_refused(tmp_path: Path, capsys: Any) -> None:
    """Isaac Lab and mjlab write them beside the checkpoints; where nobody does, that is said."""
    runner("cnn", residual(str(checkpoint(tmp_path, "cnn"))))
    assert "Tanh and policy, camera, the actor's, are assumed" in capsys.readouterr().out
    path = str(checkpoint(tmp_path))
    runner(algorithm=residual(path))
    assert "does not say which activation its network has, nor which obs" in capsys.readouterr().out
    (tmp_path / "params").mkdir()
    written = "obs_groups:\n  actor:\n  - {}\n  critic:\n  - policy\nactor:\n  class_name: MLPModel\n  activation: {}\n"
    for group, activation, said in (
        ("policy", "tanh", None),
        ("policy", "elu", "the prior has the activation elu, and the actor Tanh: give the actor"),
        ("proprio", "tanh", "the prior saw the groups proprio, and the actor policy: give the actor"),
    ):
        (tmp_path / "params" / "agent.yaml").write_text(written.format(group, activation))
        if said:
            with pytest.raises(UsageError, match=said):
                runner(algorithm=residual(path))
            continue
        runner(algorithm=residual(path))
        assert "does not say which" not in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_checkpoint_of_the_runner_s_takes_no_reading_and_elsewhere_it_takes_an_activation(tmp_path: Path) -> None:
    path = str(checkpoint(tmp_path))
    runner(algorithm=residual({"path": path, "trust": False}))
    with pytest.raises(UsageError, match="is the runner's checkpoint, and has no use for std, vecnormalize"):
        runner(algorithm=residual({"path": path, "std": 0.2, "vecnormalize": "none"}))
    observations, actions = torch.randn(7, SIZE), torch.randn(7, ACTIONS)
    found = prior_reward({"path": path, "activation": "tanh"}, 1.0, 0.0)(observations, actions, *torch.zeros(2, 7))
    torch.testing.assert_close(found, load_policy(path, activation="tanh").log_prob(observations, actions))


def test_a_checkpoint_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"actor_state_dict": Trap()}, tmp_path / "trap.pt")
    torch.save({"actor_state_dict": {"mlp.0.weight": Trap()}}, tmp_path / "inside.pt")
    for name, said in (("trap", "no policy of a known layout"), ("inside", "mlp.0.weight is .* and no tensor")):
        with pytest.raises(FileError, match=said):
            runner(algorithm=residual(str(tmp_path / f"{name}.pt")))
        assert not (tmp_path / "ran").exists()


def test_a_damaged_checkpoint_is_no_prior(tmp_path: Path) -> None:
    whole = checkpoint(tmp_path).read_bytes()
    weight = torch.load(checkpoint(tmp_path), weights_only=True)["actor_state_dict"]["mlp.0.weight"].numpy().tobytes()
    damaged, place = bytearray(whole), whole.index(weight)
    damaged[place + 9] ^= 64
    contents = {bytes(damaged): "CRC", whole[:-100]: "no whole zip", b"": "model.pt", b"\0" * 100: "model.pt"}
    for content, said in contents.items():
        (tmp_path / "model.pt").write_bytes(content)
        with pytest.raises(FileError, match=said):
            runner(algorithm=residual(str(tmp_path / "model.pt")))
    loaded = torch.load(checkpoint(tmp_path), weights_only=True)
    loaded["actor_state_dict"]["mlp.0.bias"][0] = torch.nan
    torch.save(loaded, tmp_path / "nan.pt")
    with pytest.raises(FileError, match="mlp.0.bias has numbers that are not finite"):
        runner(algorithm=residual(str(tmp_path / "nan.pt")))


def test_clipped_actions_with_nothing_to_hold_the_std_are_refused() -> None:
    with pytest.raises(UsageError, match=r"clips actions \(clip_actions\), so nothing bounds the std"):
        runner(algorithm=residual(omega=0.0), env=Drift(clip_actions=1.0))
    for omega in (0.3, None):  # a prior holds it, also where its weight is measured
        runner(algorithm=residual(small_policy(), omega), env=Drift(clip_actions=1.0))


def test_a_missing_entry_of_extras_is_named() -> None:
    for addon, said in (
        ("wish", "; there is addon, log, time_outs"),
        ("log", r", and that must be a tensor of \d+ numb"),
    ):
        ours = runner(algorithm={"class_name": OURS, "omega": 0, "alpha": 0, "addon": addon})
        with pytest.raises(UsageError, match=f"the add-on is '{addon}' in the environment's extras{said}"):
            collected(ours)


@pytest.mark.parametrize("found", ["3.1", "4.9.9", "6.0.0"])
def test_an_rsl_rl_that_may_lack_what_is_imported_is_named_by_its_version(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """In 3.x there is no `GaussianDistribution`, so that the import fails."""
    import rsl_rl.modules

    monkeypatch.delattr(rsl_rl.modules, "GaussianDistribution")
    for name in ("rsl_rl", "rsl_rl_networks"):
        monkeypatch.delitem(sys.modules, f"repolicy.hosts.{name}", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda package: found)
    with pytest.raises(UsageError, match=f"rsl-rl-lib {found} is installed, and .* works with rsl-rl-lib>=5.0,<6.0"):
        __import__("repolicy.hosts.rsl_rl")


@pytest.mark.parametrize(
    ("module", "host", "extra"), [("rsl_rl", "rsl_rl", "rsl-rl"), ("sb3", "stable_baselines3", "sb3")]
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, host: str, extra: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == host or f".hosts.{module}" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, host, None)
    with pytest.raises(UsageError, match=rf"not installed: pip install 'repolicy\[{extra}\]'"):
        __import__(f"repolicy.hosts.{module}")


HEAD = {"class_name": "HeteroscedasticGaussianDistribution"}
RANGES = [({"class_name": "GaussianDistribution"}, "std_range"), ({"class_name": "BetaDistribution"}, "action_range")]


@pytest.mark.parametrize(
    ("network", "trained", "today", "said"),
    [
        ("mlp", HEAD | {"std_type": "log"}, HEAD, "the std_type log, and the actor scalar"),
        ("mlp", HEAD, {"class_name": "BetaDistribution"}, "a HeteroscedasticGaussianDistribution, and the actor"),
        ("cnn", {"class_name": "GaussianDistribution"}, None, "the activation tanh, and the actor ELU"),
        *(
            ("mlp", made | {name: (0.5, 2.0)}, made | other, rf"the {name} \[0.5, 2.0\], and the actor")
            for made, name in RANGES
            for other in ({}, {name: (0.5, 3.0)})
        ),
    ],
)
def test_a_prior_whose_tensors_fit_and_mean_something_else_is_refused(
    network: str, trained: dict[str, Any], today: dict[str, Any] | None, said: str, tmp_path: Path
) -> None:
    """The settings beside it name its distribution, where two lists of groups may be one in YAML."""
    path = str(tmp_path / "model_1.pt")
    runner(network, actor={"distribution_cfg": trained}).save(path)
    written = "\n".join(f"    {name}: {value}" for name, value in trained.items()).translate({40: "[", 41: "]"})
    groups = "obs_groups:\n  actor: &id001\n  - policy\n  - camera\n  critic: *id001\n"
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "agent.yaml").write_text(
        f"{groups}actor:\n  activation: tanh\n  distribution_cfg:\n{written}\n"
    )
    runner(network, residual(path), actor={"distribution_cfg": trained})
    other = {"activation": "elu"} if today is None else {"distribution_cfg": today}
    with pytest.raises(UsageError, match=f"the prior has {said}"):
        runner(network, residual(path), actor={"distribution_cfg": trained} | other)
