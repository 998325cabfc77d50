"""`repolicy llm`: found, listed, refused in one sentence, and JSON on stdout."""

import importlib.util
import json
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from repolicy import cli
from repolicy.errors import UsageError
from repolicy.llm import commands


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in commands.COMMANDS)])
def test_help_needs_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom repolicy.cli import main\n"
        f"try:\n    main(['llm', *{words!r}])\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'torch', 'trl', 'transformers', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'it imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: repolicy llm" in done.stdout


def test_overviews_list_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    overview = capsys.readouterr().out
    assert all(f"\n  {name}" in overview for name in (*cli.COMMANDS, *cli.GROUPS))
    with pytest.raises(SystemExit) as without:
        cli.main(["llm"])
    assert without.value.code == 2
    listed = capsys.readouterr().out
    assert all(f"\n  {name}" in listed for name in commands.COMMANDS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("llm fronteir", "there is no command 'fronteir'; did you mean frontier?; repolicy llm --help lists them"),
        ("lmm", "there is no command 'lmm'; did you mean llm?; repolicy --help lists them"),
        ("llm frontier --alpha 0", "alpha is 0.0; the optimum divides by it, so it must be greater than 0"),
        ("llm frontier --omegas -0.1", "omegas must name one or more numbers, each 0 or greater"),
        ("llm labels --pairs 4", "pairs must be 8 or more, and seeds 1 or more"),
        ("llm spelling --samples 1", "steps and pretraining must be 1 or more, samples 2 or more"),
        ("llm gradients --vocabulary 20 --length 9", "20 tokens at length 9 make too many responses to list"),
        ("llm overhead --steps 2", "steps must be 3 or more, because two are not counted"),
    ],
)
def test_a_request_that_cannot_be_met(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"repolicy: {sentence}")
    assert said.count("\n") == 1


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_peft(name: str) -> ModuleSpec | None:
        return None if name == "peft" else ModuleSpec(name, None)

    monkeypatch.setattr(commands, "find_spec", without_peft)
    with pytest.raises(UsageError, match=r"this needs peft, not installed here: pip install 'repolicy\[llm\]'"):
        commands.Frontier().run()


def test_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        cli.main(["llm", "gradients", "--output", str(tmp_path / "file" / "x")])
    assert end.value.code == 1
    assert "cannot be made a folder for the results" in capsys.readouterr().err


def test_json_alone_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["llm", "gradients", "--vocabulary", "3", "--length", "2", "--draws", "1", "--output", str(tmp_path)]
    cli.main([*words, "--json"])
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["records"][0]["command"] == "repolicy llm gradients --vocabulary 3 --length 2 --draws 1"
    assert found["table"] == str(tmp_path / "gradients.md")
    cli.main(words)
    assert capsys.readouterr().out == ""


def test_command_line_says_what_is_unusual() -> None:
    assert commands.command_line(commands.Frontier()) == "repolicy llm frontier"
    options = commands.Frontier(omegas=(0.1, 0.2), controls=False, train=False, output=Path("elsewhere"))
    assert commands.command_line(options) == "repolicy llm frontier --omegas 0.1 0.2 --no-controls"


def test_every_group_can_be_found() -> None:
    assert all(importlib.util.find_spec(f"repolicy.{group}.commands") for group in cli.GROUPS)
