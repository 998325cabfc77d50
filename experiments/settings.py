"""The settings that the paper's runs and those beside other trainers share, whatever is usual by then."""

from dataclasses import replace

from repolicy.prepare.defaults import train_defaults
from repolicy.runs.request import option
from repolicy.runs.settings import Settings

PINNED = ("envs", "n_steps", "checkpoint_every", "epochs", "minibatch", "learning_rate", "schedule", "target_kl",
          "gamma", "critic_warmup", "critic_explains", "hidden", "initial_std")  # fmt: skip


def settings_of(env: str) -> Settings:
    """Return the environment's own for training, but for the gamma of HalfCheetah.

    It never ends an episode, so that with a long horizon it pays to fall once and to spare the leg for ever after.
    """
    gamma = 0.9 if env.startswith("HalfCheetah") else 0.99
    return replace(train_defaults(env), steps=1_000_000, critic_warmup=0.05, gamma=gamma)


def pinned(words: list[str], env: str) -> list[str]:
    """Return the words of a customizing run, with those settings where it names no other."""
    settings = settings_of(env)
    options = {name: option(name, getattr(settings, name)) for name in PINNED}
    return words + [word for found in options.values() if found[0] not in words for word in found]
