"""The runs of the paper's Tables 1, 2 and 5, as data, and those that the paper is silent about."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from experiments.one import EPISODES, Run
from repolicy.envs.evaluation import EVALUATION_SEED
from repolicy.envs.registered import CHEETAH_JOINTS
from repolicy.errors import UsageError
from repolicy.prepare.defaults import train_defaults
from repolicy.runs.request import command_option
from repolicy.runs.settings import Settings
from repolicy.text import nearest

STEPS = "5e6"
PINNED_SETTINGS = ("envs", "n_steps", "checkpoint_every", "epochs", "minibatch", "learning_rate", "schedule",
                   "target_kl", "gamma", "critic_warmup", "critic_explains", "hidden", "initial_std")  # fmt: skip


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
# Two of our own, with the coefficients of their relatives; made only where they are named.
OWN_TASKS = {
    "walker2d": Task("Walker2d-v4", "height", "0.001", "0.0005", "0.01"),
    "swimmer": Task("Swimmer-v4", "mppi_joint", "0.0001", "0.001", "0.01"),
}


@dataclass(frozen=True)
class Variant:
    """A column of a table: how its policies are made."""

    table: str
    command: Literal["train", "customize", "evaluate"]
    objective: str = ""
    coefficients: tuple[str, ...] = ()  # options, each with the field of the task that holds its value
    more: str = ""
    shipped: bool = False  # from the prior that ships and with our defaults, instead of the paper's protocol
    factors: tuple[float, float] = (1.0, 1.0)  # on ω′ and α̂
    addon: str = ""  # another than the task's
    tasks: tuple[str, ...] = ()  # those that it is for; none: all


WEIGHTS = ("omega", "alpha", "addon")
# In the order of work within a seed. All variants of an environment share its row of settings; `soft` comes first
# because the others' prior is the best of its seeds.
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
# What the paper is silent about; made only where it is named. `recommended`: from the prior that ships, with our
# settings for customizing, and `by_default` with our weights, too. `sensitivity`: other weights. `joints`: which one is
# the "hind leg", at 0.54 in the paper's prior?
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
    """One policy to be made, or, for `prior`, to be evaluated."""

    task: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.task}/{self.variant}/{self.seed}"

    @property
    def needs_prior(self) -> bool:
        how = ALL_VARIANTS[self.variant]
        return how.command != "train" and not how.shipped

    def run(self, prior: Path) -> Run:
        """Return the run with the words of its command; `prior` is where the task's prior is, or will be."""
        task, how = (TASKS | OWN_TASKS)[self.task], ALL_VARIANTS[self.variant]
        start, addon = self.task if how.shipped else str(prior), how.addon or task.addon
        if how.command == "evaluate":  # on other episodes than those that it was chosen by; each has a seed of its own
            seed = EVALUATION_SEED + EPISODES * (1 + self.seed)
            return Run(self.key, (), task.env, addon, policy=start, evaluation_seed=seed)
        words = ["train", task.env]
        if how.command == "customize":
            words = ["customize", start, "--env", task.env, "--no-report"]
            words = words if how.shipped else paper_options(words, task.env)
        words += ["--objective", how.objective, *how.more.split()]
        factors = dict(zip(("omega", "alpha"), how.factors, strict=True))
        for name in how.coefficients:
            value, factor = getattr(task, name), factors.get(name, 1.0)
            words += [f"--{name.removeprefix('end_')}", value if factor == 1.0 else f"{float(value) * factor:.6g}"]
        words += [] if how.shipped else ["--steps", STEPS]
        return Run(self.key, (*words, "--ranks", "1", "--seed", str(self.seed)), task.env, task.addon)


def paper_options(words: list[str], env: str) -> list[str]:
    """Keep the settings of training, its discount too, and fit the critic alone for the first 5 %."""
    own = train_defaults(env)
    words = [*words, "--gamma", f"{own.gamma:g}", "--critic-warmup", "0.05"]
    words += [] if own.gae_lambda == Settings().gae_lambda else ["--gae-lambda", f"{own.gae_lambda:g}"]
    usual = fixed_settings(env)
    options = {name: command_option(name, getattr(usual, name)) for name in PINNED_SETTINGS}
    return words + [word for found in options.values() if found[0] not in words for word in found]


def fixed_settings(env: str) -> Settings:
    """Return the environment's own settings, whatever is usual by then; those of HalfCheetah have a short horizon.

    It never ends an episode, so that with a long horizon it pays to fall once and to spare the leg for ever after.
    """
    gamma = 0.9 if env.startswith("HalfCheetah") else 0.99
    return replace(train_defaults(env), steps=1_000_000, critic_warmup=0.05, gamma=gamma)


def plan_runs(only: tuple[str, ...] = (), seeds: int = 5) -> list[PlannedRun]:
    """Return all runs, in the order of work.

    An environment at a time, the quick ones first, so that whole tables are done early. In it first all seeds of
    `soft`, because one of them is the prior; then a seed at a time, so that all variants have equally many.
    """
    if seeds < 1:
        raise UsageError(f"seeds is {seeds}; it must be 1 or more")
    names = [*{how.table: None for how in ALL_VARIANTS.values()}, *TASKS, *OWN_TASKS, *ALL_VARIANTS]
    for word in only:
        if word not in names:
            said = f"there is no table, environment or variant {word!r}{nearest(word, names)}; choose from "
            raise UsageError(said + ", ".join(names))
    tasks = [task for task in TASKS | OWN_TASKS if task in only] or list(TASKS)
    asked = [name for name, how in ALL_VARIANTS.items() if {name, how.table} & set(only)] or list(VARIANTS)
    found = []
    for task in tasks:
        mine = [name for name in asked if not ALL_VARIANTS[name].tasks or task in ALL_VARIANTS[name].tasks]
        if {"soft", "soft_state_std"} & set(mine) or any(PlannedRun(task, name, 0).needs_prior for name in mine):
            found += [PlannedRun(task, "soft", seed) for seed in range(seeds)]
        found += [PlannedRun(task, name, seed) for seed in range(seeds) for name in mine if name != "soft"]
    if not found:
        raise UsageError(f"{' '.join(only)} names no run: {' and '.join(asked)} are of other environments")
    return found
