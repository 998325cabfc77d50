"""The command that shares a policy."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from repolicy.cli.policy_commands import warn_of_unfinished
from repolicy.readers.reading import Options


@dataclass(frozen=True)
class Push:
    """Share a policy on the Hugging Face Hub: its file, a card with a table, and its film where there is one.

    Example: repolicy push runs/cheetah hf://USER/spare-leg --license mit
    """

    policy: Positional[Annotated[str, arg(metavar="POLICY")]]
    """A run's folder, or a policy's file; an .mp4 or .gif of its name beside it is its film."""
    target: Positional[Annotated[str, arg(metavar="hf://USER/NAME")]]
    """The repository, which is made where there is none; the login is the hub's own: hf auth login."""
    license: str | None = None
    """What others may do with it: an identifier of the hub's, such as mit or cc-by-4.0."""
    private: bool = False
    """Make the repository for you alone, where it is new."""
    env: str | None = None
    """Environment of the table; by default the one that the policy was trained in."""
    episodes: int = 20
    """Episodes of the evaluation for the card's table."""
    trust: bool = False
    """Run code that the policy's file names as its environment or add-on."""
    json: bool = False
    """Print one JSON object on stdout."""
    reading: OmitArgPrefixes[Options] = field(default_factory=Options)

    def run(self) -> dict[str, Any]:
        from repolicy.report.publish import push
        from repolicy.runs.terminal import Terminal

        warn_of_unfinished(self.policy)
        say = Terminal().say
        done = push(
            self.policy, self.target, license=self.license, private=self.private, env=self.env,
            episodes=self.episodes, trust=self.trust, reading=self.reading, say=say,
        )  # fmt: skip
        say(f"pushed: {done.place}, {', '.join(done.files)}, revision {done.revision}")
        return {"place": done.place, "revision": done.revision, "files": list(done.files)}
