"""report.html: what a run changed, for a person to see, in one file that needs no other and no network."""

import hashlib
import shlex
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from repolicy.engine import ranks
from repolicy.engine.defaults import customize_defaults, train_defaults
from repolicy.engine.folder import RunFolder
from repolicy.engine.request import Request, options, words
from repolicy.envs.addons import Addon, combined
from repolicy.envs.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.envs.numbers import number, spread
from repolicy.envs.verdict import action, basis, early, verdict
from repolicy.errors import FileError, RepolicyError
from repolicy.loading import confirm
from repolicy.objective import Objective, name_of
from repolicy.policies.file import SavedPolicy, read_policy
from repolicy.policies.storage import write_bytes
from repolicy.report import page
from repolicy.report.film import Shot, films

FILM_SECONDS = 6.0
EPISODES = 50

CURVES = [
    ("evaluation_objective", "Objective of an episode, short evaluations"),
    ("basic_return", "Basic reward of an episode"),
    ("evaluation_addon", "Add-on reward of an episode, short evaluations"),
    ("reward_task", "Task's reward a step"),
    ("prior_kl", "KL to the prior, nats a step"),
    ("log_prior", "Log-likelihood under the prior, a step"),
    ("omega", "ω′"),
    ("entropy", "Entropy of the policy"),
    ("std", "Mean std of the actions"),
    ("episode_length", "Length of an episode"),
    ("explained_variance", "Share of the returns that the critic explains"),
    ("kl", "KL of an update"),
]


def write_report(
    out: str | Path, episodes: int = EPISODES, say: Callable[[str], None] = lambda _: None, trust: bool = False
) -> Path:
    """Evaluate the best policy of the run in `out`, and its prior if it has one, film both, and write `report.html`.

    A run's folder that names code, such as an environment in a file, is refused unless you trust it.
    """
    folder = RunFolder(out)
    request = folder.request()
    if request is None:
        raise FileError(f"{folder.path} holds no run: it has no run.json")
    names = [request["env"], *request["addons"]]
    confirm(names, folder.path, "trust", trust, remedy="if you trust it, give trust=True")
    if not folder.best_policy.exists():
        raise FileError(f"{folder.path} has no policy yet: its first segment is not done")
    saved = read_policy(folder.best_policy)
    addon = combined(request["addons"]) if request["addons"] else None
    say(f"report: {episodes} episodes of evaluation")
    with ranks.one_thread():
        found = evaluations(saved, request, addon, episodes)
    if "customized" in found:
        say(f"{verdict(found['prior'], found['customized'])} ({basis(found['customized'])})")
    say(as_text(*rewards(found)))
    say("report: films")
    pictures, complaint = filmed([(str(folder.best_policy), name) for name in found], request["env"])
    path = folder.path / "report.html"
    html = _html(folder, request, saved, found, pictures, complaint)
    write_bytes(path, html.encode())
    return path


def evaluations(
    saved: SavedPolicy, request: dict[str, Any], addon: Addon | None, episodes: int
) -> dict[str, Evaluation]:
    """Mean action, the same seeds for all: prior and customized, or the policy alone."""
    who = {"policy": saved.policy} if saved.prior is None else {"prior": saved.prior, "customized": saved.policy}
    return {
        name: evaluate(
            policy, request["env"], episodes,
            addon=addon, prior=saved.prior, seed=EVALUATION_SEED, backend=request["settings"]["backend"],
        )
        for name, policy in who.items()
    }  # fmt: skip


def filmed(whom: Sequence[tuple[str, str]], env: str) -> tuple[list[bytes | None], str]:
    """A film of each (file, prior or another name), all None with a sentence where that cannot be."""
    shots = [
        Shot(file, env, which="prior" if name == "prior" else "policy", seconds=FILM_SECONDS) for file, name in whom
    ]
    try:
        return list(films(shots)), ""
    except RepolicyError as error:
        return [None] * len(shots), str(error)


def _html(
    folder: RunFolder,
    request: dict[str, Any],
    saved: SavedPolicy,
    found: dict[str, Evaluation],
    pictures: Sequence[bytes | None],
    complaint: str,
) -> str:
    env, customized = request["env"], "customized" in found
    wanted = " + ".join(request["addons"])
    episodes = len(next(iter(found.values())).basic)
    again = repeat(folder, request)
    budget = budget_of(request["settings"]) is not None
    shown = "last policy" if budget else "best policy by the run's own objective"
    steps = saved.card.get("steps", 0)
    lead = f"{escape(_recipe(request))}. Shown is the {shown}, after {steps:,} environment steps" + (
        ", beside the prior that it was made from." if customized else "."
    )
    figures = [
        page.film(picture, caption(name, evaluation), "prior" if name == "prior" else "customized")
        for (name, evaluation), picture in zip(found.items(), pictures, strict=True)
    ]
    parts = [
        _verdict(found),
        page.tiles(summary(found)),
        page.section("How it moves", page.films(figures, complaint), note="Mean action, in real time, the same start."),
        page.section(
            "What it earns",
            page.table(*rewards(found)),
            note=f"Mean ± std over {episodes} episodes with the mean action, in {escape(env)}."
            + (" “log prior” is the prior's log-probability of the actions that were taken." if customized else ""),
        ),
        _distribution(found),
        _curves(folder),
        page.section(
            "The same again",
            page.command(again) if again else "",
            page.settings(request["settings"] | {f"objective: {key}": v for key, v in request["objective"].items()}),
            page.settings(saved.card.get("versions", {})).replace("settings</summary>", "versions</summary>"),
        ),
    ]
    return page.page(f"{env}{f' with {wanted}' if wanted else ''}", lead, parts)


# What both kinds of report say ----------------------------------------------------------------------------------------


def rewards(found: dict[str, Evaluation]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as in the paper's Table 2: total, basic, the add-on's metric, the add-on."""
    columns = [evaluation.columns for evaluation in found.values()]
    shared = [name for name in columns[0] if all(name in each for each in columns)]
    rows = [[who, *(spread(each[name]) for name in shared)] for who, each in zip(found, columns, strict=True)]
    return ["", *(columns[0][name].title for name in shared)], rows


def as_text(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text, its columns aligned."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def summary(found: dict[str, Evaluation]) -> list[tuple[str, str, str]]:
    """The few numbers that a reader looks for first: (name, value, what it was before)."""
    *before, after = (evaluation.columns for evaluation in found.values())
    tiles = []
    for name in ("total_reward", "basic_reward", "addon_reward", "metric", "log_prior_a_step", "length"):
        if name not in after or (before and (name not in before[0] or name == "length")):
            continue
        beside = f"prior {number(before[0][name].mean)}" if before else ""
        tiles.append((after[name].title, number(after[name].mean), beside))
    return tiles


def caption(who: str, evaluation: Evaluation) -> str:
    """`customized: total reward 5,488, mean |θ| 0.36`."""
    columns = evaluation.columns
    wanted = ["total_reward" if "total_reward" in columns else "basic_reward"]
    wanted.append("metric" if "metric" in columns else "addon_reward")
    parts = [f"{columns[name].title} {number(columns[name].mean)}" for name in wanted if name in columns]
    return f"{who}: {', '.join(parts)}" if parts else who


def _verdict(found: dict[str, Evaluation]) -> str:
    if "customized" in found:
        return page.verdict(verdict(found["prior"], found["customized"]), basis(found["customized"]))
    words = early(found["policy"])
    return page.verdict(words[0], f"With {action(found['policy'])}") if words else ""


def _distribution(found: dict[str, Evaluation]) -> str:
    columns = {who: evaluation.columns for who, evaluation in found.items()}
    shared = [name for name in next(iter(columns.values())) if all(name in each for each in columns.values())]
    wanted = ["metric" if "metric" in shared else "addon_reward", "total_reward", "basic_reward"]
    drawn = [
        page.histogram({who: each[name].values for who, each in columns.items()}, f"{title} of an episode")
        for name in [name for name in wanted if name in shared][:2]
        for title in [next(iter(columns.values()))[name].title]
    ]
    return page.section(
        "Episode by episode",
        '<div class="charts pair">' + "".join(drawn) + "</div>",
        note="How many of the evaluation's episodes came out how.",
    )


def _curves(folder: RunFolder) -> str:
    columns = folder.logged()
    drawn = []
    for name, title in CURVES:
        values = columns.get(name, [])
        if name == "omega" and len(set(values)) < 2:
            continue  # it is drawn where a KL budget moves it
        drawn.append(page.curve(title, columns.get("steps", []), values) if values else "")
    if not any(drawn):
        return page.section("While it learned", note="The run logged no metrics.")
    note = "Over environment steps, with sampled actions; the number is the last value, or the one under the pointer."
    return page.section("While it learned", page.charts([chart for chart in drawn if chart]), note=note)


# Recipe and command ---------------------------------------------------------------------------------------------------


def _recipe(request: dict[str, Any]) -> str:
    objective = Objective(**request["objective"])
    budget = budget_of(request["settings"])
    if budget is not None:
        return f"Residual PPO, ω′ adapted to {budget}"
    name, coefficients = name_of(objective) or ("unnamed", {"omega": objective.omega, "alpha": objective.alpha})
    letters = {"states": "states", "omega": "ω′", "alpha": "α̂" if request["prior"] else "α"}
    numbers = ", ".join(f"{letters[key]} {value:g}" for key, value in coefficients.items())
    return f"The {name.replace('_', '-')} objective{f' ({numbers})' if numbers else ''}"


def budget_of(settings: dict[str, Any]) -> str | None:
    """What ω′ was adapted to, where it was."""
    if settings.get("kl_budget") is not None:
        return f"hold {settings['kl_budget']:g} nats a step to the prior"
    if settings.get("log_prior_budget") is not None:
        return (
            f"keep actions within {settings['log_prior_budget']:g} nats a step of how likely the prior's own are to it"
        )
    return None


def repeat(folder: RunFolder, request: dict[str, Any]) -> str:
    """The command that makes the run again, to the bit; empty where only Python can say what was asked for."""
    asked, customized = Request.from_dict(request), bool(request["prior"])
    said = words(asked, _prior_of(folder, request) if customized else "")
    usual = customize_defaults(folder.prior) if customized else train_defaults(asked.env)
    parts = ["repolicy", *said, *options(asked.settings, usual), "--out", f"{folder.path}-again"]
    return shlex.join(parts) if said else ""


def _prior_of(folder: RunFolder, request: dict[str, Any]) -> Path | str:
    """The shipped prior's name where it is one, else the copy in the folder."""
    from repolicy.policies.file import PRIORS, shipped

    for name in shipped():
        if hashlib.sha256((PRIORS / f"{name}.safetensors").read_bytes()).hexdigest() == request["prior"]:
            return name
    return folder.prior
