"""Both hosts by one set of words, for what must hold in each."""

from pathlib import Path
from typing import Any

import pytest
import runners
import sb3_models
import torch
from small import small_policy
from torch import Tensor

from repolicy.hosts.method import Method
from repolicy.hosts.sb3 import ResidualPPO

torch.manual_seed(7)  # whatever was imported before
PRIOR = small_policy(hidden=(16, 16))


class InRslRl:
    def __init__(self, prior: Any = PRIOR, actor: Any = None, **options: Any) -> None:
        self.started = runners.runner(algorithm=runners.residual(prior, **options), actor=actor)

    @property
    def method(self) -> Method:
        return self.started.alg.method

    @property
    def weights(self) -> list[Tensor]:
        return [each.clone() for part in ("actor", "critic") for each in getattr(self.started.alg, part).parameters()]

    def learn(self, iterations: int) -> None:
        self.started.learn(iterations)

    def save(self, folder: Path) -> None:
        self.started.save(str(folder / "model.pt"))

    @classmethod
    def resumed(cls, folder: Path, prior: Any, **options: Any) -> "InRslRl":
        """Another run with these settings, which goes on from what was saved."""
        again = cls(prior, **options)
        again.started.load(str(folder / "model.pt"))
        return again


class InSb3:
    def __init__(self, prior: Any = PRIOR, **options: Any) -> None:
        self.started = sb3_models.residual(prior=prior, **options)

    @property
    def method(self) -> Method:
        return self.started.method

    @property
    def weights(self) -> list[Tensor]:
        return [each.clone() for each in self.started.policy.parameters()]

    def learn(self, iterations: int) -> None:
        self.started.learn(self.started.n_steps * self.started.n_envs * iterations)

    def save(self, folder: Path) -> None:
        self.started.save(folder / "model.zip")

    @classmethod
    def resumed(cls, folder: Path, prior: Any, env: Any = None, **options: Any) -> "InSb3":
        again = object.__new__(cls)
        again.started = ResidualPPO.load(folder / "model.zip", env or sb3_models.envs(), prior=prior, **options)
        return again


hosts = pytest.mark.parametrize("host", [InRslRl, InSb3])
