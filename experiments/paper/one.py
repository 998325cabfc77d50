"""One run of the campaign: train, unless it is the prior, evaluate, and leave `row.json` in the run's folder."""

import hashlib
import os
import platform
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.paper.runs import EPISODES, Run
from repolicy.addons import combined
from repolicy.checkpoint import RunFolder, read_policy, write_json
from repolicy.cli import main as repolicy
from repolicy.errors import RepolicyError
from repolicy.evaluation import EVALUATION_SEED, evaluate
from repolicy.many.ledger import Row
from repolicy.ranks import one_thread
from repolicy.request import versions

POINTS = 100  # of a learning curve
CURVE = ("steps", "basic_return", "episode_length", "reward_task", "entropy", "prior_kl")


def measure(run: Run, folder: Path, prior: Path) -> None:
    """The whole of one run; goes on where it was."""
    row: Row = {"key": run.key, "task": run.task, "variant": run.variant, "seed": run.seed, "env": run.env}
    if run.needs_prior:
        row["prior"] = file_sum(prior)
    if run.variant == "prior":
        row |= evaluated({"last": prior, "best": prior}, run, EVALUATION_SEED + 1 + run.seed)
    else:
        row |= trained(run, folder, prior)
        files = {"last": RunFolder(folder).last_policy, "best": RunFolder(folder).best_policy}
        row |= evaluated(files, run, EVALUATION_SEED)
    row |= {"versions": versions(), "machine": machine(), "commit": commit()}
    write_json(folder / "row.json", row)


def trained(run: Run, folder: Path, prior: Path) -> Row:
    """What the training was, and what it took."""
    before, began = _steps(folder), time.process_time()
    words = run.words(str(prior))
    try:
        repolicy([*words, "--out", str(folder), "--resume"])
    except SystemExit as error:
        if error.code:
            raise
    spent, logged = time.process_time() - began, RunFolder(folder).logged()
    request = RunFolder(folder).request()
    assert request is not None
    done = logged["steps"][-1] - before
    return {
        "command": shlex.join(["repolicy", *words]),
        "request": request,
        "steps": logged["steps"][-1],
        "seconds": _seconds(logged["seconds"]),
        "steps_per_cpu_second": done / spent if done else None,  # of the last attempt, where it was interrupted
        "curve": thinned(logged),
    }


def _steps(folder: Path) -> int:
    """That are done already."""
    found = RunFolder(folder).latest() if folder.exists() else None
    return found[1]["steps"] if found else 0


def _seconds(column: list[float]) -> float:
    """Of all attempts together: each counts from 0."""
    return sum(now - before if now >= before else now for before, now in zip([0.0, *column], column, strict=False))


def thinned(logged: dict[str, list[Any]], points: int = POINTS) -> dict[str, list[float | None]]:
    """The learning curve: means over equal stretches of the run; None where nothing was logged."""
    stretches = np.array_split(np.arange(len(logged["steps"])), min(points, len(logged["steps"])))
    curve = {}
    for name in CURVE:
        if name in logged:
            column = np.array([np.nan if value is None else value for value in logged[name]], np.float64)
            parts = [column[stretch][np.isfinite(column[stretch])] for stretch in stretches]
            curve[name] = [float(f"{part.mean():.6g}") if len(part) else None for part in parts]
    return curve


def evaluated(files: dict[str, Path], run: Run, seed: int) -> Row:
    """Mean and std of every quantity over the episodes, of each policy, with the mean action and with sampled ones."""
    found: Row = {"episodes": EPISODES, "policies": {}}
    addon = combined([run.addon])
    for which, path in files.items():
        saved = read_policy(path)
        found["policies"][which] = file_sum(path)
        found[which] = {}
        for action in ("mean", "sampled"):
            with one_thread():
                result = evaluate(
                    saved.policy, run.env, EPISODES,
                    addon=addon, prior=saved.prior, stochastic=action == "sampled", seed=seed,
                )  # fmt: skip
            found[which][action] = {
                name: [float(f"{mean:.6g}"), float(f"{std:.6g}")] for name, mean, std in result.rows()
            }
    return found


def file_sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RepolicyError(f"the policy {path} cannot be read: {error.strerror}") from None


def machine() -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    return {"processor": model, "cores": os.cpu_count(), "system": platform.system()}


def commit() -> str:
    """Of the code, with a + where files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
        return done.stdout.strip()

    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ":/src", ":/experiments") else "")
