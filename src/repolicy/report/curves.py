"""What a run logged while it learned, as curves; beside them where the prior stands, and the budget."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from repolicy.envs.evaluation import Evaluation
from repolicy.objective import Objective, reformulated, task_reward
from repolicy.report import charts, page
from repolicy.runs.folder import RunFolder
from repolicy.runs.settings import budget_of


@dataclass(frozen=True)
class Curve:
    """A quantity of metrics.jsonl; its axis spans `least` at the least, so that next to nothing looks like it."""

    name: str
    title: str
    least: float = 0.0


CURVES = [
    Curve("evaluation_objective", "The run's own objective, of an episode"),
    Curve("basic_return", "Basic reward of an episode"),
    Curve("evaluation_addon", "Add-on reward of an episode"),
    Curve("evaluation_metric", "{metric} in an episode"),
    Curve("reward_task", "Task's reward a step"),
    Curve("reward_states", "Price of states unlike the prior's, a step", 0.01),
    Curve("prior_kl", "KL to the prior, nats a step", 0.1),
    Curve("below_prior", "Less likely than the prior's own actions, nats a step", 0.1),
    Curve("log_prior", "Log prior a step, nats", 1.0),
    Curve("omega", "ω′"),
    Curve("entropy", "Entropy of the policy, nats", 1.0),
    Curve("std", "Mean std of the actions"),
    Curve("episode_length", "Length of an episode, steps"),
    Curve("explained_variance", "Share of the returns that the critic explains", 0.5),
    Curve("kl", "KL of an update, nats", 0.01),
]
NOTE = (
    "All with sampled actions, over environment steps. The number is the last one drawn, or the one under the pointer; "
    "“of an episode” is from short evaluations or from the episodes that ended in training."
)


def learning(folder: RunFolder, request: dict[str, Any], sampled: dict[str, Evaluation], of_clone: bool = False) -> str:
    """The section; `sampled` are evaluations with sampled actions, by who acts.

    `of_clone`: the prior's is of a clone, and the run was scored by the prior, so its levels are others.
    """
    prior = sampled.get("prior")
    columns, settings = folder.logged(), request["settings"]
    steps, levels = columns.get("steps", []), {} if of_clone else lines(request, prior)
    until = max([float(settings["steps"]), *(step for step in steps if step is not None)])
    metric = next((each.metric_name for each in sampled.values() if each.metric_name), "Metric")
    drawn = []
    for curve in CURVES:
        values = columns.get(curve.name)
        if values is None or (curve.name == "omega" and len(set(values)) < 2):
            continue  # omega is drawn where a budget moves it
        if curve.name == "evaluation_objective" and budget_of(settings) is not None:
            continue  # each value of it has weights of its own
        title = curve.title.format(metric=metric[0].upper() + metric[1:])
        drawn.append(charts.curve(title, steps, values, until, curve.least, levels.get(curve.name)))
    if not any(drawn):
        return page.section("While it learned", note="The run logged no metrics.")
    return page.section("While it learned", charts.charts([chart for chart in drawn if chart]), note=NOTE)


def lines(request: dict[str, Any], prior: Evaluation | None) -> dict[str, dict[str, float]]:
    """The horizontal lines of each curve: what the prior has of it, with sampled actions, and the budget."""
    if prior is None:
        return {}
    objective, columns = Objective(**request["objective"]), prior.columns
    budget = budget_of(request["settings"])
    means = {name: column.mean for name, column in columns.items()}
    at = {
        "basic_return": means.get("basic_reward"),
        "evaluation_addon": means.get("addon_reward"),
        "evaluation_metric": means.get("metric"),
        "episode_length": means["length"],
        "prior_kl": 0.0,
        "below_prior": 0.0,
        "log_prior": means.get("log_prior_a_step"),
        "entropy": -float(prior.log_policy.sum() / prior.lengths.sum()),
    }
    if objective.task == "addon" or "basic_reward" in columns:
        task = task_reward(objective, prior.basic, prior.addon)
        at["reward_task"] = float(task.sum() / prior.lengths.sum())
        if not objective.states and budget is None:  # which moves the weights
            parts = reformulated(objective, task, prior.log_prior, prior.log_policy)
            at["evaluation_objective"] = float(np.mean(parts.total))
    drawn = {name: {"prior": value} for name, value in at.items() if value is not None}
    if budget is not None:
        drawn[budget.spent]["budget"] = budget.nats
    return drawn
