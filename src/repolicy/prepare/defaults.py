"""The table of settings, a row an environment, and what customizing does otherwise."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from repolicy.runs import Settings
from repolicy.text import without_version

if TYPE_CHECKING:
    from repolicy.policies import Policy


# One row an environment (of any version), used by every objective alike. `experiments/learning.py` measures them all,
# and for Walker2d and Swimmer other settings, too.
LEGS = {"steps": 3_000_000, "learning_rate": 5e-4, "envs": 32, "n_steps": 128, "minibatch": 512}
SMALL = {"learning_rate": 1e-3, "envs": 16, "n_steps": 128, "minibatch": 256, "checkpoint_every": 20}
TABLE: dict[str, dict[str, Any]] = {
    "HalfCheetah": {
        "steps": 3_000_000,
        "learning_rate": 1e-3,
        "initial_std": 0.35,  # with 1.0 it tumbles, and about half of the seeds learn to crawl
        "envs": 128,
        "minibatch": 2048,
    },
    "Hopper": LEGS,
    "Ant": {"steps": 3_000_000, "initial_std": 0.35, "checkpoint_every": 200},
    "Walker2d": LEGS,
    "Swimmer": {
        "steps": 1_000_000,
        "learning_rate": 6e-4,
        "gamma": 0.9999,  # a stroke pays off late
        "gae_lambda": 0.98,
        "envs": 8,
        "n_steps": 512,
        "minibatch": 256,
    },
    "CartPole": SMALL | {"steps": 200_000},
    "Pendulum": SMALL | {"steps": 300_000, "gamma": 0.95},
}


def train_defaults(env: str) -> Settings:
    """Return the settings for an environment, by its name without the version; the fallback is `Settings()`."""
    return Settings(**TABLE.get(without_version(env), {}))


# Customizing ----------------------------------------------------------------------------------------------------------

DEFAULT_STEPS = 1_000_000
DEFAULT_GAMMA = 0.97  # lower than in training: log prior looks ahead already, so this is for the add-on alone
SAMPLES_PER_ACTION_NUMBER = 128  # in a minibatch for each number of an action, because each number adds noise
STEPS_PER_ENV = 128
ROLLOUT_SIZE = 8192  # samples in an update, at least, where the budget is no limit
MIN_UPDATES = 60  # in a run, at least: with fewer steps each has fewer samples,
MIN_ROLLOUT_SIZE = 256  # but so many
MIN_ENVS = 8
MIN_CHECKPOINT_STEPS = 16 * ROLLOUT_SIZE  # steps between two checkpoints, at least
MIN_EVALUATED_STEPS = 200_000  # steps, below which a run is not evaluated while it trains: that takes 8,000 each time
MAX_CRITIC_WIDTH = 256


def customize_defaults(prior: "str | Path | Policy", steps: int = DEFAULT_STEPS) -> Settings:
    """Return the settings for customizing a policy, the same rules for any, in any environment and with any add-on.

    A good policy is easily broken, and its critic begins with nothing. So the step is steered by how far it moves the
    policy, from a first one that is smaller for wider networks; the batch grows with the numbers of an action; and the
    actor waits for the critic, which has the prior's activation. With few `steps`, updates are smaller so that there
    are enough of them. `prior` is a policy or names one, as for `customize`.
    """
    from repolicy.priors import find_policy, read_policy

    spec = (read_policy(find_policy(prior)).policy if isinstance(prior, str | Path) else prior).spec
    settings = settings_for_shape(max((64, *spec.hidden)), spec.actions.width, steps)
    return replace(settings, activation=cast(Any, spec.activation))


def implied_settings(prior: "str | Path | Policy", steps: int) -> Settings:
    """Return what a command of so many steps need not name: their defaults, and that of `steps` itself."""
    return replace(customize_defaults(prior, steps), steps=DEFAULT_STEPS)


def settings_for_shape(widest: int, numbers: int, steps: int = DEFAULT_STEPS) -> Settings:
    """Return the same by the widest layer of the policy and how many numbers its actions have."""
    nearest = 2 ** round(math.log2(SAMPLES_PER_ACTION_NUMBER * numbers))  # power of two, in ratio
    minibatch = max(256, min(4096, nearest))
    wanted = max(MIN_ROLLOUT_SIZE, 2 ** int(math.log2(max(steps, MIN_UPDATES) / MIN_UPDATES)))
    rollout = min(wanted, max(ROLLOUT_SIZE, 4 * minibatch))
    envs = max(MIN_ENVS, rollout // STEPS_PER_ENV)
    # A smaller batch tells less. So its critic looks less far ahead, and an update moves the policy less; but the KL of
    # an update is a sum over the numbers of an action.
    calm = min(1.0, (rollout / ROLLOUT_SIZE) ** 0.25)
    step = min(1.0, calm * max(1.0, numbers / 3))
    critic = min(MAX_CRITIC_WIDTH, widest)
    return Settings(
        steps=steps,
        envs=envs,
        n_steps=rollout // envs,
        checkpoint_every=max(16, MIN_CHECKPOINT_STEPS // rollout),
        epochs=4,
        minibatch=min(minibatch, rollout // 4),
        evaluation_episodes=8 if steps >= MIN_EVALUATED_STEPS else 0,
        learning_rate=3e-4 * math.sqrt(64 / widest),
        schedule="adaptive",
        desired_kl=0.01 * step,
        target_kl=0.03 * step,
        gamma=1.0 - (1.0 - DEFAULT_GAMMA) / calm,
        critic_warmup=0.05 / calm,
        critic_explains=0.3,
        hidden=(critic, critic),
    )
