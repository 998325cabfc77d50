"""Policies that are no perceptron: one has a memory, and one a connection around a layer."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.priors.kinds import State


class Counting:
    """Its mean is how many steps of the episode it has seen, times 0.1."""

    def begin(self, count: int) -> State:
        return {"steps": torch.zeros(count, 1)}

    def step(self, observations: np.ndarray, state: State) -> tuple[Any, State]:
        steps = state["steps"] + 1.0
        return 0.1 * steps, {"steps": steps}


class Around(nn.Module):
    """A connection around a layer."""

    def __init__(self, inputs: int = 5, outputs: int = 3) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(inputs, 7), nn.Linear(7, 7), nn.Linear(7, outputs)

    def forward(self, obs: Tensor) -> Tensor:
        first = torch.tanh(self.first(obs))
        return self.last(first + torch.tanh(self.second(first)))
