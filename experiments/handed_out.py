"""Check that the policy which a run hands out is as good as its last one. The ledger has one row per run of 13 tasks.

    python -m experiments.handed_out

In six tasks each step costs and episodes can end, so a policy that falls early has the higher sum. The policy that is
handed out, and the one with the highest sum in the short evaluations, are compared with the last one on the same seeds.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments import campaign
from experiments.episodes import episode_objectives, play_episodes
from experiments.ledger import Row
from experiments.pages import markdown_table
from experiments.statistics import mean_and_error
from repolicy.addons.addon import combine_addons
from repolicy.learning.training import customize, train
from repolicy.objective import Objective, greedy, no_entropy, residual
from repolicy.policies.file import SavedPolicy
from repolicy.policies.policy import Policy, frozen
from repolicy.prepare.defaults import customize_defaults, train_defaults
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder

STEPS, SEGMENTS, EPISODES, ENVS = 131_072, 8, 60, 30
PARTS = ("objective", "total_sampled", "total_mean")


def bent(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Any) -> np.ndarray:
    """Return minus the angle of Walker2d's or Hopper's thigh."""
    return -np.abs(next_observations[..., 2])


def effort(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Any) -> np.ndarray:
    return -np.square(actions).sum(-1)


def sway(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Any) -> np.ndarray:
    """Return minus the speed at which the pole of CartPole or InvertedPendulum turns."""
    return -np.abs(next_observations[..., 3])


@dataclass(frozen=True)
class Task:
    """A run that customizes a prior (a shipped name, a file or another task), or trains without one."""

    env: str
    objective: Objective
    prior: str = ""
    addon: str = ""
    steps: int = STEPS
    rough: bool = False  # with learning steps so large that the run fails


HERE, WALKER = "experiments.handed_out", "results/paper/walker2d.safetensors"
TASKS = {
    # Each step costs, and episodes can end.
    "walker2d_bent": Task("Walker2d-v4", residual(0.3, 0.001), WALKER, f"{HERE}:bent=5"),
    "walker2d_greedy": Task("Walker2d-v4", greedy(0.001), WALKER, f"{HERE}:bent=5"),
    "hopper_bent": Task("Hopper-v4", residual(0.3, 0.001), "hopper", f"{HERE}:bent=5"),
    "ant_effort": Task("Ant-v4", residual(0.1, 0.0001), "ant", f"{HERE}:effort"),
    "cartpole_sway": Task("CartPole-v1", residual(0.05, 0.05), "cartpole", f"{HERE}:sway"),
    "pendulum_sway": Task("InvertedPendulum-v4", residual(0.05, 0.05), "pendulum", f"{HERE}:sway"),
    # Other tasks.
    "cartpole": Task("CartPole-v1", no_entropy()),
    "pendulum": Task("InvertedPendulum-v4", no_entropy()),
    "hopper_anew": Task("Hopper-v4", no_entropy(), steps=1_000_000),
    "hopper_height": Task("Hopper-v4", residual(0.03, 0.001), "hopper", "height"),
    "halfcheetah_leg": Task("HalfCheetah-v4", residual(0.348, 0.13472, 0.348), "halfcheetah", "hind_leg=10"),
    "hopper_rough": Task("Hopper-v4", residual(0.3, 0.001), "hopper", "height", rough=True),
    "ant_sideways": Task("Ant-v4", residual(0.1, 0.0001), "ant", "sideways"),
}


def finish_run(name: str, seed: int, runs: Path) -> RunFolder:
    """Make or resume the run of a task, and return its folder."""
    task, out = TASKS[name], runs / f"{name}-{seed}"
    prior = finish_run(task.prior, seed, runs).policy if task.prior in TASKS else Path(task.prior)
    settings = customize_defaults(find_policy(prior)) if task.prior else train_defaults(task.env)
    if task.env == "InvertedPendulum-v4" and not task.prior:
        settings = train_defaults("CartPole-v1")
    segment = max(1, task.steps // settings.iteration_steps // SEGMENTS)
    settings = replace(settings, steps=task.steps, checkpoint_every=segment, seed=seed, ranks=1)
    if task.rough:
        settings = replace(settings, learning_rate=0.01, schedule="constant", target_kl=None)
    if task.prior:
        result = customize(prior, task.addon, task.objective, out, settings, env=task.env, resume=True)
    else:
        result = train(task.env, task.objective, out, settings, resume=True)
    campaign.require_finished(result)
    return RunFolder(out)


def best_candidate(folder: RunFolder, last: SavedPolicy) -> tuple[int, Policy]:
    """Return the step and the policy that had the highest sum in the short evaluations."""
    checkpoint = folder.latest_checkpoint()
    assert checkpoint is not None
    tensors, header, _ = checkpoint
    policy = frozen(last.policy)
    policy.load_state_dict({name: tensors[f"candidate.{name}"] for name in policy.state_dict()})
    return header["candidate"]["steps"], policy


def episode_returns(policy: Policy, saved: SavedPolicy, task: Task) -> dict[str, np.ndarray]:
    """Return arrays over episodes: the run's objective, and the total with sampled actions and with the mean action."""
    addon = combine_addons([task.addon]) if task.addon else None
    settings: dict[str, Any] = {"addon": addon, "prior": saved.prior, "density": saved.density, "envs": ENVS}
    sampled, by_mean = (play_episodes(policy, task.env, EPISODES, sampled=each, **settings) for each in (True, False))
    assert sampled.terminated is not None
    results = {"objective": episode_objectives(task.objective, sampled), "total_sampled": sampled.total}
    return results | {"total_mean": by_mean.total, "ended_early": sampled.terminated.astype(float)}


def measure(name: str, seed: int, runs: Path) -> Row:
    """Measure how much better than the last policy the one handed out is, and the one with the highest sum."""
    task, folder = TASKS[name], finish_run(name, seed, runs)
    last, handed_out = read_policy(folder.last_policy), read_policy(folder.policy)
    policies = {"last": (last.card["steps"], last.policy)}
    policies["handed_out"] = (handed_out.card["steps"], handed_out.policy)
    policies["highest"] = best_candidate(folder, last)
    returns = {steps: episode_returns(policy, last, task) for steps, policy in dict(policies.values()).items()}
    row: Row = {"env": task.env, "addon": task.addon, "objective": task.objective.as_dict(), "episodes": EPISODES}
    for which, (steps, _) in policies.items():
        row[which] = {"steps": steps, "ended_early": int(returns[steps]["ended_early"].sum())}
        for part in PARTS:
            better = returns[steps][part] - returns[last.card["steps"]][part]  # pairwise, because seeds are the same
            row[which][part] = mean_and_error(returns[steps][part])
            row[which][f"{part}_better"] = mean_and_error(better)
    return row


def table(rows: list[Row]) -> str:
    """Return a table of the runs in which a candidate is clearly better or worse than the last policy."""
    headings = ["task", "last policy: objective", "ended early", "handed out", "objective, better by", "total"]
    headings += ["highest sum", "ended early", "objective, better by", "total"]
    lines = []
    for row in sorted(rows, key=lambda row: (list(TASKS).index(row["key"].partition("/")[0]), row["key"])):
        name, _, seed = row["key"].partition("/")
        line = [name.replace("_", " ") + (f", seed {seed}" if seed != "0" else "")]
        line += [format_mean_error(row["last"]["objective"]).strip("*"), str(row["last"]["ended_early"])]
        for which in ("handed_out", "highest"):
            candidate, parts = row[which], ("objective", "total_sampled")
            cells = [format_mean_error(candidate[f"{part}_better"]) for part in parts]
            step = f"after {candidate['steps']:,} steps" if candidate["steps"] else "the prior"
            if candidate["steps"] == row["last"]["steps"]:
                step, cells = "the last", ["–", "–"]
            line += [step, *([str(candidate["ended_early"])] if which == "highest" else []), *cells]
        lines += [line] * ("**" in "".join(line))
    return markdown_table(headings, lines)


def format_mean_error(values: list[float]) -> str:
    """Return a mean and its error, in bold if the mean differs from 0 by more than two errors."""
    mean, error = values
    digits = 2 if 0.0 < error < 1.0 else 0
    text = " ± ".join(f"{value:,.{digits}f}" for value in values)
    return f"**{text}**" if abs(mean) > 2 * error else text


@campaign.program("ledger", "runs", tasks=[*TASKS], seeds=1)
def main(options: campaign.Options) -> campaign.Measurements:
    tasks = {f"{name}/{seed}": (name, seed) for name in options.tasks for seed in range(options.seeds)}
    return {key: partial(measure, *task, options.runs) for key, task in tasks.items()}
