"""What must hold before a trainer starts, and the sentence that says so when it does not."""

from collections.abc import Iterable
from copy import copy
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from packaging.version import Version

from repolicy.errors import UsageError
from repolicy.objective import Objective, given_objective, plain

MOVING_PRIOR = (False, "the prior must stay what it is; with True it follows the policy")
TRL_FROM, TRL_BELOW = "1.16", "1.17"
EXTRA = ("trl", "peft", "datasets")


def check_counts(**counts: int) -> None:
    """Raise where a count of something is below 1."""
    for name, count in counts.items():
        if count < 1:
            raise UsageError(f"{name} is {count}; it must be 1 or more")


def require_trl() -> None:
    """Raise where the extra is missing, or TRL of another version than those whose extension points are known."""
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise UsageError(f"this needs {' and '.join(missing)}, not installed here: pip install 'repolicy[llm]'")
    installed = version("trl")
    if not Version(TRL_FROM) <= Version(installed) < Version(TRL_BELOW):
        raise UsageError(
            f"TRL {installed} is installed; this version of Repolicy works with TRL {TRL_FROM} up to, "
            f"not including, {TRL_BELOW}: pip install 'trl>={TRL_FROM},<{TRL_BELOW}'"
        )


def text_objective(objective: Objective | None, omega: float | None, alpha: float | None) -> Objective:
    """Return the objective that was given; raise where a language model has no use for it."""
    objective = given_objective(objective, omega, alpha)
    if objective.reads_basic:
        raise UsageError(f"an objective on {objective.task!r} reads a basic reward, and a language model has none")
    return plain(objective, "a language model's trainer")


def own_settings(args: Any, cls: type[Any]) -> Any:
    """Return a copy of the settings, which the trainer completes: those of the caller can serve another run."""
    if args is None:
        return cls()
    if not isinstance(args, cls):
        raise UsageError(f"args is a {type(args).__name__}; it must be a {cls.__name__}, which has the same and more")
    return copy(args)


def require_settings(args: Any, needed: dict[str, tuple[Any, str]]) -> None:
    """Raise where a setting has not the value it needs, with the reason: the objective would be another."""
    for name, (value, why) in needed.items():
        if getattr(args, name) != value:
            raise UsageError(f"{name} is {getattr(args, name)!r}; it must be {value!r}, because {why}")


def set_beta(args: Any, objective: Objective, why: str) -> None:
    """Make alpha the `beta` of the settings; raise where it is 0, which it must not be because `why`."""
    require_positive_alpha(objective, why)
    if args.beta not in (None, objective.alpha):
        raise UsageError(f"beta is {args.beta}; here omega and alpha stand in its place, so leave it out")
    args.beta = objective.alpha


def require_enough_prompts(dataset: Any, args: Any) -> None:
    """Raise where prompts do not fill a batch: TRL drops them, and would train no step at all, and succeed."""
    wanted = args.generation_batch_size // args.num_generations
    if hasattr(dataset, "__len__") and not isinstance(dataset, dict) and len(dataset) < wanted:
        raise UsageError(
            f"the dataset has {len(dataset)} prompts, and each generation takes {wanted} ({args.generation_batch_size} "
            f"responses in groups of {args.num_generations}), so nothing would be trained: make the batch smaller, "
            "num_generations larger, or give more prompts"
        )


def require_positive_alpha(objective: Objective, why: str) -> None:
    """Raise where alpha is 0, which it must not be because `why`."""
    if objective.alpha <= 0:
        raise UsageError(f"alpha is {objective.alpha}; it must be greater than 0, because {why}")


def datasets_in(dataset: Any) -> dict[str, Any]:
    """Return datasets by name; a single one has none."""
    return dataset if isinstance(dataset, dict) else {"": dataset}


def columns_of(dataset: Any) -> list[str]:
    """Return the names of the columns, which a streamed dataset may tell only by its first row."""
    return list(dataset.column_names or next(iter(dataset)))


def require_columns(dataset: Any, wanted: Iterable[str], method: str) -> None:
    """Raise where a dataset is missing, or lacks a column that the method needs."""
    if dataset is None:
        raise UsageError(f"there is no training dataset; {method} needs one")
    for name, part in datasets_in(dataset).items():
        columns = columns_of(part)
        missing = [column for column in wanted if column not in columns]
        if missing:
            where = f"the dataset {name!r}" if name else "the dataset"
            raise UsageError(f"{where} has no column {', '.join(missing)}; {method} needs it, and there is {columns}")


def require_labels(dataset: Any) -> None:
    """Raise where a label is not 0 or 1, true or false. A streamed dataset is checked at its first row alone."""
    for part in datasets_in(dataset).values():
        for value in part["label"] if hasattr(part, "__getitem__") else [next(iter(part))["label"]]:
            if value not in (0, 1):
                raise UsageError(f"a label is {value!r}; every label must be 0 or 1 (false or true)")


def require_reference(objective: Objective, model: Any, ref_model: Any, args: Any, peft: Any, what: str) -> None:
    """Raise where TRL could not load its reference; without omega it is neither loaded nor computed."""
    if not objective.reads_prior:
        args.precompute_ref_log_probs = True
    elif ref_model is None and peft is None and not args.precompute_ref_log_probs:
        require_saved_path(model, what)


def require_saved_path(model: Any, what: str) -> None:
    """Raise where the model did not come from a place, from which TRL would load its reference."""
    if isinstance(model, str) or "peft" in type(model).__module__:
        return
    path = getattr(model.config, "_name_or_path", "")
    if not path:
        raise UsageError(
            f"{what} loads its reference from the model's own path, and this model was built in memory: "
            "save_pretrained it first and load it from there"
        )
