"""The `Step` contract: what a batch of environments answers.

`step.observations` is always what to act on next: an environment whose episode ended has been reset already. What the
episode ended *in* is in `step.final`. There is no step whose action is ignored.
"""

from typing import Literal, NamedTuple, Protocol

import numpy as np

from repolicy.errors import NumericError
from repolicy.policies.actions import ActionSpace

Backend = Literal["auto", "envpool", "gymnasium"]


Info = dict[str, np.ndarray]


class Step(NamedTuple):
    """What N environments answer to N actions."""

    observations: np.ndarray  # [N, O] float32: to act on next; the critic's own numbers, where there are any, follow
    rewards: np.ndarray  # [N] float64: the basic reward
    terminated: np.ndarray  # [N] bool: the task ended the episode; nothing follows
    truncated: np.ndarray  # [N] bool: a time limit cut the episode; its value goes on
    final: np.ndarray  # [N, O] float32: true next observations, also where an episode ended
    info: Info  # numeric entries of shape [N], as they were at the end of the step


def check_last(final: np.ndarray, ended: np.ndarray, name: str) -> None:
    """Raise where an episode ended in what is no number. (What is acted on next is looked at by who collects.)"""
    wrong = ended & ~np.isfinite(final).all(-1)
    if wrong.any():
        n = np.flatnonzero(wrong)[0]
        raise NumericError(f"environment {n} of {name!r} ended an episode in an observation that is not finite")


class HasSpaces(Protocol):
    """What can be seen and done in an environment."""

    @property
    def name(self) -> str: ...
    @property
    def observation_size(self) -> int:
        """How many numbers the policy sees."""

    @property
    def actions(self) -> ActionSpace: ...
    @property
    def groups(self) -> dict[str, int]:
        """Of an observation that is a Dict, how many numbers each part has."""


class Envs(HasSpaces, Protocol):
    """N environments of one kind, stepped together."""

    backend: str
    count: int

    @property
    def limit(self) -> int | None:
        """The number of steps after which an episode is cut, where the environment tells it."""

    def reset(self) -> np.ndarray: ...
    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        """Reset the environments where `which` `[N]` is true; the observations, with theirs in place."""

    def step(self, actions: np.ndarray) -> Step: ...
    def close(self) -> None: ...
