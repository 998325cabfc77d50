"""The command that tells whether a new policy may take the place of an old one."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from repolicy.cli.options import Positional, Repeated
from repolicy.errors import UsageError
from repolicy.loading import counted
from repolicy.readers.reading import Options
from repolicy.runs.settings import Settings

NOT_SAFE = ("worse", "cannot tell")  # verdicts with which the command exits with 3


@dataclass(frozen=True)
class Compare:
    """Tell whether a new policy is worse than an old one, with as many episodes as that takes.

    Exits with 0 if it is not worse, with 3 if it is, or if that cannot be told.

    Example: repolicy compare halfcheetah runs/cheetah --not-worse 5%
    """

    old: Annotated[str, Positional("OLD")]
    """The policy in use: a file, a run's folder, a name that ships, or code, as evaluate takes it."""
    new: Annotated[str, Positional("NEW")]
    """The policy that is to take its place."""
    not_worse: str = "5%"
    """How much less the new one may have: a share of the old one's mean, or a number in units of the rewards."""
    env: str | None = None
    """Environment; by default the one that the policies were trained in."""
    addon: Repeated = ()
    """Add-on reward that decides, too; by default the one that the new policy was customized to. Repeatable."""
    sampled: bool = False
    """Let sampled actions decide, and only show the mean action."""
    error: float = 0.05
    """The probability at most of a wrong verdict, but for losses that are rare and larger than all that were seen."""
    episodes: int = 1000
    """At most so many of each policy, with each kind of action."""
    seed: int = 0
    """Seed of environments and sampling."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Whose environments."""
    vary: Repeated = ()
    """An option of the environment and a range, NAME=LOW..HIGH: compare at five values of it, too. At most two."""
    of_new: Repeated = ()
    """NAME=VALUE, an option of reading the new policy's file, such as std=0.2; --std and its like are for the old one.
    Repeatable."""
    out: Path | None = None
    """A folder for a page with the verdict, the table, and films; none by default."""
    trust: bool = False
    """Run code that a policy's file names as its environment or add-on."""
    json: bool = False
    """Print one JSON object on stdout."""
    reading: Options = field(default_factory=Options)

    def run(self) -> dict[str, Any]:
        from repolicy.many.comparing import compare
        from repolicy.many.varying import Around, Place, compare_around
        from repolicy.policies.storage import check_place
        from repolicy.report.compare_page import sentences, tables, write_compare_report
        from repolicy.runs.ranks import one_thread
        from repolicy.runs.terminal import Terminal

        Settings(seed=self.seed)  # which refuses one that no environment takes
        if self.out is not None:
            check_place(self.out / "report.html")  # before the work, which would be lost
        terminal, names = Terminal(), f"{self.old} and {self.new}"
        asked: dict[str, Any] = {
            "addon": self.addon or None, "sampled": self.sampled, "error": self.error, "episodes": self.episodes,
            "seed": self.seed, "backend": self.backend, "options": self.reading, "new_options": _options(self.of_new),
            "trust": self.trust,
        }  # fmt: skip
        with one_thread(), terminal.status(f"{names}: the first episodes") as status:
            if self.vary:
                around = compare_around(
                    self.old, self.new, self.env, self.not_worse, vary=self.vary, **asked,
                    progress=lambda place, done: status.update(f"{names}, {place}: {counted(done, 'episode')} each"),
                )  # fmt: skip
            else:
                found = compare(
                    self.old, self.new, self.env, self.not_worse, **asked,
                    progress=lambda done: status.update(f"{names}: {counted(done, 'episode')} each"),
                )  # fmt: skip
                around = Around([Place({}, found)])
        for sentence in sentences(around):
            terminal.say(sentence)
        for headings, rows in tables(around):
            terminal.numbers("", headings, rows)
        said: dict[str, Any] = {"old": self.old, "new": self.new}
        said |= around.as_dict() if self.vary else around.places[0].found.as_dict()
        if self.out is not None:
            page = write_compare_report(around, self.old, self.new, self.out, terminal.say)
            terminal.say(f"report: {page}")
            said["report"] = str(page)
        return said


def _options(given: tuple[str, ...]) -> Options:
    """Return the options of reading that `NAME=VALUE` name."""
    known = [each.name for each in fields(Options)]
    values: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        key = name.replace("-", "_")
        if key not in known or not value or key in values:
            raise UsageError(
                f"--of-new is {text!r}; it must be NAME=VALUE, once for each, with one of "
                f"{', '.join(each.replace('_', '-') for each in known)}"
            )
        try:
            values[key] = float(value) if key in ("std", "temperature") and value != "fit" else value
        except ValueError:
            raise UsageError(f"--of-new {text}: {name} must be a number") from None
    return Options(**values)
