"""What lies on a disk may be somebody else's, damaged or forged: no code of it runs, nothing is taken on trust."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_graphs import quick_graph
from saved_policies import SMALL, SPECS, trained
from tiny_envs import tiny
from typed_commands import answered, refused, typed

import repolicy
from benchmarks import fuzz
from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.learning.run import run
from repolicy.objective import residual, soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import policy_bytes, save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.policies.storage import read, write
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.terminal import Terminal
from repolicy.text import printable

pytestmark = pytest.mark.usefixtures("_elsewhere")

SHORT = ["--steps", "64", "--envs", "4", "--n-steps", "16", "--minibatch", "32", "--ranks", "1", "--no-report"]


# A file runs no code --------------------------------------------------------------------------------------------------
SHELL = "os:system?command=touch owned"


def forged(path: str = "theirs.safetensors", **request: Any) -> str:
    """A policy's file, whole, with a request of its author's choice."""
    save_policy(path, trained(), {"request": {"env": "Hopper-v4", "objective": {"alpha": 0.1}} | request})
    return path


@pytest.mark.parametrize("command", ["evaluate", "render", "customize", "sweep", "rql customize"])
def test_an_environment_that_a_file_names_is_no_code_to_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [] if command in ("evaluate", "render") else ["--addon", "height", "--omega", "0.1"]
    said = refused(capsys, 2, *command.split(), forged(env=SHELL), *options)
    assert f"theirs.safetensors names code that would be run: {SHELL}; " in said
    assert all(remedy in said for remedy in ("--env", "--trust"))
    assert not Path("owned").exists()


def test_an_add_on_that_a_file_names_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil.py").write_text(
        "from pathlib import Path\nPath('owned').touch()\n"
        "def f(observations, actions, after, info):\n    return after[:, 0]\n"
    )
    save_policy("theirs.safetensors", trained(), {"request": {"env": "Hopper-v4", "addons": ["evil.py:f"]}})
    small = ["evaluate", "theirs.safetensors", "--env", tiny("Counter"), "--episodes", "1"]
    _, _, said = typed(capsys, *small)
    assert "the policy's own add-on is left out: theirs.safetensors names code that would be run: evil.py:f" in said
    assert "nowhere.py" in refused(capsys, 2, *small, "--addon", "nowhere.py:f")  # one that is named is not
    assert not Path("owned").exists()
    typed(capsys, *small, "--trust")
    assert Path("owned").exists()


def test_limits_stay_in_another_environment_where_they_fit(capsys: pytest.CaptureFixture[str]) -> None:
    policy = Policy(PolicySpec(3, ActionSpace("continuous", (1,))))
    for limit, fits in (("action_rate<=9", True), ("power<=9", False), ("evil.py:f<=9", False)):
        save_policy("mine.safetensors", policy, {"request": {"env": "Hopper-v4", "limits": [limit]}})
        small = ["evaluate", "mine.safetensors", "--env", "Pendulum-v1", "--episodes", "1"]
        code, _, said = typed(capsys, *small)
        assert (code, limit in said, "the policy's own limits are left out: " in said) == (0, fits, not fits), said
    named = answered(capsys, *small)["file"], answered(capsys, *small, "--seed", "3")["file"]
    assert named[1] == named[0].replace("mean", "seed-3-mean")


def test_a_run_is_resumed_with_the_same_names_typed_again(capsys: pytest.CaptureFixture[str]) -> None:
    env, wish = tiny("LinearQuadratic"), tiny("stay_near")
    trained_words = ["train", env, "--objective", "full", "--alpha", "0.1", "--out", "run", *SHORT[:-1]]
    answered(capsys, *trained_words, "--addon", wish)
    before = Path("run/run.json").read_text()
    resumed = ["train", env, "--out", "run", "--resume"]
    assert f"run/run.json names code that would be run: {wish}; " in refused(capsys, 2, *resumed)
    assert answered(capsys, *resumed, "--addon", wish)["finished"]
    assert answered(capsys, *resumed, "--trust")["finished"]
    assert Path("run/run.json").read_text() == before


def test_in_python_code_is_given_as_an_argument() -> None:
    with pytest.raises(UsageError, match=r"in Python, env=\.\.\."):
        repolicy.customize(forged(env=SHELL), "height", residual(0.1, 0.1), "run")
    Path("run").mkdir()
    request = Request(SHELL, soft(0.1), SMALL)
    Path("run/run.json").write_text(json.dumps({"request": request.as_dict()}))
    with pytest.raises(UsageError, match="names code that would be run"):
        repolicy.write_report("run")
    assert not Path("owned").exists()


def test_nobody_writes_to_the_terminal_but_us(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\r\n"
    save_policy("theirs", trained(), {"which": evil, "request": {"env": evil}, "evaluation": {evil: 1.0}})
    code, shown, _ = typed(capsys, "inspect", "theirs")
    assert code == 0
    said = refused(capsys, 2, "evaluate", "theirs")
    write(Path("other"), evil, {}, {evil: evil})
    shown += said + typed(capsys, "inspect", "other")[1]
    assert r"\x1b[2J" in shown
    assert not set("\x1b\x07\r\u202e") & set(shown)
    Terminal().say(evil)
    assert capsys.readouterr().err == r"\x1b]0;owned\x07\x1b[2J\u202e\r" + "\n\n"


def test_printable() -> None:
    assert printable("ω′ 0.1 – ok") == "ω′ 0.1 – ok"
    assert printable("a\nb\ud800") == r"a\nb\ud800"
    assert len(printable("a" * 5000)) < 600
    assert len(printable("\x00" * 599)) < 600


# A file is what it says -----------------------------------------------------------------------------------------------
def rewritten(path: str, **changes: Any) -> str:
    """A policy's file with another spec, and a checksum that fits."""
    save_policy(path, trained(), {})
    tensors, story = read(Path(path), "policy")
    write(Path(path), "policy", tensors, story | {"policy": story["policy"] | changes})
    return path


@pytest.mark.parametrize("hidden", [[4000, 4000], [100_000_000], [10**12, 10**12], [8] * 100_000, []])
def test_sizes_that_the_tensors_do_not_have_are_refused_at_once(hidden: list[int]) -> None:
    path, began = rewritten("file", hidden=hidden), time.process_time()
    with pytest.raises(FileError, match="file is no whole policy: "):
        read_policy(path)
    assert time.process_time() - began < 2.0


def space(kind: str = "continuous", low: tuple[float, ...] = (), high: tuple[float, ...] = ()) -> dict[str, Any]:
    return {"kind": kind, "sizes": [2], "low": low, "high": high}


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden": "64"}, {"hidden": [8.5]}, {"observation_size": "3"}, {"observation_size": -3}, {"family": "other"},
        {"family": "categorical"}, {"family": "squashed", "actions": space(low=(-1.0,), high=(1.0,))},
        {"clips": True, "actions": space()}, {"clips": True, "actions": space(low=(1.0, 1.0), high=(-1.0, -1.0))},
        {"actions": None}, {"actions": space("x")}, {"activation": ["tanh"]}, {"initial_std": float("nan")},
        {"min_std": 10**400},
    ],
)  # fmt: skip
def test_a_spec_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FileError, match="file is no whole policy: "):
        read_policy(rewritten("file", **changes))


def test_layers_of_no_numbers_and_more_layers_than_tensors_are_refused_before_they_are_made() -> None:
    nothing = {"family": "categorical", "actions": space("discrete") | {"sizes": []}, "observation_size": 10**6}
    with pytest.raises(FileError, match="it has a layer of 0 numbers"):
        read_policy(rewritten("file", hidden=[], **nothing))
    with pytest.raises(FileError, match="file is no whole policy: its spec makes 9 layers of 12 numbers"):
        read_policy(rewritten("file", hidden=[1] * 8))  # fewer numbers than its tensors have


@pytest.mark.parametrize("depth", [60, 900])
def test_settings_within_settings_without_end_are_refused(depth: int, capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {}
    for _ in range(depth):
        settings = {"a": settings}
    save_policy("file", trained(), {"request": {"settings": settings}})
    for words in (["inspect", "file", "--json"], ["evaluate", "file", "--env", "Pendulum-v1"]):
        assert "its header is no object, or is nested too deeply" in refused(capsys, 1, *words)


@pytest.mark.parametrize(
    "card",
    [
        5, {"request": []}, {"request": {"env": 7}}, {"request": {"addons": "height"}}, {"request": {"addons": [[]]}},
        {"request": {"objective": {"alpha": "much"}}}, {"request": {"settings": 1}}, {"steps": "many"}, {"steps": True},
        {"evaluation": {"a": "b"}}, {"evaluation": {"a": 10**400}}, {"versions": ["1"]}, {"scores": {}}, {"which": 1},
    ],
)  # fmt: skip
def test_a_card_of_wrong_types_is_refused(card: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_bytes(policy_bytes(trained(), card))
    for command in ("inspect", "evaluate", "render"):
        assert "file is no whole policy: its header, 'card'" in refused(capsys, 1, command, "file")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"request": 1}', b'{"request": {"env": 1}}', b"9" * 5000]
)
def test_a_run_json_that_is_none_is_refused(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/run.json").write_bytes(content)
    for words in (["inspect", "run"], ["train", "Hopper-v4", "--out", "run", "--resume"]):
        assert "run/run.json cannot be" in refused(capsys, 1, *words)


@pytest.mark.parametrize(
    "change",
    [
        {"addons": "height"}, {"settings": {"steps": "x"}}, {"settings": {"nested": {}}}, {"sparse": 1},
        {"settings": {"hidden": [[1]]}}, {"settings": {"schedule": []}}, {"objective": {"task": "x"}}, {"prior": None},
    ],
)  # fmt: skip
def test_a_request_of_wrong_types_is_refused(change: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    request = Request("Hopper-v4", soft(0.1), SMALL).as_dict() | change
    Path("run/run.json").write_text(json.dumps({"request": request}))
    assert "run/run.json cannot be used: " in refused(capsys, 1, "inspect", "run")
    refused(capsys, 1, "train", "Hopper-v4", "--out", "run", "--resume")


def test_metrics_that_are_damaged_are_read_as_far_as_they_go(capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder("run")
    folder.begin(Request("Hopper-v4", soft(0.1), SMALL), {}, False)
    good = [b'{"iteration": 1, "x": null}', b'{"iteration": 3, "x": 2.5}']
    bad = [b"\xff\xfe", b"7", b"[]", b'{"x": 1}', b'{"iteration": "2"}', b'{"iteration": 2, "x": {}}', b'{"it']
    bad.append(b"[" * 99_999)
    folder.metrics.write_bytes(b"\n".join([good[0], *bad, good[1], b""]))
    assert folder.read_metrics() == {"iteration": [1, 3], "x": [None, 2.5]}
    assert answered(capsys, "inspect", "run")["kind"] == "run"
    folder.drop_metrics_after(1)
    assert folder.metrics.read_bytes() == good[0] + b"\n"
    folder.metrics.unlink()
    folder.metrics.mkdir()
    with pytest.raises(FileError, match="metrics.jsonl cannot be read: it is no file"):
        folder.read_metrics()
    refused(capsys, 1, "inspect", "run")


# A run is not mixed with another --------------------------------------------------------------------------------------


def test_a_run_json_that_was_edited_and_another_prior_are_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    one_number = ActionSpace("continuous", (1,), (-1.0,), (1.0,))
    prior, env = repolicy.Policy(replace(SPECS["gaussian"], observation_size=1, actions=one_number)), "LinearQuadratic"
    save_policy(Path("prior.safetensors"), prior, {})
    repolicy.customize("prior.safetensors", tiny("stay_near"), residual(0.1, 0.1), "run", SMALL, env=tiny(env))
    folder, story = RunFolder("run"), Path("run/run.json").read_text()
    request, other = folder.load_request(), Path("run/prior.safetensors")
    Path("run/run.json").write_text(story.replace('"gamma": 0.99', '"gamma": 0.9'))
    words = ["customize", "prior.safetensors", "--out", "run", "--resume", "--trust", "--no-report"]
    code, _, said = typed(capsys, *words)
    assert code == 1
    assert "run/run.json was edited since the last checkpoint: gamma was 0.99 and is now 0.9" in said
    Path("run/run.json").write_text(story)
    run(request, folder, True, (), ())
    save_policy(other, prior, {"another": True})
    with pytest.raises(FileError, match="run/prior.safetensors is not the prior that this run began with"):
        run(request, folder, True, (), ())
    other.unlink()
    with pytest.raises(FileError, match="there is no file run/prior.safetensors"):
        run(request, folder, True, (), ())


def test_other_versions_are_said_and_not_refused(tmp_path: Path) -> None:
    folder, request = RunFolder(tmp_path / "run"), Request("Hopper-v4", soft(0.1), SMALL)
    assert folder.begin(request, {"torch": "2", "numpy": "1"}, False) == []
    folder.save(1, {"parameters": torch.ones(2)}, {"iteration": 1})
    assert RunFolder(folder.path).begin(request, {"torch": "2", "numpy": "1"}, True) == []
    assert RunFolder(folder.path).begin(request, {"torch": "3", "numpy": "1"}, True) == [
        "the last checkpoint was made with other versions: torch was 2 and is now 3"
    ]


@pytest.mark.parametrize("story", [{}, {"iteration": "1"}, {"iteration": 1, "objective": {"omega": "x"}}])
def test_a_checkpoint_of_wrong_types_gives_way(tmp_path: Path, story: dict[str, Any]) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.save(1, {}, story)
    with pytest.raises(FileError, match="000001.safetensors is no whole checkpoint"):
        folder.latest_checkpoint()


# What is not ours is left alone ---------------------------------------------------------------------------------------
def test_a_folder_that_is_refused_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("out/policy.safetensors").write_text("mine")
    Path("out/metrics.jsonl").symlink_to("../elsewhere")
    refused(capsys, 2, "train", tiny("LinearQuadratic"), "--alpha", "0.1", *SHORT[:-1], "--out", "out")
    assert sorted(path.name for path in Path("out").iterdir()) == ["metrics.jsonl", "policy.safetensors"]
    Path("out/policy.safetensors").unlink()
    refused(capsys, 2, "train", tiny("LinearQuadratic"), "--alpha", "0.1", *SHORT[:-1], "--out", "out")
    assert not Path("elsewhere").exists()
    with pytest.raises(RepolicyError), RunFolder("new").locked():
        raise RepolicyError("refused")
    assert not Path("new").exists()


def test_damaged_files_and_odd_command_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of `make fuzz`."""
    monkeypatch.setattr("repolicy.policies.export.onnx_graph", quick_graph)
    faults, codes = fuzz.fuzz(files=15, lines=10, answers=5)
    assert not faults, "\n".join(faults)
    assert sum(codes.values()) > 30
    assert {kind.partition(",")[0] for kind in codes} == {"damaged", "odd", "answered", "bomb"}


def test_files_of_others_lie_among_nothing_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another library's policy is evaluated into this folder, and another environment has a name of its own."""
    sb3 = pytest.importorskip("stable_baselines3")
    (tmp_path / "theirs").mkdir()
    sb3.PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu").save(tmp_path / "theirs" / "it.zip")
    words = ["evaluate", str(tmp_path / "theirs" / "it.zip"), "--episodes", "1", "--env", "Pendulum-v1"]
    words += ["--backend", "gymnasium"]
    scored = answered(capsys, *words)
    assert scored["file"] == "evaluation-it-Pendulum-v1-mean-gymnasium.json"
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["it.zip"]
    Path("mine.py").write_text("def one(seen): return seen[:, :1]\ndef two(seen): return -seen[:, :1]\n")
    for name in ("one", "two"):
        found = answered(capsys, words[0], f"mine.py:{name}", "--std", "0.2", *words[2:])["file"]
        assert found == f"evaluation-mine.py.{name}-Pendulum-v1-mean-gymnasium.json"
    # One of the same name elsewhere has a file of its own, and each is written anew by its own policy alone.
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "theirs" / "it.zip", other := tmp_path / "other" / "it.zip")
    for path, ending in ((other, "other.it.zip-Pendulum-v1-mean-gymnasium.json"), (words[1], scored["file"])) * 2:
        again = answered(capsys, words[0], str(path), *words[2:])
        assert again["file"].endswith(ending)
        assert json.loads(Path(again["file"]).read_text())["policy"] == str(path)


def test_a_policy_that_is_named_from_another_folder_has_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    policy = Policy(PolicySpec(4, ActionSpace("discrete", (2,)), family="categorical"))
    save_policy(tmp_path / "run" / "policy.safetensors", policy, {"request": {"env": "CartPole-v1"}})
    for folder, name in ((tmp_path, "run/policy.safetensors"), (tmp_path / "run", "policy.safetensors")):
        monkeypatch.chdir(folder)
        answered(capsys, "evaluate", name, "--episodes", "1", "--backend", "gymnasium")
    assert len([*(tmp_path / "run").glob("evaluation-*")]) == 1
