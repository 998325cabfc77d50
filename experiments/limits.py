"""Measure whether limits hold, and what is left of the wish, on HalfCheetah and on a robot.

    python -m experiments.limits                # HalfCheetah
    python -m experiments.limits --robot        # the Go1

The ledger has one row per run: the share of the prior's return, the wish and each limit, over 100 episodes of the mean
action of the policy that is handed out.
"""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments import campaign, real_robot
from experiments.ledger import Row
from experiments.pages import markdown_table
from repolicy.envs.step import Info
from repolicy.evaluation import EVALUATION_SEED, evaluate
from repolicy.priors.finding import find_policy

EPISODES, TRAINING = 100, ("--steps", "1e6", "--ranks", "1")
KEEP = "halfcheetah --addon hind_leg=10 --keep 0.95"
CHEETAH = {
    **{f"keep/{seed}": f"{KEEP} --seed {seed}" for seed in range(3)},
    **{f"wish/{seed}": f"halfcheetah --addon hind_leg --limit hind_leg<=0.25 --seed {seed}" for seed in range(3)},
    "two/0": "halfcheetah --addon hind_leg=10 --limit hind_leg>=0.25 --limit x_velocity>=7.2",
}
ROBOT = "playground:go1 --observe state --addon energy --limit experiments.limits:speed_error<=0.1"
GO1 = {f"go1/{seed}": f"{ROBOT} --seed {seed}" for seed in range(2)}


def speed_error(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """Return the error of the Go1's speed in m/s. It is computed from the task's own term, exp(−error² / 0.25)."""
    scale = real_robot.tracking_scale(real_robot.ENV, real_robot.TRACKED["speed_error"])
    return real_robot.velocity_error(info[real_robot.TRACKED["speed_error"]] / scale)


def measure_cheetah(options: str, folder: Path) -> Row:
    """Customize HalfCheetah; return the kept share of the prior's return, the wish and the limits."""
    arguments = options.split()
    command = campaign.run_customize([*arguments, *TRAINING], folder)
    limits = [argument for argument in arguments if "<=" in argument or ">=" in argument]
    settings: dict[str, Any] = {"addon": "hind_leg=10", "seed": EVALUATION_SEED, "limits": limits}
    before = evaluate("halfcheetah", "HalfCheetah-v4", EPISODES, **settings).columns
    after = evaluate(folder, "HalfCheetah-v4", EPISODES, **settings).columns
    row: Row = {"command": command, "episodes": EPISODES}
    for name in ("basic_reward", "addon_reward", "metric"):
        row[name] = [round(after[name].mean, 4), round(after[name].error, 4)]
    row["limits"] = {limit: round(after[f"limit_{limit}"].mean, 4) for limit in limits}
    return row | {"kept": round(after["basic_reward"].mean / before["basic_reward"].mean, 4)}


def measure_go1(options: str, folder: Path) -> Row:
    """Customize the Go1; return the kept share of the old return, the saved power, the errors and the falls."""
    command = campaign.run_customize([*options.split(), *TRAINING], folder)
    policies = find_policy("playground:go1"), find_policy(folder)
    before, after = (real_robot.measure(policy, real_robot.ENV, EPISODES, True) for policy in policies)
    kept, saved = after["basic"][0] / before["basic"][0], 1.0 - after["energy"][0] / before["energy"][0]
    return {"command": command} | after | {"kept": round(kept, 4), "saved": round(saved, 4)}


def table(rows: dict[str, Row]) -> str:
    """Return a table with one line per run on HalfCheetah."""
    headings, lines = ["asked for", "seed", "of the old return", "`hind_leg=10`", "limits"], list[list[str]]()
    for key, row in rows.items():
        if not key.startswith("go1"):
            wish_and_limits = row["command"].partition(" --seed")[0].partition(" --steps")[0]
            _, _, _, *words = shlex.split(wish_and_limits)  # without `repolicy customize PRIOR`
            limits = ", ".join(f"{name}: {value:.4g}" for name, value in row["limits"].items()) or "–"
            share, wish = f"{row['kept']:.1%}", f"{row['addon_reward'][0]:,.0f}"
            lines.append([f"`{' '.join(words)}`", key.rpartition("/")[2], share, wish, limits])
    return markdown_table(headings, lines)


@campaign.program("ledger", "runs", "only", robot=False)
def main(options: campaign.Options) -> campaign.Measurements:
    measure, runs = (measure_go1, GO1) if options.robot else (measure_cheetah, CHEETAH)
    return {key: partial(measure, arguments, options.runs / key) for key, arguments in runs.items()}
