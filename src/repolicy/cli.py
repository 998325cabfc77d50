"""The command line: from words to a command, and from an error to one sentence."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

from repolicy.commands import Addons, Bench, Customize, Doctor, Evaluate, Inspect, Train, card_of, speaks
from repolicy.errors import RepolicyError, UsageError
from repolicy.result_commands import Export, Render, Sweep
from repolicy.settings import Settings, checked, customizing, defaults, read_settings

COMMANDS: dict[str, Any] = {
    "customize": Customize,
    "train": Train,
    "sweep": Sweep,
    "evaluate": Evaluate,
    "render": Render,
    "export": Export,
    "addons": Addons,
    "bench": Bench,
    "inspect": Inspect,
    "doctor": Doctor,
}

# Commands of their own in each wing's `commands.COMMANDS`: repolicy GROUP COMMAND.
GROUPS = {
    "llm": "Measure the language-model trainers: trade-off, labels, samples, gradients, cost.",
    "rql": "Residual Q-learning: train a soft policy, or customise one.",
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exit with 0, 1 for a failure or 2 for a request that cannot be met."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--version":
        from repolicy import __version__

        print(__version__)
        return
    try:
        command = _in_group(*arguments) if arguments[0] in GROUPS else _parsed(arguments[0], arguments[1:])
        values = command.run()
    except RepolicyError as error:
        print(f"repolicy: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("repolicy: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    if command.json and speaks():
        print(json.dumps(values))
    if values.get("finished") is False:
        sys.exit(130)


def _in_group(group: str, name: str = "", *arguments: str) -> Any:
    """A command of a wing. The wing's table is read only now: nobody else pays for it."""
    commands: Mapping[str, Any] = importlib.import_module(f"repolicy.{group}.commands").COMMANDS
    if name in ("", "-h", "--help"):
        print(_group_overview(group, commands))
        sys.exit(0 if name else 2)
    return _parsed(name, list(arguments), commands, f"repolicy {group}")


def _parsed(name: str, arguments: list[str], commands: Mapping[str, Any] = COMMANDS, prog: str = "repolicy") -> Any:
    """The command with its options. Settings start from the environment's own, or from the run that is resumed."""
    if name not in commands:
        from repolicy.loading import nearest

        names = {**commands, **GROUPS} if commands is COMMANDS else commands
        raise UsageError(f"there is no command {name!r}{nearest(name, names)}; {prog} --help lists them")
    command, arguments = commands[name], [_underscored(word) for word in arguments]
    fields = {entry.name for entry in dataclasses.fields(command)}
    default: Any = dataclasses.MISSING
    if "settings" in fields and arguments and not arguments[0].startswith("-"):
        settings = _starting_settings(command, arguments)
        default = command(**{next(iter(dataclasses.fields(command))).name: arguments[0], "settings": settings})
    arguments = [_whole(word, previous) for previous, word in pairwise(["", *arguments])]
    kwargs = {} if default is dataclasses.MISSING else {"default": default}
    return tyro.cli(command, args=arguments, prog=f"{prog} {name}", **kwargs)


def _starting_settings(command: Any, arguments: list[str]) -> Settings:
    settings = (
        customizing(_env_of(arguments[0], arguments)) if command in (Customize, Sweep) else defaults(arguments[0])
    )
    options = dict(pairwise(arguments))
    if "--resume" in arguments and "--out" in options:
        from repolicy.checkpoint import RunFolder

        if (Path(options["--out"]) / "sweep.json").exists():
            return read_settings(Path(options["--out"]) / "settings.json", settings)
        before = RunFolder(options["--out"]).request()
        if before is not None:
            return Settings(**checked(before["settings"], f"the run in {options['--out']}"))
    if "--settings" in options:
        settings = read_settings(Path(options["--settings"]), settings)
    return settings


def _env_of(prior: str, arguments: list[str]) -> str:
    """The environment whose settings a prior is customised with: what is named, or what its file says."""
    if "--env" in arguments[:-1]:
        return arguments[arguments.index("--env") + 1]
    return str(card_of(prior).get("request", {}).get("env", ""))


def _underscored(word: str) -> str:
    """`--critic_warmup` is `--critic-warmup`."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _whole(word: str, option: str) -> str:
    """`3e6` is a whole number where one is wanted."""
    if option in ("--steps", "--segment", "--minibatch", "--episodes") and "e" in word.lower():
        try:
            return str(int(float(word)))
        except ValueError:
            return word
    return word


def _overview() -> str:
    lines = ["usage: repolicy COMMAND ...", "", "Give a trained policy a new requirement, without its old reward.", ""]
    lines += _listed(COMMANDS)
    lines += ["", "Groups of commands, each with a --help of its own:", ""]
    lines += [f"  {name:10s} {what}" for name, what in GROUPS.items()]
    lines += ["", "repolicy COMMAND --help lists a command's options. All take --json."]
    return "\n".join(lines)


def _group_overview(group: str, commands: Mapping[str, Any]) -> str:
    lines = [f"usage: repolicy {group} COMMAND ...", "", GROUPS[group], "", *_listed(commands)]
    return "\n".join([*lines, "", f"repolicy {group} COMMAND --help lists a command's options. All take --json."])


def _listed(commands: Mapping[str, Any]) -> list[str]:
    return [f"  {name:10s} {(command.__doc__ or '').splitlines()[0]}" for name, command in commands.items()]
