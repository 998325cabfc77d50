"""What a shell needs to complete the commands and their options."""

import contextlib
import io
from collections.abc import Mapping
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand


def script(shell: str, commands: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Tyro's script for the whole of `repolicy`: its commands, and the groups with theirs."""
    every = [_member(name, command) for name, command in commands.items()]
    for group, members in groups.items():
        inner: Any = Union[tuple(_member(name, command) for name, command in members.items())]  # noqa: UP007
        every.append(Annotated[inner, subcommand(name=group, prefix_name=False)])
    text: str = _printed(Union[tuple(every)], shell)  # noqa: UP007
    # A description with a line break in it would be taken for two.
    return "\n".join(
        line.replace("\\n", " ") if line.startswith("COMPLETION_SPEC") else line for line in text.splitlines()
    )


def _member(name: str, command: Any) -> Any:
    return Annotated[Any, subcommand(name=name, constructor=command, prefix_name=False)]


def _printed(union: Any, shell: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        tyro.cli(union, prog="repolicy", args=["--tyro-print-completion", shell])
    return output.getvalue()
