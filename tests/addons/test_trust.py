"""No name out of a file imports or opens anything, whatever it looks like and whatever lies in the folder."""

import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_graphs import quick_graph

import repolicy
from benchmarks import damage, fuzz
from repolicy.addons import addon
from repolicy.addons.trust import PACKAGE_CODE, TRUST_HINT, TYPE_HINT, backend_from_card, check_trust
from repolicy.cli import about
from repolicy.envs import names
from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import PYTHON, load_object
from repolicy.many import sweep
from repolicy.many.sweep_folder import SweepFolder
from repolicy.policies.file import save_policy
from repolicy.report import movie as film
from repolicy.rql.hyperparameters import TASKS
from repolicy.runs import ranks


def test_the_backend_of_a_run_is_for_its_own_environment_where_it_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"request": {"env": "Hopper-v4", "settings": {"backend": "envpool"}}}
    assert backend_from_card(card, "Hopper-v4") == "envpool"
    assert backend_from_card(card, "Hopper-v4", "gymnasium") == "gymnasium"
    assert backend_from_card(card, "Ant-v4") == "auto"
    monkeypatch.setattr(names, "envpool_names", list[str])  # as where EnvPool is not installed
    assert backend_from_card(card, "Hopper-v4") == "auto"


ENVS = ["os:system", "evil.py:f", "Hopper-v4?xml_file=/tmp/evil.xml", "Hopper-v4?a=[1]", "Hopper-v4?a=1&b=x", "a:b=2"]
ADDONS = ["os:system", "theirs/x?observe=y.py:f", "theirs/x?observe_critic=y.py:f=2", "a#b:f"]


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize(
    "named", [*({"env": name} for name in ENVS), *({"addons": ["height", name]} for name in ADDONS)]
)
def test_what_is_more_than_what_is_registered_or_ships(named: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="names (code|a file) that would be"):
        check_trust("file", False, **named)
    damage.lay(named["env"] if "env" in named else named["addons"][-1], "")
    check_trust("file", True, **named)


@pytest.mark.usefixtures("_elsewhere")
def test_trusted_code_that_lies_elsewhere_is_said_with_a_next_step(tmp_path: Path) -> None:
    told = f"run names 'my.py:Neg', and there is no file {tmp_path}/my.py; it is remembered as it was typed: "
    told += "go to that folder"
    for option, typed in (("env", "my.py:Neg?size=2"), ("addon", ["height", "my.py:Neg=0.5"])):
        kind = {"env": typed} if option == "env" else {"addons": typed}
        for remedy, way in ((TYPE_HINT, f", or name it with --{option} (in Python, {option}=...)"), (TRUST_HINT, "")):
            with pytest.raises(UsageError) as failed:
                check_trust("run", True, remedy=remedy, **kind)  # type: ignore[arg-type]
            assert str(failed.value) == told + way
    Path("my.py").touch()
    check_trust("run", True, env="my.py:Neg", addons=["my.py:Neg", "nowhere:f", f"{tmp_path}/x.py:f"])


def test_registered_names_are_free() -> None:
    for env in ("Hopper-v4", "ALE/Pong-v5", "Hopper-v4?reset_noise_scale=-2e-3&terminate=true", *PACKAGE_CODE):
        check_trust("file", False, env=env)
    check_trust("file", False, addons=["height=0.5", "hind_leg(joint=bshin)=2", "", "repolicy.rql.tasks:addon=0.5"])
    assert {task.env for task in TASKS.values()} < PACKAGE_CODE


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*damage.PARTS, *damage.SEPARATORS]), min_size=1, max_size=8).map("".join))
def test_a_name_that_is_free_imports_nothing(name: str) -> None:
    """What passes the check is used as it would be, and whatever it could mean is there."""
    asked: list[str] = []

    def load(reference: str, what: str) -> object:
        asked.append(reference)
        return len

    with (
        mock.patch.object(addon, "load_function", load),
        mock.patch.object(names, "load_function", load),
        mock.patch.object(names, "suggest", return_value=""),  # of thousands of names, at each name that is none
    ):
        for kind, use in (("addons", addon.load_term), ("env", names.env_maker)):
            try:
                check_trust("file", False, **{kind: [name] if kind == "addons" else name})
                use(name)
            except RepolicyError:
                continue
    assert {*asked} <= PACKAGE_CODE


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    with mock.patch("repolicy.policies.export.onnx_graph", quick_graph):
        fuzz.prepared(place)
    return place


@pytest.fixture(scope="module")
def _noted() -> None:
    """Once: whoever listens to all that Python does cannot be sent away again."""
    sys.addaudithook(fuzz.note_opened)


@pytest.fixture
def _signals(_noted: None) -> Iterator[None]:
    with mock.patch("signal.alarm"):
        yield
    fuzz.LAID.clear()


TAKEN = ["theirs/x?observe=y.py:f", "x?observe_critic=y.py:f=2", "a#b.py:f", "a=b.py:f", "height=y.py:f", "y.py:f"]
WHOLE = ["policy.safetensors", "run/run.json", "customized/run.json", "run/checkpoints/*", "sweep/sweep.json"]


@pytest.mark.usefixtures("_signals", "_elsewhere")
@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_no_command_follows_a_name_of_a_file(target: str, whole: Path, tmp_path: Path) -> None:
    """Files lie wherever a name could point.

    Of a card, a run, a sweep and a checkpoint every field in turn is a name; of those that are numbers, every eighth.
    """
    random_, commands = random.Random(0), fuzz.TARGETS[target]
    fuzz.afresh(whole, tmp_path / "now")
    path = sorted(Path().glob(target))[0]
    ways: list[Any] = [None] * len(commands)  # some text for each command
    if target in WHOLE:
        with damage.edited(path, random_) as story:
            each = damage.fields(story)
        numbers = [way for way, value in each if isinstance(value, int | float)]
        ways = [way for way, _ in each if way not in numbers] + numbers[::8]
    for index, way in enumerate(ways):
        fuzz.afresh(whole, tmp_path / "now")
        name = TAKEN[index % len(TAKEN)]
        fuzz.LAID.update(damage.lay(name, fuzz.MARK))
        if way is None:
            damage.rename(random_, path, name)
        else:
            with damage.edited(path, random_) as story:
                damage.put(story, way, name)
        case = fuzz.Case(commands[index % len(commands)].replace("CHECKPOINT", str(path)).split())
        assert not case.fault, f"{name} in {path}, {way}: {case.words}\n{case.fault}"


@pytest.mark.usefixtures("_elsewhere")
def test_an_add_on_that_looks_like_an_option_does_not_run() -> None:
    name = "theirs/x?observe=y.py:f"
    damage.lay(name, fuzz.MARK)
    card = {"request": {"env": "Hopper-v4", "addons": [name]}}
    save_policy("theirs.safetensors", repolicy.load_policy("hopper"), card)
    with pytest.raises(UsageError, match="names code that would be run"):
        repolicy.evaluate("theirs.safetensors", episodes=1)
    assert not Path("owned").exists()


def test_other_processes_take_no_file_of_this_folder_for_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    for name in ("numpy", "torch", "mujoco", "json", "repolicy"):
        Path(f"{name}.py").write_text(fuzz.MARK)
    with ranks.launch_ranks(2, ["import json, numpy"]):
        pass
    assert not Path("owned").exists()
    for start in (lambda: about.renderer(), lambda: film._render_in_process("", "egl", print)):
        with mock.patch("subprocess.Popen", side_effect=OSError) as started, suppress(OSError):
            start()
        assert tuple(started.call_args[0][0][:2]) == PYTHON
    request = {"env": "Hopper-v4", "addons": ["height"], "alpha": 0.1, "states": 0.0, "prior": []}
    request |= {"settings": {}, "sparse": False}
    with mock.patch("repolicy.many.sweep.run_jobs", side_effect=OSError) as started, suppress(OSError):
        sweep._train([0.1], SweepFolder(Path("b")), request, print, 1, print, print)
    assert [job.program[:2] for job in started.call_args[0][0]] == [PYTHON]


def test_what_the_package_names_is_not_looked_for_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a package that is imported later would be taken from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    load_object("repolicy.rql.tasks:CartPole", "environment")
    assert str(tmp_path) not in sys.path
    Path("mine_alone.py").write_text("f = 1\n")
    assert load_object("mine_alone:f", "environment") == 1
    assert str(tmp_path) in sys.path
