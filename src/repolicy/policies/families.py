"""Policy families: how a network's outputs define a distribution over actions. `FAMILIES` lists them by name.

A family has methods for all that differs: the number of outputs, their distribution and its mode, sampling in NumPy,
and the conversion of stored actions to the environment's. So other modules need not know which family a policy has.
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

Draw = Callable[[np.ndarray], np.ndarray]  # samples actions `[N, A]` for the network's outputs `[N, outputs]`


class StdForm(NamedTuple):
    """A function from a raw number, which may have any sign, to a std: for torch, for NumPy, and its inverse."""

    log_std: Callable[[Tensor, Tensor], Tensor]  # from the raw number and log(min_std) to the logarithm of the std
    std: Callable[[np.ndarray, float], np.ndarray]  # from the raw number and min_std to the std
    inverse: Callable[[float], float]  # from the std to the raw number, if min_std is 0
    soft: bool = False  # whether tanh keeps the raw number within its bounds, instead of clipping


STDS = {
    "exp": StdForm(torch.logaddexp, lambda raw, min_std: np.exp(raw) + min_std, math.log),
    "softplus": StdForm(
        lambda raw, log_min_std: torch.log(torch.nn.functional.softplus(raw) + log_min_std.exp()),
        lambda raw, min_std: np.logaddexp(raw, 0.0) + min_std,
        lambda std: math.log(math.expm1(std)),
    ),
    "exp_tanh": StdForm(torch.logaddexp, lambda raw, min_std: np.exp(raw) + min_std, math.log, soft=True),
    "identity": StdForm(
        lambda raw, log_min_std: torch.log(raw.clamp_min(1e-12) + log_min_std.exp()),
        lambda raw, min_std: np.maximum(raw, 1e-12) + min_std,
        lambda std: std,
    ),
    "expln": StdForm(  # Stable-Baselines3's: exp below 0, and only a logarithm above
        lambda raw, log_min_std: torch.where(
            raw <= 0.0,
            torch.logaddexp(raw, log_min_std),
            torch.log(torch.log1p(raw.clamp_min(0.0) + 1e-6) + 1.0 + log_min_std.exp()),
        ),
        lambda raw, min_std: np.where(raw <= 0.0, np.exp(raw), np.log1p(np.maximum(raw, 0.0) + 1e-6) + 1.0) + min_std,
        lambda std: math.log(std) if std <= 1.0 else math.expm1(std - 1.0),
    ),
}


@dataclass(frozen=True)
class Continuous:
    """Gaussians. The first outputs are the means; further outputs determine a std that depends on the state.

    The sources of a std:
        shared: a parameter, the same in all states. A conditioned policy has further outputs, which are added to it.
        head: the further outputs are its raw numbers.
        features: the further outputs are features; their squares times a matrix of variances give its square (gSDE).
    """

    squashes: bool = False  # whether actions are stored before tanh, and the environment gets their tanh
    std_source: Literal["shared", "head", "features"] = "shared"
    kind: ClassVar[Literal["continuous", "discrete"]] = "continuous"

    def raw_std_shape(self, spec: "PolicySpec") -> tuple[int, ...] | None:
        """Return the shape of the std's raw numbers if they are a parameter beside the network, else None."""
        width = spec.actions.width
        return {"shared": (width,), "head": None, "features": (spec.features, width)}[self.std_source]

    def output_size(self, spec: "PolicySpec") -> int:
        """Return the number of outputs that the network needs."""
        width = spec.actions.width
        return {"shared": width, "head": 2 * width, "features": width + spec.features}[self.std_source]

    def distribution(self, outputs: Tensor, spec: "PolicySpec", raw_std: Tensor | None) -> Distribution:
        form, std_outputs = STDS[spec.std], outputs[..., spec.actions.width :]
        if raw_std is None:
            raw = std_outputs + form.inverse(spec.initial_std)
        elif self.std_source == "shared" and std_outputs.shape[-1]:  # a dial changes the shared std
            raw = raw_std + std_outputs
        else:
            raw = raw_std

        # With features, min_std is added to the variance below.
        min_std = 0.0 if self.std_source == "features" else spec.min_std
        log_min_std = raw.new_full((), math.log(max(min_std, 1e-30)))
        log_std = form.log_std(bound_raw_std(raw, spec), log_min_std)
        if self.std_source == "features":
            variance = std_outputs.square() @ (2.0 * log_std).exp()
            log_std = 0.5 * torch.log(variance + spec.min_std**2)

        kind = SquashedGaussian if self.squashes else Gaussian
        return kind(self.mode(outputs, spec), log_std)

    def mode(self, outputs: Tensor, spec: "PolicySpec") -> Tensor:
        mean = outputs[..., : spec.actions.width]
        return mean if spec.mean_clip is None else mean.clip(-spec.mean_clip, spec.mean_clip)

    def sampler(
        self, steps: int, count: int, spec: "PolicySpec", raw_std: Tensor | None, generator: torch.Generator
    ) -> Draw:
        """Return a function that samples actions for `count` observations, up to `steps` times."""
        form, width = STDS[spec.std], spec.actions.width
        drawn = torch.randn(steps, count, width, generator=generator, dtype=torch.float32, device=generator.device)
        noise: Iterator[np.ndarray] = iter(drawn.numpy())
        if raw_std is not None:
            raw = raw_std.detach().cpu().numpy()
            fixed = form.std(bound_raw_std(raw, spec), spec.min_std if self.std_source == "shared" else 0.0)
        shift, clip = np.float32(form.inverse(spec.initial_std)), spec.mean_clip

        def draw(outputs: np.ndarray) -> np.ndarray:
            mean, std_outputs = outputs[:, :width], outputs[:, width:]
            if clip is not None:
                mean = mean.clip(-clip, clip)
            if self.std_source == "features":
                std = np.sqrt(np.square(std_outputs) @ np.square(fixed) + np.float32(spec.min_std**2))
            elif self.std_source == "head":
                std = form.std(bound_raw_std(std_outputs + shift, spec), spec.min_std)
            elif std_outputs.shape[1]:
                std = form.std(bound_raw_std(raw + std_outputs, spec), spec.min_std)
            else:
                std = fixed
            return mean + std * next(noise)

        return draw

    def to_environment(self, actions: Any, low: Any, high: Any) -> Any:
        """Return stored actions (an array or a tensor) in the form that the environment takes."""
        if not self.squashes:
            return actions
        tanh = torch.tanh if isinstance(actions, Tensor) else np.tanh
        return low + (tanh(actions) + 1.0) * 0.5 * (high - low)


def bound_raw_std(raw: Any, spec: "PolicySpec") -> Any:
    """Return the raw numbers of a std (an array or a tensor), limited to the policy's bounds for them."""
    low, high = spec.std_bounds
    if STDS[spec.std].soft:
        tanh = torch.tanh if isinstance(raw, Tensor) else np.tanh
        return low + 0.5 * (high - low) * (tanh(raw) + 1.0)
    return raw if math.isinf(low) and math.isinf(high) else raw.clip(low, high)


@dataclass(frozen=True)
class Discrete:
    """Choices, one per head. The outputs are the logits of all heads; the methods are those of `Continuous`."""

    squashes: ClassVar[bool] = False
    kind: ClassVar[Literal["continuous", "discrete"]] = "discrete"

    def raw_std_shape(self, spec: "PolicySpec") -> tuple[int, ...] | None:
        return None

    def output_size(self, spec: "PolicySpec") -> int:
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
    "state_gaussian": Continuous(std_source="head"),
    "squashed": Continuous(squashes=True),
    "state_squashed": Continuous(squashes=True, std_source="head"),
    "features_gaussian": Continuous(std_source="features"),
    "features_squashed": Continuous(squashes=True, std_source="features"),
    "categorical": Discrete(),
}
