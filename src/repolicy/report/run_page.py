"""report.html: what a run changed, for a person to see, in one file that needs no other and no network."""

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
    Backend,
    Evaluation,
    check_trust,
    decoder_options,
    evaluate,
    is_in_gymnasium,
    probe_env,
)
from repolicy.envs.addons import Addon, Limit, combine_addons, with_weights
from repolicy.errors import FileError, RepolicyError
from repolicy.loading import file_sum
from repolicy.policies import SavedPolicy, read_card
from repolicy.prepare.defaults import implied_settings, train_defaults
from repolicy.priors import SHIPPED_FOLDER, read_policy, restore_decoder, shipped_names
from repolicy.report import charts, page
from repolicy.report.charts import learning
from repolicy.report.movie import Shot, films
from repolicy.report.scenes import scenes
from repolicy.report.verdict import (
    Difference,
    Pair,
    action,
    advice,
    basis,
    differences,
    early,
    name_of_prior,
    spread,
    verdict,
)
from repolicy.runs import Request, RunFolder, command_options, command_words, format_table, ranks, recipe
from repolicy.text import number

FILM_SECONDS = 6.0
EPISODES = 50
FILM_BYTES = 900_000  # of all films: as text they are a third larger, and the page is to stay below 1.5 MB

UNITS = {"metric": "mean of an episode", "length": "steps", "log_prior_a_step": "nats, mean over all steps"}
REWARDS = ("total_reward", "basic_reward", "addon_reward")


def write_report(
    out: str | Path, episodes: int = EPISODES, say: Callable[[str], None] = lambda _: None, trust: bool = False
) -> Path:
    """Evaluate a run's policy, and its prior if it has one, film both, write `report.html`, and return its path.

    Args:
        out: the run's folder.
        episodes: of each evaluation.
        say: is given each sentence that there is to say.
        trust: run code that the folder names, such as an environment in a file.
    """
    folder = RunFolder(out)
    request = folder.load_request()
    code = [*request.addons, *(Limit.of(each).name for each in request.limits)]
    check_trust(folder.path, trust, env=request.env, addons=code, remedy=TRUST_HINT)
    if not folder.policy.exists():
        raise FileError(f"{folder.path} has no policy yet: its first segment is not done")
    restore_decoder(folder.policy, decoder_options(request.env))
    saved = read_policy(folder.policy)
    addon = combine_addons(with_weights(request.addons)) if request.addons else None
    say(f"report: {episodes} episodes each with the mean action and sampled ones")
    with ranks.one_thread():
        backend = backend_of(request)
        mean, sampled = (
            evaluations(saved, request.env, addon, episodes, deterministic, backend, request.limits)
            for deterministic in (True, False)
        )
    pairs = pairs_of(mean, sampled)
    top = ""
    if pairs:
        said = verdict(pairs, name_of_prior(saved.card), request.settings.keep)
        why = basis([after for _, after in pairs])
        say(f"{said} ({why})")
        top = page.verdict(said, why)
    elif ends := early(mean["policy"]):
        top = page.verdict(ends[0], f"With {action(mean['policy'])}")
    say(format_table(*rewards(by_action(mean, sampled))))
    if pairs and (sentence := hint(folder, request, pairs)):
        say(sentence)
    chosen = scenes(folder.policy, mean)
    pictures, complaint = filmed([scene.shot for scene in chosen], say)
    if complaint:
        say(f"report: no films, {complaint}")
    figures = [page.film(picture, each.caption, each.kind) for each, picture in zip(chosen, pictures, strict=True)]
    parts = [top, *_parts(folder, request, saved, mean, sampled, page.films(figures, complaint))]
    title = request.env
    if request.addons:
        title += f" with {' + '.join(request.addons)}"
    return page.write(folder.path / "report.html", title, _lead(folder, request, saved), parts)


def evaluations(
    saved: SavedPolicy,
    env: str,
    addon: Addon | None,
    episodes: int,
    deterministic: bool = True,
    backend: Backend = "auto",
    limits: Sequence[str] = (),
) -> dict[str, Evaluation]:
    """Return the same seeds for all: prior and customized, or the policy alone."""
    who = {"policy": saved.policy} if saved.prior is None else {"prior": saved.prior, "customized": saved.policy}
    return {
        name: evaluate(
            policy, env, episodes,
            addon=addon, prior=saved.prior, deterministic=deterministic, seed=EVALUATION_SEED,
            backend=backend, limits=limits,
        )
        for name, policy in who.items()
    }  # fmt: skip


def backend_of(request: Request) -> Backend:
    """Return where films are drawn: Gymnasium where it can make the environment, else the run's own."""
    if is_in_gymnasium(request.env):
        with contextlib.suppress(RepolicyError):
            probe_env(request.env, "gymnasium")
            return "gymnasium"
    return request.settings.backend


def filmed(shots: Sequence[Shot], say: Callable[[str], None] = lambda _: None) -> tuple[list[bytes], str]:
    """Return the films, or empty ones and a sentence why. Of many, each is smaller: a page stays small."""
    width, height = (480, 320) if len(shots) <= 3 else (360, 240)
    share = FILM_BYTES // max(1, len(shots))
    alike = [replace(shot, seconds=FILM_SECONDS, width=width, height=height, most_bytes=share) for shot in shots]
    try:
        return films(alike, say), ""
    except RepolicyError as error:
        return [b""] * len(shots), str(error)


def _parts(
    folder: RunFolder,
    request: Request,
    saved: SavedPolicy,
    mean: dict[str, Evaluation],
    sampled: dict[str, Evaluation],
    films: str,
) -> list[str]:
    """Return what stands below the verdict."""
    again, judged = repeat(folder, request), judged_by(mean, sampled)[0]
    episodes = len(next(iter(judged.values())).basic)
    note = f"Mean ± std over {episodes} episodes a row, in {escape(request.env)}."
    if "prior" in mean:
        note += " “Log prior” is the prior's log-probability of the actions that were taken."
    objective = {f"objective: {name}": value for name, value in request.objective.as_dict().items()}
    return [
        page.tiles(tiles(judged)),
        page.section(
            "How it moves", films, note="In real time, with the mean action; what an episode earns is its total reward."
        ),
        page.section("What it earns", page.table(*rewards(by_action(mean, sampled))), note=note),
        distribution(judged),
        learning(folder, request, sampled, "prior_is" in saved.card),
        page.section(
            "The same again",
            page.command(again) if again else "",
            page.settings(request.settings.as_dict() | objective),
            page.settings(saved.card.get("versions", {}), "versions"),
        ),
    ]


def _lead(folder: RunFolder, request: Request, saved: SavedPolicy) -> str:
    steps = saved.card.get("steps", 0)
    shown = "last policy" if folder.last_policy == folder.policy else "policy"
    beside = f", beside {name_of_prior(saved.card)}" if saved.prior is not None else ""
    lead = f"{escape(recipe(request))}. Shown is the {shown}, after {steps:,} environment steps{beside}."
    if shown == "policy":
        lead += " By the run's own objective it was clearly better than the last one."
    if warning := folder.unfinished_notice(request):
        lead += f" <strong>{warning}</strong>"
    return lead


# What both kinds of report say ----------------------------------------------------------------------------------------


def by_action(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> dict[str, Evaluation]:
    """Return all evaluations, with the kind of action in their names."""
    kinds = ((mean, "mean action"), (sampled, "sampled"))
    return {f"{who}, {how}": evaluation for each, how in kinds for who, evaluation in each.items()}


def rewards(evaluations: dict[str, Evaluation]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows as in the paper's Table 2: total, basic, the add-on's metric, the add-on."""
    columns = [evaluation.columns for evaluation in evaluations.values()]
    titles = {name: column.title for each in columns for name, column in each.items()}
    sizes = {name: max(abs(each[name].mean) for each in columns if name in each) for name in titles}
    rows = [
        [who, *(spread(each[name], sizes[name]) if name in each else "–" for name in titles)]
        for who, each in zip(evaluations, columns, strict=True)
    ]
    return ["", *titles.values()], rows


def tiles(evaluations: dict[str, Evaluation]) -> list[page.Tile]:
    """Return the few numbers that a reader looks for first, each with what it changed by."""
    *_, after = evaluations.values()
    changes = differences(evaluations["prior"], after, told=2) if "prior" in evaluations else {}
    wanted = [*REWARDS, "metric", *(["log_prior_a_step"] if changes else ["length"])]
    return [
        page.Tile(
            column.title, number(column.mean), *_change(name, changes.get(name)),
            f"{UNITS.get(name, 'an episode')}, {how_acted(after)}",
        )
        for name, column in after.columns.items() if name in wanted
    ]  # fmt: skip


def how_acted(evaluation: Evaluation) -> str:
    return "mean action" if evaluation.deterministic else "sampled"


def _change(name: str, change: Difference | None) -> tuple[str, str]:
    """Return what a tile says of a change, and how it is to be taken."""
    if change is None:
        return "", ""
    before = f"prior {number(change.before)}"
    if not change.is_real:
        return f"no certain difference ({change}); {before}", ""
    higher = change.value > 0
    words = "higher" if higher else "lower"
    standing = ""
    if name in REWARDS:
        words = standing = "better" if higher else "worse"
    if name == "log_prior_a_step":
        words += " (more like the prior)" if higher else " (less like the prior)"
    return f"{'▲' if higher else '▼'} {change.size} {words}; {before}", standing


def caption(who: str, evaluation: Evaluation) -> str:
    """Return `customized, mean action: on average total reward 5,488, mean |θ| 0.36`; the film shows one episode."""
    columns = evaluation.columns
    wanted = ["total_reward" if "total_reward" in columns else "basic_reward"]
    wanted.append("metric" if "metric" in columns else "addon_reward")
    parts = [f"{columns[name].title} {number(columns[name].mean)}" for name in wanted if name in columns]
    mean = ": on average " if evaluation.deterministic else "; sampled, on average "
    return f"{who}, mean action{mean if parts else ''}{', '.join(parts)}"


def pairs_of(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> list[Pair]:
    """Return prior and customized, with the mean action and sampled; nothing where there is no prior."""
    return [(each["prior"], each["customized"]) for each in judged_by(mean, sampled) if "prior" in each]


def judged_by(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> tuple[dict[str, Evaluation], ...]:
    """Return both, and first what counts: of a generative policy sampled noise, for its mean is a policy nobody has."""
    return (sampled, mean) if decoder_options(next(iter(mean.values())).env) else (mean, sampled)


def hint(folder: RunFolder, request: Request, pairs: Sequence[Pair]) -> str:
    """Return what to try after a run, from its verdict and the last that it logged; empty where it gained."""
    logged = folder.read_metrics()

    def last(name: str, default: float) -> float:
        return next((value for value in reversed(logged.get(name, [])) if value is not None), default)

    holds = "--omega" if request.objective.omega else ""
    return advice(pairs, last("prior_kl", math.inf), last("explained_variance", 0.0), holds)


def distribution(evaluations: dict[str, Evaluation]) -> str:
    columns = {who: evaluation.columns for who, evaluation in evaluations.items()}
    shared = [name for name in next(iter(columns.values())) if all(name in each for each in columns.values())]
    wanted = ["metric" if "metric" in shared else "addon_reward", "total_reward", "basic_reward"]
    how = how_acted(next(iter(evaluations.values())))
    drawn = ""
    for name in [name for name in wanted if name in shared][:2]:
        quantities = {who: each[name] for who, each in columns.items()}
        title = f"{next(iter(quantities.values())).title} of an episode, {how}"
        drawn += charts.histogram({who: column.values for who, column in quantities.items()}, title)
    note = "How many of the evaluation's episodes came out how."
    return page.section("Episode by episode", f'<div class="charts pair">{drawn}</div>', note=note)


# The command ----------------------------------------------------------------------------------------------------------


def repeat(folder: RunFolder, request: Request) -> str:
    """Return the command that makes the run again, to the bit; empty where none can.

    Some is asked for in Python alone. Where the prior could not be copied, the folder holds a clone of it, and the run
    was scored by the prior. And a folder may have been copied without the prior.
    """
    customized = bool(request.prior)
    if customized and (not folder.prior.exists() or "clone_of" in read_card(folder.prior)):
        return ""
    arguments = command_words(request, _prior_of(folder, request) if customized else "", folder.init)
    usual = implied_settings(folder.prior, request.settings.steps) if customized else train_defaults(request.env)
    parts = ["repolicy", *arguments, *command_options(request.settings, usual), "--out", f"{folder.path}-again"]
    return shlex.join(parts) if arguments else ""


def _prior_of(folder: RunFolder, request: Request) -> Path | str:
    """Return the shipped prior's name where it is one, else the copy in the folder."""
    same = (name for name in shipped_names() if file_sum(SHIPPED_FOLDER / f"{name}.safetensors") == request.prior)
    return next(same, folder.prior)
