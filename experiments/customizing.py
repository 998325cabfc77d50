"""Customize the priors that ship, with the paper's coefficients and with our own: a line of the ledger a run.

    python -m experiments.customizing --jobs 2

For every task: the prior as it is, then residual, KL and greedy from it, and the Full policy, trained from nothing with
the basic reward in sight. (`python -m experiments.paper` has the paper's own protocol, from a prior of its Table 1.)
"""

from dataclasses import dataclass, replace

from experiments import campaign
from experiments.one import Run
from repolicy.engine.defaults import train_defaults
from repolicy.engine.request import option
from repolicy.engine.settings import Settings

METHODS = ("residual", "kl", "greedy", "full")


@dataclass(frozen=True)
class Task:
    """A row of the paper's Tables 3 and 4, or one of our own."""

    prior: str
    env: str
    addon: str
    alpha: str
    omega: str
    methods: tuple[str, ...] = METHODS
    more: str = "--steps 5e6"


LEG = ("halfcheetah", "HalfCheetah-v4", "hind_leg=10", "0.13472")  # a wish that weighs
ONE = ("residual",)
TASKS = {
    "halfcheetah": Task("halfcheetah", "HalfCheetah-v4", "hind_leg", "0.13472", "0.17"),
    # with the paper's ω′, with more of it, and with a budget instead
    "halfcheetah_10": Task(*LEG, "0.17", ONE),
    "halfcheetah_10_0.3": Task(*LEG, "0.3", ONE),
    "halfcheetah_10_0.6": Task(*LEG, "0.6", ONE),
    "halfcheetah_10_budget": Task(*LEG, "auto --kl-budget 2", ONE),
    "hopper": Task("hopper", "Hopper-v4", "height", "0.001", "0.01"),
    "hopper_0.3": Task("hopper", "Hopper-v4", "height", "0.001", "0.3", ONE),
    "hopper_3": Task("hopper", "Hopper-v4", "height", "0.001", "3", ONE),  # the best of the sweep
    "ant": Task("ant", "Ant-v4", "sideways", "0.0001", "0.01"),
}
# How far to look ahead: HalfCheetah with a wish that weighs, at several discounts.
GAMMAS = ("0.99", "0.9", "0.6")
HORIZONS = {
    f"halfcheetah_10_gamma_{gamma}": Task(*LEG, "0.17", ONE, f"--steps 2.5e6 --gamma {gamma}") for gamma in GAMMAS
}


def settings_of(env: str) -> Settings:
    """Those that these figures were made with: the environment's own for training, but for the horizon of HalfCheetah,
    which never ends an episode, so that with a long one it pays to fall once and to spare the leg for ever after."""
    gamma = 0.9 if env.startswith("HalfCheetah") else 0.99
    return replace(train_defaults(env), steps=1_000_000, critic_warmup=0.05, gamma=gamma)


PINNED = ("envs", "horizon", "segment", "epochs", "minibatch", "learning_rate", "schedule", "target_kl", "gamma",
          "critic_warmup", "critic_explains", "hidden", "initial_std")  # fmt: skip


def pinned(words: list[str], env: str) -> list[str]:
    """The words of a customizing run with the settings that these figures were made with, whatever is usual by then."""
    settings = settings_of(env)
    options = {name: option(name, getattr(settings, name)) for name in PINNED}
    return words + [word for found in options.values() if found[0] not in words for word in found]


def run(name: str, method: str, seed: int) -> Run:
    task, key = {**TASKS, **HORIZONS}[name], f"{name}/{method}/{seed}"
    if method == "prior":
        return Run(key, (), task.env, task.addon, policy=task.prior)
    common = ["--addon", task.addon, "--alpha", task.alpha, *task.more.split(), "--ranks", "1", "--seed", str(seed)]
    if method == "full":
        return Run(key, ("train", task.env, "--objective", "full", *common), task.env, task.addon)
    omega = ["--omega", *task.omega.split()] if method == "residual" else []
    words = ["customize", task.prior, "--env", task.env, "--objective", method, *omega, *common, "--no-report"]
    return Run(key, tuple(pinned(words, task.env)), task.env, task.addon)


def runs(seeds: int, tasks: list[str], methods: list[str]) -> list[Run]:
    priors = {(task.prior, task.addon): name for name, task in reversed(TASKS.items())}.values()
    found = [run(name, "prior", 0) for name in tasks if name in priors]
    for seed in range(seeds):
        for name in tasks:
            found += [run(name, method, seed) for method in TASKS[name].methods if method in methods]
    return found + [run(name, "residual", 0) for name in HORIZONS]


def main() -> None:
    parser = campaign.parser("customizing", __doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options = parser.parse_args()
    campaign.fill(runs(options.seeds, options.tasks, options.methods), options)


if __name__ == "__main__":
    campaign.run_main(main)
