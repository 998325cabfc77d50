"""Run the command line: parse the words into a command, and turn an error into a sentence and an exit code."""

import contextlib
import json
import os
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

from repolicy.cli.about import Addons, Bench, Doctor, Report
from repolicy.cli.compare_diagnose_plan import UNSAFE_VERDICTS, Compare, Diagnose, Plan
from repolicy.cli.dial_commands import Dial, Sweep
from repolicy.cli.group_commands import LLM, RQL
from repolicy.cli.help_page import help_page, page_width
from repolicy.cli.options import Command, Positional, complete, find_subject, normalize_words, parse
from repolicy.cli.policy_commands import Evaluate, Export, Inspect, Push, Render
from repolicy.cli.run_commands import Customize, Imitate, Train, is_main_process
from repolicy.cli.wish_commands import Ask, Infer, LearnWish, Takeover
from repolicy.errors import RepolicyError, UsageError, describe_error, in_one_sentence, was_interrupted
from repolicy.files import replace_nonfinite
from repolicy.runs import flushed_stdout, silent_stdout, terminated_as_interrupted
from repolicy.text import printable, suggest


@dataclass(frozen=True)
class Completion(Command):
    """Print a script that completes commands and options in your shell: bash, zsh or fish.

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

# For `repolicy GROUP COMMAND`: the purpose of each group, and its commands.
GROUPS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llm": ("Language models: text with the dial turned, and what models are worth beside their prior.", LLM),
    "rql": ("Residual Q-learning: train a soft policy, or customize one.", RQL),
}
HELP = {"-h", "--help"}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exit with 0, 1 for a failure, 2 for a request that cannot be met, or 130 when it was stopped.

    `compare` exits with 3 if the new policy is worse, or if it cannot tell.
    """
    if "_ARGCOMPLETE" in os.environ:
        complete(COMMANDS, {group: commands for group, (_, commands) in GROUPS.items()})
    with errors_as_exit_codes(), terminated_as_interrupted(), flushed_stdout():
        with in_one_sentence("the working folder was deleted, so change to another one", UsageError):
            os.getcwd()
        _run(list(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["--version"]:
        from repolicy import __version__

        print(__version__)
        return
    command = _parse_command(arguments)
    values = _execute(command)
    if command.json and is_main_process():
        print(json.dumps(replace_nonfinite(values)))
    elif hasattr(command, "text"):  # a command whose result is a text, such as a script
        print(command.text(values))
    if values.get("finished") is False:
        sys.exit(130)
    if failed := values.get("failed"):  # points of a sweep
        names = " and ".join(f"ω′ {point['omega']:g}" for point in failed)
        raise RepolicyError(f"{names} failed; the same command with --resume tries again")
    if values.get("verdict") in UNSAFE_VERDICTS:
        sys.exit(3)


def _parse_command(
    arguments: list[str],
    prog: str = "repolicy",
    purpose: str = "Give a trained policy a new requirement, without its old reward.",
    commands: Mapping[str, Any] = COMMANDS,
    groups: Mapping[str, tuple[str, Mapping[str, Any]]] = GROUPS,
) -> Any:
    """Parse the words into a command; if they ask for help, print it and exit."""
    if not arguments or arguments[0] in HELP:
        print(_overview(prog, purpose, commands, groups))
        sys.exit(0 if arguments else 2)
    name, *arguments = arguments
    if name in groups:
        return _parse_command(arguments, f"{prog} {name}", *groups[name], groups={})
    if name not in commands:
        raise UsageError(f"there is no command {name!r}{suggest(name, [*commands, *groups])}; {prog} --help lists them")
    command, words = commands[name], normalize_words(arguments)
    if not HELP.isdisjoint(words):
        subject = find_subject(command, [word for word in words if word not in HELP])
        print(help_page(command, f"{prog} {name}", subject))
        sys.exit(0)
    return parse(command, words, f"{prog} {name}")


def _overview(prog: str, purpose: str, commands: Mapping[str, Any], groups: Mapping[str, tuple[str, Any]]) -> str:
    lines = [f"usage: {prog} COMMAND ...", "", purpose, ""]
    for name, command in commands.items():
        lines += _overview_lines(name, (command.__doc__ or "").splitlines()[0])
    lines += ["", "Groups of commands, each with a --help of its own:", ""] if groups else []
    for name, (group_purpose, _) in groups.items():
        lines += _overview_lines(name, group_purpose)
    lines += ["", f"{prog} COMMAND --help lists a command's options. All take --json."]
    return "\n".join([*lines, f"{prog} --version prints the version."] if groups else lines)


def _overview_lines(name: str, purpose: str) -> list[str]:
    return textwrap.wrap(f"  {name:10s} {purpose}", page_width(), subsequent_indent=" " * 13, break_on_hyphens=False)


# Errors: a sentence of at most three lines, and an exit code ----------------------------------------------------------

MAX_LINE_LENGTH = 1200
EXIT_STOPPED = 130  # by Ctrl-C or SIGTERM


@contextlib.contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn any error into a sentence and an exit code; the traceback of an unexpected one is written to a file."""
    try:
        yield
    except SystemExit:
        raise
    except RepolicyError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt as stop:
        _fail(f"stopped{stop}", EXIT_STOPPED)
    except MemoryError as error:
        _fail(f"not enough memory ({error}): ask for less at once, such as --samples or --buffer")
    except BrokenPipeError:  # as with `| head`, which is no error of ours
        sys.exit(1)
    except OSError as error:
        if error.strerror is None:
            _fail(_unexpected_error_sentence(error))
        _fail(f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror)
    except BaseException as error:
        _fail(_unexpected_error_sentence(error))


def _execute(command: Any) -> dict[str, Any]:
    """Run a command and return its values; if it is stopped, add how it can be resumed.

    Raises if code of the user exits the process, because `sys.exit(0)` in an environment is no success.
    """
    try:
        with silent_stdout():
            return dict(command.run())
    except SystemExit as error:
        raise RepolicyError(f"the command was ended by the code that it ran: {describe_error(error)}") from error
    except BaseException as error:
        if not was_interrupted(error):
            raise
        advice = "; the same command with --resume goes on" if hasattr(command, "resume") else command.STOP_ADVICE
        raise KeyboardInterrupt(advice) from None


def _unexpected_error_sentence(error: BaseException) -> str:
    """Write the traceback to a file, and return a sentence with the file's path."""
    words = f"unexpected {describe_error(error)}"
    try:
        with tempfile.NamedTemporaryFile(prefix="repolicy-", suffix=".txt", delete=False) as file:
            file.write(f"{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}".encode(errors="replace"))
    except OSError:
        return words
    return f"{words}\nThis is a mistake in Repolicy, or in code of yours that it ran; to report it, attach {file.name}"


def _fail(text: str, code: int = 1) -> NoReturn:
    """Print at most three lines, shortened and without control characters, and exit."""
    lines = [printable(line, MAX_LINE_LENGTH) for line in text.splitlines() if line.strip()][:3]
    notes = getattr(sys.exception(), "__notes__", [])  # such as `rank 1`, for an error in that rank's own work
    if is_main_process() or notes:
        whose = "" if is_main_process() else f"{notes[0]}: "
        with contextlib.suppress(OSError):
            print(f"repolicy: {whose}" + "\n".join(lines), file=sys.stderr, flush=True)
    sys.exit(code)
