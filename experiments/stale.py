"""List the rows of `results/` that were measured before a change after which the same command ends elsewhere.

    python -m experiments.stale

`python -m benchmarks.same_bits` finds such a change, and its commit becomes an entry of CHANGES. The other commits
leave the rows as they are.
"""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from experiments import campaign

ROOT = Path(__file__).parents[1]


class Change(NamedTuple):
    """A change of the code after which some rows would come out differently."""

    commit: str
    name: str
    files: tuple[str, ...]  # the ledgers with such rows
    commands: str  # a regular expression that begins like the commands of these rows
    keys: str = ""  # one that is in their keys
    text: str = ""  # text that is in their lines


CHANGES = (
    Change(
        "b22423532c7f22cf60a72d00f9db2670984f4b93",
        "the std's larger steps while customizing with 4,096 samples an update or more",
        ("dial", "found", "handed_out", "heavy", "paper", "real_robot", "sweeps"),
        r"repolicy (customize|sweep)|python -m experiments\.",
    ),
    Change(
        "13e214af9b0c181c90c92407c4cbcf8661f1c8d2",
        "an end that is no way out of the price on states",
        ("dial", "few_steps", "found", "heavy", "limits", "paper", "sweeps", "wishes"),
        r"repolicy (customize|sweep)|python -m experiments\.",
        r"hopper|ant|walker2d|go1|berkeley",  # which can fall
        '"states": ',
    ),
    Change(
        "63cc7515e1015dc1e5e82f549e68f00bf78c020c",
        "a segment's first rollout, by which no budget and no limit moves its weight",
        ("found", "heavy", "limits", "metaworld", "paper", "walking"),
        r".*--(budget|kl-budget|keep|limit)\b",
    ),
    Change(
        "e64475c76d82979b5a1daf223c7449e0200a39fb",
        "Residual Q-learning's exploration noise, which was 1.3 % too wide for continuous actions",
        ("rql",),
        r"repolicy rql \w+ .*mountain_car",  # the only task with such noise
    ),
    Change(
        "b92a13807c88c3d77d6127451b00760e845cc0dd",
        "a planner that keeps its plan, which those since 15f70f17 lost every 20 steps",
        ("planning",),
        r"python -m experiments\.planning",
        r"/(ant|hopper)\b",
    ),
    Change(
        "facbf77e6af6c45b1981b8fad58bda17eda97f8e",
        "what a planner makes of an episode's last step, whose own reward counts",
        ("planning",),
        r"python -m experiments\.planning",
        r"/(ant|hopper)\b",  # which can fall
    ),
    Change(
        "1f8bec84892ac96a656ec80e54213d9460e85034",
        "a host's new critic, which begins at outputs of 0",
        ("through_hosts",),
        r"python -m experiments\.through_hosts",
        r"^(rsl_rl|stable-baselines3)/",
    ),
    Change(
        "1877aa7089188a9b4767873292e66872d3090047",
        "the noise of inference, for which a whole episode is one group",
        ("wishes",),
        r"python -m experiments\.wishes",
        r"/(mereq|no-\w+)",
    ),
)


def stale_rows(results: Path, change: Change) -> dict[str, list[str]]:
    """Return the keys of the rows that are older than a change, by the name of their ledger."""
    found = dict[str, list[str]]()
    for name in change.files:
        lines = (results / f"{name}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines if change.text in line]
        found[name] = [
            row["key"]
            for row in rows
            if re.match(change.commands, row["command"])
            and re.search(change.keys, row["key"])
            and not is_since(row["commit"].rstrip("+"), change.commit)
        ]
    return {name: keys for name, keys in found.items() if keys}


@cache
def is_since(commit: str, change: str) -> bool:
    """Return whether a commit is a change, or contains it; not where this clone does not have the commit."""
    words = ["git", "merge-base", "--is-ancestor", change, commit]
    return subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == 0


@campaign.program(results=ROOT / "results")
def main(options: campaign.Options) -> None:
    for change in CHANGES:
        print(f"older than {change.name} ({change.commit[:8]}):")
        for name, keys in stale_rows(options.results, change).items():
            print(f"  {name}: {', '.join(keys)}")
