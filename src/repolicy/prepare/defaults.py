"""Default settings: for training by environment, and for customizing by the shape of the policy."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from repolicy.runs import Settings
from repolicy.text import strip_version

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
    """Return the settings for training in an environment, by its name without the version; else `Settings()`."""
    return Settings(**TABLE.get(strip_version(env), {}))


# Customizing ----------------------------------------------------------------------------------------------------------

DEFAULT_STEPS = 1_000_000
DEFAULT_GAMMA = 0.97  # lower than in training: log prior contains the long-term value of the old task already
SAMPLES_PER_ACTION_NUMBER = 128  # in a minibatch, because each number of an action adds noise
STEPS_PER_ENV = 128  # in a rollout
ROLLOUT_SIZE = 8192  # samples in a rollout, where the run is long enough for `MIN_UPDATES` of them
MIN_UPDATES = 60  # in a run; with fewer steps, rollouts are smaller, down to `MIN_ROLLOUT_SIZE`
MIN_ROLLOUT_SIZE = 256
MIN_ENVS = 8
MIN_CHECKPOINT_STEPS = 16 * ROLLOUT_SIZE  # steps between two checkpoints
MIN_EVALUATED_STEPS = 200_000  # shorter runs are not evaluated while they train: it takes 8,000 steps each time
MAX_CRITIC_WIDTH = 256


def customize_defaults(prior: "str | Path | Policy", steps: int = DEFAULT_STEPS) -> Settings:
    """Return the settings for customizing a policy. The rules are the same for every environment and add-on.

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
    """Return the settings that a command with `steps` steps need not name."""
    return replace(customize_defaults(prior, steps), steps=DEFAULT_STEPS)


def settings_for_shape(widest: int, numbers: int, steps: int = DEFAULT_STEPS) -> Settings:
    """Return the settings by the policy's widest layer and the number of numbers in its actions."""
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
