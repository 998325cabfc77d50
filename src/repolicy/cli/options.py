"""The options of a command: the fields of its dataclass, the sentences below them, argparse to read them, and the help.

What an option is for stands in the docstring below its field, and what it is by default in the field.
"""

import argparse
import ast
import inspect
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn

from repolicy.errors import UsageError
from repolicy.objective import Weight
from repolicy.prepare.defaults import TABLE, settings_for_shape, train_defaults
from repolicy.ranges import Range
from repolicy.readers.reading import Options
from repolicy.runs import AnySettings, Settings, read_settings
from repolicy.text import nearest

if TYPE_CHECKING:
    from repolicy.priors import OpenedPolicy


class Positional(NamedTuple):
    """Marks a field that stands by itself on the command line."""

    metavar: str


class Named(NamedTuple):
    """Marks a field whose option has another name."""

    name: str


class Repeatable(NamedTuple):
    """Marks a field that takes one value each time that its option stands there."""


Repeated = Annotated[tuple[str, ...], Repeatable()]
Usual = tuple[str, list[Any]]  # what a command's settings depend on by default, and examples


@dataclass(frozen=True, kw_only=True)
class Command:
    """What every command takes."""

    GOES_ON: ClassVar = ""  # what a command without --resume says when it was stopped
    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class OfPolicy(Command):
    """What a command takes that opens a policy."""

    env: str | None = None
    """Environment; by default the one that the policy was trained in."""
    trust: bool = False
    """Run code that the policy's file names as its environment or add-on."""
    reading: Options = field(default_factory=Options)


@dataclass(frozen=True, kw_only=True)
class Acts(OfPolicy):
    """What a command takes that runs a policy."""

    seed: int = 0
    """Seed of environments and sampling."""

    def __post_init__(self) -> None:
        Settings(seed=self.seed)  # which refuses one that no environment takes

    def acting(self, policy: str | Path) -> "tuple[OpenedPolicy, str]":
        """Return who acts, and in which environment."""
        from repolicy.envs import env_from_card, open_policy_in_env

        found = open_policy_in_env(self.env, policy, self.reading, self.trust)
        return found, self.env or env_from_card(found.card, found.path, self.trust)


def usual_by_env() -> Usual:
    """Return what the settings of a new policy depend on by default, and examples."""
    return "the environment", [train_defaults(env) for env in ("", *TABLE)]


def usual_by_prior() -> Usual:
    """Return what the settings of customizing depend on by default, and examples."""
    by_shape = [settings_for_shape(64, 1), settings_for_shape(256, 12), settings_for_shape(64, 1, 10_000)]
    return "the prior and the steps", [*by_shape, replace(by_shape[0], activation="elu")]


def overrides(command: Any, kind: type[AnySettings] = Settings) -> dict[str, Any]:
    """Return the settings that a command names: in a file, and as options, which go before it."""
    of_file = {} if command.settings_file is None else read_settings(command.settings_file, kind)
    return of_file | command.settings


def weight_of(name: str, text: str | None) -> Weight:
    """Return the weight that an option says: a number, a range such as 0.03..3, a word; None where there is none."""
    try:
        return text if text in (None, "auto", "omega") else Range.of(str(text))
    except ValueError:
        also = "auto" if name == "omega" else "omega"
        raise UsageError(f"--{name} is {text!r}; it must be a number, a range such as 0.03..3, or {also}") from None


@dataclass(frozen=True)
class Option:
    """One option. `place` is the field that it fills, behind the field of the dataclass `of` that it stands in."""

    place: tuple[str, ...]
    name: str
    hint: Any
    of: type
    default: str  # "(default: 64)"
    metavar: str = ""  # of a positional one
    is_on: bool = False  # a switch that can be turned off
    may_be_none: bool = False
    repeatable: bool = False

    @property
    def what(self) -> str:
        """What stands below its field."""
        return docstrings(self.of).get(self.place[-1], "")

    @property
    def several(self) -> bool:
        """Whether it takes several values at once."""
        return typing.get_origin(self.hint) is tuple and not self.repeatable

    @property
    def value(self) -> Any:
        """The type of one value."""
        return typing.get_args(self.hint)[0] if typing.get_origin(self.hint) is tuple else self.hint

    @property
    def shape(self) -> str:
        """What follows the name, such as NUMBER."""
        if self.hint is bool or self.metavar:
            return self.metavar
        if typing.get_origin(self.hint) is Literal:
            return "{" + ",".join(typing.get_args(self.hint)) + "}"
        word = {int: "COUNT", float: "NUMBER", Path: "PATH"}.get(self.value, self.place[-1].upper())
        return f"{word} ..." if self.several and self.value is not str else word


@cache
def options(command: type) -> tuple[Option, ...]:
    """Return every option of a command, those of its settings too: its own, and then those that it inherits."""
    usual: Usual = command.usual() if hasattr(command, "usual") else ("", [])  # type: ignore[attr-defined]
    inherited = {name for base in command.__mro__[1:] for name in vars(base).get("__annotations__", ())}
    return tuple(sorted(_options(command, (), [], usual), key=lambda option: option.place[0] in inherited))


def _options(cls: type, place: tuple[str, ...], examples: list[Any], usual: Usual) -> Iterator[Option]:
    """Return the help of options; `examples` are what the values can be by default, none where the fields say it."""
    on, settings = usual
    hints = typing.get_type_hints(cls, include_extras=True)
    for each in fields(cls):
        hint, extras = _unwrapped(hints[each.name])
        values = [getattr(example, each.name) for example in examples] or [_default(each)]
        here = (*place, each.name)
        if isinstance(hint, type) and is_dataclass(hint):
            own = settings if each.name == "settings" and settings else values
            yield from _options(hint, here, own, usual)
            continue
        renamed = next((extra.name for extra in extras if isinstance(extra, Named)), each.name)
        metavar = next((extra.metavar for extra in extras if isinstance(extra, Positional)), "")
        same = all(value == values[0] for value in values)
        yield Option(
            here, renamed.replace("_", "-"), hint, cls,
            _shown(values[0]) if same else f"(default: depends on {on})", metavar,
            is_on=hint is bool and values[0] is True, may_be_none=None in extras,
            repeatable=any(isinstance(extra, Repeatable) for extra in extras),
        )  # fmt: skip


@cache
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
    """Return a type without annotations and `| None`, and these: the annotations, and None where it may be None."""
    extras: tuple[Any, ...] = ()
    while typing.get_origin(hint) is typing.Annotated:
        extras += hint.__metadata__
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
        extras += (None,)
    return hint, extras


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
    if value is True:
        return "(default: yes)"
    return f"(default: {value:,})" if isinstance(value, int) else f"(default: {value})"


# Reading --------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """argparse, whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help lists the options")


def add_options(made: argparse.ArgumentParser, command: type) -> None:
    """Give a parser the options of a command."""
    for option in options(command):
        place, names = ".".join(option.place), [f"--{option.name}"]
        if option.hint is bool:
            made.add_argument(*names, dest=place, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS)
            continue
        is_required = option.default == "(required)"
        more: dict[str, Any] = {"metavar": option.shape, "type": _converter(option, made)}
        if typing.get_origin(option.value) is Literal:
            more |= {"choices": typing.get_args(option.value)}
        if option.several:
            more["nargs"] = "+"
        elif option.repeatable:
            more["action"] = "append"
        if option.metavar:
            more |= {} if is_required or option.several else {"nargs": "?", "default": None}
            made.add_argument(place, **more)
        else:
            made.add_argument(*names, dest=place, required=is_required, **more)


def _converter(option: Option, made: argparse.ArgumentParser) -> Callable[[str], Any]:
    """Return what makes an option's value of a word."""

    def convert(text: str) -> Any:
        if option.value not in (int, float):
            return Path(text) if option.value is Path else text
        if option.may_be_none and text == "None":
            return None
        if option.place[-1] == "std" and text == "fit":
            return text
        try:
            number = float(text)
            if option.value is float:
                return number
            return int(number) if number.is_integer() and "e" in text.lower() else int(text)  # 2.5e6 is a whole number
        except (ValueError, OverflowError):
            what = "a whole number" if option.value is int else "a number"
            words = f"--{option.name} is {text!r}; it must be {what}"
            raise UsageError(f"{words}; {made.prog} --help lists the options") from None

    return convert


def read(command: type, words: Sequence[str], prog: str) -> Any:
    """Return the command that the words ask for; its `settings` are those that they name, as a mapping."""
    made = Parser(prog=prog, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add_options(made, command)
    found, left = made.parse_known_args(list(words))  # without what the words do not name
    if left:
        raise UsageError(f"{_too_much(left, command)}; {prog} --help lists the options")
    values: dict[str, Any] = {}
    for place, value in vars(found).items():
        *outer, name = place.split(".")
        into = values.setdefault(outer[0], {}) if outer else values
        into[name] = tuple(value) if isinstance(value, list) else value
    hints = typing.get_type_hints(command)
    for each in fields(command):
        if is_dataclass(hints[each.name]):
            named = values.get(each.name, {})
            values[each.name] = named if each.name == "settings" else hints[each.name](**named)  # type: ignore[operator]
    return command(**values)


def _too_much(left: Sequence[str], command: type) -> str:
    """Return what is to be said of words that nobody takes."""
    unknown = next((word for word in left if word.startswith("--")), None)
    if unknown is not None:
        if alone := next((option.metavar for option in options(command) if unknown == f"--{option.place[-1]}"), ""):
            return f"{alone} stands by itself, without {unknown}"
        names = [f"--{option.name}" for option in options(command) if not option.metavar]
        return f"there is no option {unknown}{nearest(unknown, names)}"
    hints = {"addon": "an add-on more has its own --addon", "out": "the file to write is named by --out"}
    if left[0].replace(".", "").isdecimal():
        hints = {"omega": "of omega, several values are `repolicy sweep`, and a range is --omega 0.1..0.3"}
    known = {option.name for option in options(command)}
    hint = next((f" ({text})" for name, text in hints.items() if name in known), "")
    return f"{' '.join(left)} is too much{hint}"


# The help of a command: its options in groups, with those at the top that people need first ---------------------------

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
        groups[home.get(option.name, "learning" if option.place[0] == "settings" else "what to ask for")].append(option)
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
