"""Policies: observations to a distribution over actions.

A `Policy` is a network, a family of distributions and its own observation normalizer, in one module. Whatever else acts
(a mixture, a planner, a network of another library) is an `Agent`; a *prior* is anything with
`log_prob(observations, actions)`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.policies.distributions import ActionSpace, Distribution
from repolicy.policies.families import FAMILIES, STDS, Draw
from repolicy.policies.network import ACTIVATIONS, Mlp
from repolicy.policies.normalizer import OBSERVATION_BOUND, Normalizer


class Prior(Protocol):
    """What customizing needs to know of the policy that it starts from."""

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s) of raw observations `[..., O]` and stored actions `[..., A]`, with its gradient for SAC.

        Stored actions are as they were sampled; choices count from 0, wherever the environment begins to count.
        """


def check_has_log_prob(prior: object) -> None:
    """Raise where an object has no `log_prob`."""
    if not callable(getattr(prior, "log_prob", None)):
        need = "it has no log_prob(observations, actions); load_policy reads a policy from its file"
        raise UsageError(f"this {type(prior).__name__} cannot be a prior: {need}")


class Actor(Protocol):
    """An agent at work in N environments for one rollout."""

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return stored actions `[N, A]` for raw observations `[N, O]`."""

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return log π of all the actions that it took, `[T, N]` for `[T, N, A]`, as it was when it took them."""


@runtime_checkable
class RecurrentActor(Protocol):
    """An actor with a memory, which outlives it where a rollout ends and not where an episode does."""

    memory: Any

    def reset_memory(self, ended: np.ndarray) -> None:
        """Note that in these environments `[N]` the next observation begins an episode."""


@runtime_checkable
class EnvAwareAgent(Protocol):
    """An agent that looks into the environments in which it acts, as a planner that copies them.

    backend: whose environments those must be.
    """

    backend: Any

    def watch(self, envs: Any) -> None: ...


class Agent(Prior, Protocol):
    """Whatever acts: collectors, evaluations and films ask for no more than this."""

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> Actor:
        """Return what acts up to `steps` times in `count` environments; without a generator it takes modes."""

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return actions as stored and scored `[N, A]`, in the form in which the environment takes them."""


@dataclass(frozen=True)
class PolicySpec:
    """Everything that is needed to build a policy of the same shape."""

    observation_size: int
    actions: ActionSpace
    family: str = "gaussian"
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    initial_std: float = 1.0
    min_std: float = 1e-3
    std: str = "exp"
    observation_bound: float | None = OBSERVATION_BOUND
    slope: float = 0.01  # of leaky_relu
    norms: tuple[str, ...] = ()  # where each hidden layer's LayerNorm is: "before" or "after" its activation, or ""
    epsilon: float = 1e-5  # of LayerNorm
    std_bounds: tuple[float, float] = (-math.inf, math.inf)  # of the numbers that a std is made of
    mean_clip: float | None = None  # the mean stays within ± this, before any tanh
    clips: bool = False  # whether the environment gets actions cut to their bounds; they are scored as sampled

    @property
    def features(self) -> int:
        """How many numbers the last layer takes."""
        return self.hidden[-1] if self.hidden else self.observation_size

    def __post_init__(self) -> None:
        for what, name, table in (
            ("family", self.family, FAMILIES),
            ("activation", self.activation, ACTIVATIONS),
            ("form of a std", self.std, STDS),
        ):
            if name not in table:
                raise UsageError(f"there is no {what} {name!r}; choose from {', '.join(table)}")
        if FAMILIES[self.family].kind != self.actions.kind:
            raise UsageError(f"a {self.family} policy cannot act with {self.actions.kind} actions ({self.actions})")
        self._check_bounds()
        if any(size < 1 for size in self.hidden):
            raise UsageError(f"hidden is {self.hidden}; it must be layer sizes, such as 64 64")
        if self.norms and (len(self.norms) != len(self.hidden) or not {*self.norms} <= {"", "before", "after"}):
            raise UsageError(f"norms is {self.norms}; for each hidden layer it must say before, after or nothing")
        if not 0 <= self.min_std < self.initial_std:
            raise UsageError(f"stds must satisfy 0 <= min_std < initial_std, not {self.min_std} and {self.initial_std}")

    def _check_bounds(self) -> None:
        """Raise where actions go to bounds that are not there. (A clip may be open on one side.)"""
        low, high, squashes = self.actions.low, self.actions.high, FAMILIES[self.family].squashes
        if squashes and not (low and high and np.all(np.isfinite(low + high))):
            raise UsageError("a squashed policy needs bounded actions; this environment's have no bounds")
        if not (squashes or self.clips):
            return
        if not len(low) == len(high) == self.actions.width or not np.all(np.less_equal(low, high)):
            raise UsageError(
                f"{self.actions} have the bounds {low} and {high}; each needs a lower one and a higher one"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "PolicySpec":
        """Return the spec of `asdict(spec)`, also after its tuples became JSON's lists."""
        space = values["actions"]
        actions = ActionSpace(space["kind"], tuple(space["sizes"]), tuple(space["low"]), tuple(space["high"]))
        lists: dict[str, Any] = {name: tuple(values[name]) for name in ("hidden", "norms", "std_bounds")}
        return cls(**values | {"actions": actions} | lists)


class Policy(nn.Module):
    """Observations to a distribution over actions."""

    log_std: nn.Parameter | None

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec, self.family = spec, FAMILIES[spec.family]
        self.observation_size, self.actions = spec.observation_size, spec.actions
        self.normalizer = Normalizer(spec.observation_size, spec.observation_bound)
        self.network = Mlp(
            spec.observation_size, spec.hidden, self.family.outputs(spec), spec.activation, last_gain=0.01,
            slope=spec.slope, norms=spec.norms, epsilon=spec.epsilon,
        )  # fmt: skip
        self.register_parameter("log_std", None)
        shape = self.family.raw_std(spec)
        if shape is not None:
            self.log_std = nn.Parameter(torch.full(shape, STDS[spec.std].inverse(spec.initial_std)))

    def forward(self, observations: Tensor) -> Distribution:
        """Return the distribution over actions at raw observations `[..., O]`."""
        return self.distribution(self.normalizer(observations))

    def distribution(self, inputs: Tensor) -> Distribution:
        """Return the distribution at observations that are normalized already."""
        return self.head(self.network(inputs))

    def head(self, outputs: Tensor) -> Distribution:
        """Return the distribution that the network's outputs `[..., outputs]` stand for."""
        return self.family.distribution(outputs, self.spec, self.log_std)

    @property
    @torch.no_grad()
    def std(self) -> Tensor | None:
        """The one std of all states, `[A]`, or None where it depends on the state or there is none."""
        if self.log_std is None or self.log_std.dim() > 1:
            return None
        outputs = self.log_std.new_zeros(self.family.outputs(self.spec))
        return self.head(outputs).log_std.exp()  # type: ignore[attr-defined]

    @torch.no_grad()
    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "NetworkActor":
        """Return what acts, with the parameters as they are now; it samples or, without a generator, takes modes."""
        if generator is None:
            return NetworkActor(self, lambda outputs: self.family.mode(torch.from_numpy(outputs), self.spec).numpy())
        return NetworkActor(self, self.family.sampler(steps, count, self.spec, self.log_std, generator))

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s) `[...]` of observations `[..., O]` and stored actions `[..., A]`, without gradient.

        This is what makes a policy a prior. Choices count from 0, wherever the environment begins to count.
        """
        actions = self._fitting(observations, actions)
        return self(observations.float()).log_prob(actions)

    def _fitting(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the actions `[..., A]`. Raises where a shape or a choice is not the policy's."""
        if not (isinstance(observations, Tensor) and isinstance(actions, Tensor)):
            raise UsageError("observations and actions must be tensors: torch.from_numpy makes one of an array")
        if self.actions.kind == "discrete" and actions.dim() < observations.dim():
            actions = actions[..., None]  # one choice a step, written without an axis of its own
        if observations.shape[-1:] != (self.observation_size,):
            takes = f"the policy takes {self.observation_size}"
            raise UsageError(f"observations have the shape {tuple(observations.shape)}; of each step {takes} numbers")
        if actions.shape != (*observations.shape[:-1], self.actions.width):
            shapes = f"actions have the shape {tuple(actions.shape)} and observations {tuple(observations.shape)}"
            raise UsageError(f"{shapes}; of each step the policy takes {self.actions.width} numbers as the action")
        for head, size in enumerate(self.actions.sizes if self.actions.kind == "discrete" else ()):
            if bool((((chosen := actions[..., head]) < 0) | (chosen >= size)).any()):
                own = f"; the environment counts from {self.actions.low[head]:g}" if self.actions.low else ""
                raise UsageError(
                    f"actions go from {chosen.min():g} to {chosen.max():g}; the policy has choices 0 to {size - 1}{own}"
                )
        return actions

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, None]:
        """Return (action, None) of one observation `[O]` or several `[N, O]`, with the words of Stable-Baselines3.

        The action is what the environment takes: the mode where `deterministic`, else a sample. Choices count as the
        environment counts them; `log_prob` counts them from 0.
        """
        if isinstance(observation, Mapping):
            raise UsageError("the policy takes one array: put the Dict's parts one behind the other, in their order")
        observations = np.asarray(observation, np.float32)
        if observations.ndim not in (1, 2) or observations.shape[-1] != self.observation_size:
            takes = f"the policy takes observations of {self.observation_size} numbers, one or a row each"
            raise UsageError(f"{takes}; got an array of shape {observations.shape}")
        rows = np.atleast_2d(observations)
        act = self.actor(1, len(rows), None if deterministic else torch.default_generator)
        sent = self.to_environment(act(rows))
        if self.actions.kind == "discrete":
            sent = sent.astype(np.int64) + np.array(self.actions.low or 0, np.int64)
            sent = sent[:, 0] if self.actions.width == 1 else sent
        return (sent if observations.ndim == 2 else sent[0]), None

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return actions as stored and scored `[N, A]`, in the form in which the environment takes them."""
        space = self.spec.actions
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        if self.spec.clips:
            return actions.clip(low, high)
        return np.asarray(self.family.to_environment(actions, low, high))

    def reinitialized(self) -> Self:
        """Return another policy of this shape."""
        return type(self)(self.spec)


def make_policy(spec: PolicySpec, seed: int) -> Policy:
    """Return a new policy, whose first weights are drawn from this seed; the global random stream stays where it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Policy(spec)


class NetworkActor:
    """A policy's snapshot, in NumPy as far as it goes: network, normalizer, and the noise of a whole rollout.

    After the physics has had the caches to itself, a call into torch costs several times what it costs in a loop of its
    own, and acting is nothing but a dozen calls. What the network said is kept, so that what was done need not be
    computed again to be scored.
    """

    def __init__(self, policy: Policy, draw: Draw) -> None:
        self._normalize, self._network = policy.normalizer.snapshot(), policy.network.snapshot()
        self._policy, self._draw = policy, draw
        self._outputs: list[np.ndarray] = []

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        outputs = self._network(self._normalize(observations))
        self._outputs.append(outputs)
        return self._draw(outputs)

    @torch.no_grad()
    def log_probs(self, actions: Tensor) -> Tensor:
        return self._policy.head(torch.from_numpy(np.stack(self._outputs))).log_prob(actions)


P = TypeVar("P", bound=Policy)


def trainable_copy(policy: P) -> P:
    """Return another policy with the same numbers, whose parameters take gradients."""
    copy = policy.reinitialized()
    copy.load_state_dict(policy.state_dict())
    return copy


def frozen(policy: P) -> P:
    """Return a copy of the policy that takes no gradient and changes no more: a prior."""
    return trainable_copy(policy).requires_grad_(False).eval()
