"""Make one run of a campaign: train its policy, evaluate it, and write `row.json` into the run's folder.

    python -m experiments.one RUN FOLDER

A campaign starts this program for each of its runs; RUN is JSON.
"""

import contextlib
import json
import os
import platform
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.ledger import Row, current_commit
from repolicy.addons.addon import combine_addons
from repolicy.cli.main import main as command_line
from repolicy.errors import RepolicyError
from repolicy.evaluation import EVALUATION_SEED, evaluate
from repolicy.files import file_sum, read_json, write_json
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.rql.customizing import Request as ResidualQLearning
from repolicy.runs.folder import RunFolder
from repolicy.runs.machine import versions
from repolicy.runs.request import Request

EPISODES = 100  # to evaluate a policy, unless the run has another number
POINTS = 100  # of a learning curve
ATTEMPTS = "attempts.json"
CURVE = ("steps", "basic_return", "task_return", "episode_length", "reward_task", "entropy", "prior_kl")


@dataclass(frozen=True)
class Run:
    """A `repolicy` command that makes a policy, and how the policy is evaluated."""

    key: str  # names joined by /; the last one is the seed
    arguments: tuple[str, ...]  # of `repolicy`, without the output folder; empty: the policy exists already
    env: str  # to evaluate in
    addon: str = ""
    policy: str = ""  # the policy's file, unless the command makes a run's folder
    episodes: int = EPISODES
    evaluation_seed: int = EVALUATION_SEED
    sampled: bool = True  # whether sampled actions are evaluated too: some simulators are slow

    @property
    def folder(self) -> str:
        return self.key.replace("/", "-").replace("?", "-")

    @property
    def command(self) -> str:
        """Return the command that a user would type to make the policy, or to evaluate one that exists."""
        if self.arguments:
            return shlex.join(["repolicy", *self.arguments])
        addon = ["--addon", self.addon] if self.addon else []
        evaluation = ["--env", self.env, *addon, "--episodes", str(self.episodes), "--seed", str(self.evaluation_seed)]
        return shlex.join(["repolicy", "evaluate", self.policy, *evaluation])

    @property
    def is_training(self) -> bool:
        """Return whether the command makes a run's folder."""
        return self.arguments[:1] in (("train",), ("customize",), ("rql",))

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    values = json.loads(sys.argv[1])
    run, folder = Run(**values | {"arguments": tuple(values["arguments"])}), Path(sys.argv[2])
    try:
        write_json(folder / "row.json", measure_run(run, folder))
    except RepolicyError as error:
        print(f"repolicy: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def measure_run(run: Run, folder: Path) -> Row:
    """Make or resume a run, evaluate its policies, and return its row."""
    row: Row = {"key": run.key, "command": run.command, "env": run.env}
    row |= {"addon": run.addon, "evaluation_seed": run.evaluation_seed}
    if "customize" in run.arguments[:2]:
        prior = run.arguments[run.arguments.index("customize") + 1]
        row["prior"] = file_sum(find_policy(prior))
    if run.is_training:
        row |= train_run(run, folder)
        files = {"last": RunFolder(folder).last_policy, "best": RunFolder(folder).policy}  # best: what is handed out
    else:
        if run.arguments and not Path(run.policy).exists():
            command_line([*run.arguments, "--out", run.policy])
        files = {"last": find_policy(run.policy)}
    row |= {"episodes": run.episodes, "policies": {which: file_sum(path) for which, path in files.items()}}
    evaluations = {path: evaluate_policy(run, path) for path in dict.fromkeys(files.values())}  # each file once
    row |= {which: evaluations[path] for which, path in files.items()}
    first, *others = read_attempts(folder) or [provenance()]
    return row | first | ({"went_on_with": others} if others else {})


def train_run(run: Run, folder: Path) -> Row:
    """Train or resume a run, and return its request, learning curve and duration."""
    start_steps, start = checkpoint_steps(folder), time.process_time()
    if not RunFolder(folder).last_policy.exists() and provenance() not in read_attempts(folder):
        write_json(folder / ATTEMPTS, [*read_attempts(folder), provenance()])
    try:
        command_line([*run.arguments, "--out", str(folder), "--resume"])
    except SystemExit as error:
        if error.code:
            raise
    cpu_seconds = time.process_time() - start
    log = RunFolder(folder).read_metrics()
    request, steps = RunFolder(folder, Request, ResidualQLearning).load_request(), log["steps"][-1]
    row: Row = {"command": run.command, "request": request.as_dict(), "steps": steps}
    row["seconds"] = round(total_seconds(log["seconds"]), 1)
    speed = round((steps - start_steps) / cpu_seconds) if steps != start_steps else None  # of the last attempt
    return row | {"steps_per_cpu_second": speed, "curve": thin_curve(log)}


def read_attempts(folder: Path) -> list[Row]:
    """Return the provenance of each attempt at a run. An attempt with that of an earlier one adds no entry."""
    return list(read_json(folder / ATTEMPTS)) if (folder / ATTEMPTS).exists() else []


def provenance() -> Row:
    """Return what a result depends on beside its command: package versions, machine and commit."""
    return {"versions": versions(), "machine": machine_info(), "commit": current_commit()}


def checkpoint_steps(folder: Path) -> int:
    """Return the steps of the latest checkpoint, or 0."""
    checkpoint = RunFolder(folder).latest_checkpoint() if folder.exists() else None
    return checkpoint[1]["steps"] if checkpoint else 0


def total_seconds(column: list[float]) -> float:
    """Return the seconds of all attempts together; in the log, each attempt counts from 0."""
    return sum(now - before if now >= before else now for before, now in zip([0.0, *column], column, strict=False))


def thin_curve(log: dict[str, list[Any]], points: int = POINTS) -> dict[str, list[float | None]]:
    """Return the learning curve as means over equal parts of the run; None where nothing was logged."""
    curve = {}
    for name in (name for name in CURVE if name in log):
        column = np.array(log[name], np.float64)  # None becomes nan
        parts = [part[np.isfinite(part)] for part in np.array_split(column, min(points, len(column)))]
        curve[name] = [float(f"{part.mean():.6g}") if len(part) else None for part in parts]
    return curve


def evaluate_policy(run: Run, path: Path) -> dict[str, dict[str, list[float]]]:
    """Return mean and std of every quantity over the episodes, with the mean action and with sampled actions."""
    saved, results = read_policy(path), {}
    for action in ("mean", "sampled") if run.sampled else ("mean",):
        result = evaluate(
            saved.policy, run.env, run.episodes,
            addon=combine_addons([run.addon]) if run.addon else None, prior=saved.prior,
            deterministic=action == "mean", seed=run.evaluation_seed,
        )  # fmt: skip
        results[action] = {
            name: [float(f"{part:.6g}") for part in (column.mean, column.std)]
            for name, column in result.columns.items()
        }
    return results


def machine_info() -> dict[str, Any]:
    """Return the processor and its number: processors of one name can have other bits."""
    found = {"model name": platform.processor(), "cpu family": "", "model": ""}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            found[name.strip()] = value.strip()
    number = f"{found['cpu family']}/{found['model']}"
    return {"processor": found["model name"], "number": number, "cores": os.cpu_count(), "system": platform.system()}


if __name__ == "__main__":
    main()
