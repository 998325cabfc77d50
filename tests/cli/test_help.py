"""Help and completion: what a command can do, before anything is run."""

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from repolicy.cli import help_page as pages
from repolicy.cli import main as cli
from repolicy.cli.options import add_options, docstrings, options
from repolicy.cli.run_commands import Customize, Train
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare.defaults import customize_defaults
from repolicy.readers.reading import Options
from repolicy.runs.settings import Settings

EVERY = cli.COMMANDS | {
    f"{group} {name}": command for group, (_, commands) in cli.GROUPS.items() for name, command in commands.items()
}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", list(EVERY))
def test_the_help_has_the_options_that_are_read(name: str) -> None:
    made = argparse.ArgumentParser(add_help=False)
    add_options(made, EVERY[name])
    read = set(made._option_string_actions)
    page = pages.help_page(EVERY[name], name)
    assert f"Example: repolicy {name}" in page
    shown = set(re.findall(r"^  (--[a-z\[\]-]+)", page, re.MULTILINE))
    shown |= {option.replace("[no-]", "no-") for option in shown}
    shown |= set(re.findall(r"--[a-z-]+", page.partition("(explained by repolicy inspect --help)")[2]))  # at any width
    unused = {f"--{name.replace('_', '-')}" for name in getattr(EVERY[name], "UNUSED", ())}
    assert {option.replace("[no-]", "") for option in shown} == read - unused
    for option in options(EVERY[name]):  # a default that is shown can be typed
        shown = re.fullmatch(r"\(default: ([\d.,-]+)\)", option.default)
        if shown and not option.metavar:
            made._get_values(made._option_string_actions[f"--{option.name}"], [shown[1]])


@pytest.mark.parametrize("words", ["customize nowhere", "train --no-such-option", "sweep", "train Nope-v0 --envs x"])
def test_help_is_given_to_those_who_are_wrong(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, *words.split(), "--help").startswith(f"usage: repolicy {words.split()[0]} ")


def test_help_for_an_environment_tells_its_own_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    def learning_rate(words: str) -> str:
        text = " ".join(printed(capsys, *words.split(), "--help").split())
        return text.partition("step size at the start. ")[2].partition(")")[0]

    assert learning_rate("train") == "(default: depends on the environment"
    assert learning_rate("train HalfCheetah-v4?reset_noise_scale=0.3") == "(default: 0.001"
    assert learning_rate("train Hopper-v5") == "(default: 0.0005"
    assert learning_rate("train --objective soft Hopper-v5") == "(default: 0.0005"
    assert learning_rate("train my_envs.py:Puck") == "(default: 0.0003"


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("train", "repolicy train ENV --help shows the defaults for ENV"),
        ("rql train", "repolicy rql train TASK --help shows the defaults for TASK"),
        ("customize", "run.json in a run's folder holds what the run took"),
        ("rql customize", "run.json in a run's folder holds what the run took"),
    ],
)
def test_the_last_line_tells_where_defaults_stand_that_depend(name: str, last: str) -> None:
    assert pages.help_page(EVERY[name], f"repolicy {name}").splitlines()[-1] == last
    assert last not in pages.help_page(EVERY["train"], "repolicy train", "Hopper-v5")


@pytest.mark.parametrize("name", ["rql train", "train", "customize"])
def test_no_help_tells_of_what_its_command_has_not(name: str) -> None:
    page = " ".join(pages.help_page(EVERY[name], f"repolicy {name}").split())
    assert "point of a sweep" not in page
    assert name != "rql train" or not re.search("PRIOR|the prior's file|its prior", page)


def test_the_overview_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = printed(capsys, "--help")
    assert max(map(len, page.splitlines())) < 80
    assert "repolicy --version" in page
    assert "--version" not in printed(capsys, "llm", "--help")


def test_usage_tells_which_words_are_several_and_which_may_be_left_out() -> None:
    for name, words in (
        ("infer", "DATA ..."), ("llm generate", "MODEL ..."), ("doctor", "[RUN]"), ("compare", "OLD NEW")
    ):  # fmt: skip
        assert pages.help_page(EVERY[name], name).startswith(f"usage: {name} {words} [options]\n")
    page = pages.help_page(EVERY["llm generate"], "generate")
    assert all(words in page for words in ("--prompt PROMPT ...", "--seed INTEGER", "--omega NUMBER "))


def test_settings_stand_in_groups_with_ten_first() -> None:
    text = pages.help_page(Customize, "repolicy customize")
    titles = [title.capitalize() for title in pages.OPTION_GROUPS]
    parts = re.split(rf"^({'|'.join(titles)})(?: \(.*)?$", text, flags=re.MULTILINE)
    assert parts[1::2] == titles
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert re.findall(r"^  --([a-z-]+)", found["First"], re.MULTILINE) == list(pages.OPTION_GROUPS["first"])
    assert len(pages.OPTION_GROUPS["first"]) == 10
    assert all(f"--{name} " in found["Networks"] for name in ("hidden", "activation"))
    assert all(f"--{name} " in found["Learning"] for name in ("gamma", "gae-lambda", "clip"))


def test_no_row_names_an_option_that_no_command_has() -> None:
    names = [option.name for command in EVERY.values() for option in options(command)]
    assert {name for row in pages.OPTION_GROUPS.values() for name in row} <= set(names)
    assert {field.name.replace("_", "-") for field in fields(Options)} == set(
        pages.OPTION_GROUPS["files of other libraries"]
    )


@pytest.mark.parametrize("kind", [Settings, Train])
def test_every_field_has_its_sentence(kind: Any) -> None:
    told = docstrings(kind)
    assert all(told.get(field.name) for field in fields(kind) if field.name not in ("named_settings", "reading"))
    assert not any("\n" in sentence for sentence in told.values())


BASH = """
source "$1"; shift
export PATH="$1:$PATH"; shift
COMP_LINE="repolicy $*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_WORDBREAKS=" =:"
_python_argcomplete repolicy
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["completion", "bash"])
    file = tmp_path / "repolicy"
    file.write_text(capsys.readouterr().out)

    def completed(*words: str) -> list[str]:
        words = ("bash", "-c", BASH, "bash", str(file), str(Path(sys.executable).parent), *words)
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return done.stdout.replace(" ", "").split("\n")[:-1]

    assert {*cli.COMMANDS, *cli.GROUPS} <= set(completed(""))
    assert completed("customize", "--objective", "") == ["residual", "kl", "greedy"]
    assert completed("rql", "train", "--al") == ["--alpha"]


def test_what_differs_by_the_prior_is_not_told_as_one_default() -> None:
    """The help tells a default where all examples agree, so these must differ wherever two priors' settings do."""
    space = ActionSpace("continuous", (12,), (-1.0,) * 12, (1.0,) * 12)
    specs = PolicySpec(7, space, hidden=(64,)), PolicySpec(7, space, hidden=(512,), activation="swish")
    every = [asdict(customize_defaults(Policy(spec), steps)) for spec in specs for steps in (10_000, 1_000_000)]
    examples = [asdict(each) for each in Customize.defaults()[1]]
    differ = {name for name in every[0] if any(each[name] != every[0][name] for each in every)} - {"steps"}
    assert "activation" in differ
    shown_as_differing = {name for name in examples[0] if any(each[name] != examples[0][name] for each in examples)}
    assert differ <= shown_as_differing
    assert "steps" not in shown_as_differing  # the other settings follow from them
