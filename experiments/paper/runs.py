"""The runs of the paper's Tables 1, 2 and 5, as data: three environments, nine variants, five seeds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.one import Run
from repolicy.errors import UsageError
from repolicy.evaluation import EVALUATION_SEED
from repolicy.loading import nearest

STEPS = "5e6"


@dataclass(frozen=True)
class Task:
    """An environment, its add-on, and the paper's coefficients (its Tables 3 and 4)."""

    env: str
    addon: str
    alpha: str  # of Soft and Repeat-Entropy; α̂ and KL's β while customizing
    end_alpha: str  # of End-Entropy
    omega: str  # ω′ of Residual


# In the order of work: the physics of the first is the quickest.
TASKS = {
    "halfcheetah": Task("HalfCheetah-v4", "hind_leg", "0.13472", "0.01", "0.17"),
    "hopper": Task("Hopper-v4", "height", "0.001", "0.0005", "0.01"),
    "ant": Task("Ant-v4", "sideways", "0.0001", "0.001", "0.01"),
}


@dataclass(frozen=True)
class Variant:
    """A column of a table: how its policies are made."""

    table: str
    command: Literal["train", "customize", "evaluate"]
    objective: str = ""
    coefficients: tuple[str, ...] = ()  # options, each with the field of the task that holds its value
    more: str = ""


# In the order of work within a seed. All variants of an environment share its row of settings; `soft` comes first
# because the others' prior is the best of its seeds.
VARIANTS = {
    "soft": Variant("table1", "train", "soft", ("alpha",)),
    "prior": Variant("table2", "evaluate"),
    "residual": Variant("table2", "customize", "residual", ("omega", "alpha", "addon")),
    "kl": Variant("table2", "customize", "kl", ("alpha", "addon")),
    "greedy": Variant("table2", "customize", "greedy", ("alpha", "addon")),
    "full": Variant("table2", "train", "full", ("alpha", "addon")),
    "no_entropy": Variant("table1", "train", "no_entropy"),
    "end_entropy": Variant("table1", "train", "end_entropy", ("end_alpha",)),
    "repeat_entropy": Variant("table1", "train", "repeat_entropy", ("alpha",)),
    "soft_state_std": Variant("table5", "train", "soft", ("alpha",), "--family state_gaussian"),
}
# As in the paper: customizing keeps the discount of training, and fits the critic alone for the first 5 %.
CUSTOMIZING = "--gamma 0.99 --critic-warmup 0.05 --no-report"


@dataclass(frozen=True)
class Planned:
    """One policy to be made, or, for `prior`, to be evaluated."""

    task: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.task}/{self.variant}/{self.seed}"

    @property
    def needs_prior(self) -> bool:
        return VARIANTS[self.variant].command != "train"

    def run(self, prior: Path) -> Run:
        """The same with the words of its command; `prior` is where the task's prior is, or will be."""
        task, variant = TASKS[self.task], VARIANTS[self.variant]
        if variant.command == "evaluate":  # on other episodes than those that it was chosen by
            later = EVALUATION_SEED + 1 + self.seed
            return Run(self.key, (), task.env, task.addon, policy=str(prior), evaluation_seed=later)
        words = ["train", task.env]
        if variant.command == "customize":
            words = ["customize", str(prior), "--env", task.env, *CUSTOMIZING.split()]
        words += ["--objective", variant.objective, *variant.more.split()]
        for name in variant.coefficients:
            words += [f"--{name.removeprefix('end_')}", getattr(task, name)]
        words += ["--steps", STEPS, "--ranks", "1", "--seed", str(self.seed)]
        return Run(self.key, tuple(words), task.env, task.addon)


def planned(only: tuple[str, ...] = (), seeds: int = 5) -> list[Planned]:
    """All runs, in the order of work.

    An environment at a time, the quick ones first, so that whole tables are done early. In it first all seeds of
    `soft`, because one of them is the prior; then a seed at a time, so that all variants have equally many.
    """
    if seeds < 1:
        raise UsageError(f"seeds is {seeds}; it must be 1 or more")
    tables = dict.fromkeys(variant.table for variant in VARIANTS.values())
    names = {**tables, **dict.fromkeys(TASKS), **dict.fromkeys(VARIANTS)}
    for word in only:
        if word not in names:
            raise UsageError(
                f"there is no table, environment or variant {word!r}{nearest(word, names)}; "
                f"choose from {', '.join(names)}"
            )
    tasks = [task for task in TASKS if task in only] or list(TASKS)
    asked = [name for name, variant in VARIANTS.items() if {name, variant.table} & set(only)] or list(VARIANTS)
    found = []
    for task in tasks:
        if any(Planned(task, variant, 0).needs_prior for variant in asked) or "soft" in asked or "table5" in only:
            found += [Planned(task, "soft", seed) for seed in range(seeds)]
        found += [Planned(task, variant, seed) for seed in range(seeds) for variant in asked if variant != "soft"]
    return found
