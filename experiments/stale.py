"""List the rows of `results/` that were measured with code that has changed since.

    python -m experiments.stale

A row is stale if a file that it depends on was changed by a commit after the one that the row names. Such a change need
not change a result: `benchmarks/same_bits.py` checks whether training still ends in the same bits.
"""

import json
import subprocess
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from experiments import campaign

ROOT = Path(__file__).parents[1]
POLICY = ("src/repolicy/objective.py", *(f"src/repolicy/{room}" for room in ("policies", "readers", "priors", "envs")))
TRAINING = (*POLICY, *(f"src/repolicy/{room}" for room in ("runs", "prepare", "learning")))
HOSTS = ("src/repolicy/hosts", "experiments/batches.py")
# Pattern of a results file -> the code that its rows depend on. The first pattern that matches counts.
DEPENDENCIES: dict[str, tuple[str, ...]] = {
    "llm/*": ("src/repolicy/llm", "experiments/llm"),
    "rql.jsonl": ("src/repolicy/rql", "experiments/rql.py", *TRAINING),  # Residual PPO's rows are the engine's
    "adapters.jsonl": (*HOSTS, "benchmarks/adapters.py"),
    "hosts.jsonl": (*HOSTS, "benchmarks/hosts.py"),
    "through_hosts.jsonl": (*HOSTS, "experiments/through_hosts.py", *TRAINING),  # some rows are the engine's
    "fine_tuning.jsonl": (*HOSTS, "experiments/fine_tuning.py", *POLICY),
    "planning.jsonl": (*POLICY, "src/repolicy/prepare", "src/repolicy/planning"),
    "wishes.jsonl": ("src/repolicy/wishes", "experiments/wishes.py", *TRAINING),
    "nat_worth.jsonl": (*POLICY, "src/repolicy/prepare/worth.py"),
    "peers.jsonl": (*TRAINING, "benchmarks/peers.py"),
    "kill.jsonl": (*TRAINING, "benchmarks/kill.py"),
    "*": TRAINING,
}


def stale_rows(results: Path) -> dict[tuple[str, str], tuple[int, int | None]]:
    """Return, by file and commit, the number of stale rows and of changes to their code since (None: unknown).

    A commit ends with a + if the working tree had changes when the row was measured.
    """
    found = {}
    for path in sorted(results.rglob("*.jsonl")):
        name = path.relative_to(results).as_posix()
        commits = Counter(json.loads(line)["commit"] for line in path.read_text().splitlines())
        for commit, rows in commits.items():
            changes = count_changes(commit.rstrip("+"), dependencies_of(name))
            if changes != 0:
                found[name, commit] = rows, changes
    return found


def dependencies_of(name: str) -> tuple[str, ...]:
    """Return the paths that the rows of a results file depend on."""
    return next(paths for pattern, paths in DEPENDENCIES.items() if fnmatch(name, pattern))


@cache
def count_changes(commit: str, paths: tuple[str, ...]) -> int | None:
    """Return the number of later commits that changed these paths; None if this clone lacks the commit."""
    process = subprocess.run(
        ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return int(process.stdout) if process.returncode == 0 else None


@campaign.program(results=ROOT / "results")
def main(options: campaign.Options) -> None:
    found = stale_rows(options.results)
    for (file, commit), (rows, changes) in found.items():
        since = "a commit that this clone does not have" if changes is None else f"changed {changes} times since"
        print(f"{file}: {rows} rows of {commit[:10]}{commit[40:]}, {since}")
    total, files = sum(rows for rows, _ in found.values()), {file for file, _ in found}
    print(f"{total} rows in {len(files)} files are older than the code that they depend on")
