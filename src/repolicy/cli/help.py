"""The help of a command: its options in groups, with those at the top that people need first.

What an option is for stands in the docstring below its field, and what it is by default in the field.
"""

import ast
import contextlib
import inspect
import io
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Positional, UseAppendAction, subcommand

# A row a group, in order. Options that no row names stand with "learning" where they are settings, with "what to ask
# for" where they are the command's own.
GROUPS: dict[str, tuple[str, ...]] = {
    "first": ("addon", "omega", "kl-budget", "alpha", "env", "steps", "out", "resume", "ranks", "trust"),
    "what to ask for": ("objective", "states", "log-prior-budget", "sparse"),
    "how long": (
        *("seed", "envs", "n-steps", "checkpoint-every", "epochs", "critic-warmup", "critic-explains"),
        *("jobs", "episodes", "env-timeout"),
    ),
    "learning": (),
    "networks": ("family", "hidden", "activation", "initial-std", "min-std"),
    "logging": ("report", "wandb", "json", "evaluation-episodes", "settings"),
    "files of other libraries": ("std", "temperature", "vecnormalize", "file-activation", "layout", "demonstrations"),
}
Usual = tuple[str, list[Any]]  # what a command's settings depend on by default, and examples
FEW = 16  # options that need no groups
INDENT, WIDEST = 26, 110


@dataclass(frozen=True)
class Option:
    """One line of the help."""

    name: str
    shape: str  # what follows the name, such as NUMBER
    what: str
    default: str  # "(default: 64)"
    positional: bool
    setting: bool
    several: bool  # whether it takes several values at once


def page(command: type, prog: str) -> str:
    """Return the help of a command."""
    every = list(options(command))
    named = [option for option in every if not option.positional]
    usage = " ".join([*(option.name for option in every if option.positional), "[options]"])
    lines = [f"usage: {prog} {usage}", "", *inspect.cleandoc(command.__doc__ or "").splitlines()]
    for option in every:
        lines += ["", *_lines(option)] * option.positional
    for title, members in _grouped(named):
        lines += ["", title.capitalize(), *(line for option in members for line in _lines(option))]
    return "\n".join(lines)


def options(command: type) -> Iterator[Option]:
    """Yield every option, those of its settings too, in the order of the fields."""
    usual: Usual = command.usual() if hasattr(command, "usual") else ("", [])
    unused = {name.replace("_", "-") for name in getattr(command, "UNUSED", ())}
    every = _options(command, [], usual)
    yield from (option for option in every if option.name not in unused)


def _options(cls: type, examples: list[Any], usual: Usual, setting: bool = False) -> Iterator[Option]:
    """`examples` are what the values can be by default; none where the fields say it."""
    on, settings = usual
    hints, texts = typing.get_type_hints(cls, include_extras=True), docstrings(cls)
    for each in fields(cls):
        hint, extras = _unwrapped(hints[each.name])
        values = [getattr(example, each.name) for example in examples] or [_default(each)]
        if isinstance(hint, type) and is_dataclass(hint):
            own = each.name == "settings"
            yield from _options(hint, settings if own and settings else values, usual, own)
            continue
        renamed, metavar = (next((getattr(e, key) for e in extras if getattr(e, key, None)), None) for key in _ARG)
        name, positional = (renamed or each.name).replace("_", "-"), Positional in extras
        shape = "" if hint is bool else metavar or _shape(hint, each.name)
        shown = _shown(values[0]) if all(value == values[0] for value in values) else f"(default: depends on {on})"
        if hint is bool and values[0] is True:
            name = f"[no-]{name}"
        several = typing.get_origin(hint) is tuple and UseAppendAction not in extras
        text = texts.get(each.name, "")
        yield Option(shape if positional else name, shape, text, shown, positional, setting, several)


_ARG = ("name", "metavar")


def _grouped(every: list[Option]) -> list[tuple[str, list[Option]]]:
    if len(every) <= FEW:
        return [("options", every)]
    home = {name: title for title, names in GROUPS.items() for name in names}
    order = {name: place for place, name in enumerate(home)}
    groups: dict[str, list[Option]] = {title: [] for title in GROUPS}
    for option in sorted(every, key=lambda option: order.get(_plain(option), len(order))):
        groups[home.get(_plain(option), "learning" if option.setting else "what to ask for")].append(option)
    return [(title, members) for title, members in groups.items() if members]


def _plain(option: Option) -> str:
    return option.name.removeprefix("[no-]")


def _lines(option: Option) -> list[str]:
    width = min(shutil.get_terminal_size((100, 24)).columns, WIDEST) - 1
    head = f"  {option.name}" if option.positional else f"  --{option.name} {option.shape}".rstrip()
    text = option.what if option.positional else f"{option.what} {option.default}"
    body = textwrap.wrap(text, max(width - INDENT, 30), break_on_hyphens=False) or [""]
    if len(head) > INDENT - 2:
        return [head, *(" " * INDENT + line for line in body)]
    return [f"{head:{INDENT}}{body[0]}", *(" " * INDENT + line for line in body[1:])]


def docstrings(cls: type) -> dict[str, str]:
    """Return what stands below each field of a dataclass, and of those that it inherits from, on one line each."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(text, str):
                texts[before.target.id] = " ".join(text.split())
    return texts


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its annotations and without `| None`, and the annotations."""
    extras: tuple[Any, ...] = ()
    while typing.get_origin(hint) is typing.Annotated:
        extras += hint.__metadata__
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is types.UnionType:
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    return hint, extras


def _shape(hint: Any, name: str) -> str:
    """Return what a value looks like."""
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(typing.get_args(hint)) + "}"
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is not str:
        return f"{_shape(typing.get_args(hint)[0], name)} ..."
    return {int: "COUNT", float: "NUMBER", Path: "PATH"}.get(hint, name.upper())


def _default(each: "Field[Any]") -> Any:
    if each.default is not MISSING:
        return each.default
    return each.default_factory() if each.default_factory is not MISSING else MISSING


def _shown(value: Any) -> str:
    """Return a default in words; none where the text says what happens without one."""
    if value is MISSING:
        return "(required)"
    if value is None or value is False or value in ((), ""):
        return ""
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    return f"(default: {'yes' if value is True else f'{value:,}' if isinstance(value, int) else value})"


# What a shell needs to complete the commands and their options --------------------------------------------------------


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
