"""Families: what a network's outputs say about actions. A policy's family is a row of `FAMILIES`.

Nobody else asks which family a policy is of. The family knows how many outputs it needs, the distribution and the mode
that outputs stand for, how to draw actions in NumPy, and what the environment gets for an action as it is stored.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from repolicy.policies.distributions import Categorical, Distribution, Gaussian, SquashedGaussian

if TYPE_CHECKING:
    from repolicy.policies.policy import PolicySpec

Draw = Callable[[np.ndarray], np.ndarray]  # from outputs `[N, outputs]` to actions `[N, A]`


class StdForm(NamedTuple):
    """How a number of any sign becomes a std: as its logarithm in torch, as itself in NumPy, and back again."""

    log_std: Callable[[Tensor, Tensor], Tensor]  # of the number and of log(min_std)
    std: Callable[[np.ndarray, float], np.ndarray]  # of the number and of min_std
    inverse: Callable[[float], float]  # the number that gives this std, when min_std is 0


STDS = {
    "exp": StdForm(torch.logaddexp, lambda raw, least: np.exp(raw) + least, math.log),
    "softplus": StdForm(
        lambda raw, log_least: torch.log(torch.nn.functional.softplus(raw) + log_least.exp()),
        lambda raw, least: np.logaddexp(raw, 0.0) + least,
        lambda std: math.log(math.expm1(std)),
    ),
    "clamped": StdForm(  # as in soft actor-critic
        lambda raw, log_least: torch.logaddexp(raw.clamp(-20.0, 2.0), log_least),
        lambda raw, least: np.exp(np.clip(raw, -20.0, 2.0)) + least,
        math.log,
    ),
}


class Family(Protocol):
    """What a policy asks of its family."""

    kind: ClassVar[Literal["continuous", "discrete"]]

    @property
    def squashes(self) -> bool:
        """Whether actions are stored before tanh, and the environment gets them after it."""

    @property
    def shared_std(self) -> bool:
        """Whether one std serves all states; it is a parameter of the policy beside its network."""

    def outputs(self, sizes: tuple[int, ...]) -> int:
        """How many numbers the network gives for one observation."""

    def distribution(self, outputs: Tensor, spec: "PolicySpec", raw_std: Tensor | None) -> Distribution: ...

    def mode(self, outputs: Tensor, sizes: tuple[int, ...]) -> Tensor: ...

    def sampler(
        self, steps: int, count: int, spec: "PolicySpec", raw_std: Tensor | None, generator: torch.Generator
    ) -> Draw:
        """What draws actions, up to `steps` times for `count` observations."""

    def to_environment(self, actions: Any, low: Any, high: Any) -> Any:
        """Stored actions, arrays or tensors alike, as the environment takes them."""


@dataclass(frozen=True)
class Continuous:
    """Normal numbers: the outputs are their means, and with a std that depends on the state, then its raw numbers."""

    squashes: bool = False
    shared_std: bool = True
    kind: ClassVar[Literal["continuous", "discrete"]] = "continuous"

    def outputs(self, sizes: tuple[int, ...]) -> int:
        return sum(sizes) if self.shared_std else 2 * sum(sizes)

    def distribution(self, outputs: Tensor, spec: "PolicySpec", raw_std: Tensor | None) -> Distribution:
        form = STDS[spec.std]
        if raw_std is None:
            outputs, raw_std = outputs.chunk(2, dim=-1)
            raw_std = raw_std + form.inverse(spec.initial_std)
        least = raw_std.new_tensor(math.log(max(spec.min_std, 1e-30)))
        return (SquashedGaussian if self.squashes else Gaussian)(outputs, form.log_std(raw_std, least))

    def mode(self, outputs: Tensor, sizes: tuple[int, ...]) -> Tensor:
        return outputs if self.shared_std else outputs.chunk(2, dim=-1)[0]

    def sampler(
        self, steps: int, count: int, spec: "PolicySpec", raw_std: Tensor | None, generator: torch.Generator
    ) -> Draw:
        form, width = STDS[spec.std], spec.actions.width
        noise: Iterator[np.ndarray] = iter(torch.randn(steps, count, width, generator=generator).numpy())
        if raw_std is not None:
            std = form.std(raw_std.detach().cpu().numpy(), spec.min_std)
            return lambda outputs: outputs + std * next(noise)
        shift = form.inverse(spec.initial_std)

        def draw(outputs: np.ndarray) -> np.ndarray:
            mean, raw = outputs[:, :width], outputs[:, width:]
            drawn: np.ndarray = mean + form.std(raw + np.float32(shift), spec.min_std) * next(noise)
            return drawn

        return draw

    def to_environment(self, actions: Any, low: Any, high: Any) -> Any:
        if not self.squashes:
            return actions
        tanh = torch.tanh if isinstance(actions, Tensor) else np.tanh
        return low + (tanh(actions) + 1.0) * 0.5 * (high - low)


@dataclass(frozen=True)
class Discrete:
    """One choice for each head: the outputs are the heads' logits, side by side."""

    squashes: bool = False
    shared_std: bool = False
    kind: ClassVar[Literal["continuous", "discrete"]] = "discrete"

    def outputs(self, sizes: tuple[int, ...]) -> int:
        return sum(sizes)

    def distribution(self, outputs: Tensor, spec: "PolicySpec", raw_std: Tensor | None) -> Distribution:
        return Categorical(outputs, spec.actions.sizes)

    def mode(self, outputs: Tensor, sizes: tuple[int, ...]) -> Tensor:
        return torch.stack([head.argmax(-1) for head in outputs.split(list(sizes), dim=-1)], dim=-1)

    def sampler(
        self, steps: int, count: int, spec: "PolicySpec", raw_std: Tensor | None, generator: torch.Generator
    ) -> Draw:
        def draw(outputs: np.ndarray) -> np.ndarray:
            return Categorical(torch.from_numpy(outputs), spec.actions.sizes).sample(generator).numpy()

        return draw

    def to_environment(self, actions: Any, low: Any, high: Any) -> Any:
        return actions


FAMILIES: dict[str, Family] = {
    "gaussian": Continuous(),
    "state_gaussian": Continuous(shared_std=False),
    "squashed": Continuous(squashes=True),
    "state_squashed": Continuous(squashes=True, shared_std=False),
    "categorical": Discrete(),
}
