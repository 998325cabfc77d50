"""A planner's folder: its settings as JSON, and its prior's file. It is made again from these, to the same numbers."""

from dataclasses import asdict
from pathlib import Path

from repolicy.envs import TRUST_IT, confirm, env_of, only_here
from repolicy.errors import FileError, UsageError
from repolicy.loading import read_json
from repolicy.planning.asking import Planned, planned
from repolicy.planning.learned_model import LearnedModel
from repolicy.planning.planner import Search
from repolicy.policies.storage import check_place, check_shape, write_bytes, write_json
from repolicy.priors import PLAN, Acting, is_plan, own_bytes, read_policy

FORMAT, PRIOR = 1, "prior.safetensors"
SEARCH = {
    "samples": int, "horizon": int, "knots": int, "noise": float, "share": float, "temperature?": float, "base": str,
    "closed": bool, "warm": bool, "discount": float, "seed": int,
}  # fmt: skip
SHAPE = {
    "format": int, "request": {"env": str, "addons": [str]}, "omega": float, "states": float, "value": bool,
    "learned?": bool, "search": SEARCH,
}  # fmt: skip


def check_free(folder: Path) -> None:
    """Raise where a planner's folder cannot be written, or would go over another's files."""
    check_place(folder / PLAN)
    others = [name for name in (PRIOR, "run.json") if (folder / name).exists()]
    if others and not is_plan(folder):
        raise UsageError(f"{folder / others[0]} is there already, and of no planner: choose another --out")


def keep(made: Planned, folder: Path) -> None:
    """Write a planner's folder."""
    if alone := only_here([made.env, *made.addons]):
        raise UsageError(f"{alone} lives in this Python session alone: write it into a file")
    score, search = made.planner.score, asdict(made.planner.search)
    write_bytes(folder / PRIOR, own_bytes(made.saved))
    write_json(
        folder / PLAN,
        {
            "format": FORMAT, "request": {"env": made.env, "addons": list(made.addons)}, "omega": score.omega,
            "states": score.states, "value": score.value is not None,
            "learned": isinstance(made.planner.model, LearnedModel),
            "search": {name: value for name, value in search.items() if value is not None},
        },
    )  # fmt: skip


def opened(folder: Path, trust: bool) -> Acting:
    """Return the planner in a folder, ready to act. Names of code in it are refused, unless the user trusts it."""
    path = folder / PLAN
    values = read_json(path)
    check_shape(values, SHAPE, str(path))
    if values["format"] > FORMAT:
        raise FileError(f"{path} has format {values['format']}; this version reads up to {FORMAT}: upgrade repolicy")
    env, addons = values["request"]["env"], values["request"]["addons"]
    confirm(path, trust, env=env, addons=addons, remedy=TRUST_IT)  # there is no other way to name them
    search = Search(**{name.removesuffix("?"): values["search"].get(name.removesuffix("?")) for name in SEARCH})
    weights = values["omega"], values["states"], values["value"]
    made = planned(
        folder / PRIOR, addons, env_of(values, path, trust=True), *weights, search, values.get("learned", False)
    )
    return Acting(folder, made.planner, read_policy(folder / PRIOR).policy, values, made.notes)
