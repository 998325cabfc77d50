"""Limits on HalfCheetah and on a robot: are they held, and what becomes of the wish?

    python -m experiments.limits                # HalfCheetah
    python -m experiments.limits --robot        # the Go1

A line of the ledger a run: what the policy that is handed out has of the prior's return, of the wish and of each limit,
with the mean action, over 100 episodes.
"""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments import campaign, real_robot
from experiments.ledger import Row
from experiments.pages import markdown_table
from repolicy.envs.evaluation import EVALUATION_SEED, evaluate
from repolicy.envs.step import Info
from repolicy.priors.finding import find_policy
from repolicy.runs.machine import versions
from repolicy.runs.ranks import one_thread

EPISODES, LENGTH = 100, ("--steps", "1e6", "--ranks", "1")
KEPT = "halfcheetah --addon hind_leg=10 --keep 0.95"
CHEETAH = {
    **{f"keep/{seed}": f"{KEPT} --seed {seed}" for seed in range(3)},
    **{f"wish/{seed}": f"halfcheetah --addon hind_leg --limit hind_leg<=0.25 --seed {seed}" for seed in range(3)},
    "two/0": "halfcheetah --addon hind_leg=10 --limit hind_leg>=0.25 --limit x_velocity>=7.2",
}
ROBOT = "playground:go1 --observe state --addon energy --limit experiments.limits:speed_error<=0.1"
GO1 = {f"go1/{seed}": f"{ROBOT} --seed {seed}" for seed in range(2)}


def speed_error(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """How far the Go1's speed is from the commanded one, m/s: from the task's own term, exp(−error² / 0.25)."""
    scale = real_robot.largest(real_robot.ENV, real_robot.TRACKED["speed_error"])
    return real_robot.error(info[real_robot.TRACKED["speed_error"]] / scale)


def on_cheetah(told: str, folder: Path) -> Row:
    """Return what a run has of the prior's return and of the wish."""
    words = told.split()
    command = campaign.run_customize([*words, *LENGTH], folder)
    limits = [word for word in words if "<=" in word or ">=" in word]
    asked: dict[str, Any] = {"addon": "hind_leg=10", "seed": EVALUATION_SEED, "limits": limits}
    with one_thread():
        before, after = (evaluate(who, "HalfCheetah-v4", EPISODES, **asked).columns for who in ("halfcheetah", folder))
    row: Row = {"command": command, "versions": versions(), "episodes": EPISODES}
    parts = {name: after[name] for name in ("basic_reward", "addon_reward", "metric")}
    row |= {name: [round(part.mean, 4), round(part.error, 4)] for name, part in parts.items()}
    row["limits"] = {limit: round(after[f"limit_{limit}"].mean, 4) for limit in limits}
    return row | {"kept": round(after["basic_reward"].mean / before["basic_reward"].mean, 4)}


def on_go1(told: str, folder: Path) -> Row:
    """Return what a run has of the old return, the power that it saves, how well it does as told, and its falls."""
    command = campaign.run_customize([*told.split(), *LENGTH], folder)
    whose = (find_policy("playground:go1"), find_policy(folder))
    measured = [real_robot.measured(who, real_robot.ENV, EPISODES, True) for who in whose]
    kept = measured[1]["basic"][0] / measured[0]["basic"][0]
    saved = 1.0 - measured[1]["energy"][0] / measured[0]["energy"][0]
    row: Row = {"command": command, "versions": versions()}
    return row | measured[1] | {"kept": round(kept, 4), "saved": round(saved, 4)}


def table(rows: dict[str, Row]) -> str:
    """Return a row a run on HalfCheetah."""
    headings, lines = ["asked for", "seed", "of the old return", "`hind_leg=10`", "limits"], list[list[str]]()
    for key, row in rows.items():
        if not key.startswith("go1"):
            _, _, _, *words = shlex.split(row["command"].partition(" --seed")[0].partition(" --steps")[0])
            held = ", ".join(f"{name}: {value:.4g}" for name, value in row["limits"].items()) or "–"
            share, wish = f"{row['kept']:.1%}", f"{row['addon_reward'][0]:,.0f}"
            lines.append([f"`{' '.join(words)}`", key.rpartition("/")[2], share, wish, held])
    return markdown_table(headings, lines)


@campaign.program("ledger", "runs", "only", robot=False)
def main(options: campaign.Options) -> campaign.Measurements:
    measured, told = (on_go1, GO1) if options.robot else (on_cheetah, CHEETAH)
    return {key: partial(measured, words, options.runs / key) for key, words in told.items()}
