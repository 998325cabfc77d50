"""The table of settings, a row an environment, and what customizing does otherwise."""

from dataclasses import replace
from typing import Any

from repolicy.engine.settings import Settings
from repolicy.loading import without_version

# One row an environment (of any version), used by every objective alike. `experiments/learning.py` measures all but
# Walker2d and Swimmer, whose rows are guesses from their relatives.
TABLE: dict[str, dict[str, Any]] = {
    "HalfCheetah": {
        "steps": 3_000_000,
        "learning_rate": 1e-3,
        "initial_std": 0.35,  # with 1.0 it tumbles, and about half of the seeds learn to crawl
        "envs": 128,
        "minibatch": 2048,
    },
    "Hopper": {"steps": 3_000_000, "learning_rate": 5e-4, "envs": 32, "horizon": 128, "minibatch": 512},
    "Ant": {"steps": 3_000_000, "initial_std": 0.35, "segment": 200},
    "Walker2d": {"steps": 3_000_000, "learning_rate": 5e-4, "envs": 32, "horizon": 128, "minibatch": 512},
    "Swimmer": {"steps": 1_000_000, "gamma": 0.999},
    "CartPole": {"steps": 200_000, "learning_rate": 1e-3, "envs": 16, "horizon": 128, "minibatch": 256, "segment": 20},
    "Pendulum": {
        "steps": 300_000,
        "learning_rate": 1e-3,
        "gamma": 0.95,
        "envs": 16,
        "horizon": 128,
        "minibatch": 256,
        "segment": 20,
    },
}


def train_defaults(env: str) -> Settings:
    """The settings for an environment, by its name without the version; the fallback is `Settings()`."""
    return Settings(**TABLE.get(without_version(env), {}))


# What customizing does otherwise than training. HalfCheetah never ends an episode: with a long horizon it pays to fall
# once and to spare the leg for ever after, where the prior knows of nothing better. log prior is an advantage, which
# has looked ahead already; the short horizon is that of the add-on alone.
CUSTOMIZING: dict[str, dict[str, Any]] = {"HalfCheetah": {"gamma": 0.9}}


def customize_defaults(env: str) -> Settings:
    """The settings for customizing a policy of this environment (the paper's Appendix C.2)."""
    return replace(
        train_defaults(env), steps=1_000_000, critic_warmup=0.05, **CUSTOMIZING.get(without_version(env), {})
    )
