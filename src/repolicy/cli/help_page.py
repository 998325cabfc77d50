"""Write the help of a command: its options in groups, with those at the top that people need first."""

import inspect
import shutil
import textwrap

from repolicy.cli.options import Option, options

# The groups in order. An option that is in none of them belongs to "learning" if it is a setting, else to "what to ask
# for".
OPTION_GROUPS: dict[str, tuple[str, ...]] = {
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
READING = OPTION_GROUPS["files of other libraries"]  # explained by `inspect` alone, as 14 commands have these options
MAX_UNGROUPED = 10  # a command with at most so many options has no groups
INDENT, MAX_WIDTH = 26, 110


def help_page(command: type, prog: str, subject: str = "") -> str:
    unused = {name.replace("_", "-") for name in getattr(command, "UNUSED", ())}
    used = [option for option in options(command, subject) if option.name not in unused]
    positional = [option for option in used if option.metavar]
    usage = " ".join([*map(_usage_word, positional), "[options]"])
    lines = [f"usage: {prog} {usage}", "", *inspect.cleandoc(command.__doc__ or "").splitlines()]
    for option in positional:
        lines += ["", *_help_lines(option)]
    reading = [] if prog.endswith(" inspect") else [option for option in used if option.name in READING]
    for title, members in _group([option for option in used if not option.metavar and option not in reading]):
        lines += ["", title.capitalize()]
        for option in members:
            lines += _help_lines(option)
    if reading:
        names = ", ".join(f"--{name}" for name in READING)
        lines += ["", "Files of other libraries (explained by repolicy inspect --help)"]
        lines += textwrap.wrap(names, page_width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    if any("depends on" in option.default for option in used):
        metavar = positional[0].metavar
        of_env = f"{prog} {metavar} --help shows the defaults for {metavar}"
        lines += ["", of_env if positional[0].name == "env" else "run.json in a run's folder holds what the run took"]
    return "\n".join(lines)


def _usage_word(option: Option) -> str:
    word = f"{option.metavar} ..." if option.takes_several else option.metavar
    return word if option.default == "(required)" else f"[{word}]"


def page_width() -> int:
    """Return the number of columns of a help page."""
    return min(shutil.get_terminal_size((100, 24)).columns, MAX_WIDTH) - 1


def _group(ungrouped: list[Option]) -> list[tuple[str, list[Option]]]:
    if len(ungrouped) <= MAX_UNGROUPED:
        return [("options", ungrouped)]
    title_of = {name: title for title, names in OPTION_GROUPS.items() for name in names}
    order = {name: index for index, name in enumerate(title_of)}
    groups: dict[str, list[Option]] = {title: [] for title in OPTION_GROUPS}
    for option in sorted(ungrouped, key=lambda option: order.get(option.name, len(order))):
        default_title = "learning" if option.path[0] == "named_settings" else "what to ask for"
        groups[title_of.get(option.name, default_title)].append(option)
    return [(title, members) for title, members in groups.items() if members]


def _help_lines(option: Option) -> list[str]:
    name = f"[no-]{option.name}" if option.is_on else option.name
    head = f"  {option.metavar}" if option.metavar else f"  --{name} {option.value_words}".rstrip()
    text = option.help if option.metavar else f"{option.help} {option.default}"
    body = textwrap.wrap(text, max(page_width() - INDENT, 30), break_on_hyphens=False) or [""]
    if len(head) > INDENT - 2:
        return [head, *(" " * INDENT + line for line in body)]
    return [f"{head:{INDENT}}{body[0]}", *(" " * INDENT + line for line in body[1:])]
