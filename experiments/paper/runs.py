"""The runs of the paper's Tables 1, 2 and 5 as data, and further runs that the paper does not have."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from experiments.one import EPISODES, Run
from repolicy.addons.registered import CHEETAH_JOINTS
from repolicy.errors import UsageError
from repolicy.evaluation import EVALUATION_SEED
from repolicy.prepare.defaults import train_defaults
from repolicy.runs.request import command_option
from repolicy.runs.settings import Settings
from repolicy.text import suggest

STEPS, SEEDS = "5e6", 5
PINNED_SETTINGS = ("envs", "n_steps", "checkpoint_every", "epochs", "minibatch", "learning_rate", "schedule",
                   "target_kl", "gamma", "critic_warmup", "critic_explains", "hidden", "initial_std")  # fmt: skip


@dataclass(frozen=True)
class Task:
    """An environment, its add-on, and the paper's coefficients (its Tables 3 and 4)."""

    env: str
    addon: str
    alpha: str  # of Soft and Repeat-Entropy; when customizing, α̂ and KL's β
    end_alpha: str  # of End-Entropy
    omega: str  # ω′ of Residual


# In the order of work: the first has the fastest physics.
TASKS = {
    "halfcheetah": Task("HalfCheetah-v4", "hind_leg", "0.13472", "0.01", "0.17"),
    "hopper": Task("Hopper-v4", "height", "0.001", "0.0005", "0.01"),
    "ant": Task("Ant-v4", "sideways", "0.0001", "0.001", "0.01"),
}
# Two tasks that are not the paper's, with the coefficients of similar ones. They run only if they are named.
OWN_TASKS = {
    "walker2d": Task("Walker2d-v4", "height", "0.001", "0.0005", "0.01"),
    "swimmer": Task("Swimmer-v4", "mppi_joint", "0.0001", "0.001", "0.01"),
}


@dataclass(frozen=True)
class Variant:
    """A variant of a table, and how its policies are made."""

    table: str
    command: Literal["train", "customize", "evaluate"]
    objective: str = ""
    coefficients: tuple[str, ...] = ()  # fields of the task whose values become options
    more: str = ""  # further options
    shipped: bool = False  # from the shipped prior and with our defaults, instead of the paper's protocol
    factors: tuple[float, float] = (1.0, 1.0)  # on ω′ and α̂
    addon: str = ""  # if it is not the task's
    tasks: tuple[str, ...] = ()  # empty: all


WEIGHTS = ("omega", "alpha", "addon")
# In the order of work within a seed. All variants of an environment share its settings. `soft` comes first, because the
# prior of the others is the best of its seeds.
VARIANTS = {
    "soft": Variant("table1", "train", "soft", ("alpha",)),
    "prior": Variant("table2", "evaluate"),
    "residual": Variant("table2", "customize", "residual", WEIGHTS),
    "kl": Variant("table2", "customize", "kl", ("alpha", "addon")),
    "greedy": Variant("table2", "customize", "greedy", ("alpha", "addon")),
    "full": Variant("table2", "train", "full", ("alpha", "addon")),
    "no_entropy": Variant("table1", "train", "no_entropy"),
    "end_entropy": Variant("table1", "train", "end_entropy", ("end_alpha",)),
    "repeat_entropy": Variant("table1", "train", "repeat_entropy", ("alpha",)),
    "soft_state_std": Variant("table5", "train", "soft", ("alpha",), "--family state_gaussian"),
}
# Variants that the paper does not have; they run only if named. `recommended`: from the shipped prior, with our
# settings, and for `by_default` with our weights, too. `sensitivity`: other weights. `joints`: each joint as the "hind
# leg", because the paper does not name it; its prior has an angle of 0.54 there.
EXTRA_VARIANTS = {
    "shipped": Variant("recommended", "evaluate", shipped=True, tasks=tuple(TASKS)),
    "ours": Variant("recommended", "customize", "residual", WEIGHTS, shipped=True, tasks=tuple(TASKS)),
    "ours_budget": Variant(
        "recommended", "customize", "residual", ("addon",), "--omega auto --kl-budget 2", True, tasks=tuple(TASKS)
    ),
    "by_default": Variant("recommended", "customize", "residual", ("addon",), shipped=True, tasks=tuple(TASKS)),
    **{
        f"omega_x{factor:g}": Variant("sensitivity", "customize", "residual", WEIGHTS, factors=(factor, 1.0))
        for factor in (0.3, 3.0, 10.0)
    },
    **{
        f"alpha_x{factor:g}": Variant("sensitivity", "customize", "residual", WEIGHTS, factors=(1.0, factor))
        for factor in (0.3, 3.0)
    },
    **{
        f"joint_{name}": Variant("joints", "evaluate", addon=f"hind_leg(joint={name})", tasks=("halfcheetah",))
        for name in CHEETAH_JOINTS
    },
}
ALL_VARIANTS = VARIANTS | EXTRA_VARIANTS


@dataclass(frozen=True)
class PlannedRun:
    """One policy to train or, for `prior`, to evaluate."""

    task: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.task}/{self.variant}/{self.seed}"

    @property
    def needs_prior(self) -> bool:
        variant = ALL_VARIANTS[self.variant]
        return variant.command != "train" and not variant.shipped

    def run(self, prior: Path) -> Run:
        """Return the run with its command; `prior` is the file of the task's prior, which need not exist yet."""
        task, variant = (TASKS | OWN_TASKS)[self.task], ALL_VARIANTS[self.variant]
        start, addon = self.task if variant.shipped else str(prior), variant.addon or task.addon
        if variant.command == "evaluate":  # on other episodes than those by which the prior was chosen
            seed = EVALUATION_SEED + EPISODES * (1 + self.seed)
            return Run(self.key, (), task.env, addon, policy=start, evaluation_seed=seed)
        arguments = ["train", task.env]
        if variant.command == "customize":
            arguments = ["customize", start, "--env", task.env, "--no-report"]
            if not variant.shipped:
                arguments = add_paper_options(arguments, task.env)
        arguments += ["--objective", variant.objective, *variant.more.split()]
        factors = dict(zip(("omega", "alpha"), variant.factors, strict=True))
        for name in variant.coefficients:
            value, factor = getattr(task, name), factors.get(name, 1.0)
            arguments += [f"--{name.removeprefix('end_')}", value if factor == 1.0 else f"{float(value) * factor:.6g}"]
        arguments += [] if variant.shipped else ["--steps", STEPS]
        return Run(self.key, (*arguments, "--ranks", "1", "--seed", str(self.seed)), task.env, task.addon)


def add_paper_options(arguments: list[str], env: str) -> list[str]:
    """Add the options that customize with the settings of training, and train only the critic for the first 5 %."""
    training, fixed = train_defaults(env), fixed_settings(env)
    arguments = [*arguments, "--gamma", f"{training.gamma:g}", "--critic-warmup", "0.05"]
    if training.gae_lambda != Settings().gae_lambda:
        arguments += ["--gae-lambda", f"{training.gae_lambda:g}"]
    for name in PINNED_SETTINGS:
        option = command_option(name, getattr(fixed, name))
        arguments += option if option[0] not in arguments else []
    return arguments


def fixed_settings(env: str) -> Settings:
    """Return an environment's training settings for customizing for a million steps.

    HalfCheetah gets a short horizon. Its episodes never end early, so with a long horizon it would pay to fall once and
    to spare the leg from then on.
    """
    gamma = 0.9 if env.startswith("HalfCheetah") else 0.99
    return replace(train_defaults(env), steps=1_000_000, critic_warmup=0.05, gamma=gamma)


def plan_runs(only: tuple[str, ...] = (), seeds: int = SEEDS) -> list[PlannedRun]:
    """Return all runs in the order of work.

    Environments follow each other, fast ones first, so that whole tables are done early. In each, all seeds of `soft`
    come first, because one of them becomes the prior; then one seed of all variants after the other.
    """
    if seeds < 1:
        raise UsageError(f"seeds is {seeds}; it must be 1 or more")
    tables = dict.fromkeys(variant.table for variant in ALL_VARIANTS.values())
    names = [*tables, *TASKS, *OWN_TASKS, *ALL_VARIANTS]
    for word in only:
        if word not in names:
            message = f"there is no table, environment or variant {word!r}{suggest(word, names)}; choose from "
            raise UsageError(message + ", ".join(names))
    tasks = [task for task in TASKS | OWN_TASKS if task in only] or list(TASKS)
    variants = [name for name, each in ALL_VARIANTS.items() if {name, each.table} & set(only)] or list(VARIANTS)
    plans = []
    for task in tasks:
        chosen = [name for name in variants if not ALL_VARIANTS[name].tasks or task in ALL_VARIANTS[name].tasks]
        if {"soft", "soft_state_std"} & set(chosen) or any(PlannedRun(task, name, 0).needs_prior for name in chosen):
            plans += [PlannedRun(task, "soft", seed) for seed in range(seeds)]
        plans += [PlannedRun(task, name, seed) for seed in range(seeds) for name in chosen if name != "soft"]
    if not plans:
        raise UsageError(f"{' '.join(only)} names no run: {' and '.join(variants)} are of other environments")
    return plans
