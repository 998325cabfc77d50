"""A small policy of ours that has moved from where it began, and two in files that run as they are, for either host."""

import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from shaken import shaken
from torch import Tensor, nn

from repolicy import Policy
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import PolicySpec


def small_policy(
    observations: int = 3, actions: int = 2, hidden: tuple[int, ...] = (8, 8), family: str = "gaussian"
) -> Policy:
    if family == "categorical":
        space = ActionSpace("discrete", (3,))
    else:
        space = ActionSpace("continuous", (actions,), (-1.0,) * actions, (1.0,) * actions)
    policy = shaken(Policy(PolicySpec(observations, space, family, hidden, initial_std=0.5)), by=0.1)
    numbers = {
        "mean": torch.full((observations,), 0.3),
        "var": torch.full((observations,), 2.0),
        "count": torch.tensor(9.0),
    }
    policy.normalizer.load_state_dict({name: tensor.double() for name, tensor in numbers.items()})
    return policy


def same(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    """Whether both have the same tensors, to the bit."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Far:
    """A density to which all states are 4 nats away."""

    usual_end = torch.zeros(())

    def normalized(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def familiarity(self, states: torch.Tensor) -> torch.Tensor:
        return torch.full(states.shape[:-1], -4.0)


def sine(path: Path, scale: float = 1.0, observations: int = 3) -> Path:
    """TorchScript that cannot be copied: two actions, sin(scale · the first two observations)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(lambda seen: torch.sin(scale * seen[:, :2]), torch.zeros(2, observations)).save(str(path))
    return path


class Sums(nn.Module):
    """Two actions: the sine of the first two observations, summed over the episode's steps so far."""

    sum: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(1, 2))

    def forward(self, seen: Tensor) -> Tensor:
        self.sum = self.sum + seen[:, :2]
        return torch.sin(self.sum)


def remembering(path: Path) -> Path:
    """TorchScript with a memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Sums()).save(str(path))
    return path
