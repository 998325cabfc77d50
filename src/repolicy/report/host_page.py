"""Write the report of a run in rsl_rl or Stable-Baselines3, from the data that `ResidualPPO` stores in a checkpoint."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.errors import FileError, first_line
from repolicy.evaluation import Evaluation
from repolicy.objective import Objective
from repolicy.priors import check_no_plan, newest_checkpoint
from repolicy.ranges import middle_of
from repolicy.readers.pickles import DAMAGE_ERRORS, open_zip, read_zip_entry
from repolicy.readers.recognize import PolicyFile
from repolicy.report import charts, page
from repolicy.report.learning_curves import CURVES, CURVES_NOTE, Curve, limit_curves
from repolicy.report.pieces import by_action, prior_pairs, reward_table, reward_tiles
from repolicy.report.verdict import Pair, basis, verdict

HOST_CURVES = (Curve("reward_prior", "ω′ · log prior, a step"), Curve("reward_entropy", "−α · log policy, a step"))
FORMS = "a run's folder, or what ResidualPPO saved: a checkpoint of rsl_rl (.pt) or a model of Stable-Baselines3 (.zip)"


def to_evaluation(episodes: Mapping[str, Any]) -> Evaluation:
    """Convert the episodes that a host stored into an `Evaluation`, as the engine makes them."""
    basic, addon, lengths = (np.array(episodes[name], np.float64) for name in ("basic", "addon", "lengths"))
    if not np.isfinite(basic).all():  # some environments did not tell it
        basic = np.full_like(basic, np.nan)
    seed = 0 if episodes["who"] == "prior" else 1  # different seeds, because the two started differently: no pairs
    limits = {name: np.array(values, np.float64) for name, values in episodes.get("limits", {}).items()}
    log_policy, deterministic = np.zeros(len(basic)), not episodes["sampled"]
    return Evaluation("", "", deterministic, seed, basic, addon, None, lengths, log_policy, None, limits=limits)


def host_verdict(pairs: Sequence[Pair], is_trained: bool) -> list[str]:
    """Return the verdict of a run in a host, and whether its actor was trained. Hosts hold limits by sampled actions.

    pairs: of the mean action, then of sampled actions.
    """
    waits = "the actor has only waited for the critic so far: more iterations than critic_warmup train it"
    return verdict(pairs, limited=len(pairs)) + ([] if is_trained else [waits])


def checkpoint_in(path: Path) -> Path:
    """Return the path itself, or the newest checkpoint in a folder of rsl_rl."""
    if not path.is_dir():
        return path
    newest = newest_checkpoint(path)
    if newest is None:
        check_no_plan(path)
        raise FileError(f"{path} holds no run of Repolicy and no model_*.pt of rsl_rl; name {FORMS}")
    return newest


def read_stored(path: Path) -> dict[str, Any]:
    """Read the data that `ResidualPPO` stored in a checkpoint, without running code from the file."""
    file = PolicyFile(path)
    key, loaded = "residual", None
    if "policy.pth" in file.zip_names:
        key, loaded = "position", json.loads(read_zip_entry(open_zip(file.content, str(path)), "data"))
    elif file.is_pickled:
        loaded = file.unpickled
    found = loaded.get(key) if isinstance(loaded, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("curves"), dict):
        raise FileError(f"{path} has no curves of ResidualPPO in it; name {FORMS}")
    return found


def write_host_report(path: Path) -> tuple[Path, list[str]]:
    """Write a report beside the checkpoint; return its path and the verdict, empty if the run was not evaluated."""
    file = checkpoint_in(path)
    out = file.parent / "report.html" if path.is_dir() else file.with_suffix(".html")
    try:
        lead, parts, sentences = _sections(file, read_stored(file))
    except DAMAGE_ERRORS as error:
        raise FileError(f"{file} is damaged: {first_line(error)}") from None
    return page.write(out, file.parent.name if path.is_dir() else file.stem, lead, parts), sentences


def _sections(file: Path, stored: dict[str, Any]) -> tuple[str, list[str], list[str]]:
    """Return the lead of the page, its sections, and the verdict."""
    mean, sampled = dict[str, Evaluation](), dict[str, Evaluation]()
    for episodes in stored.get("compared") or ():
        (sampled if episodes["sampled"] else mean)[episodes["who"]] = to_evaluation(episodes)
    pairs = prior_pairs(mean, sampled) if mean else []
    parts, sentences = list[str](), list[str]()
    if pairs:
        sentences = host_verdict(pairs, stored.get("is_trained", True))
        parts += [
            page.verdict(sentences, basis([after for _, after in pairs], has_same_starts=False)),
            page.words(),
            page.tiles(reward_tiles(mean)),
            page.section("What it earns", page.table(*reward_table(by_action(mean, sampled)))),
        ]
    parts.append(page.section("While it learned", charts.chart_grid(_draw_curves(stored["curves"])), note=CURVES_NOTE))
    objective = {f"objective: {key}": value for key, value in stored["objective"].items()}
    parts.append(page.section("Its settings", page.settings(objective)))
    lead = f"ResidualPPO, from {escape(file.name)}, after {stored['iterations']:,} iterations."
    if not pairs:
        lead += " No verdict is in it: `model.verdict()` or `runner.alg.verdict()` before it is saved."
    elif dials := Objective(**stored["objective"]).dials:
        lead += f" Its episodes are at {escape(middle_of(dials))}."
    return lead, parts, sentences


def _draw_curves(curves: Mapping[str, list[float]]) -> list[str]:
    steps = curves["steps"]
    levels = {"prior_kl": {"prior": 0.0}}
    limits = [name.removeprefix("limit_") for name in curves if name.startswith("limit_")]
    return [
        charts.curve(each.title, steps, curves[each.name], steps[-1], each.min_span, levels.get(each.name))
        for each in (*CURVES, *HOST_CURVES)
        if steps and len(set(curves.get(each.name, ()))) > 1
    ] + limit_curves(limits, curves, steps, steps[-1] if steps else 1, "sampled")
