"""The command that tells whether a new policy may take the place of an old one."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from repolicy.cli.options import Positional, Repeated
from repolicy.loading import counted
from repolicy.readers.reading import Options
from repolicy.runs.settings import Settings

if TYPE_CHECKING:
    from repolicy.many.comparing import Compared, Comparison

NOT_SAFE = ("worse", "cannot tell")  # verdicts with which the command exits with 3
ACTIONS = {"mean": "with the mean action", "sampled": "with sampled actions"}


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
    trust: bool = False
    """Run code that a policy's file names as its environment or add-on."""
    json: bool = False
    """Print one JSON object on stdout."""
    reading: Options = field(default_factory=Options)

    def run(self) -> dict[str, Any]:
        from repolicy.many.comparing import compare
        from repolicy.runs.ranks import one_thread
        from repolicy.runs.terminal import Terminal

        Settings(seed=self.seed)  # which refuses one that no environment takes
        terminal = Terminal()
        with one_thread(), terminal.status(f"{self.old} and {self.new}: the first episodes") as status:
            found = compare(
                self.old, self.new, self.env, self.not_worse,
                addon=self.addon or None, sampled=self.sampled, error=self.error, episodes=self.episodes,
                seed=self.seed, backend=self.backend, options=self.reading, trust=self.trust,
                progress=lambda done: status.update(f"{self.old} and {self.new}: {counted(done, 'episode')} each"),
            )  # fmt: skip
        for sentence in sentences(found):
            terminal.say(sentence)
        for action, rows in found.rows.items():
            headings = ("old", "new", "difference", f"{1 - 2 * found.error:.0%} interval", "verdict")
            terminal.numbers("", (ACTIONS[action], *headings), [cells(row) for row in rows])
        return {"old": self.old, "new": self.new} | found.as_dict()


def sentences(found: "Comparison") -> list[str]:
    """Return the verdict, and what it rests on."""
    deciding, *_ = found.rows
    starts = "from the same starts" if found.is_paired else "from starts of their own, as the environment has no seed"
    judges = " and ".join(row.title for row in found.rows[deciding] if row.decides)
    return [
        f"{found.verdict}, {ACTIONS[deciding]}, by {judges}; the margin is {found.margin}",
        f"{counted(found.episodes, 'episode')} each in {found.env} ({found.backend}), {starts}, in "
        f"{counted(found.rounds, 'round')}; a verdict is wrong with a probability of at most "
        f"{found.error:.0%}, but for losses that are rare and larger than all that were seen",
    ]


def cells(row: "Compared") -> list[str]:
    """Return one row of the table."""
    from repolicy.report.verdict import number

    if row.name == "ended_early":
        shares = [f"{each:.1%}" for each in (row.old, row.new, row.new - row.old, row.low, row.high)]
    else:
        shares = [number(row.old), number(row.new), number(row.new - row.old, plus=True)]
        shares += [number(each, plus=True) for each in (row.low, row.high)]
    old, new, difference, low, high = shares
    interval = f"{low} to {high}" if math.isfinite(row.high - row.low) else "unknown"
    return [row.title, old, new, difference, interval, row.verdict]
