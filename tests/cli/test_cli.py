"""The command line as a stranger types it: one object for --json, one sentence and its exit code for a mistake."""

import contextlib
import importlib
import json
import os
import shlex
import signal
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tiny_envs import tiny
from typed_commands import SMALL, answered, refused, typed

from repolicy.addons.registered import REGISTERED
from repolicy.cli import about
from repolicy.cli import main as cli
from repolicy.cli.options import normalize_words, overrides
from repolicy.errors import UsageError
from repolicy.learning import training
from repolicy.objective import residual, soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare import weights
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.terminal import Terminal

pytestmark = pytest.mark.usefixtures("_elsewhere")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FEW = [*SMALL, "--steps=128", "--evaluation-episodes=1"]


@pytest.fixture(autouse=True)
def _short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights.collect_trial, "__defaults__", (32,))  # steps of each environment


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(capsys, "--help")
    assert code == 0
    assert all(f"  {name} " in out for name in (*cli.COMMANDS, *cli.GROUPS))
    assert typed(capsys)[0] == 2


def test_a_folder_that_was_deleted_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.chdir(tmp_path.parent):
        (gone := tmp_path / "gone").mkdir()
        os.chdir(gone)
        gone.rmdir()
        assert "the working folder was deleted, so change to another one" in refused(capsys, 2, "addons")


def test_a_word_that_is_no_utf8_can_stand_in_the_report_of_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["repolicy", "addons", "\udcfc"])
    monkeypatch.setattr(about.Addons, "run", lambda _: 1 / 0)
    code, _, said = typed(capsys, "addons")
    assert (code, said.count("attach ")) == (1, 1)
    report = Path(said.split("attach ")[1].strip())
    assert report.read_text().startswith("repolicy addons ?\n\nTraceback")
    report.unlink()


def test_train_evaluate_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    """The end of training says how to go on, and a taken folder is refused before anything is measured."""
    env, wish = tiny("LinearQuadratic"), tiny("stay_near")
    code, out, said = typed(capsys, "train", env, "--alpha", "0.1", *FEW, "--out", "run", "--json")
    trained = json.loads(out)
    assert (code, trained["finished"], trained["steps"]) == (0, True, 128)
    assert said.endswith(f"repolicy customize run --env {shlex.quote(env)} --addon FILE.py:FUNCTION\n")
    scored = answered(capsys, "evaluate", "run", "--episodes", "3", "--trust")
    assert (scored["episodes"], scored["action"], scored["which"]) == (3, "mean", "last")
    assert len(json.loads(Path(scored["file"]).read_text())["each"]["basic_reward"]) == 3
    described = answered(capsys, "inspect", "run")
    assert (described["env"], "last policy" in described) == (env, False)  # which is the policy itself
    unknown = answered(capsys, "evaluate", "run", "--env", tiny("WithoutReward"), "--episodes", "2")
    assert unknown["summary"]["basic_reward"]["mean"] is None
    assert "NaN" not in Path(unknown["file"]).read_text()
    taken = refused(capsys, 2, "customize", "run", "--env", env, "--addon", wish, "--out", "run", *SMALL)
    assert taken == "repolicy: run holds a run already; add --resume to go on with it, or choose another --out\n"
    said = typed(capsys, "train", "CartPole-v1", "--alpha", "0.1", *FEW)[2]
    assert said.endswith("repolicy customize runs/CartPole-v1-soft-0 --addon FILE.py:FUNCTION\n")


def test_a_run_has_the_same_folder_as_from_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[Path] = []

    def stop(request: Request, folder: RunFolder, *_: object, **__: object) -> None:
        begun.append(folder.path)
        raise UsageError("as far as the run")

    monkeypatch.setattr(training, "run", stop)
    env, wish = tiny("LinearQuadratic"), tiny("stay_near")
    save_policy("prior", Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(8,))), {})
    seeded = {"seed": 3, "ranks": 1}
    Path("settings.json").write_text(json.dumps(seeded))
    named = ["--settings", "settings.json"]

    typed(capsys, "customize", "prior", "--env", env, "--addon", wish, "--omega=0.3", "--alpha=0.3", *named)
    with pytest.raises(UsageError, match="as far as the run"):
        training.customize("prior", wish, residual(0.3, 0.3), settings=seeded, env=env)
    typed(capsys, "train", env, "--alpha=0", *named)
    with pytest.raises(UsageError, match="as far as the run"):
        training.train(env, soft(0.0), settings=seeded)
    by_words, by_calls = begun[::2], begun[1::2]
    assert by_words == by_calls
    assert [path.name.rpartition("-")[2] for path in by_words] == ["3", "3"]


def test_a_home_folder_is_what_the_shell_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert normalize_words(["--out=~/runs/a", "~/b", "~c"]) == ["--out", "/somewhere/runs/a", "/somewhere/b", "~c"]


def test_words_come_in_any_order_and_spelling() -> None:
    """Of the settings, only those that are named are handed on; an option goes before the file."""
    usual = cli._parse_command(["customize", "halfcheetah", "--addon", "hind_leg", "--omega", "0.17", "--gamma", "0.7"])
    assert usual.named_settings == {"gamma": 0.7}
    assert cli._parse_command(["customize", "--addon=hind_leg", "--omega=0.17", "--gamma=0.7", "halfcheetah"]) == usual
    swept = cli._parse_command(["sweep", "halfcheetah", "--addon=hind_leg", "--omega=0.1", "0.3", "--omega", "1"])
    assert swept.omega == (0.1, 0.3, 1.0)
    Path("mine.json").write_text('{"learning_rate": 0.5, "steps": 3}')
    found = cli._parse_command(["train", "--settings=mine.json", "Ant-v4", "--steps=2e6", "--no-normalize-advantages"])
    assert overrides(found) == {"learning_rate": 0.5, "steps": 2_000_000, "normalize_advantages": False}


def test_a_share_may_be_a_percentage_and_none_is_for_what_may_be_none() -> None:
    assert cli._parse_command(["customize", "hopper", "--keep", "95%"]).named_settings == {"keep": 0.95}
    with pytest.raises(UsageError, match="--keep is '%'; it must be a number"):
        cli._parse_command(["customize", "hopper", "--keep", "%"])
    assert cli._parse_command(["train", "Ant-v4", "--target-kl", "None"]).named_settings == {"target_kl": None}
    with pytest.raises(UsageError, match="--steps is 'None'; it must be a whole number"):
        cli._parse_command(["plan", "halfcheetah", "--steps", "None"])


def test_a_run_is_resumed_by_its_folder_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not said again is taken from the run; what is said otherwise is refused by name."""
    env, wish = tiny("LinearQuadratic"), tiny("stay_near")
    answered(capsys, "train", env, "--alpha", "0.1", *FEW, "--out", "prior")
    customized = ["--omega", "0.3", "--alpha", "0.2", "--addon", f"{wish}=2", "--sparse", "--no-report", *FEW]
    answered(capsys, "customize", "prior", *customized, "--env", env, "--out", "run")
    assert answered(capsys, "customize", "prior", "--out", "run", "--resume", "--trust", "--no-report")["finished"]
    for words, folder, whose in ((["train", env], "run", "customize"), (["customize", "x"], "prior", "train")):
        said = refused(capsys, 2, *words, "--out", folder, "--resume")
        assert f"{folder} is a run of `{whose}`; go on with it by that command" in said
    otherwise = ["--out", "run", "--resume", "--trust", "--omega", "0.4", "--no-report"]
    code, _, said = typed(capsys, "customize", "prior", *otherwise)
    assert (code, "omega was 0.3 and is now 0.4" in said) == (2, True)
    usual = ["customize", "prior", "--env", env, "--alpha", "0.2", "--addon", wish, "--no-report", *FEW]
    answered(capsys, *usual, "--omega", "auto", "--kl-budget", "1", "--out", "held")
    assert answered(capsys, "customize", "prior", "--out", "held", "--resume", "--trust", "--no-report")["finished"]
    for words in (["--omega", "0.2"], ["--objective", "kl"], ["--objective", "greedy"]):
        for _ in range(2):  # the second time, it is resumed by the words that began it
            assert answered(capsys, *usual, *words, "--resume", "--out", f"run{'-'.join(words)}")["finished"]
    answered(capsys, "train", env, "--objective", "end_entropy", "--alpha", "0.1", *FEW)
    assert answered(capsys, "train", env, "--objective", "end_entropy", "--resume")["finished"]
    [end] = Path("runs").iterdir()
    assert answered(capsys, "train", env, "--out", str(end), "--resume")["finished"]
    assert "there is no file nowhere" in refused(capsys, 1, "evaluate", "nowhere")
    assert "bonus was 0.1" in refused(capsys, 2, "train", env, "--objective", "soft", "--out", str(end), "--resume")


def test_the_names_of_add_ons_and_environments_can_be_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 80 columns, each add-on is one line of standard output, so that grep finds it with what it rewards."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, notes = typed(capsys, "addons")
    assert (code, len(out.splitlines())) == (0, len(REGISTERED))
    lines = {line.partition(": ")[0]: line for line in out.splitlines()}
    assert "[Go1JoystickFlatTerrain, Go1JoystickRoughTerrain; reported as missed velocity²]" in lines["on_command"]
    assert "[Go1JoystickFlatTerrain and 13 more; reported as energy cost]" in lines["energy"]
    assert {"symmetry(steps=…)", "hind_leg(joint=…)"} <= {*lines}
    assert "--addon module:function" in notes
    rows = {row["name"]: row for row in answered(capsys, "addons")["addons"]}
    assert (rows["symmetry"]["options"], rows["energy"]["options"]) == (["steps"], [])
    assert rows["energy"]["env"].count(",") == 13


def test_the_doctor_knows_every_extra_of_the_package() -> None:
    assert {*about.EXTRAS} == {*PROJECT["optional-dependencies"]} - {"dev", "docs"}


def test_a_wheel_takes_no_later_major_than_those_that_were_tested() -> None:
    extras = [text for name in about.EXTRAS for text in PROJECT["optional-dependencies"][name]]
    tested = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    tested["torch"] = "2.15.0"  # `constraints.txt` holds an older one, which has a small wheel
    for wanted in map(Requirement, [*PROJECT["dependencies"], *extras]):
        at = Version(tested[wanted.name.lower().replace("_", "-")])
        later = [f"{at.major + 1}.0", *([f"{at.major}.{at.minor + 1}"] if wanted.name in ("torch", "trl") else [])]
        assert at in wanted.specifier, wanted
        assert not [*wanted.specifier.filter(later)], wanted


def test_the_doctor_names_the_extra_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(about, "EXTRAS", {"sb3": ["a_package_that_nobody_has"]})
    monkeypatch.setattr(about, "renderer", lambda: "")
    monkeypatch.setattr(about, "find_spec", lambda name: None)
    monkeypatch.setenv("COLUMNS", "120")
    code, told, _ = typed(capsys, "doctor")
    assert code == 0
    assert "pip install 'repolicy[sb3]'" in told
    assert "does not work: install the extra engine" in told
    assert "pip install 'repolicy[sb3]'" in json.dumps(answered(capsys, "doctor"))


def test_what_people_read_is_printed_letter_for_letter(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().say("my.py:ok: [bold]repolicy[sb3]")
    assert capsys.readouterr().err == "my.py:ok: [bold]repolicy[sb3]\n"
    verdict = "; ".join(f"with the mean action limit speed_{index}<=0.5 holds" for index in range(40))
    Terminal().say(verdict)
    assert capsys.readouterr().err == f"{verdict}\n"


def test_in_a_log_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("repolicy.runs.terminal.time.monotonic", lambda: now)
    with Terminal().progress("training") as show:
        for second in (1, 9, 11, 12, 22):
            now = float(second)
            show(f"trained: {second}%")
    assert capsys.readouterr().err == "trained: 11%\ntrained: 22%\n"


def test_a_table_of_numbers_is_whole_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    headings = ["ω′", "basic reward", "kept", "mean |θ|", "add-on reward", "gained", "of quiet"]
    headings += ["log prior a step, nats", "KL a step, nats"]
    row = ["0.17 (knee)", "−1,949,111", "100%", "0.390", "−11,566,829", "−9,617,718", "−120.4", "−16.746", "10.632"]
    Terminal().numbers("", headings, [row])
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    cells = [word for line in lines if "(knee)" in line for word in line.split()]
    assert [each for each in cells if each not in ("0.17", "(knee)")] == row[1:]


def test_a_special_file_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder.json").mkdir()
    code, _, said = typed(capsys, "evaluate", "hopper", "--episodes", "1", "--out", "folder.json")
    assert (code, "folder.json is no file that could be written" in said.splitlines()[-1]) == (1, True)
    assert "basic reward" not in said  # it is told before any episode


def test_the_installed_command_is_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip makes `repolicy` from, in pyproject.toml."""
    module, _, name = PROJECT["scripts"]["repolicy"].partition(":")
    ran: list[str] = []
    monkeypatch.setattr(cli, "main", lambda: ran.append("it"))
    before = signal.getsignal(signal.SIGINT)
    try:
        getattr(importlib.import_module(module), name)()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # one more Ctrl-C changes no exit code
    finally:
        signal.signal(signal.SIGINT, before)
    assert ran == ["it"]
