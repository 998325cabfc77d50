"""Pieces that the pages of runs, hosts, dials and sweeps share: tables, tiles and films of evaluations."""

from collections.abc import Sequence
from dataclasses import replace

from repolicy.differences import Difference
from repolicy.envs import parse_env_name
from repolicy.errors import RepolicyError
from repolicy.evaluation import ACTIONS, Evaluation, differences
from repolicy.report import page
from repolicy.report.movie import Shot, render_films
from repolicy.report.verdict import Pair
from repolicy.text import Say, format_number

FILM_SECONDS = 6.0
FILM_BYTES = 900_000  # all films together; base64 makes them a third larger, and the page must stay below 1.5 MB

UNITS = {"metric": "mean of an episode", "log_prior_a_step": "mean over all steps"}
REWARDS = ("total_reward", "basic_reward", "addon_reward")


def by_action(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> dict[str, Evaluation]:
    """Return all evaluations, with the kind of action in their names."""
    every = (item for each in (mean, sampled) for item in each.items())
    return {f"{who} {ACTIONS[evaluation.action]}": evaluation for who, evaluation in every}


def reward_table(evaluations: dict[str, Evaluation]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows as in the paper's Table 2: total, basic, the add-on's metric, the add-on."""
    columns = [evaluation.columns for evaluation in evaluations.values()]
    titles = {name: column.title for each in columns for name, column in each.items()}
    sizes = {name: max(abs(each[name].mean) for each in columns if name in each) for name in titles}
    rows = []
    for agent, each in zip(evaluations, columns, strict=True):
        rows.append([agent, *(each[name].describe(sizes[name]) if name in each else "–" for name in titles)])
    has_std = any(len(each.basic) > 1 for each in evaluations.values())
    return ["mean ± std" if has_std else "one episode", *titles.values()], rows


def reward_tiles(evaluations: dict[str, Evaluation], among: int = 1) -> list[page.Tile]:
    """Return the few numbers that a reader looks for first, each with its change from the prior (see `verdict`)."""
    *_, after = evaluations.values()
    changes = differences(evaluations["prior"], after, comparisons=2 * among) if "prior" in evaluations else {}
    wanted = [*REWARDS, "metric", *(["log_prior_a_step"] if changes else ["length"])]
    return [
        page.Tile(
            column.title, format_number(column.mean), *_tile_change(name, changes.get(name)),
            f"{UNITS.get(name, 'an episode')}, {ACTIONS[after.action]}",
        )
        for name, column in after.columns.items() if name in wanted
    ]  # fmt: skip


def _tile_change(name: str, change: Difference | None) -> tuple[str, str]:
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


def prior_pairs(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> list[Pair]:
    """Return (prior, customized) for each kind of action; empty where there is no prior."""
    return [(each["prior"], each["customized"]) for each in deciding_first(mean, sampled) if "prior" in each]


def deciding_first(mean: dict[str, Evaluation], sampled: dict[str, Evaluation]) -> tuple[dict[str, Evaluation], ...]:
    """Return both kinds of action, the one that decides first."""
    env = next(iter(mean.values())).env
    return (mean, sampled) if parse_env_name(env).is_judged_by_mean else (sampled, mean)


def films_for_page(shots: Sequence[Shot], say: Say = lambda _: None) -> tuple[list[bytes], str]:
    """Render films and return them with an empty complaint; on failure return empty films and the reason, and say it.

    All films share `FILM_BYTES`, so many films are smaller each.
    """
    width, height = (480, 320) if len(shots) <= 3 else (360, 240)
    max_bytes = FILM_BYTES // max(1, len(shots))
    shots = [replace(shot, seconds=FILM_SECONDS, width=width, height=height, max_bytes=max_bytes) for shot in shots]
    try:
        return render_films(shots, say), ""
    except RepolicyError as error:
        say(f"report: no films, {error}")
        return [b""] * len(shots), str(error)
