"""Policies: observations to a distribution over actions.

A `Policy` is a network, a distribution family and its own observation normaliser, in one module. The distributions are
in `distributions.py`, the network in `network.py`. A *prior* is anything with `log_prob(observations, actions)`.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.policies.distributions import Categorical, Distribution, Gaussian, SquashedGaussian
from repolicy.policies.network import ACTIVATIONS, Mlp
from repolicy.policies.normalizer import Normaliser
from repolicy.policies.spaces import ActionSpace

Family = Literal["gaussian", "state_gaussian", "squashed", "state_squashed", "categorical"]


class Prior(Protocol):
    """What customising needs to know of the policy that it starts from."""

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """log π(a|s) of raw observations `[..., O]` and stored actions `[..., A]`, without gradient."""


@dataclass(frozen=True)
class PolicySpec:
    """Everything that is needed to build a policy of the same shape."""

    observation_size: int
    actions: ActionSpace
    family: Family = "gaussian"
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    initial_std: float = 1.0
    min_std: float = 1e-3

    def __post_init__(self) -> None:
        if (self.family == "categorical") != (self.actions.kind == "discrete"):
            raise UsageError(f"a {self.family} policy cannot act with {self.actions.kind} actions ({self.actions})")
        if self.squashes and not np.all(np.isfinite(self.actions.low + self.actions.high)):
            raise UsageError("a squashed policy needs bounded actions; this environment's have no bounds")
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"there is no activation {self.activation!r}; choose from {', '.join(ACTIVATIONS)}")
        if not self.hidden or any(size < 1 for size in self.hidden):
            raise UsageError(f"hidden is {self.hidden}; it must be one or more layer sizes, such as 64 64")
        if not 0 <= self.min_std < self.initial_std:
            raise UsageError(f"stds must satisfy 0 <= min_std < initial_std, not {self.min_std} and {self.initial_std}")

    @property
    def squashes(self) -> bool:
        """Whether actions are stored before tanh, and the environment gets them after it."""
        return self.family in ("squashed", "state_squashed")

    @property
    def outputs(self) -> int:
        """How many numbers the network gives for one observation: choices, means, or means and then log-stds."""
        count = sum(self.actions.sizes)
        return 2 * count if self.family in ("state_gaussian", "state_squashed") else count

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "PolicySpec":
        """The spec that `as_dict` wrote, also after its tuples became JSON's lists."""
        space = values["actions"]
        actions = ActionSpace(space["kind"], tuple(space["sizes"]), tuple(space["low"]), tuple(space["high"]))
        return cls(**values | {"actions": actions, "hidden": tuple(values["hidden"])})


class Policy(nn.Module):
    """Observations to a distribution over actions."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        self.normaliser = Normaliser(spec.observation_size)
        self.network = Mlp(spec.observation_size, spec.hidden, spec.outputs, spec.activation, last_gain=0.01)
        if spec.family in ("gaussian", "squashed"):
            self.log_std = nn.Parameter(torch.full((spec.actions.width,), float(np.log(spec.initial_std))))
        self._log_min_std = torch.tensor(float(np.log(max(spec.min_std, 1e-30))))

    def forward(self, observations: Tensor) -> Distribution:
        """The distribution over actions at raw observations `[..., O]`."""
        return self.distribution(self.normaliser(observations))

    def distribution(self, inputs: Tensor) -> Distribution:
        """The distribution at observations that are normalised already."""
        return self.head(self.network(inputs))

    def head(self, outputs: Tensor) -> Distribution:
        """The distribution that the network's outputs `[..., outputs]` stand for."""
        match self.spec.family:
            case "categorical":
                return Categorical(outputs, self.spec.actions.sizes)
            case "gaussian" | "squashed":
                mean, log_std = outputs, self._bounded(self.log_std)
            case _:
                mean, shift = outputs.chunk(2, dim=-1)
                log_std = self._bounded(shift + float(np.log(self.spec.initial_std)))
        return (SquashedGaussian if self.spec.squashes else Gaussian)(mean, log_std)

    @torch.no_grad()
    def actor(
        self, steps: int, count: int, generator: torch.Generator | None = None
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """What acts, up to `steps` times, in `count` environments, with the parameters as they are now.

        It takes observations `[N, O]` to normalised ones and to actions, sampled or, without a generator, the mode. All
        in NumPy, as far as it goes: after the physics has had the caches to itself, a call into torch costs several
        times what it costs in a loop of its own, and acting is nothing but a dozen calls.
        """
        normalise, network = self.normaliser.snapshot(), self.network.snapshot()
        gaussian = self.spec.family in ("gaussian", "squashed")
        if gaussian and generator is not None:
            std = self._bounded(self.log_std).exp()
            noise = iter((torch.randn(steps, count, self.spec.actions.width, generator=generator) * std).numpy())

        def act(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            inputs = normalise(observations)
            outputs = network(inputs)
            if not gaussian:
                distribution = self.head(torch.from_numpy(outputs))
                return inputs, (distribution.mode() if generator is None else distribution.sample(generator)).numpy()
            return inputs, outputs if generator is None else outputs + next(noise)

        return act

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """log π(a|s), without gradient: what makes a policy a prior."""
        return self(observations).log_prob(actions)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Actions as stored and scored `[N, A]`, in the form in which the environment takes them."""
        space = self.spec.actions
        if self.spec.squashes:
            low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
            return np.asarray(low + (np.tanh(actions) + 1.0) * 0.5 * (high - low))
        return actions

    def _bounded(self, log_std: Tensor) -> Tensor:
        """log(std + min_std): bounded below, and with a gradient everywhere."""
        return torch.logaddexp(log_std, self._log_min_std)


def frozen(policy: Policy) -> Policy:
    """A copy of the policy that takes no gradient and changes no more: a prior."""
    copy = Policy(policy.spec)
    copy.load_state_dict(policy.state_dict())
    return copy.requires_grad_(False).eval()
