"""`repolicy llm`: found, listed, refused in one sentence, and JSON on stdout."""

import importlib.util
import json
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from repolicy.cli import main as cli
from repolicy.llm import commands, requirements


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys\nfrom repolicy.cli.main import main\nfrom repolicy.llm.commands import COMMANDS\n"
        "for words in (['--help'], *([name, '--help'] for name in COMMANDS)):\n"
        "    try:\n        main(['llm', *words])\n    except SystemExit as end:\n        assert end.code == 0\n"
        "heavy = {'torch', 'trl', 'transformers', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'it imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("COMMAND", *commands.COMMANDS):
        assert f"usage: repolicy llm {words} " in done.stdout


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


@pytest.mark.parametrize(("command", "absent"), [("frontier", "peft"), ("overhead", "trl"), ("spelling", "names")])
def test_missing_extra_is_named(
    command: str, absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == absent else ModuleSpec(name, None))
    with pytest.raises(SystemExit) as end:
        cli.main(["llm", command])
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"repolicy: this needs {absent}, not installed here: pip install 'repolicy[llm]'\n"
    )


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
    assert all(importlib.util.find_spec(module) for _, module in cli.GROUPS.values())
