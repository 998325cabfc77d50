"""The command line: from words to a command, and from an error to one sentence and an exit code."""

import contextlib
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, NoReturn

from repolicy.cli.about import Addons, Bench, Doctor, Report
from repolicy.cli.compare_diagnose_plan import NOT_SAFE, Compare, Diagnose, Plan
from repolicy.cli.dial_commands import Dial, Sweep
from repolicy.cli.group_commands import LLM, RQL
from repolicy.cli.options import Command, Positional, complete, options, page, read
from repolicy.cli.policy_commands import Evaluate, Export, Imitate, Inspect, Push, Render
from repolicy.cli.run_commands import Customize, Train, speaks
from repolicy.cli.wish_commands import Ask, Infer, LearnWish, Takeover
from repolicy.errors import RepolicyError, UsageError, described
from repolicy.runs import full_stdout_is_an_error, silent_stdout, terminated_as_interrupted
from repolicy.text import nearest, printable


@dataclass(frozen=True)
class Completion(Command):
    """Print what completes the commands and their options in your shell: bash, zsh or fish.

    Example: repolicy completion bash > ~/.local/share/bash-completion/completions/repolicy
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], Positional("SHELL")]
    """bash, zsh (into a folder of $fpath, as _repolicy) or fish (into ~/.config/fish/completions)."""

    def run(self) -> dict[str, Any]:
        from argcomplete.shell_integration import shellcode

        return {"shell": self.shell, "script": shellcode(["repolicy"], shell=self.shell)}

    def text(self, values: dict[str, Any]) -> str:
        return str(values["script"])


COMMANDS: dict[str, Any] = {
    "customize": Customize,
    "plan": Plan,
    "ask": Ask,
    "takeover": Takeover,
    "infer": Infer,
    "learn-wish": LearnWish,
    "train": Train,
    "sweep": Sweep,
    "dial": Dial,
    "diagnose": Diagnose,
    "imitate": Imitate,
    "evaluate": Evaluate,
    "compare": Compare,
    "render": Render,
    "report": Report,
    "export": Export,
    "push": Push,
    "addons": Addons,
    "bench": Bench,
    "inspect": Inspect,
    "doctor": Doctor,
    "completion": Completion,
}

# repolicy GROUP COMMAND: what a group is for, and its commands.
GROUPS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llm": ("Language models: text with the dial turned, and what models are worth beside their prior.", LLM),
    "rql": ("Residual Q-learning: train a soft policy, or customize one.", RQL),
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exit with 0, 1 for a failure, 2 for a request that cannot be met, or 130 when it was stopped.

    `compare` exits with 3 where the new policy is worse, or that cannot be told.
    """
    if "_ARGCOMPLETE" in os.environ:
        complete(COMMANDS, {group: commands for group, (_, commands) in GROUPS.items()})
    with caught(), terminated_as_interrupted(), full_stdout_is_an_error():
        _run(list(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in HELP:
        what = "Give a trained policy a new requirement, without its old reward."
        print(_overview("repolicy", what, COMMANDS, GROUPS))
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--version":
        from repolicy import __version__

        print(__version__)
        return
    command = _in_group(*arguments) if arguments[0] in GROUPS else _parsed(arguments[0], arguments[1:])
    values = _done(command)
    if command.json and speaks():
        from repolicy.policies.storage import replace_nonfinite

        print(json.dumps(replace_nonfinite(values)))
    elif hasattr(command, "text"):  # what was asked for is a text
        print(command.text(values))
    if values.get("finished") is False:
        sys.exit(130)
    if failed := values.get("failed"):  # points of a sweep
        names = " and ".join(f"ω′ {point['omega']:g}" for point in failed)
        raise RepolicyError(f"{names} failed; the same command with --resume tries again")
    if values.get("verdict") in NOT_SAFE:
        sys.exit(3)


def _in_group(group: str, *arguments: str) -> Any:
    what, commands = GROUPS[group]
    if not arguments or arguments[0] in HELP:
        print(_overview(f"repolicy {group}", what, commands))
        sys.exit(0 if arguments else 2)
    return _parsed(arguments[0], list(arguments[1:]), commands, f"repolicy {group}")


def _parsed(name: str, arguments: list[str], commands: Mapping[str, Any] = COMMANDS, prog: str = "repolicy") -> Any:
    """Return the command with its options; of its settings, those that the words name."""
    if name not in commands:
        names = {**commands, **GROUPS} if commands is COMMANDS else commands
        raise UsageError(f"there is no command {name!r}{nearest(name, names)}; {prog} --help lists them")
    command, words = commands[name], _words(arguments)
    if not HELP.isdisjoint(words):
        print(page(command, f"{prog} {name}"))
        sys.exit(0)
    for option in options(command):  # of several values: the last mention would count, and the others be lost
        if option.several and words.count(several := f"--{option.name}") > 1:
            raise UsageError(f"{several} stands twice; write all its values behind one {several}")
    return read(command, words, f"{prog} {name}")


HELP = {"-h", "--help"}


def _words(arguments: list[str]) -> list[str]:
    """Return `--critic_warmup=0.1` as `--critic-warmup 0.1`, and `~/runs` as the shell has it."""
    words: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if word.startswith("--"):
            named = option.replace("_", "-")
            if value.startswith("-"):  # argparse takes it for an option, unless it stands behind =
                words.append(f"{named}={value}")
            else:
                words += [named, value] if equals else [named]
        else:
            words.append(word)
    for before, word in pairwise(["", *words]):
        if not word:
            named = before if before.startswith("--") else "one word of the command"
            raise UsageError(f"{named} is empty; if you wrote a variable of your shell, it is not set")
    # the shell does this, but not behind `--out=`
    return [os.path.expanduser(word) if word == "~" or word.startswith("~/") else word for word in words]


def _overview(prog: str, what: str, commands: Mapping[str, Any], groups: Mapping[str, tuple[str, Any]] = {}) -> str:
    lines = [f"usage: {prog} COMMAND ...", "", what, ""]
    lines += [f"  {name:10s} {(command.__doc__ or '').splitlines()[0]}" for name, command in commands.items()]
    lines += ["", "Groups of commands, each with a --help of its own:", ""] if groups else []
    lines += [f"  {name:10s} {what}" for name, (what, _) in groups.items()]
    return "\n".join([*lines, "", f"{prog} COMMAND --help lists a command's options. All take --json."])


# Where a command does not end as it should: a sentence of at most three lines, and an exit code -----------------------

LONGEST_WORD = 300
LONGEST_LINE = 1200
STOPPED = 130  # by Ctrl-C or SIGTERM


@contextlib.contextmanager
def caught() -> Iterator[None]:
    """Turn whatever is raised into a sentence and an exit code; the traceback of a surprise goes to a file."""
    try:
        yield
    except SystemExit:
        raise
    except RepolicyError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt as stop:
        _fail(f"stopped{stop}", STOPPED)
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # Python would write again when it ends, and nobody reads it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.strerror is None:
            _fail(_surprise(error))
        _fail(f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror)
    except BaseException as error:
        _fail(_surprise(error))


def _done(command: Any) -> dict[str, Any]:
    """Run a command: it must end by returning, and one that is stopped at once says how it can be resumed."""
    try:
        with silent_stdout():
            return dict(command.run())
    except SystemExit as error:  # `sys.exit(0)` in an environment is no success
        raise RepolicyError(f"the command was ended by the code that it ran: {described(error)}") from error
    except KeyboardInterrupt:
        advice = "; the same command with --resume goes on" if hasattr(command, "resume") else command.GOES_ON
        raise KeyboardInterrupt(advice) from None


def sentence(text: str) -> str:
    """Return at most three lines, without control characters; what is far too long is cut in its middle."""
    short = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: f"{word[0][:100]}…{word[0][-100:]}", text)
    lines = [printable(line) for line in short.splitlines() if line.strip()][:3]
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in lines)


def _surprise(error: BaseException) -> str:
    """Return a sentence about what should not have happened, with the file that tells where it did."""
    words = f"unexpected {described(error)}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="repolicy-", suffix=".txt", delete=False) as file:
            file.write(f"{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}")
    except OSError:
        return words
    return f"{words}\nThis is a mistake in Repolicy, or in code of yours that it ran; to report it, attach {file.name}"


def _fail(text: str, code: int = 1) -> NoReturn:
    notes = getattr(sys.exception(), "__notes__", [])  # `rank 1`, of what failed in that one's own work
    if speaks() or notes:
        whose = "" if speaks() else f"{notes[0]}: "
        with contextlib.suppress(OSError):
            print(f"repolicy: {whose}{sentence(text)}", file=sys.stderr, flush=True)
    sys.exit(code)
