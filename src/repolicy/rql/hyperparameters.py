"""Training settings, and the defaults for the four tasks. (It does not import torch, so that `--help` is quick.)"""

from dataclasses import dataclass, replace
from typing import Annotated

from repolicy.runs import AnySettings, Within


@dataclass(frozen=True)
class Settings(AnySettings):
    """Training settings of both algorithms."""

    steps: Annotated[int, Within(1, 1e12)] = 100_000
    """Environment steps."""
    seed: Annotated[int, Within(0, 2**31 - 1)] = 0
    """Seed of everything."""
    checkpoint_every: Annotated[int, Within(1, 1e12)] = 25_000
    """Steps between two checkpoints; each segment starts its environment anew, and does not learn from a round that it
    cuts off."""
    gamma: Annotated[float, Within(0, 1)] = 0.99
    """Discount."""
    learning_rate: Annotated[float, Within(0, 10)] = 3e-4
    """Adam's step size."""
    minibatch: Annotated[int, Within(1, 1e6)] = 256
    """Transitions in one gradient step."""
    buffer: Annotated[int, Within(1, 1e8)] = 100_000
    """Transitions that are remembered."""
    warmup: Annotated[int, Within(0, 1e12)] = 1_000
    """Steps before the first gradient step."""
    train_every: Annotated[int, Within(1, 1e6)] = 1
    """Environment steps between two rounds of gradient steps."""
    gradient_steps: Annotated[int, Within(1, 1e6)] = 1
    """Gradient steps in a round."""
    tau: Annotated[float, Within(1e-9, 1)] = 0.01
    """How far the target networks follow in a gradient step."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers; while customizing, of the critics or of Q_R (the actor is the prior)."""
    critic_warmup: Annotated[float, Within(0, 0.9)] = 0.0
    """Where actions are numbers: share of the steps in which the critics learn alone, and the actor stays as it was."""
    actor_learning_rate: Annotated[float, Within(0, 10)] = 0.0
    """Where actions are numbers: Adam's first step size for the actor, which falls to 0 at the end. At 0 it is that of
    the critics throughout."""
    noise: Annotated[float, Within(0, 10)] = 0.0
    """Std of noise that is added to continuous actions while training, where 1 is half the range between their bounds.
    It is correlated in time (Ornstein–Uhlenbeck)."""


@dataclass(frozen=True)
class Task:
    """One of the four tasks: its environment, the temperature of its priors, and settings to train and to customize."""

    env: str
    alpha: float
    training: Settings
    customizing: Settings


# A fall costs far more than a step brings, and squared errors of such rewards need large minibatches.
CARTPOLE = Settings(steps=25_000, learning_rate=1e-3, minibatch=512, train_every=8, gradient_steps=4)
# After half of these steps, three of eight priors seldom or never reach the top.
MOUNTAIN_CAR = Settings(steps=32_000, learning_rate=1e-3, noise=0.5, train_every=16, gradient_steps=4)
# With continuous actions, a good prior is easily damaged, so the actor starts late and takes small steps.
CUSTOMIZING = Settings(
    steps=10_000,
    gamma=0.93,
    warmup=256,
    train_every=2,
    tau=0.005,
    hidden=(256, 256),
    critic_warmup=0.2,
    actor_learning_rate=5e-5,
)
# The simulators of these two are slow. The steps are chosen so that all methods run within an afternoon.
HIGHWAY = Settings(steps=20_000, gamma=0.8, learning_rate=5e-4, warmup=200)
PARKING = Settings(steps=10_000, gamma=0.95, learning_rate=1e-3, hidden=(256, 256))

TASKS = {
    "cartpole": Task("repolicy.rql.tasks:CartPole", 0.5, CARTPOLE, CARTPOLE),
    "mountain_car": Task(  # a prior already explores well, so customizing needs less noise
        "repolicy.rql.tasks:MountainCar",
        0.05,
        MOUNTAIN_CAR,
        replace(MOUNTAIN_CAR, steps=16_000, noise=0.3, gradient_steps=8),
    ),
    "highway": Task("repolicy.rql.tasks:Highway", 0.1, HIGHWAY, replace(HIGHWAY, steps=5_000)),
    "parking": Task("repolicy.rql.tasks:Parking", 0.01, PARKING, PARKING),
}


def task_of(env: str) -> Task | None:
    """Return the task with this name or with this environment."""
    return next((task for name, task in TASKS.items() if env in (name, task.env)), None)


def train_defaults(env: str) -> Settings:
    """Return the default settings for training on a task or on another environment."""
    task = task_of(env)
    return Settings() if task is None else task.training


def customize_defaults(env: str, is_discrete: bool = False) -> Settings:
    """Return the default settings for customizing a policy with discrete or continuous actions."""
    task = task_of(env)
    if task is not None:
        return task.customizing
    return Settings() if is_discrete else CUSTOMIZING
