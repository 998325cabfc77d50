"""Do the settings that customizing finds by itself serve any prior? A line of the ledger a prior and seed.

    python -m experiments.found --priors ../shared/priors

Nothing is chosen by hand but the wish: all else is what `repolicy customize` takes by itself, or with --budget a KL
budget. The objective is measured at the start and at the end, over episodes of sampled actions on the same seeds.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments import campaign
from experiments.episodes import episode_objectives, play_episodes
from experiments.heavy import Task
from experiments.ledger import Row
from experiments.pages import blank_repeats, markdown_table
from experiments.statistics import mean_and_error
from repolicy.envs.addons import Addon, combine_addons
from repolicy.envs.making import match_observation
from repolicy.learning.training import customize
from repolicy.objective import Objective, residual
from repolicy.policies.density import Density
from repolicy.policies.policy import Policy
from repolicy.prepare.defaults import customize_defaults
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder

STEPS, EPISODES = 500_000, 100
ENVS = 25  # that are evaluated at once: a robot's can hold 140 MB each
PRIORS_FOLDER = Path("../shared/priors")  # the folder of other people's
BERKELEY = "BerkeleyHumanoidJoystickFlatTerrain-v1?energy_scale=-0.001"  # by itself its energy has the weight 0
TASKS = {  # whose prior is a name that ships, or a file in the folder of other people's priors
    "go1": Task("mujoco_playground/go1_policy.onnx", "Go1JoystickFlatTerrain-v1", "energy"),
    "berkeley": Task("mujoco_playground/bh_policy.onnx", BERKELEY, "energy"),
    "zoo_halfcheetah": Task("rl_trained_agents/ppo_HalfCheetah-v3.zip", "HalfCheetah-v4", "hind_leg=10"),
    "zoo_hopper": Task("rl_trained_agents/trpo_Hopper-v3.zip", "Hopper-v4", "height"),
    "halfcheetah": Task("halfcheetah", "HalfCheetah-v4", "hind_leg=10"),
    "hopper": Task("hopper", "Hopper-v4", "height"),
    "ant": Task("ant", "Ant-v4", "sideways"),
}


def measure(task: Task, path: Path, folder: Path, seed: int, steps: int, budget: bool) -> Row:
    """Customize, and compare the objective at the end with that at the start."""
    saved = read_policy(path)
    env, addon = match_observation(task.env, saved.policy.observation_size), combine_addons([task.addon])
    settings = replace(customize_defaults(saved.policy, steps), steps=steps, seed=seed, ranks=1)
    wanted = residual("auto" if budget else None)
    result = campaign.require_finished(customize(path, task.addon, wanted, folder, settings, env=env, resume=True))
    request, last = RunFolder(folder).load_request(), read_policy(RunFolder(folder).last_policy)
    row: Row = {"prior": task.prior, "env": env, "addon": task.addon, "seed": seed, "steps": result.steps}
    row |= {"objective": request.objective.as_dict(), "settings": request.settings.as_dict(), "episodes": EPISODES}
    objective = None if request.settings.kl_budget is not None else request.objective
    for which, policy in (("start", saved.policy), ("last", last.policy)):
        row[which] = measure_objective(policy, saved.policy, env, addon, objective, last.density)
    before, after = (np.array(row[which].pop("each")) for which in ("start", "last"))
    row["gained"] = mean_and_error(after - before)  # the seeds are the same, so differences count
    return row | {"addon_metric": addon.metric_name}


def measure_objective(
    policy: Policy, prior: Policy, env: str, wish: Addon, objective: Objective | None, density: Density | None = None
) -> dict[str, Any]:
    """Return the objective of an episode and its parts, (mean, standard error); without one, the wish alone."""
    found: dict[str, Any] = {}
    for action in ("sampled", "mean"):
        sampled = action == "sampled"
        seen = play_episodes(
            policy, env, EPISODES, sampled=sampled, addon=wish, prior=prior, density=density, envs=ENVS
        )  # fmt: skip
        assert seen.addon is not None
        if sampled:
            each = seen.addon if objective is None else episode_objectives(objective, seen)
            found |= {"each": [float(value) for value in each], "objective": mean_and_error(each)}
        parts = {"basic": seen.basic, "addon": seen.addon, "length": seen.lengths}
        found[action] = {name: mean_and_error(values) for name, values in parts.items()}
    return found


def table(rows: list[Row]) -> str:
    """Return a row a run: what it was after, and where that stood at the start and at the end."""
    headings = ["prior, wish", "seed", "weights", "gained", "wish", "old return", "both", "both, sampled"]
    lines = []
    for row in sorted(rows, key=lambda row: row["key"]):
        start, last, budget = row["start"], row["last"], row["settings"]["kl_budget"]
        omega, states = row["objective"]["omega"], row["objective"].get("states", 0.0)
        held = f"{budget:g} nats" if budget is not None else f"ω′ {omega:.2g}, states {states:.2g}"
        name = row["key"].partition("/")[0].replace("_", " ")
        pairs = [[each["mean"][part][0] for each in (start, last)] for part in ("addon", "basic")]
        pairs += [[_both(each[action]) for each in (start, last)] for action in ("mean", "sampled")]
        parts = [" to ".join(map(_number, pair)) for pair in pairs]
        gained = f"**{' ± '.join(map(_number, row['gained']))}**"
        few = f", {row['steps']:,} steps" if row["steps"] < STEPS else ""
        lines.append([f"{name}, {row['addon']}{few}", str(row["seed"]), held, gained, *parts])
    return markdown_table(headings, blank_repeats(lines))


def _both(found: dict[str, list[float]]) -> float:
    return found["basic"][0] + found["addon"][0]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@campaign.program("ledger", "runs", priors=PRIORS_FOLDER, tasks=[*TASKS], seeds=2, steps=float(STEPS), budget=False)
def main(options: campaign.Options) -> campaign.Measurements:
    wanted = {}
    for seed, (name, task) in product(range(options.seeds), TASKS.items()):
        if name in options.tasks:
            way = ["budget"] * options.budget + [f"{options.steps:g}"] * (options.steps != STEPS)
            key, there = "/".join([name, *way, str(seed)]), options.priors / task.prior
            path, folder = there if there.exists() else find_policy(task.prior), options.runs / key.replace("/", "-")
            wanted[key] = partial(measure, task, path, folder, seed, int(options.steps), options.budget)
    return wanted
