"""Write a run's report.html: what the run changed, as one file that needs no other file and no network."""

import contextlib
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from repolicy.envs import (
    EVALUATION_SEED,
    TRUST_HINT,
    Addon,
    Backend,
    Evaluation,
    Limit,
    check_trust,
    combine_addons,
    evaluate,
    parse_env_name,
    probe_env,
)
from repolicy.envs.addon_names import with_weights
from repolicy.errors import FileError, RepolicyError
from repolicy.files import file_sum
from repolicy.policies import SavedPolicy, read_card, with_torch_defaults
from repolicy.prepare.defaults import implied_settings, train_defaults
from repolicy.priors import SHIPPED_FOLDER, read_policy, restore_decoder, shipped_names
from repolicy.report import charts, page
from repolicy.report.learning_curves import learning_section
from repolicy.report.movie import Shot, render_films
from repolicy.report.scenes import choose_scenes
from repolicy.report.verdict import (
    Difference,
    Pair,
    action_words,
    advice,
    basis,
    differences,
    early_ends,
    mean_and_std,
    name_of_prior,
    verdict,
)
from repolicy.runs import Request, Result, RunFolder, command_options, command_words, format_table, ranks, recipe
from repolicy.text import format_number

FILM_SECONDS = 6.0
EPISODES = 50
FILM_BYTES = 900_000  # all films together; base64 makes them a third larger, and the page must stay below 1.5 MB

UNITS = {"metric": "mean of an episode", "length": "steps", "log_prior_a_step": "nats, mean over all steps"}
REWARDS = ("total_reward", "basic_reward", "addon_reward")


@with_torch_defaults()
def write_report(
    out: str | Path | Result, episodes: int = EPISODES, say: Callable[[str], None] = lambda _: None, trust: bool = False
) -> Path:
    """Evaluate a run's policy, and its prior if it has one, film both, write `report.html`, and return its path.

    Args:
        out: the run's folder, or its result, which is trusted.
        episodes: number of episodes in each evaluation.
        say: a function that prints each progress sentence.
        trust: whether to run code that the folder names, such as an environment in a file.
    """
    folder, trust = (RunFolder(out.folder), True) if isinstance(out, Result) else (RunFolder(out), trust)
    request = folder.load_request()
    code = [*request.addons, *(Limit.of(each).name for each in request.limits)]
    check_trust(folder.path, trust, env=request.env, addons=code, remedy=TRUST_HINT)
    if not folder.policy.exists():
        raise FileError(f"{folder.path} has no policy yet: its first segment is not done")
    restore_decoder(folder.policy, parse_env_name(request.env).decoder)
    saved = read_policy(folder.policy)
    addon = combine_addons(with_weights(request.addons)) if request.addons else None
    say(f"report: {episodes} episodes each with the mean action and sampled ones")
    with ranks.one_thread():
        backend = evaluation_backend(request)
        mean, sampled = (
            evaluate_with_prior(saved, request.env, addon, episodes, deterministic, backend, request.limits)
            for deterministic in (True, False)
        )
    pairs = prior_pairs(mean, sampled)
    headline = hint = ""
    if pairs:
        hint = next_step_hint(folder, request, pairs)
        sentence = verdict(pairs, name_of_prior(saved.card), request.settings.keep)
        evidence = basis([customized for _, customized in pairs])
        say(f"{sentence} ({evidence})")
        headline = page.verdict(sentence, evidence, hint)
    elif ends := early_ends(mean["policy"]):
        headline = page.verdict(ends[0], f"With {action_words(mean['policy'])}")
    say(format_table(*reward_table(by_action(mean, sampled))))
    if hint:
        say(hint)
    scenes = choose_scenes(folder.policy, mean)
    films, complaint = films_for_page([scene.shot for scene in scenes], say)
    if complaint:
        say(f"report: no films, {complaint}")
    figures = [page.film(film, scene.caption, scene.kind) for scene, film in zip(scenes, films, strict=True)]
    words = page.words(addon.descriptions) if addon else ""
    parts = [headline, words, *_sections(folder, request, saved, mean, sampled, page.films(figures, complaint))]
    title = request.env
    if request.addons:
        title += f" with {' + '.join(request.addons)}"
    return page.write(folder.path / "report.html", title, _lead(folder, request, saved), parts)


def evaluate_with_prior(
    saved: SavedPolicy,
    env: str,
    addon: Addon | None,
    episodes: int,
    deterministic: bool = True,
    backend: Backend = "auto",
    limits: Sequence[str] = (),
) -> dict[str, Evaluation]:
    """Evaluate prior and customized policy from the same seeds, or the policy alone where it has no prior."""
    agents = {"policy": saved.policy} if saved.prior is None else {"prior": saved.prior, "customized": saved.policy}
    return {
        name: evaluate(
            policy, env, episodes,
            addon=addon, prior=saved.prior, deterministic=deterministic, seed=EVALUATION_SEED,
            backend=backend, limits=limits,
        )
        for name, policy in agents.items()
    }  # fmt: skip


def evaluation_backend(request: Request) -> Backend:
    """Return Gymnasium where it has the environment, because films are rendered there; else the run's backend."""
    if parse_env_name(request.env).is_in_gymnasium:
        with contextlib.suppress(RepolicyError):
            probe_env(request.env, "gymnasium")
            return "gymnasium"
    return request.settings.backend


def films_for_page(shots: Sequence[Shot], say: Callable[[str], None] = lambda _: None) -> tuple[list[bytes], str]:
    """Render films and return them with an empty complaint; on failure return empty films and the reason.

    All films share `FILM_BYTES`, so many films are smaller each.
    """
    width, height = (480, 320) if len(shots) <= 3 else (360, 240)
    max_bytes = FILM_BYTES // max(1, len(shots))
    shots = [replace(shot, seconds=FILM_SECONDS, width=width, height=height, max_bytes=max_bytes) for shot in shots]
    try:
        return render_films(shots, say), ""
    except RepolicyError as error:
        return [b""] * len(shots), str(error)


def _sections(
    folder: RunFolder,
    request: Request,
    saved: SavedPolicy,
    mean: dict[str, Evaluation],
    sampled: dict[str, Evaluation],
    films: str,
) -> list[str]:
    """Return the sections of the page below the verdict."""
    command, judged = repeat_command(folder, request), deciding_first(mean, sampled)[0]
    episodes = len(next(iter(judged.values())).basic)
    note = f"Mean ± std over {episodes} episodes a row, in {escape(request.env)}."
    if "prior" in mean:
        note += " “Log prior” is the prior's log-probability of the actions that were taken."
    objective = {f"objective: {name}": value for name, value in request.objective.as_dict().items()}
    return [
        page.tiles(reward_tiles(judged)),
        page.section(
            "How it moves", films, note="In real time, with the mean action; what an episode earns is its total reward."
        ),
        page.section("What it earns", page.table(*reward_table(by_action(mean, sampled))), note=note),
        distribution_section(judged),
        learning_section(folder, request, sampled, has_clone="prior_is" in saved.card),
        page.section(
            "The same again",
            page.command(command) if command else "",
            page.settings(request.settings.as_dict() | objective),
            page.settings(saved.card.get("versions", {}), "versions"),
        ),
    ]


def _lead(folder: RunFolder, request: Request, saved: SavedPolicy) -> str:
    steps = saved.card.get("steps", 0)
    is_last = folder.last_policy == folder.policy
    beside = f", beside {name_of_prior(saved.card)}" if saved.prior is not None else ""
    policy = "last policy" if is_last else "policy"
    lead = f"{escape(recipe(request))}. Shown is the {policy}, after {steps:,} environment steps{beside}."
    if not is_last:
        lead += " By the run's own objective it was clearly better than the last one."
    if (budget := request.settings.budget) and not request.settings.keep:
        spent = _last_logged(folder, budget.metric)
        lead += f" At its end: {budget.comparison.format(spent, budget.amount)}." if math.isfinite(spent) else ""
    if warning := folder.unfinished_notice(request):
        lead += f" <strong>{warning}</strong>"
    return lead


# Pieces that the pages of runs, hosts, dials and sweeps share ---------------------------------------------------------


def by_action(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> dict[str, Evaluation]:
    """Return all evaluations, with the kind of action in their names."""
    kinds = ((mean, "mean action"), (sampled, "sampled"))
    return {f"{who}, {how}": evaluation for each, how in kinds for who, evaluation in each.items()}


def reward_table(evaluations: dict[str, Evaluation]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows as in the paper's Table 2: total, basic, the add-on's metric, the add-on."""
    columns = [evaluation.columns for evaluation in evaluations.values()]
    titles = {name: column.title for each in columns for name, column in each.items()}
    sizes = {name: max(abs(each[name].mean) for each in columns if name in each) for name in titles}
    rows = []
    for agent, each in zip(evaluations, columns, strict=True):
        rows.append([agent, *(mean_and_std(each[name], sizes[name]) if name in each else "–" for name in titles)])
    return ["", *titles.values()], rows


def reward_tiles(evaluations: dict[str, Evaluation]) -> list[page.Tile]:
    """Return the few numbers that a reader looks for first, each with its change from the prior."""
    *_, after = evaluations.values()
    changes = differences(evaluations["prior"], after, comparisons=2) if "prior" in evaluations else {}
    wanted = [*REWARDS, "metric", *(["log_prior_a_step"] if changes else ["length"])]
    return [
        page.Tile(
            column.title, format_number(column.mean), *_describe_change(name, changes.get(name)),
            f"{UNITS.get(name, 'an episode')}, {action_kind(after)}",
        )
        for name, column in after.columns.items() if name in wanted
    ]  # fmt: skip


def action_kind(evaluation: Evaluation) -> str:
    return "mean action" if evaluation.deterministic else "sampled"


def _describe_change(name: str, change: Difference | None) -> tuple[str, str]:
    """Return the words of a tile's change, and `better` or `worse` for its color (empty if it is neither)."""
    if change is None:
        return "", ""
    before = f"prior {format_number(change.before)}"
    if not change.is_significant:
        return f"no certain difference ({change}); {before}", ""
    higher = change.value > 0
    words = "higher" if higher else "lower"
    standing = ""
    if name in REWARDS:
        words = standing = "better" if higher else "worse"
    if name == "log_prior_a_step":
        words += " (more like the prior)" if higher else " (less like the prior)"
    return f"{'▲' if higher else '▼'} {change.unsigned} {words}; {before}", standing


def film_caption(agent: str, evaluation: Evaluation) -> str:
    """Return `customized, mean action: on average total reward 5,488, mean |θ| 0.36`; the film shows one episode."""
    columns = evaluation.columns
    wanted = ["total_reward" if "total_reward" in columns else "basic_reward"]
    wanted.append("metric" if "metric" in columns else "addon_reward")
    parts = [f"{columns[name].title} {format_number(columns[name].mean)}" for name in wanted if name in columns]
    mean = ": on average " if evaluation.deterministic else "; sampled, on average "
    return f"{agent}, mean action{mean if parts else ''}{', '.join(parts)}"


def prior_pairs(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> list[Pair]:
    """Return (prior, customized) for each kind of action; empty where there is no prior."""
    return [(each["prior"], each["customized"]) for each in deciding_first(mean, sampled) if "prior" in each]


def deciding_first(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> tuple[dict[str, Evaluation], ...]:
    """Return both kinds of action, the one that decides first."""
    env = next(iter(mean.values())).env
    return (mean, sampled) if parse_env_name(env).is_judged_by_mean else (sampled, mean)


def next_step_hint(folder: RunFolder, request: Request, pairs: Sequence[Pair]) -> str:
    """Return what to try after a run, from its verdict and its last logged metrics; empty where it gained."""
    if folder.unfinished_notice(request):
        return "go on with it (--resume): only a run that is finished tells what to change"
    is_weight_fixed = request.objective.omega and request.settings.budget is None  # a budget moves it
    prior_kl, explained = _last_logged(folder, "prior_kl", math.inf), _last_logged(folder, "explained_variance", 0.0)
    return advice(pairs, prior_kl, explained, "--omega" if is_weight_fixed else "")


def _last_logged(folder: RunFolder, name: str, default: float = math.nan) -> float:
    return next((value for value in reversed(folder.read_metrics().get(name, [])) if value is not None), default)


def distribution_section(evaluations: dict[str, Evaluation]) -> str:
    """Return histograms of the episodes' rewards: at most two quantities, each of all agents."""
    columns = {agent: evaluation.columns for agent, evaluation in evaluations.items()}
    shared = [name for name in next(iter(columns.values())) if all(name in each for each in columns.values())]
    wanted = ["metric" if "metric" in shared else "addon_reward", "total_reward", "basic_reward"]
    kind = action_kind(next(iter(evaluations.values())))
    histograms = ""
    for name in [name for name in wanted if name in shared][:2]:
        quantities = {agent: each[name] for agent, each in columns.items()}
        title = f"{next(iter(quantities.values())).title} of an episode, {kind}"
        histograms += charts.histogram({agent: column.values for agent, column in quantities.items()}, title)
    note = "The number of the evaluation's episodes that earned so much."
    return page.section("Episode by episode", f'<div class="charts pair">{histograms}</div>', note=note)


# The command ----------------------------------------------------------------------------------------------------------


def repeat_command(folder: RunFolder, request: Request) -> str:
    """Return the command that repeats the run bit by bit; empty where no command can.

    There is none for options that exist only in Python, or for a folder that was copied without its prior. There is
    none for a prior that could not be copied: the folder holds its clone, but the run was scored by the prior itself.
    """
    is_customized = bool(request.prior)
    if is_customized and (not folder.prior.exists() or "clone_of" in read_card(folder.prior)):
        return ""
    arguments = command_words(request, _prior_argument(folder, request) if is_customized else "", folder.init)
    usual = implied_settings(folder.prior, request.settings.steps) if is_customized else train_defaults(request.env)
    parts = ["repolicy", *arguments, *command_options(request.settings, usual), "--out", f"{folder.path}-again"]
    return shlex.join(parts) if arguments else ""


def _prior_argument(folder: RunFolder, request: Request) -> Path | str:
    """Return the name of the prior if it is one that ships, else the path of its copy in the folder."""
    names = (name for name in shipped_names() if file_sum(SHIPPED_FOLDER / f"{name}.safetensors") == request.prior)
    return next(names, folder.prior)
