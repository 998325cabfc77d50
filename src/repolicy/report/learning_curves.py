"""Draw what a run logged, as curves over its steps, with the prior's values, the budget and the limits as levels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repolicy.addons import Limit
from repolicy.evaluation import ACTIONS, Evaluation
from repolicy.objective import reformulated, task_reward
from repolicy.report import charts, page
from repolicy.runs import Request, RunFolder
from repolicy.text import capitalize


@dataclass(frozen=True)
class Curve:
    """A metric of metrics.jsonl to draw; its axis spans at least `min_span`, so that small changes look small."""

    name: str
    title: str
    min_span: float = 0.0


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
    Curve("kept", "Old reward a step, as a share of the prior's", 0.1),
    Curve("omega", "ω′"),
    Curve("entropy", "Entropy of the policy, nats", 1.0),
    Curve("std", "Mean std of the actions"),
    Curve("episode_length", "Length of an episode, steps"),
    Curve("explained_variance", "Share of the returns that the critic explains", 0.5),
    Curve("kl", "KL of an update, nats", 0.01),
]
CURVES_NOTE = (
    "With sampled actions unless the title says otherwise, over steps. The number beside a title is the last value."
)
OF_AN_EPISODE = "“Of an episode” is from short evaluations or from the episodes that ended in training."


def learning_section(
    folder: RunFolder, request: Request, sampled: dict[str, Evaluation], has_clone: bool = False
) -> str:
    """Return the section with the learning curves; `sampled` are the agents' evaluations with sampled actions.

    With `has_clone`, the evaluated prior is only a clone of the one that scored the run, so its levels are left out.
    """
    metrics, settings = folder.read_metrics(), request.settings
    steps = metrics.get("steps", [])
    levels = {} if has_clone else reference_levels(request, sampled.get("prior"))
    last_step = max([float(settings.steps), *(step for step in steps if step is not None)])
    addon_metric = next((each.metric_name for each in sampled.values() if each.metric_name), "Metric")
    curves = []
    for each in CURVES:
        values = metrics.get(each.name)
        if values is None or (each.name == "omega" and len(set(values)) < 2):
            continue  # omega is only drawn where a budget moves it
        if each.name == "evaluation_objective" and not request.is_comparable:
            continue  # its values have different weights, or lack what limits cost, so they cannot be compared
        title = each.title.format(metric=capitalize(addon_metric))
        curves.append(charts.curve(title, steps, values, last_step, each.min_span, levels.get(each.name)))
    action = "mean" if request.is_judged_by_mean else "sampled"
    curves += limit_curves(request.limits, metrics, steps, last_step, action)
    curves = [each for each in curves if each]
    if not curves:
        return page.section("While it learned", note="Fewer than two iterations are logged, so there is no curve.")
    return page.section("While it learned", charts.chart_grid(curves), note=f"{CURVES_NOTE} {OF_AN_EPISODE}")


def limit_curves(
    limits: Sequence[str], metrics: Mapping[str, list[Any]], steps: list[Any], last_step: float, action: str
) -> list[str]:
    """Return two curves for each limit: its quantity, measured with this kind of action, and its multiplier."""
    curves = []
    for limit in map(Limit.of, limits):
        missing = [None] * len(steps)
        values, multipliers = metrics.get(f"limit_{limit}", missing), metrics.get(f"multiplier_{limit}", missing)
        curves.append(
            charts.curve(f"{limit}: {ACTIONS[action]}", steps, values, last_step, levels={"limit": limit.bound})
        )
        curves.append(charts.curve(f"{limit}: its weight", steps, multipliers, last_step))
    return curves


def reference_levels(request: Request, prior: Evaluation | None) -> dict[str, dict[str, float]]:
    """Return the horizontal lines of each curve: the prior's value with sampled actions, and the budget."""
    if prior is None:
        return {}
    objective, budget = request.objective, request.settings.budget
    columns = prior.columns
    means = {name: column.mean for name, column in columns.items()}
    prior_values = {
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
        prior_values["reward_task"] = float(task.sum() / prior.lengths.sum())
        if not objective.states and request.is_comparable:
            parts = reformulated(objective, task, prior.log_prior, prior.log_policy)
            prior_values["evaluation_objective"] = float(np.mean(parts.total))
    levels = {name: {"prior": value} for name, value in prior_values.items() if value is not None}
    if budget is not None:
        levels.setdefault(budget.metric, {})["to keep" if request.settings.keep else "budget"] = budget.amount
    return levels
