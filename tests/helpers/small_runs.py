"""Runs of a second, and how two of them are compared."""

from pathlib import Path
from typing import Any

import torch
from tiny_envs import tiny
from torch import Tensor

from repolicy.learning.training import train
from repolicy.objective import soft
from repolicy.runs.folder import RunFolder
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings

SMALL = Settings(
    steps=3_072, ranks=1, envs=8, n_steps=16, minibatch=64, checkpoint_every=4, hidden=(16,), evaluation_episodes=2,
    gamma=0.9,
)  # fmt: skip


def weights(folder: Path) -> dict[str, Tensor]:
    latest = RunFolder(folder).latest_checkpoint()
    return latest[0]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def small(out: Path, settings: Settings = SMALL, env: str = "LinearQuadratic", resume: bool = False) -> Result:
    return train(tiny(env), soft(0.1), out, settings, resume=resume)


class Log:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.said: list[str] = []

    def begin(self, request: Any, start: int, total: int) -> None: ...
    def close(self) -> None: ...

    def write(self, metrics: dict[str, float]) -> None:
        self.metrics.append(metrics)

    def say(self, sentence: str) -> None:
        self.said.append(sentence)
