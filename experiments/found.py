"""Check on many priors the settings that customizing finds by itself. The ledger has one row per prior and seed.

    python -m experiments.found --priors ../shared/priors

Only the wish is chosen by hand; everything else is found by `repolicy customize`, with --budget by a KL budget. The
objective is measured at the start and at the end, over episodes of sampled actions with the same seeds.
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
from repolicy.addons.addon import Addon, combine_addons
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
ENVS = 25  # environments of an evaluation: a robot's can take 140 MB each
PRIORS_FOLDER = Path("../shared/priors")  # of published priors
BERKELEY = "BerkeleyHumanoidJoystickFlatTerrain-v1?energy_scale=-0.001"  # its default energy weight is 0
TASKS = {  # a prior is the name of a shipped one, or a file in the folder of published priors
    "go1": Task("mujoco_playground/go1_policy.onnx", "Go1JoystickFlatTerrain-v1", "energy"),
    "berkeley": Task("mujoco_playground/bh_policy.onnx", BERKELEY, "energy"),
    "zoo_halfcheetah": Task("rl_trained_agents/ppo_HalfCheetah-v3.zip", "HalfCheetah-v4", "hind_leg=10"),
    "zoo_hopper": Task("rl_trained_agents/trpo_Hopper-v3.zip", "Hopper-v4", "height"),
    "halfcheetah": Task("halfcheetah", "HalfCheetah-v4", "hind_leg=10"),
    "hopper": Task("hopper", "Hopper-v4", "height"),
    "ant": Task("ant", "Ant-v4", "sideways"),
}


def measure(task: Task, path: Path, folder: Path, seed: int, steps: int, budget: bool) -> Row:
    """Customize, and compare the objective of the last policy with that of the prior."""
    saved = read_policy(path)
    env, addon = match_observation(task.env, saved.policy.observation_size), combine_addons([task.addon])
    settings = replace(customize_defaults(saved.policy, steps), steps=steps, seed=seed, ranks=1)
    search = residual("auto" if budget else None)  # weights to be found
    result = campaign.require_finished(customize(path, task.addon, search, folder, settings, env=env, resume=True))
    request, last = RunFolder(folder).load_request(), read_policy(RunFolder(folder).last_policy)
    row: Row = {"prior": task.prior, "env": env, "addon": task.addon, "seed": seed, "steps": result.steps}
    row |= {"objective": request.objective.as_dict(), "settings": request.settings.as_dict(), "episodes": EPISODES}
    objective = None if request.settings.kl_budget is not None else request.objective
    for which, policy in (("start", saved.policy), ("last", last.policy)):
        row[which] = measure_objective(policy, saved.policy, env, addon, objective, last.density)
    before, after = (np.array(row[which].pop("each")) for which in ("start", "last"))
    row["gained"] = mean_and_error(after - before)  # pairwise, because the seeds are the same
    return row | {"addon_metric": addon.metric_name}


def measure_objective(
    policy: Policy, prior: Policy, env: str, wish: Addon, objective: Objective | None, density: Density | None = None
) -> dict[str, Any]:
    """Return (mean, standard error) of the objective and of its parts per episode. Without an objective it is the wish.

    `each` has the objective of each episode.
    """
    results: dict[str, Any] = {}
    for action in ("sampled", "mean"):
        sampled = action == "sampled"
        episodes = play_episodes(
            policy, env, EPISODES, sampled=sampled, addon=wish, prior=prior, density=density, envs=ENVS
        )
        assert episodes.addon is not None
        if sampled:
            values = episodes.addon if objective is None else episode_objectives(objective, episodes)
            results |= {"each": values.astype(float).tolist(), "objective": mean_and_error(values)}
        parts = {"basic": episodes.basic, "addon": episodes.addon, "length": episodes.lengths}
        results[action] = {name: mean_and_error(values) for name, values in parts.items()}
    return results


def table(rows: list[Row]) -> str:
    """Return a table with one line per run: the gain in its objective, and each part at the start and at the end."""
    headings = ["prior, wish", "seed", "weights", "gained", "wish", "old return", "both", "both, sampled"]
    lines = []
    for row in sorted(rows, key=lambda row: row["key"]):
        start, last, budget = row["start"], row["last"], row["settings"]["kl_budget"]
        omega, states = row["objective"]["omega"], row["objective"].get("states", 0.0)
        weights = f"{budget:g} nats" if budget is not None else f"ω′ {omega:.2g}, states {states:.2g}"
        name = row["key"].partition("/")[0].replace("_", " ")
        pairs = [[each["mean"][part][0] for each in (start, last)] for part in ("addon", "basic")]
        pairs += [
            [each[action]["basic"][0] + each[action]["addon"][0] for each in (start, last)]
            for action in ("mean", "sampled")
        ]
        parts = [" to ".join(map(_number, pair)) for pair in pairs]
        gained = f"**{' ± '.join(map(_number, row['gained']))}**"
        few = f", {row['steps']:,} steps" if row["steps"] < STEPS else ""
        lines.append([f"{name}, {row['addon']}{few}", str(row["seed"]), weights, gained, *parts])
    return markdown_table(headings, blank_repeats(lines))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@campaign.program("ledger", "runs", priors=PRIORS_FOLDER, tasks=[*TASKS], seeds=2, steps=float(STEPS), budget=False)
def main(options: campaign.Options) -> campaign.Measurements:
    measurements = {}
    for seed, (name, task) in product(range(options.seeds), TASKS.items()):
        if name in options.tasks:
            variant = ["budget"] * options.budget + [f"{options.steps:g}"] * (options.steps != STEPS)
            key, path = "/".join([name, *variant, str(seed)]), options.priors / task.prior
            path, folder = path if path.exists() else find_policy(task.prior), options.runs / key.replace("/", "-")
            measurements[key] = partial(measure, task, path, folder, seed, int(options.steps), options.budget)
    return measurements
