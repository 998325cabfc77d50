"""The help of a command: its options in groups, with those at the top that people need first.

What an option is for stands in the docstring below its field, and what it is by default in the field.
"""

import argparse
import inspect
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

from repolicy.cli.options import Option, add_options, options

# A row a group, in order. Options that no row names stand with "learning" where they are settings, with "what to ask
# for" where they are the command's own.
GROUPS: dict[str, tuple[str, ...]] = {
    "first": ("addon", "limit", "keep", "omega", "env", "steps", "out", "resume", "ranks", "trust"),
    "what to ask for": ("alpha", "objective", "states", "kl-budget", "log-prior-budget", "sparse"),
    "how long": (
        *("seed", "envs", "n-steps", "checkpoint-every", "epochs", "critic-warmup", "critic-explains"),
        *("jobs", "episodes", "env-timeout"),
    ),
    "learning": (),
    "networks": ("family", "hidden", "activation", "initial-std", "min-std"),
    "logging": ("report", "wandb", "json", "evaluation-episodes", "settings"),
    "files of other libraries": ("std", "temperature", "vecnormalize", "file-activation", "layout", "demonstrations"),
}
FEW = 16  # options that need no groups
INDENT, WIDEST = 26, 110


def page(command: type, prog: str) -> str:
    """Return the help of a command."""
    unused = {name.replace("_", "-") for name in getattr(command, "UNUSED", ())}
    every = [option for option in options(command) if option.name not in unused]
    named = [option for option in every if not option.metavar]
    usage = " ".join([*(option.metavar for option in every if option.metavar), "[options]"])
    lines = [f"usage: {prog} {usage}", "", *inspect.cleandoc(command.__doc__ or "").splitlines()]
    for option in every:
        lines += ["", *_lines(option)] if option.metavar else []
    for title, members in _grouped(named):
        lines += ["", title.capitalize(), *(line for option in members for line in _lines(option))]
    return "\n".join(lines)


def _grouped(every: list[Option]) -> list[tuple[str, list[Option]]]:
    if len(every) <= FEW:
        return [("options", every)]
    home = {name: title for title, names in GROUPS.items() for name in names}
    order = {name: place for place, name in enumerate(home)}
    groups: dict[str, list[Option]] = {title: [] for title in GROUPS}
    for option in sorted(every, key=lambda option: order.get(option.name, len(order))):
        groups[home.get(option.name, "learning" if option.setting else "what to ask for")].append(option)
    return [(title, members) for title, members in groups.items() if members]


def _lines(option: Option) -> list[str]:
    width = min(shutil.get_terminal_size((100, 24)).columns, WIDEST) - 1
    name = f"[no-]{option.name}" if option.is_on else option.name
    head = f"  {option.metavar}" if option.metavar else f"  --{name} {option.shape}".rstrip()
    text = option.what if option.metavar else f"{option.what} {option.default}"
    body = textwrap.wrap(text, max(width - INDENT, 30), break_on_hyphens=False) or [""]
    if len(head) > INDENT - 2:
        return [head, *(" " * INDENT + line for line in body)]
    return [f"{head:{INDENT}}{body[0]}", *(" " * INDENT + line for line in body[1:])]


# Completion -----------------------------------------------------------------------------------------------------------


def complete(commands: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Answer a shell that asks how a line goes on, and end."""
    import argcomplete

    whole = argparse.ArgumentParser(prog="repolicy", add_help=False)
    _add_commands(whole, commands, groups)
    argcomplete.autocomplete(whole, always_complete_options=True)


def _add_commands(
    made: argparse.ArgumentParser, commands: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]
) -> None:
    below = made.add_subparsers()
    for name, command in commands.items():
        add_options(below.add_parser(name, add_help=False), command)
    for name, members in groups.items():
        _add_commands(below.add_parser(name, add_help=False), members, {})
