"""From the ledger's rows to arrays."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.ledger import Row, group_by, key_without_seed
from experiments.paper.runs import ALL_VARIANTS, OWN_TASKS, TASKS, plan_runs

SETTINGS: tuple[str, ...] = (
    "envs", "n_steps", "minibatch", "epochs", "learning_rate", "schedule", "gamma", "gae_lambda", "clip", "hidden",
    "activation", "initial_std", "checkpoint_every",
)  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """Of one quantity and one variant: mean and std over each seed's episodes, both `[S]`."""

    means: np.ndarray
    stds: np.ndarray
    one_policy: bool = False  # whether the "seeds" are evaluations of one policy, as of a prior

    @property
    def pooled(self) -> tuple[float, float]:
        """Return mean and std over all episodes of all seeds, as the paper has them."""
        return float(self.means.mean()), float(np.sqrt(np.mean(self.stds**2) + self.means.var()))

    @property
    def best(self) -> tuple[float, float]:
        """Return mean and std over the episodes of the best seed."""
        index = int(self.means.argmax())
        return float(self.means[index]), float(self.stds[index])

    @property
    def seeds(self) -> np.ndarray:
        """Return the mean of each seed, `[S]`; of one policy, a single number."""
        return self.means.mean(keepdims=True) if self.one_policy else self.means

    @property
    def column(self) -> np.ndarray:
        """Return `[S, 1]`: seeds of one task."""
        return self.seeds[:, None]


@dataclass(frozen=True)
class Results:
    """The campaign as far as it is."""

    rows: dict[str, Row]  # by key
    seeds: int

    def of(self, task: str, variant: str) -> list[Row]:
        found = [self.rows.get(f"{task}/{variant}/{seed}") for seed in range(self.seeds)]
        return [row for row in found if row is not None and "error" not in row]

    def scores(self, task: str, variant: str, part: str, which: str = "last", action: str = "mean") -> Scores | None:
        rows = self.of(task, variant)
        if not rows:
            return None
        kept = [row[which if which in row else "last"] for row in rows]  # a prior is one policy, its last
        means, stds = np.array([each[action][part] for each in kept], np.float64).T
        return Scores(means, stds, ALL_VARIANTS[variant].command == "evaluate")

    @property
    def missing(self) -> dict[str, list[int]]:
        """Return `task/variant` and its seeds that are not in the ledger, or failed."""
        found: dict[str, list[int]] = {}
        for plan in plan_runs((), self.seeds):
            if "error" in self.rows.get(plan.key, {"error": ""}):
                found.setdefault(f"{plan.task}/{plan.variant}", []).append(plan.seed)
        return found

    @property
    def failed(self) -> dict[str, str]:
        return {key: row["error"] for key, row in self.rows.items() if row.get("error")}

    def table(self, variants: Sequence[str]) -> list[Row]:
        """Return all rows of the variants that stand in one table."""
        return [row for task in TASKS | OWN_TASKS for variant in variants for row in self.of(task, variant)]


def describe_differences(rows: Sequence[Row]) -> list[str]:
    """Say what differs between runs that stand in one table: versions, machines, code, priors, settings.

    And between the seeds of one variant: what was done, and where it was evaluated.
    """
    said, made = [], [each for row in rows for each in (row, *row.get("went_on_with", []))]
    for name in sorted({name for each in made for name in each["versions"]}):
        said += _describe_values(name, [each["versions"].get(name, "unknown") for each in made])
    said += _describe_values("processor", [each["machine"]["processor"] for each in made])
    commits = len({each["commit"] for each in made})
    said += [f"code: {commits} commits"] * (commits > 1)
    for task, mine in sorted(group_by(rows, task_of).items()):
        said += _describe_values(f"{task}'s prior", [prior[:10] for row in mine if (prior := prior_checksum(row))])
        known = [shown_settings(row) for row in mine if row.get("request")]
        for name in SETTINGS:
            said += _describe_values(f"{task}'s {name}", [settings.get(name) for settings in known])
    for variant, same in sorted(group_by(rows, key_without_seed).items()):
        commands = [row["command"] for row in same if "command" in row]
        said += _describe_values(f"{variant}'s command", [re.sub(r" --seed \d+", "", command) for command in commands])
        for name in ("env", "addon", "episodes"):
            said += _describe_values(f"{variant}'s {name}", [row[name] for row in same if name in row])
    return said


def task_of(row: Row) -> str:
    return str(row["key"].partition("/")[0])


def prior_checksum(row: Row) -> str:
    """Return the checksum of the policy that a run began from, or that was evaluated as a prior; else nothing."""
    is_prior = ALL_VARIANTS[row["key"].split("/")[1]].command == "evaluate"
    return str(row["policies"]["last"] if is_prior else row.get("prior", ""))


def shown_settings(row: Row) -> dict[str, Any]:
    """Return the settings that stand in the table of settings."""
    return {name: row["request"].get("settings", {}).get(name) for name in SETTINGS}


def _describe_values(name: str, values: Sequence[Any]) -> list[str]:
    counts = Counter(map(str, values))
    if len(counts) < 2:
        return []
    return [f"{name}: " + ", ".join(f"{value} in {count} runs" for value, count in counts.most_common())]


def total_cost(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Return core-hours by the clock, core-hours of computing, and steps in millions, of runs of one core each."""
    trained = [row for row in rows if row.get("seconds")]
    clock = sum(row["seconds"] for row in trained) / 3600.0
    steps = sum(row["steps"] for row in trained)
    timed = [row for row in trained if row.get("steps_per_cpu_second")]
    computing = sum(row["steps"] / row["steps_per_cpu_second"] for row in timed) / 3600.0
    share = sum(row["steps"] for row in timed) / steps if timed else 1.0
    return clock, computing / share, steps / 1e6
