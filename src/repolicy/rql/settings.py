"""How to train. (Without torch, so that `--help` is quick.)"""

from dataclasses import dataclass, replace
from typing import ClassVar

from repolicy.engine.settings import AnySettings


@dataclass(frozen=True)
class Settings(AnySettings):
    """How to train, for both algorithms."""

    steps: int = 100_000
    """Environment steps."""
    seed: int = 0
    """Seed of everything."""
    segment: int = 25_000
    """Steps between two checkpoints; each segment starts its environment anew."""
    gamma: float = 0.99
    """Discount."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    minibatch: int = 256
    """Transitions in one gradient step."""
    buffer: int = 100_000
    """Transitions that are remembered."""
    warmup: int = 1_000
    """Steps before the first gradient step."""
    train_every: int = 1
    """Environment steps between two rounds of gradient steps."""
    gradient_steps: int = 1
    """Gradient steps in a round."""
    tau: float = 0.01
    """How far the target networks follow in a gradient step."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers."""
    noise: float = 0.0
    """Std of noise that is added to continuous actions while training, correlated in time (Ornstein–Uhlenbeck)."""

    RANGES: ClassVar[list[tuple[str, float, float]]] = [
        ("steps", 1, 1e12),
        ("seed", 0, 2**31 - 1),
        ("segment", 1, 1e12),
        ("gamma", 0, 1),
        ("learning_rate", 0, 10),
        ("minibatch", 1, 1e6),
        ("buffer", 1, 1e8),
        ("warmup", 0, 1e12),
        ("train_every", 1, 1e6),
        ("gradient_steps", 1, 1e6),
        ("tau", 1e-9, 1),
        ("noise", 0, 10),
    ]


@dataclass(frozen=True)
class Task:
    """One of the four tasks: its environment, the temperature of its priors, how to train, how to customize."""

    env: str
    alpha: float
    training: Settings
    customizing: Settings


CARTPOLE = Settings(steps=25_000, learning_rate=1e-3, minibatch=128, train_every=8, gradient_steps=4)
MOUNTAIN_CAR = Settings(steps=16_000, learning_rate=1e-3, noise=0.5, train_every=16, gradient_steps=4)
# The simulators of these are slow. Their steps are what an afternoon affords for all methods and
# seeds, not what the tasks deserve.
HIGHWAY = Settings(steps=5_000, gamma=0.8, learning_rate=5e-4, warmup=200)
PARKING = Settings(steps=10_000, gamma=0.95, learning_rate=1e-3, hidden=(256, 256))

TASKS = {
    "cartpole": Task("repolicy.rql.tasks:CartPole", 0.5, CARTPOLE, CARTPOLE),
    "mountain_car": Task(  # a prior knows where to look: less noise
        "repolicy.rql.tasks:MountainCar", 0.05, MOUNTAIN_CAR, replace(MOUNTAIN_CAR, noise=0.3, gradient_steps=8)
    ),
    "highway": Task("repolicy.rql.tasks:Highway", 1.0, HIGHWAY, replace(HIGHWAY, steps=2_000)),
    "parking": Task("repolicy.rql.tasks:Parking", 0.01, PARKING, PARKING),
}


def train_defaults(env: str) -> Settings:
    """How to train on a task, named by itself or by its environment; on any other environment, `Settings()`."""
    return next((task.training for name, task in TASKS.items() if env in (name, task.env)), Settings())


def customize_defaults(env: str) -> Settings:
    """How to customize a policy of that environment."""
    return next((task.customizing for name, task in TASKS.items() if env in (name, task.env)), Settings())
