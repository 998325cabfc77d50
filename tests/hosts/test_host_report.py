"""`repolicy report` of a run in a host: its curves and the verdict, from the checkpoint alone."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from runner_envs import Drift
from runners import checkpoint, residual, runner, small_policy
from sb3_models import Drift as SmallDrift
from sb3_models import residual as sb3
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from repolicy.cli import main as cli
from repolicy.errors import FileError
from repolicy.evaluation import Evaluation
from repolicy.hosts.measuring import MIN_SHARED_ENVS
from repolicy.hosts.sb3 import ResidualPPO, Unclipped
from repolicy.policies.file import save_policy
from repolicy.report.host_page import read_stored, to_evaluation, write_host_report
from repolicy.report.verdict import verdict

pytestmark = pytest.mark.usefixtures("_short_episodes")


def reported(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What the command says, and the page."""
    capsys.readouterr()
    cli.main(["report", str(path), "--json"])
    told = capsys.readouterr()
    return told.err, Path(json.loads(told.out)["report"]).read_text()


def test_a_runners_folder_tells_its_curves_and_the_verdict_that_learning_ended_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = residual(small_policy(), addon="addon", critic_warmup=None, schedule="fixed")
    started = runner(algorithm=how, env=Drift(count=40), folder=tmp_path, max_iterations=3)
    started.learn(3)
    said = capsys.readouterr().out
    assert said.count("prior with the mean action: total reward") == 1
    method = started.alg.method
    assert method.curves["steps"] == [240, 480, 720]
    assert all(len(values) == 3 for values in method.curves.values())
    told = read_stored(tmp_path / "model_2.pt")
    assert told["curves"] == method.curves
    words, page = reported(tmp_path, capsys)
    ended = verdict([(to_evaluation(a), to_evaluation(b)) for a, b in (told["compared"][:2], told["compared"][2:])])
    assert "\n".join(ended) in said
    assert " ".join(ended) in words.replace("\n", " ")
    assert all(title in page for title in ("KL to the prior", "Task&#x27;s reward a step", "log prior, a step"))
    again = runner(algorithm=how, env=Drift(count=40))
    again.load(str(tmp_path / "model_2.pt"))
    again.learn(1)
    assert again.alg.method.curves["steps"] == [240, 480, 720, 960]
    assert again.alg.method.curves["prior_kl"][:3] == method.curves["prior_kl"]


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_saved_model_tells_its_curves_and_the_verdict_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warmup: int
) -> None:
    env = DummyVecEnv([lambda: Unclipped(SmallDrift())] * 32)
    model = sb3(env=env, prior=small.small_policy(), batch_size=256, critic_warmup=warmup).learn(1)
    model.save(tmp_path / "model.zip")
    _, page = reported(tmp_path / "model.zip", capsys)
    assert "No verdict is in it: `model.verdict()`" in page
    said = model.verdict()
    model.save(tmp_path / "model.zip")
    words, page = reported(tmp_path / "model.zip", capsys)
    assert said.splitlines()[-1] in words.replace("\n", " ")
    for told in (words.replace("\n", " "), page):
        assert ("actor has only waited for the critic so far" in told) == bool(warmup)
    assert (tmp_path / "model.html").read_text() == page
    again = ResidualPPO.load(tmp_path / "model.zip", model.env)
    assert again.method.curves == model.method.curves


def test_episodes_are_told_whole() -> None:
    told = {"who": "customized", "sampled": True, "basic": [None, 1.0], "addon": [2.0, 3.0], "lengths": [4, 5]}
    found = to_evaluation(told)
    assert isinstance(found, Evaluation)
    assert not found.deterministic
    assert np.isnan(found.basic).all()
    assert "total_reward" not in found.columns
    assert found.columns["addon_reward"].mean == 2.5


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("missing", lambda path: None),
        ("folder", Path.mkdir),
        ("a_list", lambda path: torch.save([1], path)),
        ("mlp-1.pt", lambda path: checkpoint(path.parent)),
        ("theirs.zip", lambda path: PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8).save(path)),
        ("ours.safetensors", lambda path: save_policy(path, small_policy(), {})),
    ],
)
def test_what_has_no_curves_is_refused(tmp_path: Path, name: str, make: Any, capsys: Any) -> None:
    make(tmp_path / name)
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(tmp_path / name)])
    said = capsys.readouterr().err
    assert ended.value.code in (1, 2)
    assert name in said.replace("\n", "")
    assert "Traceback" not in said
    is_policy = name in ("theirs.zip", "ours.safetensors")
    assert not is_policy or "has no curves of ResidualPPO in it; name a run's folder, or" in said


@pytest.mark.parametrize(
    "kept_there", [{"curves": {}}, {"curves": {"steps": 3, "std": [1, 2]}, "objective": {}, "iterations": 1}]
)
def test_a_forged_checkpoint_is_one_sentence(tmp_path: Path, kept_there: dict[str, Any]) -> None:
    torch.save({"residual": kept_there}, tmp_path / "model_1.pt")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("data", json.dumps({"position": kept_there}))
        archive.writestr("policy.pth", b"")
    with zipfile.ZipFile(tmp_path / "cut.zip", "w") as archive:
        archive.writestr("data", "{")
        archive.writestr("policy.pth", b"")
    for name in ("model_1.pt", "model.zip", "cut.zip"):
        with pytest.raises(FileError, match="is damaged"):
            write_host_report(tmp_path / name)
        assert not (tmp_path / name).with_suffix(".html").exists()


def test_many_environments_whose_actions_are_choices_give_a_verdict() -> None:
    env = DummyVecEnv([lambda: SmallDrift(acts="choice")] * MIN_SHARED_ENVS)
    model = sb3(env=env, prior=small.small_policy(family="categorical"))
    assert "prior with the mean action: " in model.verdict()
