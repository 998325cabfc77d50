"""One run of a campaign: make its policies, evaluate them, and leave `row.json` in the run's folder.

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

from experiments.ledger import Row, commit
from repolicy.cli.main import main as command_line
from repolicy.envs.addons import combine_addons
from repolicy.envs.evaluation import EVALUATION_SEED, evaluate
from repolicy.errors import RepolicyError
from repolicy.loading import file_sum, read_json
from repolicy.policies.storage import write_json
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.rql.customizing import Request as ResidualQLearning
from repolicy.runs.folder import RunFolder
from repolicy.runs.machine import versions
from repolicy.runs.ranks import one_thread
from repolicy.runs.request import Request

EPISODES = 100  # of each policy, if the run does not say otherwise
POINTS = 100  # of a learning curve
ATTEMPTS = "attempts.json"
CURVE = ("steps", "basic_return", "task_return", "episode_length", "reward_task", "entropy", "prior_kl")


@dataclass(frozen=True)
class Run:
    """A command that makes policies, and how they are evaluated."""

    key: str  # names apart by /, the last one the seed
    words: tuple[str, ...]  # of `repolicy`, but for the folder of train and customize; none: `policy` is there already
    env: str  # that they are evaluated in
    addon: str = ""
    policy: str = ""  # the policy's file, where it is not of a run's folder
    episodes: int = EPISODES
    evaluation_seed: int = EVALUATION_SEED
    sampled: bool = True  # whether sampled actions are evaluated too: some simulators are slow

    @property
    def folder(self) -> str:
        return self.key.replace("/", "-").replace("?", "-")

    @property
    def command(self) -> str:
        """Return what a user would type: to make the policies, or of one that is there, to evaluate it."""
        if self.words:
            return shlex.join(["repolicy", *self.words])
        addon = ["--addon", self.addon] if self.addon else []
        words = ["repolicy", "evaluate", self.policy, "--env", self.env, *addon]
        return shlex.join([*words, "--episodes", str(self.episodes), "--seed", str(self.evaluation_seed)])

    @property
    def trains(self) -> bool:
        return self.words[:1] in (("train",), ("customize",), ("rql",))

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    values = json.loads(sys.argv[1])
    run, folder = Run(**values | {"words": tuple(values["words"])}), Path(sys.argv[2])
    try:
        write_json(folder / "row.json", measured(run, folder))
    except RepolicyError as error:
        print(f"repolicy: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def measured(run: Run, folder: Path) -> Row:
    """Make the whole of one run, which goes on where it was, and return its row."""
    row: Row = {"key": run.key, "command": run.command, "env": run.env}
    row |= {"addon": run.addon, "evaluation_seed": run.evaluation_seed}
    if "customize" in run.words[:2]:
        row["prior"] = file_sum(find_policy(run.words[run.words.index("customize") + 1]))
    if run.trains:
        row |= trained(run, folder)
        files = {"last": RunFolder(folder).last_policy, "best": RunFolder(folder).policy}  # best: what is handed out
    else:
        if run.words and not Path(run.policy).exists():
            command_line([*run.words, "--out", run.policy])
        files = {"last": find_policy(run.policy)}
    row |= {"episodes": run.episodes, "policies": {which: file_sum(path) for which, path in files.items()}}
    found = {path: evaluated(run, path) for path in dict.fromkeys(files.values())}
    row |= {which: found[path] for which, path in files.items()}
    first, *others = attempts(folder) or [stamp()]
    return row | first | ({"went_on_with": others} if others else {})


def trained(run: Run, folder: Path) -> Row:
    """Train, and return what the training was and what it took."""
    before, began = steps_done(folder), time.process_time()
    if not RunFolder(folder).last_policy.exists() and stamp() not in attempts(folder):
        write_json(folder / ATTEMPTS, [*attempts(folder), stamp()])
    try:
        command_line([*run.words, "--out", str(folder), "--resume"])
    except SystemExit as error:
        if error.code:
            raise
    spent, logged = time.process_time() - began, RunFolder(folder).read_metrics()
    request, steps = RunFolder(folder, Request, ResidualQLearning).load_request(), logged["steps"][-1]
    row: Row = {"command": run.command, "request": request.as_dict(), "steps": steps}
    row["seconds"] = round(clock(logged["seconds"]), 1)
    speed = round((steps - before) / spent) if steps != before else None  # of the last attempt, if it was interrupted
    return row | {"steps_per_cpu_second": speed, "curve": thinned(logged)}


def attempts(folder: Path) -> list[Row]:
    """Return by what a run was made: an entry each time that it began or went on with another."""
    return list(read_json(folder / ATTEMPTS)) if (folder / ATTEMPTS).exists() else []


def stamp() -> Row:
    return {"versions": versions(), "machine": machine(), "commit": commit()}


def steps_done(folder: Path) -> int:
    found = RunFolder(folder).latest_checkpoint() if folder.exists() else None
    return found[1]["steps"] if found else 0


def clock(column: list[float]) -> float:
    """Return seconds of all attempts together: each counts from 0."""
    return sum(now - before if now >= before else now for before, now in zip([0.0, *column], column, strict=False))


def thinned(logged: dict[str, list[Any]], points: int = POINTS) -> dict[str, list[float | None]]:
    """Return the learning curve: means over equal stretches of the run; None where nothing was logged."""
    curve = {}
    for name in (name for name in CURVE if name in logged):
        column = np.array(logged[name], np.float64)  # None becomes nan
        parts = [part[np.isfinite(part)] for part in np.array_split(column, min(points, len(column)))]
        curve[name] = [float(f"{part.mean():.6g}") if len(part) else None for part in parts]
    return curve


def evaluated(run: Run, path: Path) -> dict[str, dict[str, list[float]]]:
    """Return mean and std of every quantity over the episodes, with the mean action and with sampled ones."""
    saved, found = read_policy(path), {}
    for action in ("mean", "sampled")[: 1 + run.sampled]:
        with one_thread():
            result = evaluate(
                saved.policy, run.env, run.episodes,
                addon=combine_addons([run.addon]) if run.addon else None, prior=saved.prior,
                deterministic=action == "mean", seed=run.evaluation_seed,
            )  # fmt: skip
        found[action] = {
            name: [float(f"{part:.6g}") for part in (column.mean, column.std)]
            for name, column in result.columns.items()
        }
    return found


def machine() -> dict[str, Any]:
    model = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {"processor": model, "cores": os.cpu_count(), "system": platform.system()}


if __name__ == "__main__":
    main()
