"""Make the options of a command from the fields of its dataclass, and parse them with argparse.

The docstring below a field is the help of its option, and the field's default is the option's default.
"""

import argparse
import ast
import inspect
import os
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn

from repolicy.errors import UsageError
from repolicy.objective import Weight
from repolicy.prepare.defaults import TABLE, settings_for_shape, train_defaults
from repolicy.ranges import Range
from repolicy.readers.reading import Options
from repolicy.runs import AnySettings, Settings, read_settings
from repolicy.text import suggest

if TYPE_CHECKING:
    from repolicy.priors import OpenedPolicy


class Positional(NamedTuple):
    """Marks a field that is a positional argument."""

    metavar: str


Repeated = Annotated[tuple[str, ...], "repeated"]  # an option that can be repeated, with one value each time
SettingsDefaults = tuple[str, list[Any]]  # what the defaults of a command's settings depend on, and examples of them


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, with the options that all commands have."""

    STOP_ADVICE: ClassVar = ""  # appended to "stopped" for a command without --resume
    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class OpensPolicy(Command):
    """A command that opens a policy."""

    env: str | None = None
    """Environment; by default the one that the policy was trained in."""
    trust: bool = False
    """Run code that the policy's file names as its environment or add-on."""
    reading: Options = field(default_factory=Options)


@dataclass(frozen=True, kw_only=True)
class RunsPolicy(OpensPolicy):
    """A command that runs a policy in an environment."""

    seed: int = 0
    """Seed of environments and sampling."""

    def __post_init__(self) -> None:
        Settings(seed=self.seed)  # raises for a seed that no environment takes

    def open_policy(self, policy: str | Path) -> "tuple[OpenedPolicy, str]":
        """Open the policy, and return it with the name of its environment."""
        from repolicy.addons import env_from_card
        from repolicy.envs import open_policy_in_env

        opened = open_policy_in_env(self.env, policy, self.reading, self.trust)
        return opened, self.env or env_from_card(opened.card, opened.path, self.trust)


@dataclass(frozen=True, kw_only=True)
class Trains(Command):
    """A command that trains in a folder."""

    resume: bool = False
    """Continue the run in the folder, if there is one."""
    settings: Path | None = None
    """A JSON file of settings; options on the command line override it."""


@dataclass(frozen=True, kw_only=True)
class CustomizesPrior(OpensPolicy):
    """A command that customizes a prior by Residual PPO."""

    noise: int = 0
    """For a generative policy, which turns observations and noise into actions (ONNX, TorchScript with --trust, or
    file.py:decode): the size of its noise input. The noise is then the action, and N(0, I) is the prior."""
    chunk: int = 1
    """For a generative policy: the number of successive actions in its output."""
    sparse: bool = False
    """Accept an add-on that is constant over some thousand trial steps."""
    named_settings: Settings = field(default_factory=Settings)

    @staticmethod
    def defaults(_: str = "") -> SettingsDefaults:
        usual, few_steps = settings_for_shape(64, 1), settings_for_shape(64, 1, 10_000)
        examples = [usual, settings_for_shape(256, 12), replace(few_steps, steps=usual.steps)]
        return "the prior and the steps", [*examples, replace(usual, activation="elu")]


def defaults_by_env(env: str = "") -> SettingsDefaults:
    """Return the settings for `env`; without a name, those for environments that differ."""
    return "the environment", [train_defaults(each) for each in ([env] if env else ["", *TABLE])]


def overrides(command: Any, kind: type[AnySettings] = Settings) -> dict[str, Any]:
    """Return the settings that a command names, in a file and as options; options override the file."""
    of_file = {} if command.settings is None else read_settings(command.settings, kind)
    return of_file | command.named_settings


def parse_weight(name: str, text: str | None) -> Weight:
    """Parse a weight: a number, a range such as 0.03..3, a word, or None."""
    try:
        return text if text in (None, "auto", "omega") else Range.of(str(text))
    except ValueError:
        word = "auto" if name == "omega" else "omega"
        raise UsageError(f"--{name} is {text!r}; it must be a number, a range such as 0.03..3, or {word}") from None


@dataclass(frozen=True)
class Option:
    """An option of a command. `path` are the names of the fields that lead to it; the last is a field of `owner`."""

    path: tuple[str, ...]
    hint: Any
    owner: type
    default: str  # such as "(default: 64)"
    metavar: str = ""  # only for a positional argument
    is_on: bool = False  # a switch that is on by default
    may_be_none: bool = False
    is_repeatable: bool = False

    @property
    def name(self) -> str:
        return self.path[-1].replace("_", "-")

    @property
    def help(self) -> str:
        return docstrings(self.owner).get(self.path[-1], "")

    @property
    def takes_several(self) -> bool:
        """Whether it takes several values after one mention."""
        return typing.get_origin(self.hint) is tuple and not self.is_repeatable

    @property
    def value_type(self) -> Any:
        return typing.get_args(self.hint)[0] if typing.get_origin(self.hint) is tuple else self.hint

    @property
    def value_words(self) -> str:
        """The words after the name in the help, such as NUMBER."""
        if self.hint is bool or self.metavar:
            return self.metavar
        if typing.get_origin(self.hint) is Literal:
            return "{" + ",".join(typing.get_args(self.hint)) + "}"
        word = {int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(self.value_type, self.path[-1].upper())
        return f"{word} ..." if self.takes_several else word

    def convert(self, text: str) -> Any:
        """Convert a word of the command line into a value."""
        if self.value_type not in (int, float):
            return Path(text) if self.value_type is Path else text
        if self.may_be_none and text == "None":
            return None
        if self.path[-1] == "std" and text == "fit":
            return text
        try:
            if self.value_type is float:
                return float(text[:-1]) / 100 if text.endswith("%") else float(text)
            number = float(text)
            return int(number) if number.is_integer() and "e" in text.lower() else int(text)  # 2.5e6 is a whole number
        except ValueError:
            kind = "a whole number" if self.value_type is int else "a number"
            raise UsageError(f"--{self.name} is {text!r}; it must be {kind}") from None


@cache
def options(command: type, subject: str = "") -> tuple[Option, ...]:
    """Return every option of a command, with those of its settings: first its own, then inherited ones.

    `subject` is the environment or prior that the command line names, for defaults that depend on it.
    """
    defaults: SettingsDefaults = command.defaults(subject) if hasattr(command, "defaults") else ("", [])  # type: ignore[attr-defined]
    inherited = {name for base in command.__mro__[1:] for name in vars(base).get("__annotations__", ())}
    return tuple(sorted(_options(command, (), [], defaults), key=lambda option: option.path[0] in inherited))


def _options(cls: type, path: tuple[str, ...], examples: list[Any], defaults: SettingsDefaults) -> Iterator[Option]:
    """Yield the options of a dataclass, nested ones too. The defaults are those of `examples`, else of the fields."""
    dependency, settings_examples = defaults
    hints = typing.get_type_hints(cls, include_extras=True)
    for each in fields(cls):
        hint, extras = _unwrap(hints[each.name])
        values = [getattr(example, each.name) for example in examples] or [_default(each)]
        field_path = (*path, each.name)
        if isinstance(hint, type) and is_dataclass(hint):
            nested = settings_examples if each.name == "named_settings" and settings_examples else values
            yield from _options(hint, field_path, nested, defaults)
            continue
        metavar = next((extra.metavar for extra in extras if isinstance(extra, Positional)), "")
        all_equal = all(value == values[0] for value in values)
        yield Option(
            field_path, hint, cls,
            _default_text(values[0]) if all_equal else f"(default: depends on {dependency})", metavar,
            is_on=hint is bool and values[0] is True, may_be_none=None in extras,
            is_repeatable="repeated" in extras,
        )  # fmt: skip


@cache
def docstrings(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass and of its bases, on one line each."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(text, str):
                texts[before.target.id] = " ".join(text.split())
    return texts


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a type hint into the bare type and its annotations, with None among them for `| None`."""
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


def _default_text(value: Any) -> str:
    """Return the words of a default; empty if the option's help says what happens without it."""
    if value is MISSING:
        return "(required)"
    if value is None or value is False or value in ((), ""):
        return ""
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    if value is True:
        return "(default: yes)"
    return f"(default: {value})"


# Parsing --------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """A parser that raises Repolicy's UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help lists the options")


def add_options(parser: argparse.ArgumentParser, command: type) -> None:
    """Add the options of a command to a parser."""
    for option in options(command):
        path, flag = ".".join(option.path), f"--{option.name}"
        if option.hint is bool:
            action = argparse.BooleanOptionalAction if option.is_on else "store_true"
            parser.add_argument(flag, dest=path, action=action, default=argparse.SUPPRESS)
            continue
        is_required = option.default == "(required)"
        arguments: dict[str, Any] = {"metavar": option.value_words, "type": option.convert}
        if typing.get_origin(option.value_type) is Literal:
            arguments["choices"] = typing.get_args(option.value_type)
        if option.takes_several:
            arguments |= {"nargs": "+", "action": "extend"}
        elif option.is_repeatable:
            arguments["action"] = "append"
        if option.metavar:
            if not is_required and not option.takes_several:
                arguments |= {"nargs": "?", "default": None}
            parser.add_argument(path, **arguments)
        else:
            parser.add_argument(flag, dest=path, required=is_required, **arguments)


def normalize_words(arguments: list[str]) -> list[str]:
    """Turn `--critic_warmup=0.1` into `--critic-warmup 0.1`, and expand `~`; raise for empty words."""
    words: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        flag = option.replace("_", "-")
        if not word.startswith("--"):
            words.append(word)
        elif value.startswith("-"):  # without the `=`, argparse would take the value for an option
            words.append(f"{flag}={value}")
        else:
            words += [flag, value] if equals else [flag]
    for before, word in pairwise(["", *words]):
        if not word:
            subject = before if before.startswith("--") else "one word of the command"
            raise UsageError(f"{subject} is empty; if you wrote a variable of your shell, it is not set")
    # the shell expands ~ too, but not in `--out=~/runs`
    return [os.path.expanduser(word) if word == "~" or word.startswith("~/") else word for word in words]


def parse(command: type, words: Sequence[str], prog: str) -> Any:
    """Parse the words into a command; its `named_settings` become a mapping of those that the words name."""
    parser = Parser(prog=prog, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add_options(parser, command)
    parsed, unknown = parser.parse_known_args(list(words))
    if unknown:
        raise UsageError(f"{_describe_unknown(unknown, command)}; {prog} --help lists the options")
    values: dict[str, Any] = {}
    for path, value in vars(parsed).items():
        *outer, name = path.split(".")
        target = values.setdefault(outer[0], {}) if outer else values
        target[name] = tuple(value) if isinstance(value, list) else value
    hints = typing.get_type_hints(command)
    for each in fields(command):
        if is_dataclass(hints[each.name]):
            named = values.get(each.name, {})
            values[each.name] = named if each.name == "named_settings" else hints[each.name](**named)  # type: ignore[operator]
    return command(**values)


def find_subject(command: type, words: Sequence[str]) -> str:
    """Return the environment or prior among the words; empty if there is none, or if the words are wrong."""
    parser = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add_options(parser, command)
    positional = next((".".join(option.path) for option in options(command) if option.metavar), "")
    try:
        return str(vars(parser.parse_known_args(list(words))[0]).get(positional, ""))
    except UsageError:
        return ""


def _describe_unknown(words: Sequence[str], command: type) -> str:
    """Return a sentence about words that no option takes."""
    flag = next((word for word in words if word.startswith("--")), None)
    if flag is not None:
        if positional := next((option.metavar for option in options(command) if flag == f"--{option.path[-1]}"), ""):
            return f"{positional} stands by itself, without {flag}"
        names = [f"--{option.name}" for option in options(command) if not option.metavar]
        return f"there is no option {flag}{suggest(flag, names)}"
    hints = {"addon": "an add-on more has its own --addon", "out": "the file to write is named by --out"}
    if words[0].replace(".", "").isdecimal():
        hints = {"omega": "of omega, several values are `repolicy sweep`, and a range is --omega 0.1..0.3"}
    known = {option.name for option in options(command)}
    hint = next((f" ({text})" for name, text in hints.items() if name in known), "")
    return f"{' '.join(words)} is too much{hint}"


# Completion -----------------------------------------------------------------------------------------------------------


def complete(commands: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Answer a shell that asks how to complete a line, and exit."""
    import argcomplete

    parser = argparse.ArgumentParser(prog="repolicy", add_help=False)
    _add_commands(parser, commands, groups)
    argcomplete.autocomplete(parser, always_complete_options=True)


def _add_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]
) -> None:
    subparsers = parser.add_subparsers()
    for name, command in commands.items():
        add_options(subparsers.add_parser(name, add_help=False), command)
    for name, members in groups.items():
        _add_commands(subparsers.add_parser(name, add_help=False), members, {})
