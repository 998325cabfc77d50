"""The critic of a host, trained on normalized returns."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from repolicy.learning.ppo import ReturnScale
from repolicy.policies import Mlp

INITIAL_COUNT = 1e-6  # weight of the initial return statistics; tiny, so that the first returns set the scale


class NormalizedCritic:
    """A host's critic that is trained on normalized returns (PopArt) and acts in plain rewards.

    Hosts compute gradients when they train and none when they act. So a forward hook knows which outputs are wanted.
    """

    def __init__(self, module: nn.Module, output_layer: nn.Linear | Mlp, scale: ReturnScale) -> None:
        self.output_layer, self.scale = output_layer, scale
        layer = output_layer
        last = [layer.weights[-1], layer.biases[-1]] if isinstance(layer, Mlp) else [*layer.parameters()]
        for parameter in last:
            nn.init.zeros_(parameter)  # random outputs may be far larger than the rewards
        # Checkpoints hold these parameters in rewards, so that others can load them. A critic with dials (an `Mlp`)
        # is of no use to others, so it is saved as it is.
        self.parameters: list[Tensor] = [] if isinstance(output_layer, Mlp) else last
        self.move_scale()
        module.register_forward_hook(self._in_wanted_unit)  # a method, so that a copy of the critic has its own scale

    def _in_wanted_unit(self, module: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
        return outputs if torch.is_grad_enabled() else outputs * self.std + self.mean

    def move_scale(self) -> None:
        """Copy the scale to the critic's device, once an iteration rather than at each step."""
        parameter = next(self.output_layer.parameters())
        self.mean, self.std = self.scale.mean.to(parameter), self.scale.std.to(parameter)

    @torch.no_grad()
    def rescale(self, factor: Tensor, offset: Tensor) -> None:
        """Change the outputs to factor · outputs + offset."""
        self.move_scale()
        factor, offset = factor.to(self.mean), offset.to(self.mean)
        if isinstance(self.output_layer, Mlp):
            self.output_layer.rescale(factor, offset)
            return
        self.output_layer.weight.mul_(factor.unsqueeze(-1))
        self.output_layer.bias.mul_(factor).add_(offset)

    def state(self) -> dict[str, Any]:
        """Return the scale and the normalized output layer in plain numbers."""
        return {
            "returns": self.scale.statistics.flatten().tolist(),
            "critic": [parameter.tolist() for parameter in self.parameters],
        }

    @contextmanager
    def in_rewards(self) -> Iterator[None]:
        """Let the output layer predict plain rewards inside the `with` block."""
        normalized = [parameter.detach().clone() for parameter in self.parameters]
        self._set_parameters(self._in_reward_units(normalized))
        try:
            yield
        finally:
            self._set_parameters(normalized)

    def resume(self, state: Mapping[str, Any] | None) -> None:
        """Restore the scale from a `state`, after the host has loaded its critic.

        Without a state, or where the output layer was trained elsewhere since, the outputs are plain rewards.
        """
        if state is not None:
            self._set_statistics(state["returns"])
            normalized = [torch.tensor(numbers).to(self.mean) for numbers in state["critic"]]
            if all(map(torch.allclose, self._in_reward_units(normalized), self.parameters)):
                self._set_parameters(normalized)
                return
        self._set_statistics([INITIAL_COUNT, 0.0, 1.0])

    def _set_statistics(self, statistics: Sequence[float]) -> None:
        self.scale.statistics = torch.tensor(statistics, dtype=torch.float64).reshape(3, -1)
        self.move_scale()

    def _in_reward_units(self, normalized: Sequence[Tensor]) -> list[Tensor]:
        """Convert weights and biases of normalized outputs to those of outputs in rewards."""
        return [
            part * self.std.unsqueeze(-1) if part.dim() == 2 else part * self.std + self.mean for part in normalized
        ]

    @torch.no_grad()
    def _set_parameters(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)
