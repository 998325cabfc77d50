"""The report of a run in rsl_rl or Stable-Baselines3, from what a checkpoint of `ResidualPPO` keeps."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.envs import Evaluation
from repolicy.errors import FileError, first_line
from repolicy.priors import find_policy, is_plan
from repolicy.readers.pickles import DAMAGE_ERRORS
from repolicy.readers.recognize import PolicyFile
from repolicy.readers.zips import open_zip, read_zip_entry
from repolicy.report import charts, page
from repolicy.report.charts import CURVES, NOTE, Curve
from repolicy.report.run_page import by_action, distribution, pairs_of, rewards, tiles
from repolicy.report.verdict import basis, verdict

MORE = (Curve("reward_prior", "ω′ · log prior, a step"), Curve("reward_entropy", "−α · log policy, a step"))
FORMS = "a checkpoint of rsl_rl (.pt), a folder with some, or a model of Stable-Baselines3 (.zip)"


def evaluation(told: Mapping[str, Any]) -> Evaluation:
    """Return episodes as the engine's evaluations have them, from how a host keeps them."""
    basic, addon, lengths = (np.array(told[name], np.float64) for name in ("basic", "addon", "lengths"))
    seed = 0 if told["who"] == "prior" else 1  # those of the two began otherwise, so they are no pairs
    limits = {name: np.array(values, np.float64) for name, values in told.get("limits", {}).items()}
    nats, mean = np.zeros(len(basic)), not told["sampled"]
    return Evaluation("", "", mean, seed, basic, addon, None, lengths, nats, None, limits=limits)


def checkpoint_in(path: Path) -> Path:
    """Return the file that a path means: of a folder of rsl_rl's, the newest checkpoint."""
    if not path.is_dir():
        return path
    found = [file for file in path.glob("model_*.pt") if file.stem.removeprefix("model_").isdigit()]
    if not found:
        if is_plan(path):
            find_policy(path)  # which says what takes it
        raise FileError(f"{path} holds no run of Repolicy and no model_*.pt of rsl_rl; name {FORMS}")
    return max(found, key=lambda file: int(file.stem.removeprefix("model_")))


def kept(path: Path) -> dict[str, Any]:
    """Return what `ResidualPPO` has kept in a checkpoint; no code of it runs."""
    file = PolicyFile(path)
    key, loaded = "residual", None
    if "policy.pth" in file.zip_names:
        key, loaded = "position", json.loads(read_zip_entry(open_zip(file.content, str(path)), "data"))
    elif file.is_pickled:
        loaded = file.unpickled
    found = loaded.get(key) if isinstance(loaded, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("curves"), dict):
        raise FileError(f"{path} has no curves of ResidualPPO in it; name {FORMS}, of a run with that class")
    return found


def write_host_report(path: Path) -> tuple[Path, str]:
    """Write the report of a checkpoint beside it, and return its place and the verdict, empty where none was asked."""
    file = checkpoint_in(path)
    out = file.parent / "report.html" if path.is_dir() else file.with_suffix(".html")
    try:
        lead, parts, said = _parts(file, kept(file))
    except DAMAGE_ERRORS as error:
        raise FileError(f"{file} is damaged: {first_line(error)}") from None
    return page.write(out, file.parent.name if path.is_dir() else file.stem, lead, parts), said


def _parts(file: Path, told: dict[str, Any]) -> tuple[str, list[str], str]:
    """Return the lead and the parts of the page of what a checkpoint keeps, and the verdict."""
    mean, sampled = dict[str, Evaluation](), dict[str, Evaluation]()
    for episodes in told.get("compared") or ():
        (sampled if episodes["sampled"] else mean)[episodes["who"]] = evaluation(episodes)
    pairs = pairs_of(mean, sampled) if mean else []
    parts, said = list[str](), ""
    if pairs:
        said = verdict(pairs)
        parts += [
            page.verdict(said, basis([after for _, after in pairs]).replace(", from the same starts", "")),
            page.tiles(tiles(mean)),
            page.section("What it earns", page.table(*rewards(by_action(mean, sampled)))),
            distribution(mean),
        ]
    parts.append(page.section("While it learned", charts.charts(_drawn(told["curves"])), note=NOTE))
    objective = {f"objective: {key}": value for key, value in told["objective"].items()}
    parts.append(page.section("Its settings", page.settings(objective)))
    asked = "" if pairs else " No verdict is in it: `model.verdict()` or `runner.alg.verdict()` before it is saved."
    lead = f"ResidualPPO, from {escape(file.name)}, after {told['iterations']:,} iterations.{escape(asked)}"
    return lead, parts, said


def _drawn(curves: Mapping[str, list[float]]) -> list[str]:
    steps = curves["steps"]
    levels = {"prior_kl": {"prior": 0.0}}
    limits = [name.removeprefix("limit_") for name in curves if name.startswith("limit_")]
    return [
        charts.curve(each.title, steps, curves[each.name], steps[-1], each.least, levels.get(each.name))
        for each in (*CURVES, *MORE)
        if steps and len(set(curves.get(each.name, ()))) > 1
    ] + charts.of_limits(limits, curves, steps, steps[-1] if steps else 1, "sampled actions")
