"""Each usual cause of a training that broke when it was resumed, built on purpose and found."""

import copy
import functools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runners import collected, residual, runner, small_policy
from sb3_models import envs, model, trained
from stable_baselines3.common.vec_env import VecNormalize
from typed_commands import answered, typed

from repolicy.errors import FileError, UsageError
from repolicy.hosts.resuming import causes, first_ratios, read_checkpoint
from repolicy.policies.file import SavedPolicy

Change = Callable[[dict[str, Any]], Any]


@functools.cache
def whole() -> dict[str, Any]:
    """A checkpoint of rsl_rl after two iterations."""
    started = runner()
    started.learn(2)
    return started.alg.save() | {"iter": 2}


def saved(path: Path, *changes: Change) -> Path:
    """The checkpoint, changed."""
    checkpoint = copy.deepcopy(whole())
    for change in changes:
        change(checkpoint)
    torch.save(checkpoint, path)
    return path


def found(now: Path, before: Path | None = None) -> list[str]:
    """The causes in one file beside another."""
    return causes(read_checkpoint(now), before and read_checkpoint(before))


def doctor(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The causes that the command finds."""
    capsys.readouterr()  # what trained says
    return "; ".join(answered(capsys, "doctor", *map(str, words))["causes"])


def gone_on(checkpoint: dict[str, Any]) -> None:
    """As it is some iterations later."""
    for tensor in checkpoint["critic_state_dict"].values():
        tensor.add_(1)


def rate_at_its_start(checkpoint: dict[str, Any]) -> None:
    checkpoint["optimizer_state_dict"]["param_groups"][0]["lr"] = 0.5


def no_optimizer(checkpoint: dict[str, Any]) -> None:
    checkpoint["optimizer_state_dict"]["state"] = {}


def no_statistics(checkpoint: dict[str, Any]) -> None:
    actor = checkpoint["actor_state_dict"]
    checkpoint["actor_state_dict"] = {name: part for name, part in actor.items() if "normalizer" not in name}


def filled(name: str, number: float) -> Change:
    return lambda checkpoint: checkpoint["actor_state_dict"][name].fill_(number)


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (rate_at_its_start, "the learning rate is 0.5, and was"),
        (no_optimizer, "the optimizer's state is missing"),
        (filled("distribution.std_param", 1e-4), "the std has collapsed to 0.0001"),
        (filled("distribution.std_param", 3.0), "the std is 3, and was 0."),
        (no_statistics, "the statistics of observations are missing"),
        (filled("obs_normalizer.count", 1), "the statistics of observations moved"),
        (filled("obs_normalizer._mean", 2.0), "the statistics of observations moved"),
    ],
)
def test_each_cause_is_found_and_no_other(cause: Change, sentence: str, tmp_path: Path) -> None:
    [only] = found(saved(tmp_path / "now.pt", gone_on, cause), saved(tmp_path / "before.pt"))
    assert only.startswith(sentence)


def as_version_2(checkpoint: dict[str, Any]) -> None:
    """The statistics stand beside the model."""
    actor = checkpoint.pop("actor_state_dict")
    statistics = {name.split(".")[1]: part for name, part in actor.items() if "normalizer" in name}
    model = {name.replace("mlp", "actor"): part for name, part in actor.items() if "normalizer" not in name}
    checkpoint |= {"model_state_dict": model, "obs_norm_state_dict": statistics}


def as_version_3(checkpoint: dict[str, Any]) -> None:
    """Actor and critic stand in one dict, with a normalizer each."""
    actor, critic = checkpoint.pop("actor_state_dict"), checkpoint.pop("critic_state_dict")
    named = {f"actor_{name}".replace("actor_mlp", "actor"): part for name, part in actor.items()}
    checkpoint["model_state_dict"] = named | {f"critic_{name}": part for name, part in critic.items()}


@pytest.mark.parametrize("layout", [as_version_2, as_version_3])
def test_statistics_of_older_checkpoints_are_the_actor_s(layout: Change, tmp_path: Path) -> None:
    before = saved(tmp_path / "before.pt", layout)
    assert found(saved(tmp_path / "good.pt", gone_on, layout), before) == []
    [only] = found(saved(tmp_path / "moved.pt", gone_on, filled("obs_normalizer._mean", 2.0), layout), before)
    assert only.startswith("the statistics of observations moved")


def test_a_training_that_goes_on_has_none_and_an_old_critic_is_named(tmp_path: Path) -> None:
    def thrice_as_many(checkpoint: dict[str, Any]) -> None:
        checkpoint["actor_state_dict"]["obs_normalizer.count"] *= 3

    before, now = (saved(tmp_path / name) for name in ("before.pt", "now.pt"))
    [only] = found(now, before)
    assert only.startswith("the critic is the one of before: where the reward is another")
    assert found(saved(now, gone_on), before) == []
    nothing_seen = {"mean": np.zeros(3), "var": np.ones(3), "count": np.zeros(())}
    assert causes(*(read_checkpoint(path)._replace(statistics=nothing_seen) for path in (now, before))) == []
    moved = saved(now, gone_on, filled("obs_normalizer._mean", 2.0), thrice_as_many)
    assert found(moved, before) == [], "of few observations it moves"


def test_a_learning_rate_that_moves_by_itself_is_no_cause(tmp_path: Path) -> None:
    adaptive = residual(small_policy())
    del adaptive["schedule"]
    for algorithm, is_cause in ((adaptive, False), (adaptive | {"schedule": "fixed"}, True)):
        started = runner(algorithm=algorithm)
        started.learn(2)
        torch.save(started.alg.save(), tmp_path / "before.pt")
        rate_at_its_start(now := started.alg.save())
        torch.save(now, tmp_path / "now.pt")
        said = found(tmp_path / "now.pt", tmp_path / "before.pt")
        assert any("learning rate" in sentence for sentence in said) == is_cause
    model(prior=trained(), critic_warmup=0).save(tmp_path / "ours.zip")
    assert read_checkpoint(tmp_path / "ours.zip").adapts
    trained().save(tmp_path / "theirs.zip")
    assert not read_checkpoint(tmp_path / "theirs.zip").adapts


def test_what_is_usual_in_a_training_is_no_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """rsl_rl's own settings: an entropy bonus that stays, and a learning rate that its schedule moves."""
    for name, change in (("before", gone_on), ("now", rate_at_its_start)):
        (tmp_path / name / "params").mkdir(parents=True)
        settings = "algorithm:\n  entropy_coef: 0.005\n  schedule: adaptive\n"
        (tmp_path / name / "params/agent.yaml").write_text(settings)
        saved(tmp_path / name / "model_2.pt", change)
    assert doctor(capsys, tmp_path / "now", "--before", tmp_path / "before") == ""


@pytest.mark.parametrize(
    ("setting", "bonus"),
    [("entropy_coef: 0.01", 0.01), ("entropy_coef: 1e-05", 1e-05), ("entropy_coef: null", None)],
)
def test_an_entropy_bonus_is_found_in_the_settings_beside(tmp_path: Path, setting: str, bonus: float | None) -> None:
    path = saved(tmp_path / "model_2.pt")
    (tmp_path / "params").mkdir()
    (tmp_path / "params/agent.yaml").write_text(f"algorithm:\n  {setting}\n")
    sentence = f"the entropy bonus is on ({bonus}), which widens a policy that was narrow: set it to 0"
    assert found(path) == ([] if bonus is None else [sentence])


def test_a_model_of_stable_baselines3_is_read_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = trained()
    of.save(tmp_path / "before.zip")
    of.ent_coef = 0.02
    of.learning_rate, of.lr_schedule = 0.1, lambda left: 0.1
    of.learn(64)
    of.save(tmp_path / "now.zip")
    said = doctor(capsys, tmp_path / "now.zip", "--before", tmp_path / "before.zip")
    assert "the entropy bonus is on (0.02)" in said
    assert "the learning rate is 0.1, and was 0.0003" in said


def test_what_is_no_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    torch.save({"x": 1}, tmp_path / "x.pt")
    with pytest.raises(FileError, match="is no checkpoint of rsl_rl and no model of Stable-Baselines3"):
        read_checkpoint(tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("data", "{}")
    with pytest.raises(FileError):
        read_checkpoint(tmp_path / "x.zip")


def test_a_checkpoint_of_another_robot_is_one_sentence(tmp_path: Path) -> None:
    def wider(checkpoint: dict[str, Any]) -> None:
        for name, tensor in checkpoint["actor_state_dict"].items():
            if "std" in name and "normalizer" not in name:
                checkpoint["actor_state_dict"][name] = torch.ones(len(tensor) + 3)

    with pytest.raises(UsageError, match="--before is of another robot"):
        found(saved(tmp_path / "now.pt", gone_on), saved(tmp_path / "before.pt", wider))


def test_of_a_folder_the_newest_checkpoint_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "model_9.pt")
    saved(tmp_path / "model_10.pt", no_optimizer)
    assert "the optimizer's state is missing" in typed(capsys, "doctor", str(tmp_path))[1]


def test_an_actor_s_own_optimizer_counts(tmp_path: Path) -> None:
    sac = pytest.importorskip("stable_baselines3").SAC("MlpPolicy", "Pendulum-v1", learning_starts=10, device="cpu")
    sac.learn(20)
    sac.save(tmp_path / "sac.zip")
    assert read_checkpoint(tmp_path / "sac.zip").has_optimizer_state


def rollout(folder: Path) -> tuple[Path, Path]:
    """Return rsl_rl's checkpoint before its first update, and the batch that its policy sampled."""
    started = runner(algorithm=residual(small_policy()))
    storage = collected(started)
    torch.save(started.alg.save() | {"iter": 0}, folder / "model_0.pt")
    flat = {"observations": storage.observations["policy"], "actions": storage.actions}
    arrays = {name: tensor.flatten(0, 1).numpy() for name, tensor in flat.items()}
    (folder / "params").mkdir()
    (folder / "params/agent.yaml").write_text("actor:\n  activation: tanh\n")
    np.savez(folder / "first.npz", **arrays, log_probs=storage.actions_log_prob.flatten().numpy())
    return folder / "model_0.pt", folder / "first.npz"


def test_a_batch_that_another_policy_sampled_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, batch = rollout(tmp_path)
    asked = path, "--batch", batch
    assert "log-probabilities" not in doctor(capsys, *asked)
    (tmp_path / "params/agent.yaml").unlink()
    assert "log-probabilities" not in doctor(capsys, *asked, "--file-activation", "tanh")
    assert "which activation its network has" in doctor(capsys, *asked)
    checkpoint = torch.load(path)
    checkpoint["actor_state_dict"]["distribution.std_param"].mul_(2.0)
    torch.save(checkpoint, path)
    assert "the log-probabilities of the batch are not the checkpoint's" in doctor(capsys, *asked)


def test_a_buffer_of_stable_baselines3_has_its_observations_normalized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = VecNormalize(envs(), norm_reward=False)
    env.obs_rms.mean, env.training = np.full(3, 4.0), False
    of = trained(env)
    with torch.no_grad():
        of.policy.action_net.weight.mul_(100.0)
    of.save(tmp_path / "model.zip")
    env.save(tmp_path / "vecnormalize.pkl")
    _, callback = of._setup_learn(32)
    of.collect_rollouts(env, callback, of.rollout_buffer, of.n_steps)
    arrays = {name: getattr(of.rollout_buffer, name) for name in ("observations", "actions", "log_probs")}
    for change, outcome in ((0.0, False), (0.5, True)):
        np.savez(tmp_path / "first.npz", **arrays | {"observations": arrays["observations"] + change})
        said = doctor(capsys, tmp_path / "model.zip", "--batch", tmp_path / "first.npz")
        assert ("log-probabilities" in said) is outcome


@pytest.mark.parametrize(
    ("name", "array", "sentence"),
    [
        ("actions", np.zeros((3, 4)), "actions have the shape"),
        ("observations", np.full((3, 3), np.nan), "not finite, the first in row 0"),
        ("observations", np.array([["a"] * 3] * 3), "observations have the shape"),
    ],
)
def test_a_batch_of_another_shape_is_one_sentence(tmp_path: Path, name: str, array: Any, sentence: str) -> None:
    arrays = {"observations": np.zeros((3, 3)), "actions": np.zeros((3, 2)), "log_probs": np.zeros(3)} | {name: array}
    np.savez(tmp_path / "batch.npz", **arrays)
    with pytest.raises(FileError, match=sentence):
        first_ratios(SavedPolicy(small_policy(), None, {}), tmp_path / "batch.npz")
