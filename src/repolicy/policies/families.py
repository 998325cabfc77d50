"""Families: what a network's outputs say about actions. A policy's family is a row of `FAMILIES`.

Nobody else asks which family a policy is of. The family knows how many outputs it needs, the distribution and the mode
that outputs stand for, how to draw actions in NumPy, and what the environment gets for an action as it is stored.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

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
    soft: bool = False  # whether the bounds of the number are approached by tanh, or cut


STDS = {
    "exp": StdForm(torch.logaddexp, lambda raw, least: np.exp(raw) + least, math.log),
    "softplus": StdForm(
        lambda raw, log_least: torch.log(torch.nn.functional.softplus(raw) + log_least.exp()),
        lambda raw, least: np.logaddexp(raw, 0.0) + least,
        lambda std: math.log(math.expm1(std)),
    ),
    "exp_tanh": StdForm(torch.logaddexp, lambda raw, least: np.exp(raw) + least, math.log, soft=True),
    "identity": StdForm(
        lambda raw, log_least: torch.log(raw.clamp_min(1e-12) + log_least.exp()),
        lambda raw, least: np.maximum(raw, 1e-12) + least,
        lambda std: std,
    ),
    "expln": StdForm(  # Stable-Baselines3's: exp below 0, and no more than a logarithm above
        lambda raw, log_least: torch.where(
            raw <= 0.0,
            torch.logaddexp(raw, log_least),
            torch.log(torch.log1p(raw.clamp_min(0.0) + 1e-6) + 1.0 + log_least.exp()),
        ),
        lambda raw, least: np.where(raw <= 0.0, np.exp(raw), np.log1p(np.maximum(raw, 0.0) + 1e-6) + 1.0) + least,
        lambda std: math.log(std) if std <= 1.0 else math.expm1(std - 1.0),
    ),
}


@dataclass(frozen=True)
class Continuous:
    """Normal numbers: the outputs are their means and, with a std that depends on the state, what it is made of.

    shared: one std for all states, whose raw numbers take in what outputs there are behind the means (a conditioned
    policy has them); head: its raw numbers are outputs; features: the outputs' squares, times a matrix of variances,
    are its square (gSDE).
    """

    squashes: bool = False  # whether actions are stored before tanh, and the environment gets them after it
    std: Literal["shared", "head", "features"] = "shared"
    kind: ClassVar[Literal["continuous", "discrete"]] = "continuous"

    def raw_std(self, spec: "PolicySpec") -> tuple[int, ...] | None:
        """Return the shape of a std's numbers where they are parameters beside the network, else None."""
        width = spec.actions.width
        return {"shared": (width,), "head": None, "features": (spec.features, width)}[self.std]

    def outputs(self, spec: "PolicySpec") -> int:
        """Return how many numbers the network gives for one observation."""
        width = spec.actions.width
        return {"shared": width, "head": 2 * width, "features": width + spec.features}[self.std]

    def distribution(self, outputs: Tensor, spec: "PolicySpec", raw_std: Tensor | None) -> Distribution:
        form, rest = STDS[spec.std], outputs[..., spec.actions.width :]
        if raw_std is None:  # the std is made of outputs
            raw = rest + form.inverse(spec.initial_std)
        elif self.std == "shared" and rest.shape[-1]:  # a dial moves the one std
            raw = raw_std + rest
        else:
            raw = raw_std

        min_std = 0.0 if self.std == "features" else spec.min_std  # of features it is added to the whole variance
        log_min_std = raw.new_full((), math.log(max(min_std, 1e-30)))
        log_std = form.log_std(bound_raw_std(raw, spec), log_min_std)
        if self.std == "features":
            variance = rest.square() @ (2.0 * log_std).exp()
            log_std = 0.5 * torch.log(variance + spec.min_std**2)

        kind = SquashedGaussian if self.squashes else Gaussian
        return kind(self.mode(outputs, spec), log_std)

    def mode(self, outputs: Tensor, spec: "PolicySpec") -> Tensor:
        mean = outputs[..., : spec.actions.width]
        return mean if spec.mean_clip is None else mean.clip(-spec.mean_clip, spec.mean_clip)

    def sampler(
        self, steps: int, count: int, spec: "PolicySpec", raw_std: Tensor | None, generator: torch.Generator
    ) -> Draw:
        """Return what draws actions, up to `steps` times for `count` observations."""
        form, width = STDS[spec.std], spec.actions.width
        noise: Iterator[np.ndarray] = iter(torch.randn(steps, count, width, generator=generator).numpy())
        if raw_std is not None:
            start = raw_std.detach().cpu().numpy()
            fixed = form.std(bound_raw_std(start, spec), spec.min_std if self.std == "shared" else 0.0)
        shift, clip = np.float32(form.inverse(spec.initial_std)), spec.mean_clip

        def draw(outputs: np.ndarray) -> np.ndarray:
            mean, rest = outputs[:, :width], outputs[:, width:]
            if clip is not None:
                mean = mean.clip(-clip, clip)
            if self.std == "shared":
                std = form.std(bound_raw_std(start + rest, spec), spec.min_std) if rest.shape[1] else fixed
            elif self.std == "head":
                std = form.std(bound_raw_std(rest + shift, spec), spec.min_std)
            else:
                std = np.sqrt(np.square(rest) @ np.square(fixed) + np.float32(spec.min_std**2))
            return mean + std * next(noise)

        return draw

    def to_environment(self, actions: Any, low: Any, high: Any) -> Any:
        """Return stored actions, arrays or tensors alike, as the environment takes them."""
        if not self.squashes:
            return actions
        tanh = torch.tanh if isinstance(actions, Tensor) else np.tanh
        return low + (tanh(actions) + 1.0) * 0.5 * (high - low)


def bound_raw_std(raw: Any, spec: "PolicySpec") -> Any:
    """Return the numbers that a std is made of, arrays or tensors alike, within the policy's bounds for them."""
    low, high = spec.std_bounds
    if STDS[spec.std].soft:
        return low + 0.5 * (high - low) * ((torch.tanh if isinstance(raw, Tensor) else np.tanh)(raw) + 1.0)
    return raw if math.isinf(low) and math.isinf(high) else raw.clip(low, high)


@dataclass(frozen=True)
class Discrete:
    """One choice for each head: the outputs are the heads' logits, side by side. Its methods are those above."""

    squashes: ClassVar[bool] = False
    kind: ClassVar[Literal["continuous", "discrete"]] = "discrete"

    def raw_std(self, spec: "PolicySpec") -> tuple[int, ...] | None:
        return None

    def outputs(self, spec: "PolicySpec") -> int:
        return sum(spec.actions.sizes)

    def distribution(self, outputs: Tensor, spec: "PolicySpec", raw_std: Tensor | None) -> Distribution:
        return Categorical(outputs, spec.actions.sizes)

    def mode(self, outputs: Tensor, spec: "PolicySpec") -> Tensor:
        return torch.stack([head.argmax(-1) for head in outputs.split(list(spec.actions.sizes), dim=-1)], dim=-1)

    def sampler(
        self, steps: int, count: int, spec: "PolicySpec", raw_std: Tensor | None, generator: torch.Generator
    ) -> Draw:
        return lambda outputs: Categorical(torch.from_numpy(outputs), spec.actions.sizes).sample(generator).numpy()

    def to_environment(self, actions: Any, low: Any, high: Any) -> Any:
        return actions


FAMILIES: dict[str, Continuous | Discrete] = {
    "gaussian": Continuous(),
    "state_gaussian": Continuous(std="head"),
    "squashed": Continuous(squashes=True),
    "state_squashed": Continuous(squashes=True, std="head"),
    "features_gaussian": Continuous(std="features"),
    "features_squashed": Continuous(squashes=True, std="features"),
    "categorical": Discrete(),
}
