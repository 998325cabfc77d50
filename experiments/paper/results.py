"""The campaign's rows as arrays of scores, and what differs between runs of one table."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.ledger import Row, group_by, key_without_seed
from experiments.paper.runs import ALL_VARIANTS, OWN_TASKS, SEEDS, TASKS, plan_runs

SETTINGS: tuple[str, ...] = (
    "envs", "n_steps", "minibatch", "epochs", "learning_rate", "schedule", "gamma", "gae_lambda", "clip", "hidden",
    "activation", "initial_std", "checkpoint_every",
)  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """One quantity of one variant: mean and std over each seed's episodes, both `[S]`."""

    means: np.ndarray
    stds: np.ndarray
    one_policy: bool = False  # the "seeds" are evaluations of one policy, such as a prior

    @property
    def pooled(self) -> tuple[float, float]:
        """Return mean and std over all episodes of all seeds, as in the paper."""
        return float(self.means.mean()), float(np.sqrt(np.mean(self.stds**2) + self.means.var()))

    @property
    def best(self) -> tuple[float, float]:
        """Return mean and std over the episodes of the best seed."""
        index = int(self.means.argmax())
        return float(self.means[index]), float(self.stds[index])

    @property
    def seeds(self) -> np.ndarray:
        """Return the mean of each seed, `[S]`; for one policy, `[1]`."""
        return self.means.mean(keepdims=True) if self.one_policy else self.means

    @property
    def column(self) -> np.ndarray:
        """Return `[S, 1]`: seeds of one task."""
        return self.seeds[:, None]


@dataclass(frozen=True)
class Results:
    """The rows of the campaign's finished runs."""

    rows: dict[str, Row]  # key -> row
    seeds: int = SEEDS

    def of(self, task: str, variant: str) -> list[Row]:
        """Return the rows of a variant's seeds."""
        keys = (f"{task}/{variant}/{seed}" for seed in range(self.seeds))
        return [self.rows[key] for key in keys if key in self.rows]

    def scores(self, task: str, variant: str, part: str, which: str = "last", action: str = "mean") -> Scores | None:
        """Return the scores of a variant's `which` policies (last or best), or None if it has no run."""
        rows = self.of(task, variant)
        if not rows:
            return None
        evaluations = [row[which if which in row else "last"] for row in rows]  # a prior has only a last policy
        means, stds = np.array([evaluation[action][part] for evaluation in evaluations], np.float64).T
        return Scores(means, stds, ALL_VARIANTS[variant].command == "evaluate")

    @property
    def missing(self) -> dict[str, list[int]]:
        """Return by `task/variant` the seeds that are not in the ledger."""
        missing: dict[str, list[int]] = {}
        for plan in plan_runs((), self.seeds):
            if plan.key not in self.rows:
                missing.setdefault(f"{plan.task}/{plan.variant}", []).append(plan.seed)
        return missing

    def table(self, variants: Sequence[str]) -> list[Row]:
        """Return all rows of the variants of one table."""
        return [row for task in TASKS | OWN_TASKS for variant in variants for row in self.of(task, variant)]


def describe_differences(rows: Sequence[Row]) -> list[str]:
    """Return what differs between the runs of one table: versions, machines, code, priors and settings.

    Between the seeds of one variant, also the command and the evaluation are compared.
    """
    lines, attempts = [], [attempt for row in rows for attempt in (row, *row.get("went_on_with", []))]
    for name in sorted({name for attempt in attempts for name in attempt["versions"]}):
        lines += _describe_values(name, [attempt["versions"].get(name, "unknown") for attempt in attempts])
    lines += _describe_values("processor", [attempt["machine"]["processor"] for attempt in attempts])
    commits = len({attempt["commit"] for attempt in attempts})
    lines += [f"code: {commits} commits"] * (commits > 1)
    for task, task_rows in sorted(group_by(rows, task_of).items()):
        priors = [prior_checksum(row)[:10] for row in task_rows]
        lines += _describe_values(f"{task}'s prior", [prior for prior in priors if prior])
        requests = [shown_settings(row) for row in task_rows if row.get("request")]
        for name in SETTINGS:
            lines += _describe_values(f"{task}'s {name}", [settings.get(name) for settings in requests])
    for variant, variant_rows in sorted(group_by(rows, key_without_seed).items()):
        commands = [re.sub(r" --seed \d+", "", row["command"]) for row in variant_rows if "command" in row]
        lines += _describe_values(f"{variant}'s command", commands)
        for name in ("env", "addon", "episodes"):
            lines += _describe_values(f"{variant}'s {name}", [row[name] for row in variant_rows if name in row])
    return lines


def task_of(row: Row) -> str:
    return str(row["key"].partition("/")[0])


def prior_checksum(row: Row) -> str:
    """Return the checksum of the prior that a run started from or evaluated, or an empty string."""
    is_prior = ALL_VARIANTS[row["key"].split("/")[1]].command == "evaluate"
    return str(row["policies"]["last"] if is_prior else row.get("prior", ""))


def shown_settings(row: Row) -> dict[str, Any]:
    """Return a run's settings that are in the table of settings."""
    return {name: row["request"].get("settings", {}).get(name) for name in SETTINGS}


def _describe_values(name: str, values: Sequence[Any]) -> list[str]:
    """Return a line with the number of runs of each value, or nothing if all values are equal."""
    counts = Counter(map(str, values))
    if len(counts) < 2:
        return []
    return [f"{name}: " + ", ".join(f"{value} in {count} runs" for value, count in counts.most_common())]


def total_cost(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Return wall-clock core-hours, CPU core-hours and millions of steps of runs on one core each."""
    trained = [row for row in rows if row.get("seconds")]
    clock = sum(row["seconds"] for row in trained) / 3600.0
    steps = sum(row["steps"] for row in trained)
    timed = [row for row in trained if row.get("steps_per_cpu_second")]
    computing = sum(row["steps"] / row["steps_per_cpu_second"] for row in timed) / 3600.0
    share = sum(row["steps"] for row in timed) / steps if timed else 1.0
    return clock, computing / share, steps / 1e6
