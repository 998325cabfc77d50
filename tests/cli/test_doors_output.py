"""What is said reaches its reader: prints of others, a full standard output."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from saved_policies import SMALL, SPECS
from tiny_envs import tiny
from typed_commands import refused, typed

import repolicy
from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.files import write_bytes
from repolicy.objective import soft
from repolicy.policies import storage
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.export import export
from repolicy.policies.file import read_card, save_policy
from repolicy.policies.policy import PolicySpec
from repolicy.prepare import imitation
from repolicy.prepare.weights import weights_from_card
from repolicy.prepare.worth import Worth
from repolicy.priors.finding import find_policy, output_folder
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.terminal import Terminal, format_facts

pytestmark = pytest.mark.usefixtures("_elsewhere")

SPACE = ActionSpace("continuous", (3,), (-1.0,) * 3, (1.0,) * 3)


def test_an_environment_that_prints_does_not_break_json(capfd: pytest.CaptureFixture[str]) -> None:
    Path("loud.py").write_text(
        "import os, gymnasium\nprint('imported')\n"
        "def make():\n    print('made')\n    os.write(1, b'from C')\n    os.system('echo from a child')\n"
        "    return gymnasium.make('CartPole-v1')\n"
        "def addon(observations, actions, after, info):\n    print('called')\n    return after[:, 0]\n"
    )
    words = ["evaluate", "policy", "--env", "loud.py:make", "--addon", "loud.py:addon", "--episodes", "1", "--json"]
    spec = replace(SPECS["categorical"], observation_size=4, actions=replace(SPECS["categorical"].actions, sizes=(2,)))
    save_policy("policy", repolicy.Policy(spec), {})
    code, out, said = typed(capfd, *words)
    assert (code, json.loads(out)["env"]) == (0, "loud.py:make"), said
    assert all(word in said for word in ("imported", "made", "called", "from C", "from a child"))


LINUX = pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has /dev/full")


@pytest.mark.parametrize(
    ("redirect", "code", "out", "said"),
    [
        pytest.param(">/dev/full", 1, "", "repolicy: No space left on device: 'stdout'\n", marks=LINUX),
        ("| true", 1, "", ""),
        (">&-", 0, "", ""),
        ("", 0, "\N{MULTIPLICATION SIGN} log ?", ""),
    ],
)
def test_a_stdout_that_is_full_or_closed_or_has_no_greek_letters(redirect: str, code: int, out: str, said: str) -> None:
    program = (
        "from repolicy.cli import main as cli\n"
        "cli._run = lambda _: print('× log π')\n"
        "import time; time.sleep(0.2); cli.main()"
    )
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {redirect}; exit ${{PIPESTATUS[0]}}', sys.executable, program],
        capture_output=True, check=False, env=os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    assert (done.returncode, done.stdout.decode("latin-1").strip(), done.stderr.decode()) == (code, out, said)


def test_paths_are_whole_in_a_narrow_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = "runs/" + "a_long_name_" * 8 + "/policy.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "40")
        Terminal().say(format_facts({"best policy": path, "which": "", "kind": "policy"}))
    assert capsys.readouterr().err == f"  best policy  {path}\n  kind         policy\n"


def test_what_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without permission: the tests may run as a user who has every one."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    save_policy(tmp_path / "policy", repolicy.Policy(SPECS["gaussian"]), {})
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match="policy cannot be read: Permission denied"):
        storage.read(tmp_path / "policy")


def test_imitating_leaves_files_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it fit anything for a place that cannot be written."""
    Path("notes.txt").write_text("my own notes")
    Path("folder").mkdir()
    np.savez("d.npz", observations=np.random.rand(100, 1), actions=np.random.rand(100, 1))
    monkeypatch.setattr(imitation, "fit", lambda *_: pytest.fail("fitted"))
    for out, sentence in (
        ("notes.txt/p.safetensors", "cannot be written: Not a directory"),
        ("n" * 300, "cannot be written: File name too long"),
        ("folder", "is no file that could be written"),
    ):
        for write in (partial(imitation.imitate, "d.npz", out), partial(write_bytes, Path(out), b"")):
            with pytest.raises(FileError, match=sentence):
                write()
    assert sorted(path.name for path in Path().iterdir()) == ["d.npz", "folder", "notes.txt"]
    save_policy(Path("mine"), repolicy.Policy(PolicySpec(1, SPACE)), {"which": "copy"})
    safetensors.torch.save_file({"a": torch.ones(1)}, "theirs.safetensors")
    before = {name: Path(name).read_bytes() for name in ("notes.txt", "mine", "theirs.safetensors")}
    for name in before:
        with pytest.raises(RepolicyError, match=f"{name} (is there already, and no imitation|.*not one of Repolicy's)"):
            imitation.imitate("d.npz", name)
        assert Path(name).read_bytes() == before[name]


def test_what_is_made_of_a_policy_is_not_written_over_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor among those of others; ours have it beside them, as those that ship or are in a cache have it here."""
    policy = repolicy.Policy(PolicySpec(11, SPACE))
    save_policy(Path("ours.safetensors"), policy, {"request": {"env": "Hopper-v4"}})
    export(policy, Path("theirs.pt"), "torchscript")
    Path("theirs.gif").symlink_to("ours.safetensors")
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    for words, told in (
        ("export theirs.pt --out theirs.pt", "theirs.pt is the policy itself"),
        ("evaluate ours.safetensors --out ours.safetensors", "ours.safetensors is the policy itself"),
        ("evaluate ours.safetensors --out theirs.pt", "does not end in .json"),
        ("evaluate ours.safetensors --out run.json", "run.json belongs to a run"),
        ("render ours.safetensors --out theirs.gif", "theirs.gif is the policy itself"),
    ):
        code, _, said = typed(capsys, *words.split())
        assert (code, told in said) == (2, True), said
        assert before == {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    places = [output_folder(path) for path in (Path("ours.safetensors").absolute(), Path("theirs.pt").absolute())]
    assert [*places, output_folder(find_policy("hopper"))] == [Path.cwd(), Path(), Path()]


def test_a_cards_small_returns_are_not_rounded_away(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"mean action": [0.42, 0.1], "episodes": 8}
    evaluation = {"evaluation_objective": 109.7, "evaluation_error": 19.56, "evaluation_basic": 0.0019}
    evaluation |= {"evaluation_addon": -1234.56, "evaluation_length": 109.4, "evaluation_ended_early": 8.0}
    request = {"settings": {"evaluation_episodes": 9, "ranks": 2}}
    card = {"evaluation": evaluation, "scores": scores, "which": "last", "request": request}
    save_policy("small", repolicy.Policy(PolicySpec(1, SPACE)), card)
    shown = " ".join(typed(capsys, "inspect", "small")[1].split())
    sampled = "short evaluation 8 episodes with sampled actions: objective 109.7 ± 19.6 (standard error), basic reward "
    sampled += "0.0019, add-on reward −1,234.6, length 109 steps, 8 ended early"
    for words in (sampled, "score 0.42 ± 0.10 (mean ± std), mean action, 8 episodes"):
        assert words in shown


def test_a_run_that_was_stopped_is_told_from_one_that_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Its policy will be another."""
    env, space = tiny("LinearQuadratic"), ActionSpace("continuous", (1,), (-1.0,), (1.0,))
    folder = RunFolder(Path("run"))
    with folder.locked():
        folder.begin(Request(env, soft(0.1), replace(SMALL, steps=2_000)), {}, False, None)
    save_policy(folder.policy, repolicy.Policy(PolicySpec(1, space)), {"request": {"env": env}})
    assert "std" in inspect(Path("run"))
    said = "run: this run is not finished: 0 of 2,000 steps are done so far"
    for words in ("evaluate run --episodes 1 --trust", "export run --out run.pt"):
        code, _, told = typed(capsys, *words.split())
        assert (code, said in told) == (0, True), told
    assert said not in typed(capsys, *["evaluate", "run/policy.safetensors", "--episodes", "1", "--trust"])[2]
    commands = ["report run --trust", "compare hopper run --trust", "compare run hopper --trust"]
    commands += [f"{name} run --addon none" for name in ("diagnose", "plan", "sweep", "customize")]
    for command in commands:  # whatever else is wrong
        assert said in typed(capsys, *command.split())[2], command


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("gaussian", "0.25, 0.25"),
        ("squashed", "0.25, 0.25, before tanh"),
        ("state_gaussian", "0.25, 0.25, where observations are at their mean"),
        ("categorical", "none: its choices have probabilities"),
    ],
)
def test_inspect_tells_the_std(family: str, told: str, tmp_path: Path) -> None:
    actions = replace(SPECS["gaussian"].actions, sizes=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    spec = SPECS[family] if family == "categorical" else replace(SPECS[family], actions=actions, initial_std=0.25)
    spec = replace(spec, min_std=0.0)
    policy = repolicy.Policy(spec)
    with torch.no_grad():
        policy.network.weights[-1].zero_()
    save_policy(tmp_path / "policy", policy, {})
    found = inspect(tmp_path / "policy")
    assert (found["std"], found["steps"]) == (told, ""), "its card tells no steps, so neither does this"
    assert found["normalizer"] == "clips at 10", "and its normalizer no number of observations"


@pytest.mark.parametrize("option", ["--std 0.3", "--temperature 2", "--vecnormalize none", "--file-activation tanh"])
def test_options_of_reading_are_refused_for_files_of_ours(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("repolicy.report.movie.render_films", lambda *_: pytest.fail("filmed"))
    save_policy("mine", repolicy.Policy(PolicySpec(11, SPACE)), {"request": {"env": "Hopper-v4"}})
    storage.write(Path("batch"), "checkpoint", {"a": torch.ones(1)}, {})
    RunFolder(Path("run")).begin(Request("Hopper-v4", soft(0.1), SMALL), {}, False)
    for words in ("inspect mine", "inspect batch", "inspect run", "render mine --out film.gif", "evaluate mine"):
        assert "is Repolicy's own file: leave out" in refused(capsys, 2, *words.split(), *option.split())


def test_a_position_of_a_policy_in_a_cache_is_put_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, cached = repolicy.Policy(PolicySpec(11, SPACE)), Path("cache", "far.safetensors").absolute()
    save_policy(cached, policy, {"request": {"env": "Hopper-v4"}}, prior=policy)
    monkeypatch.setattr("repolicy.priors.finding.DOWNLOADED", {cached})
    code, _, said = typed(capsys, "dial", str(cached), "--at", "0.5", "--how", "weights")
    assert code == 0, said
    assert [path.name for path in cached.parent.iterdir()] == ["far.safetensors"]
    assert [path.name for path in Path().glob("*.safetensors")] == ["far-weights-0.5.safetensors"]


def test_a_page_of_a_dial_takes_the_place_of_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    policy = repolicy.Policy(PolicySpec(11, SPACE))
    save_policy("mine", policy, {"request": {"env": "Hopper-v4", "addons": ["height"]}}, prior=policy)
    Path("run").mkdir()
    Path("run", "report.html").write_text("of a run")
    assert "report.html is there already, and of no dial" in refused(capsys, 2, "dial", "mine", "--out", "run")
    assert Path("run", "report.html").read_text() == "of a run"


def test_a_card_may_tell_more_of_what_a_nat_is_worth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*_: Any, nat_worth: Worth, **__: Any) -> None:
        raise UsageError(f"it is worth {nat_worth.value} ± {nat_worth.error} by {nat_worth.episodes} episodes")

    monkeypatch.setattr("repolicy.prepare.diagnosis.diagnose", told)
    worth = {"value": 0.5, "error": 0.125, "episodes": 9, "measured": "by a version to come"}
    card = {"request": {"env": "Hopper-v4"}, "nat_worth": worth}
    save_policy("mine", repolicy.Policy(PolicySpec(11, SPACE)), card)
    assert weights_from_card(read_card(Path("mine")), 11)[:2] == (0.5, 0.0)
    assert "it is worth 0.5 ± 0.125 by 9 episodes" in refused(capsys, 2, "diagnose", "mine", "--addon", "height")
