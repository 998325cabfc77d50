"""Which rows of `results/` were measured with code that has changed since.

    python -m experiments.stale

A row is stale when git knows of a change to what its kind depends on since the commit that the row names. That need not
change a result: `benchmarks/same_bits.py` tells whether training still ends in the same bits.
"""

import json
import subprocess
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from experiments import campaign

ROOT = Path(__file__).parents[1]
ROOMS = ("policies", "readers", "priors", "envs")
POLICY = ("src/repolicy/objective.py", *(f"src/repolicy/{room}" for room in ROOMS))
TRAINING = (*POLICY, *(f"src/repolicy/{room}" for room in ("runs", "prepare", "learning")))
HOSTS = ("src/repolicy/hosts", "experiments/batches.py")
# By the file's name, the first that fits: what the rows of that kind depend on.
KINDS: dict[str, tuple[str, ...]] = {
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


def stale(results: Path) -> dict[tuple[str, str], tuple[int, int | None]]:
    """Return, by file and commit, how many rows are stale, and how often their code has changed; None: not known.

    A commit has a + where the code was not quite that commit's.
    """
    found = {}
    for path in sorted(results.rglob("*.jsonl")):
        name = path.relative_to(results).as_posix()
        commits = Counter(json.loads(line)["commit"] for line in path.read_text().splitlines())
        for commit, rows in commits.items():
            changes = changed_since(commit.rstrip("+"), depends_on(name))
            if changes != 0:
                found[name, commit] = rows, changes
    return found


def depends_on(name: str) -> tuple[str, ...]:
    """Return what the rows in a file of this name depend on."""
    return next(paths for pattern, paths in KINDS.items() if fnmatch(name, pattern))


@cache
def changed_since(commit: str, paths: tuple[str, ...]) -> int | None:
    """Return how many commits have changed these paths since; None where the commit is unknown here."""
    done = subprocess.run(
        ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return int(done.stdout) if done.returncode == 0 else None


@campaign.program(results=ROOT / "results")
def main(options: campaign.Options) -> None:
    found = stale(options.results)
    for (file, commit), (rows, changes) in found.items():
        since = "a commit that this clone does not have" if changes is None else f"changed {changes} times since"
        print(f"{file}: {rows} rows of {commit[:10]}{commit[40:]}, {since}")
    rows, files = sum(rows for rows, _ in found.values()), {file for file, _ in found}
    print(f"{rows} rows in {len(files)} files are older than the code that they depend on")
