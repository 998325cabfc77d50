"""Policies travel by a hub: a fake one on this machine, which speaks as much of its language as is needed."""

import errno
import hashlib
import importlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from noise_worlds import HERE, RIGHT, WALK
from quick_graphs import quick_graph
from tiny_envs import tiny
from torch import nn
from typed_commands import typed

import repolicy
from repolicy.errors import FileError, UsageError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare.generative import noise_prior, standard_normal
from repolicy.priors import hub
from repolicy.ranges import Dial
from repolicy.report import publish
from repolicy.report.publish import push

pytest.importorskip("huggingface_hub")
from benchmarks.pretended_hub import Hub, endpoint, serving

ENV = tiny("LinearQuadratic")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, bytes]]]:
    """The repositories of a hub that runs while the test does."""
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "cache") as repositories:
        yield repositories


def a_policy(name: str = "mine.safetensors", **card: Any) -> Policy:
    policy = Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(4,)))
    repolicy.save_policy(name, policy, card)
    return policy


def pushed_card(files: dict[str, dict[str, bytes]], policy: str | Path, **options: Any) -> str:
    """The card of a policy that is pushed, with one episode."""
    push(policy, "hf://somebody/pushed", trust=True, **{"episodes": 1} | options)
    return files["somebody/pushed"]["README.md"].decode()


def test_what_is_pushed_comes_back_as_a_prior(
    files: dict[str, dict[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    policy = a_policy(request={"env": ENV, "objective": {"alpha": 0.1}})
    Path("mine.gif").write_bytes(b"GIF89a")
    pushed = ["push", "mine.safetensors", "hf://somebody/mine", "--license", "mit", "--episodes", "3", "--trust"]
    code, _, said = typed(capsys, *pushed)
    assert (code, "pushed: hf://somebody/mine, policy.safetensors, README.md, mine.gif" in said) == (0, True), said
    assert set(files["somebody/mine"]) == {"policy.safetensors", "README.md", "mine.gif"}
    assert files["somebody/mine"]["policy.safetensors"] == Path("mine.safetensors").read_bytes()

    states = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    ours = policy.predict(states, deterministic=True)[0]
    for name in ("hf://somebody/mine", "hf://somebody/mine@v1", Path("hf://somebody/mine")):
        np.testing.assert_array_equal(repolicy.load_policy(name).predict(states, deterministic=True)[0], ours)
    assert not Path("cache/models--somebody--mine/snapshots", "c" * 40, "README.md").exists()  # one file, no more
    code, _, said = typed(capsys, "evaluate", "hf://somebody/mine", "--episodes", "2", "--trust", "--json")
    assert code == 0, said
    assert list(Path().glob("evaluation-policy-*.json"))  # here, and not in the hub's cache
    assert typed(capsys, "inspect", "hf://somebody/mine")[0] == 0
    code, _, said = typed(capsys, "evaluate", "hf://somebody/mine")
    assert (code, "names code that would be run" in said) == (2, True)  # a stranger's file, as any other


def test_the_card_has_table_license_and_how_to_repeat(
    files: dict[str, dict[str, bytes]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = repolicy.Settings(steps=256, envs=8, n_steps=16, minibatch=64, checkpoint_every=1, hidden=(4,), ranks=1)
    Path("this|that.py").write_text("def stay_near(*transitions): return 0.1 * transitions[2][:, 0]\n")
    prior, wishes = a_policy(request={"env": ENV}), [tiny("stay_near"), f"{Path('this|that.py').resolve()}:stay_near"]
    result = repolicy.customize(prior, wishes, repolicy.residual(0.3, 0.1), "runs/near", settings, env=ENV)
    Path("runs/near/policy.mp4").write_bytes(b"film")
    done = push(result.folder, "hf://somebody/near", episodes=3, trust=True)
    assert done["files"] == ["policy.safetensors", "README.md", "policy.mp4"]
    header, _, text = files["somebody/near"]["README.md"].decode().removeprefix("---\n").partition("\n---\n")
    assert {"license: unknown", "library_name: repolicy"} <= set(header.splitlines())
    assert "| prior |" in text
    assert len({row.replace("\\|", "").count("|") for row in text.splitlines() if row.startswith("|")}) == 1
    assert "| customized |" in text
    assert "Mean ± std over 3 episodes" in text
    assert '<video src="policy.mp4"' in text
    assert "repolicy customize hf://somebody/near --env ENV --addon NAME" in text
    assert "repolicy customize PRIOR --env " in text.partition("## Make it again")[2]
    assert "--out runs/near-again" in text
    assert "--omega 0.3 --alpha 0.1" in text.partition("## Make it again")[2]
    monkeypatch.chdir("runs/near")
    push(".", "hf://somebody/near", episodes=1, trust=True)
    one = files["somebody/near"]["README.md"].decode()
    assert "\nOne episode with the mean action.\n" in one
    again = one.partition("## Make it again")[2].partition("Made with")[0]
    assert again == text.partition("## Make it again")[2].partition("Made with")[0]
    monkeypatch.chdir("../..")
    assert hashlib.sha256(files["somebody/near"]["policy.safetensors"]).hexdigest() in text
    assert typed(capsys, "dial", "runs/near", "--at", "0.5", "--how", "weights", "--trust")[0] == 0
    for beside in ("prior", "policy-weights-0.5"):  # no run of that command ends with these
        assert "Make it again" not in pushed_card(files, f"runs/near/{beside}.safetensors", env=ENV)
    Path("moved.safetensors").write_bytes((result.folder / "policy.safetensors").read_bytes())  # out of its run
    assert "--steps 256 " in pushed_card(files, "moved.safetensors").partition("## Make it again")[2]
    assert typed(capsys, "push", "runs/near", "hf://somebody/near", "--episodes", "1")[0] == 2  # it names code


def test_the_card_says_whether_limits_hold_and_enough_is_kept(files: dict[str, dict[str, bytes]]) -> None:
    limit, wish = f"{tiny('stay_near')}>=-1e9", tiny("stay_near")
    request = {"env": ENV, "addons": [wish], "limits": [limit], "settings": {"keep": 0.5}}
    save_policy(Path("held.safetensors"), a_policy(), {"request": request}, prior=a_policy())
    card = pushed_card(files, "held.safetensors", episodes=3)
    assert re.search(r"limit \S*stay_near>=\S+ holds \(", card)
    assert "of the old return, and 50% was asked for: " in card


def test_an_add_on_of_another_environment_is_left_out_with_a_note(files: dict[str, dict[str, bytes]]) -> None:
    said = list[str]()
    request = {"env": "Hopper-v4", "addons": ["height"]}
    policy = Policy(PolicySpec(3, ActionSpace("continuous", (1,)), hidden=(4,)))
    save_policy(Path("held.safetensors"), policy, {"request": request}, prior=policy)
    card = pushed_card(files, "held.safetensors", env="Pendulum-v1", say=said.append)
    assert "| basic reward |" in card
    assert "add-on reward" not in card
    assert said[0].startswith("the policy's own add-on is left out: add-on 'height' reads the numbers of Hopper")


def test_what_a_file_says_does_not_leave_its_place_on_the_card(files: dict[str, dict[str, bytes]]) -> None:
    card = {"command": "repolicy train x\n```\n<img src=x>`", "versions": {"torch": "`<b>`"}}
    save_policy("theirs.safetensors", a_policy(), card)
    text = pushed_card(files, "theirs.safetensors", env=ENV)
    assert text.count("```") == 4  # two blocks, each with a beginning and an end
    assert "Made with `torch '<b>'`." in text


def test_a_card_of_residual_q_learning_repeats_its_command(files: dict[str, dict[str, bytes]]) -> None:
    command, request = "repolicy rql train Walk-v0 --alpha 0.5", {"env": ENV, "method": "dqn"}
    save_policy("q/policy.safetensors", a_policy(), {"request": request, "command": command})
    Path("q/run.json").write_text(json.dumps({"request": request}))
    assert command in pushed_card(files, "q").partition("## Make it again")[2]


def test_a_dial_is_not_pushed_and_no_repository_is_made_for_it(files: dict[str, dict[str, bytes]]) -> None:
    repolicy.save_policy("dial.safetensors", ConditionedPolicy.from_prior(a_policy(), (Dial("omega", 0.1, 1.0),)))
    with pytest.raises(UsageError, match="is one for every omega from 0.1 to 1, so it must be told which"):
        pushed_card(files, "dial.safetensors", env=ENV)
    assert not files


class Decode(nn.Module):
    """Its action is the noise beside a little of what is seen."""

    def forward(self, seen: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return noise + 0.1 * seen[:, :1]


def test_a_card_says_what_else_must_be_typed(
    files: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    Path("flow.onnx").write_bytes(quick_graph(Decode(), (torch.zeros(2, 3), torch.zeros(2, 1))))
    for name, env, option in (
        ("named", "Pendulum-v1?max_episode_steps=9", "--env 'Pendulum-v1?max_episode_steps=9'"),
        ("code", "", "--env ENV"),
        ("decoder", "", "--trust"),
    ):
        decoder = {"code": f"{HERE}:same", "decoder": "flow.onnx"}.get(name)
        policy, stated = noise_prior(decoder, 1, 1, "Pendulum-v1") if decoder else (standard_normal(3, 1), "")
        save_policy(f"{name}.safetensors", policy, {"request": {"env": stated}} if stated else {})
        text = pushed_card(files, f"{name}.safetensors", env=env or None)
        assert f"\nrepolicy evaluate hf://somebody/pushed {option}\n" in text
        assert f"\nrepolicy customize hf://somebody/pushed {option} --addon NAME\n" in text
        assert f"\n# pushed: a policy for {env or 'Pendulum-v1'}\n" in text


def test_a_generative_policy_is_judged_by_sampled_noise(files: dict[str, dict[str, bytes]]) -> None:
    policy, env = noise_prior(f"{HERE}:same", 2, 1, WALK)
    save_policy("noise.safetensors", policy, {"request": {"env": env, "addons": [RIGHT]}}, prior=policy)
    text = pushed_card(files, "noise.safetensors", episodes=2)
    assert "over 2 episodes with sampled actions." in text
    assert "2 episodes each with sampled actions, from the same starts" in text


@pytest.mark.parametrize("name", ["hf://alone", "hf://a/b/c", "hf://a/b@", "hf://../b@x y"])
def test_what_is_no_name_of_the_hub(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^'{re.escape(name)}' .*write hf://USER/NAME"):
        repolicy.load_policy(name if name == "hf://alone" else Path(name))  # which loses a slash


def test_what_can_go_wrong_is_a_sentence(
    files: dict[str, dict[str, bytes]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files["somebody/empty"] = {}
    files["somebody/text"] = {"policy.safetensors": b"this is no policy"}
    for name, sentence in (
        ("hf://somebody/gone", "hf://somebody/gone is not there, or not for you"),
        ("hf://somebody/text@v9", "hf://somebody/text@v9 is not there, or not for you"),
        ("hf://somebody/empty", "hf://somebody/empty holds no policy.safetensors"),
        ("hf://somebody/text", "policy.safetensors"),
    ):
        code, _, said = typed(capsys, "evaluate", name)
        assert (code, said.count("\n"), sentence in said) == (1, 1, True), said
    a_policy(request={"env": ENV})
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(publish, "evaluate_with_prior", lambda *_, **__: pytest.fail("evaluated"))
    push = ["push", "mine.safetensors", "hf://somebody/mine", "--episodes", "1", "--trust"]
    code, _, said = typed(capsys, *push[:-1])
    assert (code, said.count("\n"), "names code that would be run" in said) == (2, 1, True), said
    code, _, said = typed(capsys, *push)
    assert (code, "if it is private, log in: hf auth login" in said or "needs a login" in said) == (1, True), said
    for name, value in endpoint("http://127.0.0.1:9").items():  # nobody listens there
        monkeypatch.setattr(hub.import_hub().constants, name, value)
    for words in (push, ["evaluate", "hf://somebody/mine"]):
        code, _, said = typed(capsys, *words)
        assert (code, "hf://somebody/mine cannot be reached: no network, or no hub" in said) == (1, True), said


@pytest.mark.parametrize(("status", "sentence"), [(403, "is not there, or not for you"), (500, "status 500")])
def test_an_answer_of_the_hub_is_not_called_no_network(
    status: int, sentence: str, files: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files["somebody/mine"] = {"policy.safetensors": b""}
    monkeypatch.setattr(Hub, "status", status)
    with pytest.raises(FileError, match=sentence):
        repolicy.load_policy("hf://somebody/mine")


def test_a_cache_without_room_is_not_called_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/cache/tmp")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", mock.Mock(side_effect=full))
    words = "^hf://somebody/mine cannot be kept: /cache/tmp: No space left on device; HF_HOME names another folder$"
    with pytest.raises(FileError, match=words):
        repolicy.load_policy("hf://somebody/mine")


def test_what_the_hub_refuses_is_said_in_its_words(
    files: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(hub: Hub) -> None:
        hub.answer(400, json.dumps({"error": "license must be one of mit\nand others"}).encode())

    with pytest.raises(UsageError, match="^episodes is 0"):
        push("halfcheetah", "hf://somebody/mine", episodes=0)
    assert files == {}
    monkeypatch.setattr(Hub, "do_POST", refuse)
    with pytest.raises(FileError, match=r"status 400: license must be one of mit\\nand others$"):
        push("halfcheetah", "hf://somebody/mine", episodes=1, license="none such")


@pytest.mark.parametrize("odd", [("X-Repo-Commit", "../../x"), ("Content-Length", "9" * 15)])
def test_an_answer_that_makes_no_sense_is_a_sentence(
    odd: tuple[str, str], files: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_policy()
    files["somebody/mine"] = {"policy.safetensors": Path("mine.safetensors").read_bytes()}
    monkeypatch.setattr(Hub, "headers_of_files", dict([odd]))
    with pytest.raises(FileError, match="^hf://somebody/mine"):
        repolicy.load_policy("hf://somebody/mine")
    assert not Path("x").exists()


def test_the_librarys_log_is_silent_also_when_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library sets the level of its log when it is first imported."""
    log, name = logging.getLogger("huggingface_hub"), "huggingface_hub.utils.logging"
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with hub.translate_hub_errors(hub.Repository("somebody/mine", None)):
        importlib.import_module(name)
        assert log.level == logging.CRITICAL


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"pip install 'repolicy\[hub\]'"):
        hub.download_policy("hf://somebody/mine")
